"""What the reads ask, once for both databases."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Integer, Table, func, literal_column, select, tuple_
from sqlalchemy.engine.interfaces import Dialect

from runward.ports.reads import PAGE_BYTES
from runward.stores.sql.rows import APPROVAL, ENVELOPE, HEAD, MAIL, MESSAGE, RECEIPT
from runward.stores.sql.statements import Statement, among, clock_expression, given
from runward.stores.sql.tables import ID, LEASED, actors, approvals, frames, idempotency_keys, mail, messages, receipts, service

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
    found = found.where(*_of_scope(actors, tenant=tenant, user=user, namespace=namespace))
    return Statement(found.order_by(actors.c.created_at.desc(), actors.c.uid.desc()).limit(literal_column("1")), dialect)


@cache
def tenants_with(dialect: Dialect) -> Statement:
    """Two tenants, at most, of the actors with a public id."""
    found = select(actors.c.tenant).where(actors.c.public_id == given("public_id", ID), actors.c.kind == given("kind", ID))
    return Statement(found.order_by(actors.c.tenant).limit(literal_column("2")), dialect)


@cache
def approval(dialect: Dialect, *, tenant: bool, user: bool, namespace: bool) -> Statement:
    """The request for approval with an id, in a scope of which these parts are set."""
    found = select(*APPROVAL).select_from(approvals.join(actors, actors.c.uid == approvals.c.uid)).where(approvals.c.id == given("id", ID))
    return Statement(found.where(*_of_scope(approvals, tenant=tenant, user=user, namespace=namespace)), dialect)


def _of_scope(table: Table, *, tenant: bool, user: bool, namespace: bool) -> list[ColumnElement[bool]]:
    asked = {"tenant": tenant, "user_id": user, "namespace": namespace}
    return [table.c[name] == given(name, ID) for name, is_asked in asked.items() if is_asked]


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
    size = func.length(frames.c.data)
    before = (func.sum(size).over(order_by=frames.c.seq, rows=(None, 0)) - size).label("before")
    behind = select(frames.c.seq, frames.c.format, frames.c.data, before).where(
        frames.c.uid == given("uid", ID), frames.c.seq > given("after", BigInteger())
    )
    page = behind.order_by(frames.c.seq).limit(given("limit", Integer())).subquery()
    found = select(page.c.seq, page.c.format, page.c.data).where(page.c.before < literal_column(str(PAGE_BYTES)))
    return Statement(found.order_by(page.c.seq), dialect)


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
