"""What author code has begun is ended, also where nobody waits for it any more."""

from __future__ import annotations

import asyncio
import inspect

from runward.tools.containment import Gave, finished


async def _answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def test_what_a_function_gave_to_be_awaited_is_awaited_and_recorded() -> None:
    assert await finished(_answer(20), lambda value: value + 1) == Gave(21)


async def test_a_coroutine_that_never_began_is_closed_with_who_waited_for_it() -> None:
    given = _answer(20)
    waiting = finished(given, lambda value: value)
    waiting.send(None)
    assert inspect.getcoroutinestate(given) == inspect.CORO_CREATED
    waiting.close()
    assert inspect.getcoroutinestate(given) == inspect.CORO_CLOSED
