"""Whose turn it is: how a claim orders what is ready, and keeps to the bounds of keys and tenants. The same for every store.

Who has the fewest leases goes first, so that a tenant with ten thousand runs waits behind one with a single run, and not the other way
round; of those that have as many, who had its turn the longest time ago, which decides where runs are short or slots are few. A slot is a
number from 1 on; that no two leases share one is for the store to see to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from runward.core.kernel.commit import Claims
from runward.ports.store import ClaimRequest

MOST_SERVED: Final = 10_000
"""Of how many tenants a store remembers when they had a turn; those that are forgotten have waited the longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An actor that is ready. `key` is its concurrency key; it has none when that is empty."""

    uid: str
    tenant: str
    key: str
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """So many leases of a tenant, of one key and one slot of it, if they have any."""

    tenant: str
    key: str
    key_slot: int | None
    tenant_slot: int | None
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """An actor that may be taken, and the slots it gets."""

    uid: str
    key_slot: int | None = None
    tenant_slot: int | None = None

    @property
    def has_slots(self) -> bool:
        return self.key_slot is not None or self.tenant_slot is not None


class Served:
    """When each tenant last had a turn, as far as one store knows: the number of the claim."""

    __slots__ = ("_claims", "_last")

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._claims = 0

    def last(self, tenant: str) -> int:
        return self._last.get(tenant, 0)

    def note(self, claims: Claims) -> Claims:
        """Whoever got something of a claim has had its turn."""
        self._claims += 1
        for taken in claims.taken:
            tenant = taken.envelope.scope.tenant
            self._last.pop(tenant, None)
            self._last[tenant] = self._claims
        while len(self._last) > MOST_SERVED:
            del self._last[next(iter(self._last))]
        return claims


def in_turn(waiting: Iterable[Waiting], held: Iterable[Held], served: Served, request: ClaimRequest) -> Sequence[Turn]:
    """Those that may be taken, in the order in which they are."""
    leases: Counter[str] = Counter()
    keys: dict[tuple[str, str], _Slots] = {}
    tenants: dict[str, _Slots] = {}
    for lease in held:
        leases[lease.tenant] += lease.count
        if lease.key_slot is not None:
            keys.setdefault((lease.tenant, lease.key), _Slots(request.per_key)).taken.add(lease.key_slot)
        if lease.tenant_slot is not None and request.per_tenant is not None:
            tenants.setdefault(lease.tenant, _Slots(request.per_tenant)).taken.add(lease.tenant_slot)
    placed = []
    for one in sorted(waiting, key=lambda each: (each.rank, each.uid)):
        key = keys.setdefault((one.tenant, one.key), _Slots(request.per_key)) if one.key else None
        tenant = None if request.per_tenant is None else tenants.setdefault(one.tenant, _Slots(request.per_tenant))
        if (key is None or key.free) and (tenant is None or tenant.free):
            turn = Turn(uid=one.uid, key_slot=_taken(key), tenant_slot=_taken(tenant))
            leases[one.tenant] += 1
            placed.append((leases[one.tenant], served.last(one.tenant), one.rank, one.uid, turn))
    return [turn for *_, turn in sorted(placed, key=lambda place: place[:4])]


def _taken(slots: _Slots | None) -> int | None:
    return None if slots is None else slots.take()


class _Slots:
    """The slots of one key, or of one tenant."""

    __slots__ = ("_most", "_next", "taken")

    def __init__(self, most: int) -> None:
        self.taken: set[int] = set()
        self._most = most
        self._next = 1

    @property
    def free(self) -> bool:
        return len(self.taken) < self._most

    def take(self) -> int:
        """The lowest free one."""
        while self._next in self.taken:
            self._next += 1
        self.taken.add(self._next)
        return self._next
