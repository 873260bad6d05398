"""Reads of a leg while the store is away: repeated as long as the lease lasts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from runward.core.errors import Unavailable
from runward.engine.hold import Hold
from runward.ports.clock import Clock

T = TypeVar("T")

READ_AGAIN_SECONDS = 0.2


async def patiently(read: Callable[[], Awaitable[T]], *, hold: Hold, clock: Clock) -> T:
    """What `read` returns. Raises LeaseLost when the store stays away for longer than the lease lasts."""
    while True:
        try:
            return await read()
        except Unavailable:
            hold.check()
            await clock.sleep(READ_AGAIN_SECONDS)
