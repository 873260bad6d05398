"""From an agent to what the engine runs."""

from __future__ import annotations

from runward import Agent, ClientTool, HttpTool, Policy, ask_user, tool
from runward.agents.demo import support
from runward.tools.bodies import bodies, waiting
from runward.tools.outward import Outward
from runward.tools.threads import Threads
from runward.wiring import outward_of
from tests.engine.rig import Heard


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
    stock = HttpTool(name="stock", description="How many?", url="https://erp.internal/stock", effect="read")
    pick = ClientTool(name="pick", description="Pick.", parameters={"type": "object"})
    agent = Agent(
        name="desk",
        model="openai:gpt-5",
        tools=[look, gated, charge, hidden, sometimes, denied, stock, pick, ask_user],
        policy=Policy(deny_tools=["denied"]),
    )
    made = bodies(agent, max_result_bytes=1_000, threads=Threads(), outward=lambda: outward_of(Heard()))
    assert list(made) == ["look", "gated", "charge", "sometimes", "denied", "stock"]
    assert (made["charge"].traits, made["stock"].traits) == (charge.traits, stock.traits)
    offers = waiting(agent.tools)
    assert list(offers) == ["pick", "ask_user"] and offers["pick"].traits == pick.traits
    assert offers["ask_user"].refusal({"question": "Which?"}) is None
    assert offers["ask_user"].refusal({}) == "The arguments do not fit: `question` is missing."


def test_the_demo_desk_has_its_tools() -> None:
    """And who has no HTTP tool needs no way out."""

    def outward() -> Outward:
        raise AssertionError("nobody asks")

    assert list(bodies(support, max_result_bytes=1_000, threads=Threads(), outward=outward)) == ["lookup_order", "refund"]
