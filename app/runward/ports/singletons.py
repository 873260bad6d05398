"""Keyed leases: of many processes one at a time does what needs doing once.

The store's clock decides, inside the statement that acts on it, whether a lease has run out. Tokens of a key only grow, also after a
release and after a prune: whoever does something under a lease can name its token, and what names an older one can be refused.

All of it raises `Unavailable`: nothing is then known about the write. To acquire again under the same owner is safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who holds a key. `token` belongs to this acquisition, `until` is when it runs out, in milliseconds on the store's clock."""

    key: str
    owner: str
    token: int
    until: int


class Singletons(Protocol):
    """See the module. `owner` is unique per process start, and stands for one holder."""

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Lease | None:
        """Takes a key that nobody holds, or whose lease has run out, for `ttl_ms` from now under a new token. None: another holds it.

        The holder itself gets the lease that it has, with its token, extended: so an acquisition whose answer was lost is found again.
        """
        ...

    async def renew(self, lease: Lease, ttl_ms: int) -> Lease | None:
        """Extends a lease to `ttl_ms` from now; one that has run out and that nobody took, too. None: it was released, taken or pruned."""
        ...

    async def release(self, lease: Lease) -> bool:
        """Gives a lease back. False, and nothing changes, when it is not held any more under this owner and token."""
        ...

    async def prune(self, *, ended_before: int) -> int:
        """Forgets the keys whose last lease was released or ran out before a time, and returns how many. A time later than the store's
        clock is cut back to it."""
        ...
