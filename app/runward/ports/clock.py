"""Time and chance. The only door to both: a test or the simulator brings its own."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A process's clock.

    `monotonic` only ever grows and is what every wait and every lease is measured with. Wall time is never read here: it is the
    store's, learned from its answers (R36).
    """

    def monotonic(self) -> float:
        """Seconds since some fixed moment of this process."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Returns once so many seconds have gone by; at once, after giving others a turn, for 0 or less."""
        ...


class Chance(Protocol):
    """Where ids, secrets and jitter come from."""

    def uid(self) -> str:
        """A new UUIDv7 as 32 hexadecimal digits; later ones sort behind earlier ones of the same process."""
        ...

    def secret(self) -> str:
        """256 random bits, URL-safe text."""
        ...

    def jitter(self) -> float:
        """A number from 0 up to, not including, 1."""
        ...
