"""Deleting what is over."""

from __future__ import annotations

from functools import cache

from sqlalchemy import BigInteger, Integer, delete, select

from runward.stores.sql.over import OVER, ROWS, forgettable, prunable
from runward.stores.sql.sqlite.connection import Session
from runward.stores.sql.statements import SQLITE, Statement, given
from runward.stores.sql.tables import ID, actors, idempotency_keys

_KEY = tuple(idempotency_keys.primary_key)


def delete_actor(session: Session, uid: str) -> bool:
    """`Store.delete`."""
    if session.row(_delete(), {"uid": uid}) is None:
        return False
    for statement in _delete_rows():
        session.rows(statement, {"uid": uid})
    return True


def prune(session: Session, *, ended_before: int, limit: int) -> int:
    """`Store.prune`."""
    uids = [row[0] for row in session.rows(_prunable(), {"before": min(ended_before, session.now), "limit": limit})]
    return sum(delete_actor(session, uid) for uid in uids)


def prune_keys(session: Session, *, created_before: int, limit: int) -> int:
    """`Store.prune_keys`."""
    keys = session.rows(_forgettable(), {"before": created_before, "now": session.now, "limit": limit})
    session.many(_forget(), [{"scope": scope, "route": route, "key": key} for scope, route, key in keys])
    return len(keys)


# -- statements ----------------------------------------------------------------------------------------------------------


@cache
def _delete() -> Statement:
    return Statement(delete(actors).where(actors.c.uid == given("uid", ID), OVER).returning(actors.c.uid), SQLITE)


@cache
def _delete_rows() -> tuple[Statement, ...]:
    return tuple(Statement(delete(table).where(table.c.uid == given("uid", ID)), SQLITE) for table in ROWS)


@cache
def _prunable() -> Statement:
    old = select(actors.c.uid).where(prunable(given("before", BigInteger())))
    return Statement(old.order_by(actors.c.ended_at, actors.c.uid).limit(given("limit", Integer())), SQLITE)


@cache
def _forgettable() -> Statement:
    old = select(*_KEY).where(forgettable(given("before", BigInteger()), given("now", BigInteger())))
    return Statement(old.order_by(idempotency_keys.c.created_at).limit(given("limit", Integer())), SQLITE)


@cache
def _forget() -> Statement:
    return Statement(delete(idempotency_keys).where(*(column == given(column.name, ID) for column in _KEY)), SQLITE)
