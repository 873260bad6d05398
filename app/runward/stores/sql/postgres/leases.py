"""Leases beside claims: asking for a drain, giving back, deleting what nobody holds, and where actors stand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Integer, and_, case, delete, func, null, select, true, update

from runward.stores.sql.expressions import ONE, QUEUED, RUNNING, is_ended, rank_of
from runward.stores.sql.postgres.connections import Connections
from runward.stores.sql.postgres.parts import clock, unnested
from runward.stores.sql.rows import HEAD
from runward.stores.sql.statements import POSTGRES, Statement, given, given_array
from runward.stores.sql.tables import ID, actors, approvals, frames, mail, messages, receipts


async def ask_drain(connections: Connections, uid: str) -> int | None:
    """`Store.ask_drain`."""
    rows = await connections.fetch(_ask_drain(), {"uid": uid})
    return rows[0]["leg"] if rows else None


async def disown(connections: Connections, owner: str, legs: Mapping[str, int]) -> list[str]:
    """`Store.disown`."""
    rows = await connections.fetch(_disown(), {"owner": owner, "lost_uid": list(legs), "lost_leg": list(legs.values())})
    return sorted(row["uid"] for row in rows)


async def delete_actor(connections: Connections, uid: str) -> bool:
    """`Store.delete`."""
    return bool(await connections.fetch(_delete(), {"uid": uid}))


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
    ended = is_ended(actors.c.status)
    given_back: dict[str, Any] = {
        "revision": actors.c.revision + ONE,
        "status": case((ended, actors.c.status), else_=QUEUED),
        "lease_owner": null(),
        "lease_until": null(),
        "drain_leg": null(),
        "ready_at": case((ended, null()), else_=now),
        "rank": case((ended, actors.c.rank), else_=func.least(actors.c.rank, rank_of(now, actors.c.priority))),
    }
    return Statement(update(actors).where(actors.c.uid == lost.c.uid).values(given_back).returning(actors.c.uid), POSTGRES)


@cache
def _delete() -> Statement:
    free = and_(actors.c.uid == given("uid", ID), is_ended(actors.c.status), actors.c.lease_owner.is_(None))
    gone = delete(actors).where(free).returning(actors.c.uid).cte("gone")
    parts = [
        delete(table).where(table.c.uid == gone.c.uid).cte(f"gone_{table.name}") for table in (frames, messages, receipts, mail, approvals)
    ]
    return Statement(select(gone.c.uid).add_cte(*parts), POSTGRES)


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
