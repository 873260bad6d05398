"""The real clock and real chance. The only module that may touch either."""

from __future__ import annotations

import asyncio
import random
import secrets
import time

from uuid_utils import uuid7


class SystemClock:
    """`ports.clock.Clock` on this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class SystemChance:
    """`ports.clock.Chance` from the operating system."""

    def uid(self) -> str:
        return uuid7().hex

    def secret(self) -> str:
        return secrets.token_urlsafe(32)

    def jitter(self) -> float:
        return random.random()
