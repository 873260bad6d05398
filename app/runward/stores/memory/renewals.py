"""The heartbeat's door."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runward.ports.store import Renewal
from runward.stores.memory.database import Faults, MemoryDatabase, head_of


class MemoryRenewals:
    """`ports.store.Renewals`. It has no connection to keep busy."""

    def __init__(self, database: MemoryDatabase, faults: Faults) -> None:
        self._database = database
        self._faults = faults

    async def renew(self, owner: str, uids: Sequence[str], ttl_ms: int) -> Renewal:
        return await self._database.turn(self._faults, "renew", lambda: _renew(self._database, owner, uids, ttl_ms))

    async def close(self) -> None:
        """Nothing to let go."""


def _renew(database: MemoryDatabase, owner: str, uids: Sequence[str], ttl_ms: int) -> Renewal:
    now = database.now()
    held = {}
    for uid in uids:
        rows = database.actors.get(uid)
        if rows is not None and rows.envelope.lease_owner == owner:
            database.put(replace(rows.envelope, lease_until=now + ttl_ms))
            held[uid] = head_of(rows.envelope)
    return Renewal(held=held, now=now)
