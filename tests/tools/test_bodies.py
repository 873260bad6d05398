"""From an agent to what the engine runs."""

from __future__ import annotations

from runward import Agent, ClientTool, Policy, ask_user, tool
from runward.agents.demo import support
from runward.tools.bodies import bodies, waiting
from runward.tools.threads import Threads


@tool(effect="read")
def look(order_id: int) -> str:
    return ""


@tool(effect="non_idempotent_write")
def gated(order_id: int) -> str:
    return ""


@tool(effect="non_idempotent_write", needs_approval=False)
def charge(order_id: int) -> str:
    return ""


@tool(effect="read", enabled=False)
def hidden(order_id: int) -> str:
    return ""


@tool(effect="read", enabled=lambda ctx: ctx.scope.tenant == "acme")
def sometimes(order_id: int) -> str:
    return ""


@tool(effect="read")
def denied(order_id: int) -> str:
    return ""


def test_functions_have_a_body_and_what_waits_has_an_offer() -> None:
    pick = ClientTool(name="pick", description="Pick.", parameters={"type": "object"})
    agent = Agent(
        name="desk",
        model="openai:gpt-5",
        tools=[look, gated, charge, hidden, sometimes, denied, pick, ask_user],
        policy=Policy(deny_tools=["denied"]),
    )
    made = bodies(agent, max_result_bytes=1_000, threads=Threads())
    assert list(made) == ["look", "gated", "charge", "sometimes", "denied"] and made["charge"].traits == charge.traits
    offers = waiting(agent.tools)
    assert list(offers) == ["pick", "ask_user"] and offers["pick"].traits == pick.traits
    assert offers["ask_user"].refusal({"question": "Which?"}) is None
    assert offers["ask_user"].refusal({}) == "The arguments do not fit: `question` is missing."


def test_the_demo_desk_has_its_tools() -> None:
    assert list(bodies(support, max_result_bytes=1_000, threads=Threads())) == ["lookup_order", "refund"]
