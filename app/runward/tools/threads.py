"""Threads for `def` tools: daemons, one per call, so that one that never ends is left behind and does not keep the process from ending."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

from runward.core.errors import ToolError

T = TypeVar("T")

LIMIT = 256
"""How many calls run in threads at once; further ones wait."""
MOST_ABANDONED = 1_000
"""How many threads may have been left behind and still run; beyond it nothing new is started."""


class Threads:
    """Runs functions in threads. Belongs to one event loop."""

    def __init__(self, *, limit: int = LIMIT, most_abandoned: int = MOST_ABANDONED) -> None:
        self._free = asyncio.Semaphore(limit)
        self._most_abandoned = most_abandoned
        self._abandoned = 0

    @property
    def abandoned(self) -> int:
        """How many threads were left behind and have not ended yet."""
        return self._abandoned

    async def run(self, function: Callable[[], T]) -> T:
        """What `function` returns, with the caller's context variables. It must not raise: see `containment.caught`.

        Cancelling leaves the thread behind; it ends when it ends. Raises ToolError when no thread can be had: nothing has happened then.
        """
        if self._abandoned >= self._most_abandoned:
            raise ToolError("The tool was not started: too many earlier calls never came back.")
        async with self._free:
            return await self._in_thread(function)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def answered(value: T) -> None:
            if answer.done():
                self._abandoned -= 1
            else:
                answer.set_result(value)

        def work() -> None:
            value = context.run(function)
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(answered, value)

        try:
            threading.Thread(target=work, name="runward-tool", daemon=True).start()
        except RuntimeError as error:
            raise ToolError("The tool was not started: the process has no thread left.") from error
        try:
            return await answer
        except asyncio.CancelledError:
            self._abandoned += 1
            raise
