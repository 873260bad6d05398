"""Leases: taking actors, renewing, giving back, taking them from their holders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Integer, and_, case, func, null, or_, select, update

from runward.core.kernel.commit import Claimed, Claims
from runward.core.kernel.mail import Letter
from runward.ports.store import ClaimRequest, Renewal
from runward.stores.sql.claims import anybodys, care_due, lapsed, ready, seizable, suspected, unsuspected
from runward.stores.sql.expressions import ONE, RUNNING, given_back, is_ended, seized
from runward.stores.sql.rows import ENVELOPE, HEAD, Values, envelope_of, heads_of
from runward.stores.sql.sqlite.connection import Session
from runward.stores.sql.sqlite.parts import put_letters, taken_keys
from runward.stores.sql.statements import SQLITE, Statement, among, as_list, given
from runward.stores.sql.tables import ID, actors

NOW: ColumnElement[Any] = given("now", BigInteger())


def claim(session: Session, request: ClaimRequest) -> Claims:
    """`Store.claim`."""
    values: Values = {
        "now": session.now,
        "owner": request.owner,
        "until": session.now + request.ttl_ms,
        "bindings": as_list(request.bindings, SQLITE),
        "limit": request.limit,
        "suspects": request.suspects,
        "delay": request.recovery_delay_ms,
        "max_recoveries": request.max_recoveries,
    }
    ready_ones = sorted((rank, uid) for binding in request.bindings for uid, rank in session.rows(_ready(), values | {"binding": binding}))
    lapsed_ones = [(until, uid) for statement in (_lapsed(), _suspects()) for uid, until in session.rows(statement, values)]
    overdue = sorted([*lapsed_ones, *((care_at, uid) for uid, care_at in session.rows(_care(), values))])
    recoveries = {uid for _, uid in lapsed_ones}
    chosen: dict[str, bool] = {}
    for _, uid in (*overdue[: request.overdue], *ready_ones, *overdue[request.overdue :]):
        if len(chosen) < request.limit:
            chosen[uid] = uid in recoveries
    taken = []
    for uid, recovered in chosen.items():
        (row,) = session.rows(_take(), values | {"uid": uid, "recovered": int(recovered)})
        taken.append(Claimed(envelope=envelope_of(row), recovered=recovered))
    return Claims(taken=tuple(taken), now=session.now)


def renew(session: Session, owner: str, uids: Sequence[str], ttl_ms: int) -> Renewal:
    """`Renewals.renew`."""
    values = {"owner": owner, "uids": as_list(uids, SQLITE), "until": session.now + ttl_ms}
    return Renewal(held=heads_of(session.rows(_renew(), values)), now=session.now)


def ask_drain(session: Session, uid: str) -> int | None:
    """`Store.ask_drain`."""
    row = session.row(_ask_drain(), {"uid": uid})
    return None if row is None else row[0]


def disown(session: Session, owner: str, legs: Mapping[str, int]) -> list[str]:
    """`Store.disown`."""
    values = {"owner": owner, "now": session.now}
    return sorted(uid for uid, leg in legs.items() if session.row(_disown(), values | {"uid": uid, "leg": leg}) is not None)


def seize(session: Session, uid: str, letter: Letter, *, lapsed_only: bool) -> int | None:
    """`Store.seize`."""
    if taken_keys(session, uid, [letter.key]):
        return None
    row = session.row(_seize(lapsed_only=lapsed_only), {"uid": uid, "now": session.now})
    if row is None:
        return None
    leg, received = row
    put_letters(session, uid, (letter,), first=received)
    return int(leg)


# -- statements ----------------------------------------------------------------------------------------------------------


def _candidates(by: ColumnElement[Any], which: ColumnElement[bool], limit: str) -> Statement:
    """The first of those that a condition holds for, with their place in the queue."""
    return Statement(select(actors.c.uid, by).where(which).order_by(by, actors.c.uid).limit(given(limit, Integer())), SQLITE)


def _is_mine() -> ColumnElement[bool]:
    return among(actors.c.binding, "bindings", SQLITE)


@cache
def _ready() -> Statement:
    """Of one binding: with all of them at once there would be no index to read them in order by."""
    return _candidates(actors.c.rank, and_(actors.c.binding == given("binding", ID), ready(NOW)), "limit")


@cache
def _lapsed() -> Statement:
    whom = or_(anybodys(NOW), and_(_is_mine(), unsuspected()))
    return _candidates(actors.c.lease_until, and_(lapsed(NOW), whom), "limit")


@cache
def _suspects() -> Statement:
    whom = and_(_is_mine(), ~anybodys(NOW), suspected(NOW, given("delay", BigInteger())))
    return _candidates(actors.c.lease_until, and_(lapsed(NOW), whom), "suspects")


@cache
def _care() -> Statement:
    return _candidates(actors.c.care_at, care_due(NOW), "limit")


@cache
def _take() -> Statement:
    taken: dict[str, Any] = {
        "lease_owner": given("owner", ID),
        "lease_until": given("until", BigInteger()),
        "leg": actors.c.leg + ONE,
        "revision": actors.c.revision + ONE,
        "recoveries": actors.c.recoveries + given("recovered", Integer()),
        "status": case((is_ended(actors.c.status), actors.c.status), else_=RUNNING),
        "started_at": func.coalesce(actors.c.started_at, NOW),
        "drain_leg": null(),
        "ready_at": null(),
    }
    return Statement(update(actors).where(actors.c.uid == given("uid", ID)).values(taken).returning(*ENVELOPE), SQLITE)


@cache
def _renew() -> Statement:
    held = and_(among(actors.c.uid, "uids", SQLITE), actors.c.lease_owner == given("owner", ID))
    return Statement(update(actors).where(held).values(lease_until=given("until", BigInteger())).returning(*HEAD), SQLITE)


@cache
def _ask_drain() -> Statement:
    held = and_(actors.c.uid == given("uid", ID), actors.c.status == RUNNING, actors.c.lease_owner.is_not(None))
    return Statement(update(actors).where(held).values(drain_leg=actors.c.leg).returning(actors.c.leg), SQLITE)


@cache
def _disown() -> Statement:
    lost = and_(actors.c.uid == given("uid", ID), actors.c.lease_owner == given("owner", ID), actors.c.leg == given("leg", Integer()))
    return Statement(update(actors).where(lost).values(given_back(NOW, func.min)).returning(actors.c.uid), SQLITE)


@cache
def _seize(*, lapsed_only: bool) -> Statement:
    held = and_(actors.c.uid == given("uid", ID), seizable(NOW, lapsed_only=lapsed_only))
    taken = update(actors).where(held).values(seized(NOW, func.min))
    return Statement(taken.returning(actors.c.leg, actors.c.mail_received), SQLITE)
