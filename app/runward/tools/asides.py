"""An author's function that is no tool, and may take its time: `async def` on the event loop, `def` in a thread."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from runward.tools.containment import caught, contained, finished, value_of
from runward.tools.threads import Threads


def aside(function: Callable[..., Any], threads: Threads) -> Callable[..., Awaitable[Any]]:
    """The function as one that is awaited and holds nobody else up. It raises as `containment.value_of` says."""

    async def called(*arguments: Any) -> Any:
        work = partial(function, *arguments)
        if inspect.iscoroutinefunction(function):
            return value_of(await contained(work))
        given = value_of(await threads.run(partial(caught, work)))
        return value_of(await finished(given, lambda value: value)) if inspect.isawaitable(given) else given

    return called
