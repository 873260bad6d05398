"""Who may be taken by a claim, as conditions on `actors`, for both databases. Each begins with the predicate of its partial index."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, Integer, TextClause, and_, func, literal_column, or_

from runward.core.kernel.actor import FORMAT, RANK_PER_PRIORITY_MS
from runward.stores.sql.expressions import FALSE, ONE, TRUE, ZERO
from runward.stores.sql.statements import given
from runward.stores.sql.tables import CARED, LEASED, RANKED, actors

MAX_AHEAD_MS: Final = 100 * RANK_PER_PRIORITY_MS
"""How far the rank of an actor that is ready may lie ahead of now: with the lowest priority there is. Those that only become ready later
have ranks behind that, and are not looked at, however many they are."""

READABLE: Final = actors.c.format <= literal_column(str(FORMAT), Integer)
MAX_RECOVERIES: Final = given("max_recoveries", Integer())


def seizable(now: ColumnElement[Any], *, lapsed_only: bool) -> ColumnElement[bool]:
    """Who may be taken from its holder."""
    return lapsed(now) if lapsed_only else and_(LEASED, READABLE)


def ready(now: ColumnElement[Any], by: TextClause = RANKED) -> ColumnElement[bool]:
    """Without a lease, and ready, but not due for care. The binding is asked for beside it, and what else the index `by` begins with."""
    ahead = literal_column(str(MAX_AHEAD_MS), Integer)
    no_care = func.coalesce(actors.c.care_at > now, TRUE)
    return and_(by, actors.c.rank <= now + ahead, actors.c.ready_at <= now, actors.c.lease_owner.is_(None), no_care, READABLE)


def lapsed(now: ColumnElement[Any]) -> ColumnElement[bool]:
    """With a lease that has run out."""
    return and_(LEASED, actors.c.lease_until < now, READABLE)


def care_due(now: ColumnElement[Any]) -> ColumnElement[bool]:
    """Without a lease, and due for care."""
    return and_(CARED, actors.c.care_at <= now, actors.c.lease_owner.is_(None), READABLE)


def anybodys(now: ColumnElement[Any]) -> ColumnElement[bool]:
    """Of those with a lapsed lease: whom any worker takes."""
    return or_(actors.c.recoveries >= MAX_RECOVERIES, func.coalesce(actors.c.care_at <= now, FALSE))


def unsuspected() -> ColumnElement[bool]:
    """Of those with a lapsed lease: who was never recovered before."""
    return actors.c.recoveries == ZERO


def suspected(now: ColumnElement[Any], delay: ColumnElement[Any]) -> ColumnElement[bool]:
    """Of those with a lapsed lease: who was recovered before, and has waited its time. `delay` is the first one, doubled each time."""
    doublings = actors.c.recoveries - ONE
    return and_(~unsuspected(), actors.c.lease_until + delay.op("<<")(doublings) < now)
