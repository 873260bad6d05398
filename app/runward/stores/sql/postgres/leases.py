"""Leases beside claims: renewing, asking for a drain, giving back, taking actors from their holders."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import asyncpg
from sqlalchemy import BigInteger, Integer, and_, func, select, true, update

from runward.core.kernel.mail import Letter
from runward.stores.guards import check_letters
from runward.stores.sql.claims import seizable
from runward.stores.sql.expressions import RUNNING, given_back, seized
from runward.stores.sql.postgres.connections import Connections
from runward.stores.sql.postgres.mailbox import put_letters
from runward.stores.sql.postgres.parts import LETTER, clock, holds_any_key, unnested
from runward.stores.sql.rows import HEAD, in_columns, letter_values
from runward.stores.sql.statements import POSTGRES, Statement, given, given_array
from runward.stores.sql.tables import ID, actors


async def ask_drain(connections: Connections, uid: str) -> int | None:
    """`Store.ask_drain`."""
    rows = await connections.fetch(_ask_drain(), {"uid": uid})
    return rows[0]["leg"] if rows else None


async def disown(connections: Connections, owner: str, legs: Mapping[str, int]) -> list[str]:
    """`Store.disown`."""
    rows = await connections.fetch(_disown(), {"owner": owner, "lost_uid": list(legs), "lost_leg": list(legs.values())})
    return sorted(row["uid"] for row in rows)


async def seize(connections: Connections, uid: str, letter: Letter, *, lapsed_only: bool) -> int | None:
    """`Store.seize`."""
    check_letters((letter,))
    values = {"uid": uid, "count": 1, **in_columns([{"place": 1, **letter_values(letter)}], "letter", ("place", *LETTER))}
    try:
        rows = await connections.fetch(_seize(lapsed_only=lapsed_only), values)
    except asyncpg.UniqueViolationError:  # somebody took the key just now: nothing was written
        return None
    return rows[0]["leg"] if rows else None


@cache
def _ask_drain() -> Statement:
    held = and_(actors.c.uid == given("uid", ID), actors.c.status == RUNNING, actors.c.lease_owner.is_not(None))
    return Statement(update(actors).where(held).values(drain_leg=actors.c.leg).returning(actors.c.leg), POSTGRES)


@cache
def _disown() -> Statement:
    clock_row, legs = clock(), unnested("lost", {"uid": ID, "leg": Integer()})
    lost = (
        select(actors.c.uid)
        .select_from(legs.join(actors, actors.c.uid == legs.c.uid))
        .where(actors.c.lease_owner == given("owner", ID), actors.c.leg == legs.c.leg)
        .order_by(actors.c.uid)
        .with_for_update(of=actors, key_share=True)
        .cte("lost")
        .prefix_with("MATERIALIZED")
    )
    now = select(clock_row.c.now).scalar_subquery()
    return Statement(update(actors).where(actors.c.uid == lost.c.uid).values(given_back(now, func.least)).returning(actors.c.uid), POSTGRES)


@cache
def _seize(*, lapsed_only: bool) -> Statement:
    clock_row = clock()
    now = select(clock_row.c.now).scalar_subquery()
    fresh = ~holds_any_key(actors.c.uid, given_array("letter_dedupe_key", ID))
    me = (
        update(actors)
        .where(actors.c.uid == given("uid", ID), seizable(now, lapsed_only=lapsed_only), fresh)
        .values(seized(now, func.least))
        .returning(actors.c.uid, actors.c.mail_received, actors.c.leg)
        .cte("me")
    )
    return Statement(select(me.c.leg).add_cte(put_letters(me, clock_row)), POSTGRES)


@cache
def renew_statement() -> Statement:
    """The leases of one owner, locked in uid order, extended; one row more tells the time."""
    clock_row = clock()
    held = (
        select(actors.c.uid)
        .where(actors.c.uid == func.any(given_array("uids", ID)), actors.c.lease_owner == given("owner", ID))
        .order_by(actors.c.uid)
        .with_for_update(key_share=True)
        .cte("held")
        .prefix_with("MATERIALIZED")
    )
    until = select(clock_row.c.now).scalar_subquery() + given("ttl", BigInteger())
    renewed = (
        update(actors)
        .where(actors.c.uid == held.c.uid, actors.c.lease_owner == given("owner", ID))
        .values(lease_until=until)
        .returning(*HEAD)
        .cte("renewed")
    )
    answer = select(*(renewed.c[column.name] for column in HEAD), clock_row.c.now)
    return Statement(answer.select_from(clock_row.outerjoin(renewed, true())), POSTGRES)
