"""What lists ask: pages of actors and of requests for approval. Compiled anew each time: pages are of many kinds, and each is rare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Integer, Select, Table, and_, cast, func, literal, literal_column, or_, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine.interfaces import Dialect

from runward.core.kernel.actor import Scope
from runward.ports.reads import ActorQuery, ApprovalQuery, Order, Place
from runward.stores.sql.claims import READABLE
from runward.stores.sql.expressions import QUEUED
from runward.stores.sql.rows import APPROVAL, ENVELOPE
from runward.stores.sql.statements import SQLITE, Statement, clock_expression, given
from runward.stores.sql.tables import BOUNDED, ID, KEYED, LEASED, RANKED, actors, approvals

# -- actors --------------------------------------------------------------------------------------------------------------


def listed(dialect: Dialect, query: ActorQuery) -> Statement:
    """A page of actors."""
    by = actors.c.ended_at if query.order is Order.ENDED else actors.c.created_at
    found = select(*ENVELOPE).where(*_filters(query), *_metadata(query, dialect))
    if query.order is Order.ENDED:
        found = found.where(actors.c.ended_at.is_not(None))
    return Statement(_page(found, query, by, actors.c.uid), dialect)


def _filters(query: ActorQuery) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [actors.c.kind == literal(query.kind, ID)]
    if query.statuses:
        conditions.append(actors.c.status.in_([literal(status.value, ID) for status in query.statuses]))
    if query.waiting_on:
        conditions.append(actors.c.waiting_on.op("&")(literal(query.waiting_on, Integer())) != literal_column("0"))
    if query.cancel_requested is not None:
        asked = actors.c.cancel_requested_at.is_not(None)
        conditions.append(asked if query.cancel_requested else ~asked)
    same = {
        "agent": query.agent,
        "agent_version": query.agent_version,
        "user_id": query.user,
        "namespace": query.namespace,
        "stop_reason": query.stop_reason,
        "task_outcome": query.task_outcome,
    }
    conditions += [*_same(actors, same), *_same(actors, _owned(query.scope))]
    bounds = ((actors.c.created_at, query.created_after, query.created_before), (actors.c.ended_at, query.ended_after, query.ended_before))
    for column, after, before in (*bounds, (actors.c.updated_at, None, query.updated_before)):
        if after is not None:
            conditions.append(column >= literal(after, BigInteger()))
        if before is not None:
            conditions.append(column < literal(before, BigInteger()))
    return conditions


def _metadata(query: ActorQuery, dialect: Dialect) -> list[ColumnElement[bool]]:
    """Keys and values are parameters, and keys are no paths: nothing in them is syntax."""
    return [_has(key, value, dialect) for key, value in query.metadata.items()]


def _has(key: str, value: str, dialect: Dialect) -> ColumnElement[bool]:
    if dialect is SQLITE:
        item = func.json_each(actors.c.metadata).table_valued("key", "value", "type")
        same = and_(item.c.key == literal(key, ID), item.c.type == literal_column("'text'"), item.c.value == literal(value, ID))
        return select(literal_column("1")).select_from(item).where(same).exists()
    document = cast(actors.c.metadata, postgresql.JSON)
    found = document.op("->", return_type=postgresql.JSON())(literal(key, ID))
    text = document.op("->>", return_type=ID)(literal(key, ID))
    return and_(func.json_typeof(found) == literal_column("'string'"), text == literal(value, ID))


def held(dialect: Dialect, scope: Scope | None, *, lapsed_for_ms: int | None, after: Place | None, limit: int) -> Statement:
    """Actors under a lease; with `lapsed_for_ms` those whose lease ran out longer ago than that."""
    found = select(*ENVELOPE).where(LEASED, *_same(actors, _owned(scope)))
    if lapsed_for_ms is not None:
        found = found.where(actors.c.lease_until < clock_expression(dialect) - literal(lapsed_for_ms, BigInteger()))
    return Statement(_behind(found, after, limit, actors.c.lease_until, actors.c.uid), dialect)


def slots_taken(dialect: Dialect) -> Statement:
    """How many slots are taken of a concurrency key, and of a tenant."""
    tenant = actors.c.tenant == given("tenant", ID)
    key = and_(KEYED, tenant, actors.c.concurrency_key == given("key", ID))
    counts = (select(func.count()).select_from(actors).where(which).scalar_subquery() for which in (key, and_(BOUNDED, tenant)))
    return Statement(select(*counts), dialect)


def unclaimable(dialect: Dialect, scope: Scope | None, bindings: Sequence[str], *, after: Place | None, limit: int) -> Statement:
    """Actors that wait for a worker, and for another one than those with these bindings."""
    waits = and_(RANKED, actors.c.lease_owner.is_(None), or_(actors.c.status == QUEUED, actors.c.ready_at <= clock_expression(dialect)))
    foreign = actors.c.binding.not_in([literal(binding, ID) for binding in bindings])
    found = select(*ENVELOPE).where(waits, or_(foreign, ~READABLE), *_same(actors, _owned(scope)))
    return Statement(_behind(found, after, limit, actors.c.created_at, actors.c.uid), dialect)


# -- requests for approval -----------------------------------------------------------------------------------------------


def listed_approvals(dialect: Dialect, query: ApprovalQuery) -> Statement:
    """A page of requests for approval. Those of one run are found by way of that: so its scope is asked of the actor."""
    whose = approvals if query.run_id is None else actors
    found = select(*APPROVAL).select_from(approvals.join(actors, actors.c.uid == approvals.c.uid))
    same = {"agent": query.agent, "tool": query.tool, "user_id": query.user}
    found = found.where(*_same(approvals, same), *_same(whose, _owned(query.scope) | {"public_id": query.run_id}))
    if query.statuses:
        found = found.where(_status(query))
    if query.created_after is not None:
        found = found.where(approvals.c.created_at >= literal(query.created_after, BigInteger()))
    return Statement(_page(found, query, approvals.c.created_at, approvals.c.id), dialect)


def _status(query: ApprovalQuery) -> ColumnElement[bool]:
    """What is pending is asked for in the words of its index."""
    if set(query.statuses) == {"pending"}:
        return approvals.c.status == literal_column("'pending'")
    return approvals.c.status.in_([literal(status, ID) for status in query.statuses])


# -- both ----------------------------------------------------------------------------------------------------------------


def _page(found: Select[Any], query: ActorQuery | ApprovalQuery, by: ColumnElement[Any], id: ColumnElement[Any]) -> Select[Any]:
    """A page in the query's order: by time, and by id where that is the same."""
    newest_first = query.order is Order.NEWEST
    if query.horizon is not None and not newest_first:
        found = found.where(by <= literal(query.horizon, BigInteger()))
    return _behind(found, query.after, query.limit, by, id, newest_first=newest_first)


def _behind(
    found: Select[Any], after: Place | None, limit: int, by: ColumnElement[Any], id: ColumnElement[Any], *, newest_first: bool = False
) -> Select[Any]:
    if after is not None:
        at, last = literal(after.at, BigInteger()), literal(after.uid, ID)
        if newest_first:
            found = found.where(by <= at, or_(by < at, id < last))
        else:
            found = found.where(by >= at, or_(by > at, id > last))
    order = (by.desc(), id.desc()) if newest_first else (by, id)
    return found.order_by(*order).limit(literal(limit, Integer()))


def _same(table: Table, values: Mapping[str, str | None]) -> list[ColumnElement[bool]]:
    return [table.c[name] == literal(value, ID) for name, value in values.items() if value is not None]


def _owned(scope: Scope | None) -> dict[str, str | None]:
    return {} if scope is None else {"tenant": scope.tenant, "user_id": scope.user, "namespace": scope.namespace}
