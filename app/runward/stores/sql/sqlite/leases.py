"""Leases beside claims: renewing, giving back, taking actors from their holders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Integer, and_, func, update

from runward.core.kernel.mail import Letter
from runward.ports.store import Renewal
from runward.stores.sql.claims import seizable
from runward.stores.sql.expressions import RUNNING, given_back, seized
from runward.stores.sql.rows import HEAD, heads_of
from runward.stores.sql.sqlite.connection import Session
from runward.stores.sql.sqlite.parts import put_letters, taken_keys
from runward.stores.sql.statements import SQLITE, Statement, among, as_list, given
from runward.stores.sql.tables import ID, actors

NOW: ColumnElement[Any] = given("now", BigInteger())


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
