"""A `ToolContext` for calling a tool as the function it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runward.agents.contexts import ToolContext
from runward.core.ids import idempotency_key
from runward.core.kernel.actor import Scope
from runward.core.messages import Message


class TestCallHost:
    """Keeps what a tool says of itself: `progressed` and `checkpoint`."""

    __test__ = False

    def __init__(self, *, cancelled: bool, checkpoint: str | None) -> None:
        self.cancelled = cancelled
        self.checkpoint = checkpoint
        self.progressed: list[Any] = []

    async def progress(self, data: Any) -> None:
        self.progressed.append(data)

    async def save_checkpoint(self, text: str) -> None:
        self.checkpoint = text

    async def generate(self, prompt: str | Sequence[Message], *, model: str | None, output: Any) -> Any:
        raise NotImplementedError("A context made by make_context has no model to ask: test this tool in a TestService.")


def make_context(
    *,
    resources: Any = None,
    context: Any = None,
    tool_context: Mapping[str, Any] | None = None,
    scope: Scope | None = None,
    run_id: str = "run-1",
    agent: str = "agent",
    agent_version: str = "1",
    step: int = 1,
    attempt: int = 1,
    answers: Sequence[str] = (),
    messages: Sequence[Message] = (),
    cancelled: bool = False,
    checkpoint: str | None = None,
) -> ToolContext[Any, Any]:
    """A context to call a tool with, everything in it up to the test::

    assert (await lookup_order(7, ctx=make_context(resources=fake_shop))).status == "shipped"

    What the tool reports is in `ctx.host.progressed`, what it saved in `ctx.checkpoint`.
    """
    call = f"{step}.1"
    return ToolContext(
        run_id=run_id,
        agent=agent,
        agent_version=agent_version,
        scope=scope or Scope(tenant="default"),
        step=step,
        resources=resources,
        context=context,
        messages=messages,
        tool_call_id=call,
        attempt=attempt,
        idempotency_key=idempotency_key(run_id, call),
        tool_context=tool_context,
        answers=tuple(answers),
        host=TestCallHost(cancelled=cancelled, checkpoint=checkpoint),
    )
