"""Deleting what is over.

A statement sees the rows of other tables as they were when it began, but the actor's row as it is once it is locked. So an actor that
somebody has written to meanwhile is left: rows of that write would stay behind, belonging to nobody.
"""

from __future__ import annotations

from functools import cache

from sqlalchemy import CTE, BigInteger, ColumnElement, Integer, Select, Table, delete, func, select

from runward.core.errors import Unavailable
from runward.stores.sql.over import OVER, ROWS, forgettable, prunable
from runward.stores.sql.postgres.connections import ATTEMPTS, Connections
from runward.stores.sql.statements import POSTGRES, Statement, clock_expression, given
from runward.stores.sql.tables import ID, actors, columns, idempotency_keys

_WRITTEN = columns(actors, "revision last_seq mail_received")
"""Every write of rows of an actor moves one of these."""

_KEY = tuple(idempotency_keys.primary_key)


async def delete_actor(connections: Connections, uid: str) -> bool:
    """`Store.delete`."""
    for _ in range(ATTEMPTS):
        rows = await connections.fetch(_delete(), {"uid": uid})
        if not rows:
            return False
        if rows[0]["gone"] is not None:
            return True
    raise Unavailable("The actor changes too fast.")


async def prune(connections: Connections, *, ended_before: int, limit: int) -> int:
    """`Store.prune`. What others are writing to is left for the next time."""
    rows = await connections.fetch(_prune(), {"before": ended_before, "limit": limit})
    return sum(row["gone"] is not None for row in rows)


async def prune_keys(connections: Connections, *, created_before: int, limit: int) -> int:
    """`Store.prune_keys`."""
    return len(await connections.fetch(_prune_keys(), {"before": created_before, "limit": limit}))


# -- statements ----------------------------------------------------------------------------------------------------------


@cache
def _delete() -> Statement:
    return _deletion(_over(actors.c.uid == given("uid", ID), OVER), skip_locked=False)


@cache
def _prune() -> Statement:
    before = func.least(given("before", BigInteger()), clock_expression(POSTGRES))
    old = _over(prunable(before)).order_by(actors.c.ended_at, actors.c.uid).limit(given("limit", Integer()))
    return _deletion(old, skip_locked=True)


def _over(*which: ColumnElement[bool]) -> Select[tuple[str, int, int, int]]:
    return select(actors.c.uid, *_WRITTEN).where(*which)


def _deletion(found: Select[tuple[str, int, int, int]], *, skip_locked: bool) -> Statement:
    """Deletes what was found, whole, and answers with a row for each: `gone` is null of one that moved meanwhile."""
    seen = found.cte("seen").prefix_with("MATERIALIZED")
    still = (
        select(actors.c.uid)
        .join(seen, actors.c.uid == seen.c.uid)
        .where(*(column == seen.c[column.name] for column in _WRITTEN))
        .order_by(actors.c.uid)
        .with_for_update(of=actors, skip_locked=skip_locked)
        .cte("still")
        .prefix_with("MATERIALIZED")
    )
    gone = delete(actors).where(actors.c.uid == still.c.uid).returning(actors.c.uid).cte("gone")
    rows = [_rows_of(gone, table) for table in ROWS]
    answer = select(gone.c.uid.label("gone")).select_from(seen.outerjoin(gone, gone.c.uid == seen.c.uid))
    return Statement(answer.add_cte(*rows), POSTGRES)


def _rows_of(gone: CTE, table: Table) -> CTE:
    return delete(table).where(table.c.uid == gone.c.uid).cte(f"gone_{table.name}")


@cache
def _prune_keys() -> Statement:
    old = (
        select(*_KEY)
        .where(forgettable(given("before", BigInteger()), clock_expression(POSTGRES)))
        .order_by(idempotency_keys.c.created_at)
        .limit(given("limit", Integer()))
        .with_for_update(skip_locked=True)
        .cte("old")
        .prefix_with("MATERIALIZED")
    )
    forgotten = delete(idempotency_keys).where(*(column == old.c[column.name] for column in _KEY))
    return Statement(forgotten.returning(idempotency_keys.c.key), POSTGRES)
