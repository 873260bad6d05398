"""A context for tools under test, and tools ready to run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from runward.agents.tools import Tool, tool
from runward.testing import make_context
from runward.tools.local import LocalTool
from runward.tools.threads import Threads

MAX_BYTES = 10_000


def local(function: Callable[..., Any], *, threads: Threads | None = None, **options: Any) -> LocalTool:
    """A function as a tool that the engine could run."""
    declared: Tool[Any] = tool(**{"effect": "read", **options})(function)
    return LocalTool(declared, max_result_bytes=MAX_BYTES, threads=threads or Threads())


async def call(function: Callable[..., Any], arguments: dict[str, Any] | None = None, **options: Any) -> Any:
    """What the tool returned, as it is stored."""
    return (await local(function, **options).invoke(arguments or {}, make_context())).value


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what a thread does, which sends no signal to the loop."""
    async with asyncio.timeout(20):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)
