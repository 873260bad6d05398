"""When something falls due soon: whoever looks for work is woken then, and need not look all the time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from runward.engine.timing import StoreTime, Timer
from runward.ports.clock import Clock

LATE_MS = 2
"""The store's clock may be a little behind this process's idea of it: what is due is looked for this much later."""
SOON_MS = 60_000
"""What is due later than this is left to the polls: a minute's wait may end a poll late."""


class Alarms:
    """Calls back at each of some moments in store time."""

    def __init__(self, clock: Clock, time: StoreTime, ring: Callable[[], None]) -> None:
        self._time = time
        self._ring = ring
        self._dues: list[int] = []
        self._timer = Timer(clock, self._rang)

    def add(self, due: int | None) -> None:
        """One more moment. None, and what is far away, sets nothing."""
        if due is not None and due - self._time.now() <= SOON_MS:
            heappush(self._dues, due)
            self._set()

    def stop(self) -> None:
        """Nothing rings any more."""
        self._dues.clear()
        self._timer.cancel()

    def _set(self) -> None:
        self._timer.set(self._time.seconds_until(self._dues[0] + LATE_MS) if self._dues else None)

    def _rang(self) -> None:
        now = self._time.now()
        while self._dues and self._dues[0] <= now:
            heappop(self._dues)
        self._ring()
        self._set()
