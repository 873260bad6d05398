"""A leg's lease as the worker sees it: how long it surely lasts, on the worker's own monotonic clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runward.ports.clock import Clock


class LeaseLost(Exception):
    """The lease is somebody else's, or could be: the leg stops and writes nothing more."""


class Hold:
    """Counts from before the last good renewal was *sent*: whatever the network did, the store's lease lasts at least as long (R3a)."""

    def __init__(self, clock: Clock, ttl_seconds: float, sent_at: float, renew_soon: Callable[[], None]) -> None:
        self._clock = clock
        self._ttl = ttl_seconds
        self._taken_at = sent_at
        self._until = sent_at + ttl_seconds
        self._renew_soon = renew_soon
        self._changed = asyncio.Event()
        self.lost = False

    def reach(self, sent_at: float) -> None:
        """A renewal that was sent at `sent_at` was good. Whoever renews says so on its own thread: a loop that stood still takes steps that
        were due before it hears of the renewal, and they must not take the lease for lost."""
        until = sent_at + self._ttl
        if until > self._until:  # noqa: PLR1730 - an older answer, told on the loop, does not undo a newer one
            self._until = until

    def extend(self, sent_at: float) -> None:
        """The same, on the worker's loop: those who wait for it go on."""
        self.reach(sent_at)
        self._changed.set()

    def lose(self) -> None:
        """The store said that the lease is not ours any more."""
        self.lost = True
        self._changed.set()

    def older_than(self, moment: float) -> bool:
        """Whether the lease was taken before a moment: an answer to something sent earlier says nothing about it."""
        return self._taken_at < moment

    @property
    def remaining(self) -> float:
        """Seconds for which the lease is surely ours; 0 or less once it could have run out."""
        return -1.0 if self.lost else self._until - self._clock.monotonic()

    def check(self) -> None:
        """Raises LeaseLost once the lease is lost or could have run out. From then on it is lost, even if a renewal comes through."""
        if self.remaining <= 0:
            self.lost = True
            raise LeaseLost

    async def fresh(self) -> None:
        """Returns once at least a third of the lease is left, renewing it first if need be. Raises LeaseLost (R3a)."""
        while self.remaining < self._ttl / 3:
            self.check()
            self._changed.clear()
            self._renew_soon()
            sleeping = asyncio.ensure_future(self._clock.sleep(max(0.001, self.remaining)))
            changed = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait((sleeping, changed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeping.cancel()
                changed.cancel()
