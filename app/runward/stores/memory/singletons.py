"""Keyed leases."""

from __future__ import annotations

from runward.ports.singletons import Lease
from runward.stores.guards import check_text
from runward.stores.memory.database import Faults, KeyedLease, MemoryDatabase


class MemorySingletons:
    """`ports.singletons.Singletons`. To `Faults` its operations are `singletons.acquire` and so on."""

    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Lease | None:
        def work() -> Lease | None:
            return _acquire(self._database, key, owner, ttl_ms)

        return await self._database.turn(self._faults, "singletons.acquire", work)

    async def renew(self, lease: Lease, ttl_ms: int) -> Lease | None:
        return await self._database.turn(self._faults, "singletons.renew", lambda: _renew(self._database, lease, ttl_ms))

    async def release(self, lease: Lease) -> bool:
        return await self._database.turn(self._faults, "singletons.release", lambda: _release(self._database, lease))

    async def prune(self, *, ended_before: int) -> int:
        return await self._database.turn(self._faults, "singletons.prune", lambda: _prune(self._database, ended_before))


def _acquire(database: MemoryDatabase, key: str, owner: str, ttl_ms: int) -> Lease | None:
    check_text((key, owner))
    now, known = database.now(), database.singletons.get(key)
    held = known is not None and known.owner is not None and known.until >= now
    if known is not None and held and known.owner != owner:
        return None
    if known is None:
        token = now
    else:
        token = known.token if held else max(known.token + 1, now)
    return _put(database, Lease(key=key, owner=owner, token=token, until=now + ttl_ms))


def _renew(database: MemoryDatabase, lease: Lease, ttl_ms: int) -> Lease | None:
    if not _is_current(database, lease):
        return None
    return _put(database, Lease(key=lease.key, owner=lease.owner, token=lease.token, until=database.now() + ttl_ms))


def _release(database: MemoryDatabase, lease: Lease) -> bool:
    if not _is_current(database, lease):
        return False
    database.singletons[lease.key] = KeyedLease(owner=None, token=lease.token, until=database.now())
    return True


def _prune(database: MemoryDatabase, ended_before: int) -> int:
    """A token that is not behind the clock is kept, whenever it ended: a key starts anew at the clock's time."""
    now = database.now()
    over = [key for key, known in database.singletons.items() if known.until < min(ended_before, now) and known.token < now]
    for key in over:
        del database.singletons[key]
    return len(over)


def _is_current(database: MemoryDatabase, lease: Lease) -> bool:
    known = database.singletons.get(lease.key)
    return known is not None and (known.owner, known.token) == (lease.owner, lease.token)


def _put(database: MemoryDatabase, lease: Lease) -> Lease:
    database.singletons[lease.key] = KeyedLease(owner=lease.owner, token=lease.token, until=lease.until)
    return lease
