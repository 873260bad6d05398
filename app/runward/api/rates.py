"""How many requests a tenant may make: a bucket of them for each, in this process alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from runward.core.errors import Throttled
from runward.engine.callers import Caller
from runward.ports.clock import Clock

MOST_REMEMBERED = 10_000
"""How many tenants are remembered before those are forgotten whose bucket is full again."""
ROUNDING = 1e-6
"""Seconds that sums of floats may be off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """So many requests a second, and so many at once."""

    per_second: float
    burst: int


class Rates:
    """Takes a request from its tenant's bucket. A request that is refused takes nothing, so whoever waits as told comes through.

    What is kept of a tenant is one number: when its bucket will be full again.
    """

    def __init__(self, clock: Clock, rate: Rate | None) -> None:
        self._clock = clock
        self._rate = rate
        self._full_at: dict[str, float] = {}

    def take(self, caller: Caller) -> None:
        """Raises Throttled when the caller's tenant has used its requests up. Operators have as many as they want."""
        rate = self._rate
        if rate is None or caller.operator:
            return
        tenant, now = caller.scope.tenant, self._clock.monotonic()
        full_at = max(self._full_at.get(tenant, now), now)
        wait = full_at - now - (rate.burst - 1) / rate.per_second
        if wait > ROUNDING:
            detail = f"More than {rate.per_second:g} requests a second. Retry-After says when there is room again."
            raise Throttled(detail, retry_after=math.ceil(wait))
        if tenant not in self._full_at and len(self._full_at) >= MOST_REMEMBERED:
            self._full_at = {name: at for name, at in self._full_at.items() if at > now}
        self._full_at[tenant] = full_at + 1 / rate.per_second
