"""Deleting what is over."""

from __future__ import annotations

from runward.core.kernel.actor import FORMAT, Envelope
from runward.ports.store import KEYS_LIVE_MS
from runward.stores.memory.database import MemoryDatabase


def delete(database: MemoryDatabase, uid: str) -> bool:
    """`Store.delete`."""
    rows = database.actors.get(uid)
    if rows is None or not _is_over(rows.envelope):
        return False
    database.remove(uid)
    return True


def prune(database: MemoryDatabase, *, ended_before: int, limit: int) -> int:
    """`Store.prune`."""
    before = min(ended_before, database.now())
    old = []
    for rows in database.actors.values():
        envelope = rows.envelope
        if _is_over(envelope) and _is_done_with(envelope, before) and envelope.parent_uid not in database.actors:
            old.append((envelope.ended_at, envelope.uid))
    for _, uid in sorted(old)[:limit]:
        database.remove(uid)
    return min(len(old), limit)


def prune_keys(database: MemoryDatabase, *, created_before: int, limit: int) -> int:
    """`Store.prune_keys`."""
    before = min(created_before, database.now() - KEYS_LIVE_MS)
    old = sorted((slot for slot, key in database.keys.items() if key.created_at < before), key=lambda slot: database.keys[slot].created_at)
    for slot in old[:limit]:
        del database.keys[slot]
    return min(len(old), limit)


def _is_over(envelope: Envelope) -> bool:
    return envelope.status.ended and envelope.lease_owner is None


def _is_done_with(envelope: Envelope, before: int) -> bool:
    ended_at = envelope.ended_at
    return (
        envelope.format <= FORMAT
        and ended_at is not None
        and ended_at < before
        and envelope.updated_at < before
        and envelope.mail_applied == envelope.mail_received
    )
