"""`RunContext` and `ToolContext`: read-only, silent about what is private, and usable from a loop and from a thread."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from runward import Scope, ToolContext
from runward.core.messages import Message, TextPart


class Host:
    """Stands in for the engine."""

    def __init__(self) -> None:
        self.cancelled = False
        self.checkpoint: str | None = None
        self.seen: list[tuple[str, Any, int]] = []

    async def generate(self, prompt: Any, *, model: str | None, output: Any) -> Any:
        return (prompt, model, output)

    async def progress(self, data: Any) -> None:
        await asyncio.sleep(0)
        self.seen.append(("progress", data, threading.get_ident()))

    async def save_checkpoint(self, text: str) -> None:
        await asyncio.sleep(0)
        if text == "refused":
            raise RuntimeError("The call is over.")
        self.checkpoint = text


def context(host: Host) -> ToolContext[str, dict[str, str]]:
    return ToolContext(
        run_id="r1",
        agent="support",
        agent_version="1",
        scope=Scope(tenant="acme"),
        step=2,
        resources="the pool with its password",
        context={"customer": "c-42"},
        messages=(Message(seq=1, role="user", content=(TextPart(text="my secret"),)),),
        tool_call_id="2.1",
        attempt=1,
        idempotency_key="u/2.1",
        tool_context={"region": "eu"},
        answers=("yes",),
        host=host,
    )


async def test_a_context_is_read_only_and_its_repr_tells_nothing_private() -> None:
    ctx = context(Host())
    with pytest.raises(FrozenInstanceError):
        ctx.step = 3  # type: ignore[misc]
    assert all(private not in repr(ctx) for private in ("password", "c-42", "my secret", "eu", "yes"))
    assert (ctx.scope.tenant, ctx.answers, ctx.deadline) == ("acme", ("yes",), None)


async def test_progress_and_checkpoints_are_awaited_on_the_loop() -> None:
    host = Host()
    ctx = context(host)
    await ctx.progress({"rows": 1})
    await ctx.save_checkpoint("page 2")
    assert host.seen == [("progress", {"rows": 1}, threading.get_ident())] and ctx.checkpoint == "page 2"
    with pytest.raises(RuntimeError, match="over"):
        await ctx.save_checkpoint("refused")


async def test_in_a_thread_both_are_plain_calls_that_are_done_on_return() -> None:
    host = Host()
    ctx = context(host)

    def work() -> None:
        _ = ctx.progress({"rows": 1})
        assert host.seen
        _ = ctx.save_checkpoint("page 3")
        assert ctx.checkpoint == "page 3"
        with pytest.raises(RuntimeError, match="over"):
            _ = ctx.save_checkpoint("refused")

    await asyncio.to_thread(work)
    assert host.seen == [("progress", {"rows": 1}, threading.get_ident())]


async def test_a_thread_with_a_loop_of_its_own_awaits_them() -> None:
    host = Host()
    ctx = context(host)

    async def inner() -> None:
        await ctx.progress(1)
        await ctx.save_checkpoint("page 4")

    await asyncio.to_thread(lambda: asyncio.run(inner()))
    assert host.seen == [("progress", 1, threading.get_ident())] and ctx.checkpoint == "page 4"


def test_without_any_loop_they_are_done_at_once() -> None:
    host = Host()
    ctx = context(host)
    _ = ctx.progress(1)
    _ = ctx.save_checkpoint("page 5")
    assert host.seen and ctx.checkpoint == "page 5"


async def test_a_context_made_without_a_loop_works_inside_one() -> None:
    host = Host()
    ctx = await asyncio.to_thread(context, host)
    await ctx.progress(1)
    assert host.seen


async def test_cancelled_is_what_the_host_says_now() -> None:
    host = Host()
    ctx = context(host)
    assert not ctx.cancelled
    host.cancelled = True
    assert ctx.cancelled


async def test_generate_asks_the_host() -> None:
    answer: Any = await context(Host()).generate("A title?", model="openai:gpt-5-mini", output={"type": "string"})
    assert answer == ("A title?", "openai:gpt-5-mini", {"type": "string"})
