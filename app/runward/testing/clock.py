"""Virtual time: nothing waits, and what sleeps is woken in order."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

SPEED = 500.0
"""Virtual seconds per real second at most."""
SPEED_WITH_TOOLS = 20.0
"""The same while author code runs, which may really wait: its time-outs must not overtake it."""
TURNS = 25
"""How often everybody gets a turn before time goes on."""


class VirtualClock:
    """`ports.clock.Clock` without real waiting. Time stands still until somebody moves it: `advance`, or `pass_time` while it waits."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self.tools_running = 0

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken

    def advance(self, seconds: float) -> None:
        """Moves time; whoever is due meanwhile is woken, in order."""
        until = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= until:
            self._wake_next()
        self._now = until

    async def pass_time(self, over: Callable[[], bool], *, limit_seconds: float) -> None:
        """Lets everybody work, and time pass while nobody does, until `over`. Raises TimeoutError after so much virtual time."""
        until = self._now + limit_seconds
        while True:
            for _ in range(TURNS):
                if over():
                    return
                await asyncio.sleep(0)
            while self._sleepers and self._sleepers[0][2].done():
                heapq.heappop(self._sleepers)
            if not self._sleepers or self._sleepers[0][0] > until:
                raise TimeoutError(f"It did not happen within {limit_seconds} s of virtual time.")
            before = self._now
            self._wake_next()
            await asyncio.sleep((self._now - before) / (SPEED_WITH_TOOLS if self.tools_running else SPEED))

    def _wake_next(self) -> None:
        at, _, woken = heapq.heappop(self._sleepers)
        self._now = max(self._now, at)
        if not woken.done():
            woken.set_result(None)
