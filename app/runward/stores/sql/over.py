"""What may be deleted, as conditions for both databases."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, and_, exists, literal_column

from runward.ports.store import KEYS_LIVE_MS
from runward.stores.sql.claims import READABLE
from runward.stores.sql.expressions import is_ended
from runward.stores.sql.tables import actors, approvals, frames, idempotency_keys, mail, messages, receipts

ROWS: Final = (frames, messages, receipts, mail, approvals)
"""The tables with rows of an actor beside its own."""

OVER: Final = and_(is_ended(actors.c.status), actors.c.lease_owner.is_(None))
"""Ended, and nobody holds it."""


def prunable(before: ColumnElement[Any]) -> ColumnElement[bool]:
    """Over for so long that nobody will miss it. The first condition is what the index of ended actors is read by."""
    parent = actors.alias("parent")
    applied = actors.c.mail_applied == actors.c.mail_received
    orphan = ~exists().where(parent.c.uid == actors.c.parent_uid)
    return and_(actors.c.ended_at < before, actors.c.updated_at < before, OVER, applied, READABLE, orphan)


def forgettable(before: ColumnElement[Any], now: ColumnElement[Any]) -> ColumnElement[bool]:
    """Idempotency keys of before a time, and old enough."""
    created_at = idempotency_keys.c.created_at
    return and_(created_at < before, created_at < now - literal_column(str(KEYS_LIVE_MS), BigInteger))
