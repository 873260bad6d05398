"""Waiting, and the store's time as this process knows it. Everything goes through the `Clock` port, so virtual time reaches all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from runward.ports.clock import Clock


class StoreTime:
    """The store's clock between two of its answers: what it said last, plus the monotonic time since (R36).

    It lags behind by the way of the answer and is never ahead of the store, so that what is due by it is due by the store.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms: int | None = None

    def learn(self, now_ms: int) -> None:
        """The store just said that it is `now_ms`."""
        self._offset_ms = now_ms - self._monotonic_ms()

    def now(self) -> int:
        """Milliseconds since 1970 on the store's clock. Raises RuntimeError before the first `learn`."""
        if self._offset_ms is None:
            raise RuntimeError("The store's clock was never read.")
        return self._offset_ms + self._monotonic_ms()

    def seconds_until(self, at_ms: int) -> float:
        """How long from now until a store time; negative when it has passed."""
        return (at_ms - self.now()) / 1000

    def _monotonic_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


class Timer:
    """Calls back once, at a moment that may be moved. One pending moment at a time."""

    def __init__(self, clock: Clock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._task: asyncio.Task[None] | None = None
        self._at: float | None = None

    def set(self, seconds: float | None) -> None:
        """Moves the moment to so many seconds from now; None takes it away."""
        at = None if seconds is None else self._clock.monotonic() + max(0.0, seconds)
        if at is not None and self._at is not None and abs(at - self._at) < 0.001:
            return
        self.cancel()
        if seconds is not None:
            self._at = at
            self._task = asyncio.ensure_future(self._ring(seconds))

    def cancel(self) -> None:
        self._at = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _ring(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._task, self._at = None, None
        self._callback()


async def wait_for(clock: Clock, event: asyncio.Event, seconds: float) -> bool:
    """Waits for an event, so many seconds at most; says whether it came."""
    if event.is_set():
        return True
    waiting = asyncio.ensure_future(event.wait())
    sleeping = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((waiting, sleeping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        sleeping.cancel()
    return event.is_set()


async def finished_within(clock: Clock, task: asyncio.Task[Any], seconds: float) -> bool:
    """Waits for a task, so many seconds at most; says whether it is over. The task is not touched."""
    sleeping = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((task, sleeping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        sleeping.cancel()
    return task.done()
