"""Requests that wait: for as long as their caller does, and the process goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from runward.api.asking import Asked
from runward.api.sse import left
from runward.engine.queries import RunView, Until, is_over

T = TypeVar("T")


async def waited(asked: Asked, run: RunView, seconds: int, until: Until) -> RunView:
    """The run once it is over in the sense of `until`, else as it is when the time is up, the process is closing or the caller has left.

    Raises NotFound when it is deleted meanwhile.
    """
    if is_over(run.status, until) or seconds == 0:
        return run
    queries, closing = asked.door.queries, asked.door.closing
    over = await _while_there(queries.wait(run.uid, seconds, until), asked.receive, closing)
    return over or await queries.wait(run.uid, 0, until)


async def _while_there(work: Coroutine[Any, Any, T], receive: Receive, closing: asyncio.Event) -> T | None:
    """The result of some work; None when the process is closing or the caller has left."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(left(receive))
    stopping = asyncio.ensure_future(closing.wait())
    try:
        await asyncio.wait((working, leaving, stopping), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving, stopping):
            task.cancel()
