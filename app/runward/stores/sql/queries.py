"""What the reads ask, once for both databases."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Table,
    and_,
    cast,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine.interfaces import Dialect

from runward.ports.reads import ActorQuery, Order
from runward.stores.sql.rows import ENVELOPE, HEAD, MAIL, MESSAGE, RECEIPT
from runward.stores.sql.statements import SQLITE, Statement, among, clock_expression, given
from runward.stores.sql.tables import ID, LEASED, actors, frames, idempotency_keys, mail, messages, receipts, service

NO_LIMIT: Final = 2**31 - 1


@cache
def clock(dialect: Dialect) -> Statement:
    return Statement(select(clock_expression(dialect)), dialect)


@cache
def identity(dialect: Dialect) -> Statement:
    return Statement(select(service.c.identity), dialect)


@cache
def find(dialect: Dialect, *, tenant: bool, user: bool, namespace: bool) -> Statement:
    """The actor with a public id, in a scope of which these parts are set; without a tenant the newest of all."""
    found = select(*ENVELOPE).where(actors.c.public_id == given("public_id", ID), actors.c.kind == given("kind", ID))
    for column, asked in ((actors.c.tenant, tenant), (actors.c.user_id, user), (actors.c.namespace, namespace)):
        if asked:
            found = found.where(column == given(column.name, ID))
    return Statement(found.order_by(actors.c.created_at.desc(), actors.c.uid.desc()).limit(literal_column("1")), dialect)


@cache
def get(dialect: Dialect) -> Statement:
    return Statement(select(*ENVELOPE).where(actors.c.uid == given("uid", ID)), dialect)


@cache
def heads(dialect: Dialect) -> Statement:
    return Statement(select(*HEAD).where(among(actors.c.uid, "uids", dialect)), dialect)


@cache
def owned(dialect: Dialect) -> Statement:
    """Which leg of which actor an owner has the lease of."""
    return Statement(select(actors.c.uid, actors.c.leg).where(LEASED, actors.c.lease_owner == given("owner", ID)), dialect)


@cache
def frames_after(dialect: Dialect) -> Statement:
    """At most `limit` rows: each holds at least one frame."""
    return _after(dialect, frames, (frames.c.seq, frames.c.format, frames.c.data))


@cache
def messages_after(dialect: Dialect) -> Statement:
    return _after(dialect, messages, MESSAGE)


@cache
def mail_after(dialect: Dialect) -> Statement:
    return _after(dialect, mail, MAIL)


def _after(dialect: Dialect, table: Table, columns: Sequence[ColumnElement[Any]]) -> Statement:
    """An actor's rows behind a number, in order."""
    behind = select(*columns).where(table.c.uid == given("uid", ID), table.c.seq > given("after", BigInteger()))
    return Statement(behind.order_by(table.c.seq).limit(given("limit", Integer())), dialect)


@cache
def mail_by_key(dialect: Dialect) -> Statement:
    return Statement(select(*MAIL).where(mail.c.uid == given("uid", ID), among(mail.c.dedupe_key, "keys", dialect)), dialect)


@cache
def receipts_after(dialect: Dialect, *, one_step: bool) -> Statement:
    """Receipts in the model's order behind a place; of one step where that is wanted."""
    behind = tuple_(receipts.c.step, receipts.c.position) > tuple_(given("after_step", BigInteger()), given("after_position", BigInteger()))
    found = select(*RECEIPT).where(receipts.c.uid == given("uid", ID), behind)
    if one_step:
        found = found.where(receipts.c.step == given("step", Integer()))
    ordered = found.order_by(receipts.c.step, receipts.c.position, receipts.c.tool_call_id)
    return Statement(ordered.limit(given("limit", Integer())), dialect)


@cache
def remembered(dialect: Dialect) -> Statement:
    """What an idempotency key made, and its uid once more while that exists."""
    key = idempotency_keys.c
    known = select(key.fingerprint, key.uid, key.public_id, actors.c.uid).outerjoin(actors, actors.c.uid == key.uid)
    return Statement(known.where(*(key[name] == given(name, ID) for name in ("scope", "route", "key"))), dialect)


# -- lists ---------------------------------------------------------------------------------------------------------------


def listed(dialect: Dialect, query: ActorQuery) -> Statement:
    """A page of actors. Compiled anew each time: there are many kinds of pages, and each is rare."""
    by = actors.c.ended_at if query.order is Order.ENDED else actors.c.created_at
    newest_first = query.order is Order.NEWEST
    page = select(*ENVELOPE).where(*_filters(query), *_metadata(query, dialect))
    if query.order is Order.ENDED:
        page = page.where(actors.c.ended_at.is_not(None))
    if query.horizon is not None and not newest_first:
        page = page.where(by <= literal(query.horizon, BigInteger()))
    if query.after is not None:
        at, uid = literal(query.after.at, BigInteger()), literal(query.after.uid, ID)
        if newest_first:
            page = page.where(by <= at, or_(by < at, actors.c.uid < uid))
        else:
            page = page.where(by >= at, or_(by > at, actors.c.uid > uid))
    order = (by.desc(), actors.c.uid.desc()) if newest_first else (by, actors.c.uid)
    return Statement(page.order_by(*order).limit(literal(query.limit, Integer())), dialect)


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
    conditions += [actors.c[name] == literal(value, ID) for name, value in same.items() if value is not None]
    if (scope := query.scope) is not None:
        owned = {"tenant": scope.tenant, "user_id": scope.user, "namespace": scope.namespace}
        conditions += [actors.c[name] == literal(value, ID) for name, value in owned.items() if value is not None]
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
