"""From an agent to what the engine runs."""

from __future__ import annotations

from runward import Agent, ClientTool, Policy, ask_user, tool
from runward.agents.demo import support
from runward.tools.bodies import bodies
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


def test_only_what_this_version_can_run_has_a_body() -> None:
    pick = ClientTool(name="pick", description="Pick.", parameters={"type": "object"})
    agent = Agent(
        name="desk",
        model="openai:gpt-5",
        tools=[look, gated, charge, hidden, sometimes, denied, pick, ask_user],
        policy=Policy(deny_tools=["denied"]),
    )
    made = bodies(agent, max_result_bytes=1_000, threads=Threads())
    assert list(made) == ["look", "charge", "sometimes"] and made["charge"].traits == charge.traits


def test_the_demo_desk_has_its_tools() -> None:
    assert list(bodies(support, max_result_bytes=1_000, threads=Threads())) == ["lookup_order"]
