"""Keyed leases, on either database: each operation is one statement."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, case, delete, func, null, or_, update
from sqlalchemy.engine.interfaces import Dialect

from runward.ports.singletons import Lease
from runward.stores.guards import check_text
from runward.stores.sql.database import Database
from runward.stores.sql.expressions import ONE
from runward.stores.sql.statements import POSTGRES, Statement, clock_expression, given, insert_into
from runward.stores.sql.tables import ID, singletons


class SqlSingletons:
    """`ports.singletons.Singletons`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._dialect = database.dialect

    async def acquire(self, key: str, owner: str, ttl_ms: int) -> Lease | None:
        check_text((key, owner))
        rows = await self._database.write(_acquire(self._dialect), {"key": key, "owner": owner, "ttl": ttl_ms})
        return Lease(key=key, owner=owner, token=rows[0][0], until=rows[0][1]) if rows else None

    async def renew(self, lease: Lease, ttl_ms: int) -> Lease | None:
        rows = await self._database.write(_renew(self._dialect), _values(lease) | {"ttl": ttl_ms})
        return Lease(key=lease.key, owner=lease.owner, token=lease.token, until=rows[0][0]) if rows else None

    async def release(self, lease: Lease) -> bool:
        return bool(await self._database.write(_release(self._dialect), _values(lease)))

    async def prune(self, *, ended_before: int) -> int:
        return len(await self._database.write(_prune(self._dialect), {"before": ended_before}))


def _values(lease: Lease) -> dict[str, Any]:
    return {"key": lease.key, "owner": lease.owner, "token": lease.token}


# -- statements ----------------------------------------------------------------------------------------------------------


@cache
def _acquire(dialect: Dialect) -> Statement:
    """A key starts at the clock's time, so that its tokens go on growing when its row was pruned."""
    now = clock_expression(dialect)
    until = now + given("ttl", BigInteger())
    new = insert_into(singletons, dialect).values(key=given("key", ID), owner=given("owner", ID), token=now, until=until)
    mine = singletons.c.owner == new.excluded.owner
    is_over = singletons.c.until < now
    later = func.greatest if dialect is POSTGRES else func.max
    taken = {
        "owner": new.excluded.owner,
        "token": case((and_(mine, ~is_over), singletons.c.token), else_=later(singletons.c.token + ONE, now)),
        "until": until,
    }
    free = or_(singletons.c.owner.is_(None), is_over, mine)
    held = new.on_conflict_do_update(index_elements=["key"], set_=taken, where=free)
    return Statement(held.returning(singletons.c.token, singletons.c.until), dialect)


@cache
def _renew(dialect: Dialect) -> Statement:
    until = clock_expression(dialect) + given("ttl", BigInteger())
    return Statement(update(singletons).where(_is_current()).values(until=until).returning(singletons.c.until), dialect)


@cache
def _release(dialect: Dialect) -> Statement:
    released = {"owner": null(), "until": clock_expression(dialect)}
    return Statement(update(singletons).where(_is_current()).values(released).returning(singletons.c.key), dialect)


@cache
def _prune(dialect: Dialect) -> Statement:
    """A token that is not behind the clock is kept, whenever it ended."""
    now = clock_expression(dialect)
    over = and_(singletons.c.until < given("before", BigInteger()), singletons.c.until < now, singletons.c.token < now)
    return Statement(delete(singletons).where(over).returning(singletons.c.key), dialect)


def _is_current() -> ColumnElement[bool]:
    return and_(*(singletons.c[name] == given(name, singletons.c[name].type) for name in ("key", "owner", "token")))
