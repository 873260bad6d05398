"""Taking actors to drive: one statement, that locks no more than it takes and waits for nobody.

Candidates are read first, without locks and a few more than are wanted, then locked in order, skipping what others hold, until there are
enough. What a candidate has to fulfil is asked again of the row as it is when it is locked.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    and_,
    case,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    union_all,
    update,
)

from runward.core.kernel.commit import Claimed, Claims
from runward.ports.store import ClaimRequest
from runward.stores.sql.claims import anybodys, care_due, lapsed, ready, suspected, unsuspected
from runward.stores.sql.expressions import ONE, RUNNING, ZERO, is_ended
from runward.stores.sql.postgres.connections import Connections
from runward.stores.sql.postgres.parts import clock
from runward.stores.sql.rows import ENVELOPE, envelope_of
from runward.stores.sql.statements import POSTGRES, Statement, given, given_array
from runward.stores.sql.tables import ID, actors

READY, LAPSED, CARE = (literal_column(str(part), Integer) for part in (1, 2, 3))

SPARE: Final = 32
"""How many more candidates than wanted are read, so that there are enough beside those that other workers are just taking."""


async def claim(connections: Connections, request: ClaimRequest) -> Claims:
    """`Store.claim`."""
    rows = await connections.fetch(
        _claim(),
        {
            "owner": request.owner,
            "bindings": list(request.bindings),
            "limit": request.limit,
            "overdue": request.overdue,
            "candidates": 2 * request.limit + SPARE,
            "suspects": request.suspects,
            "ttl": request.ttl_ms,
            "delay": request.recovery_delay_ms,
            "max_recoveries": request.max_recoveries,
        },
    )
    taken = sorted((row for row in rows if row["uid"] is not None), key=lambda row: (row["turn"], row["place"], row["uid"]))
    width = len(ENVELOPE)
    return Claims(
        taken=tuple(Claimed(envelope=envelope_of(row[:width]), recovered=row["part"] == 2) for row in taken),
        now=rows[0]["now"],
    )


@cache
def _claim() -> Statement:
    clock_row = clock()
    now = select(clock_row.c.now).scalar_subquery()
    candidates = _in_turn(union_all(_ready(now), _lapsed(now), _suspects(now), _care(now)).cte("found"))
    order = (candidates.c.turn, candidates.c.place, candidates.c.uid)
    picked = (
        select(actors.c.uid, candidates.c.part, candidates.c.turn, candidates.c.place)
        .select_from(candidates.join(actors, actors.c.uid == candidates.c.uid))
        .where(_still(candidates, now))
        .order_by(*order)
        .limit(given("limit", Integer()))
        .with_for_update(of=actors, skip_locked=True, key_share=True)
        .cte("picked")
        .prefix_with("MATERIALIZED")
    )
    taken = (
        update(actors)
        .where(actors.c.uid == picked.c.uid)
        .values(_taken(picked, now))
        .returning(*ENVELOPE, picked.c.part, picked.c.turn, picked.c.place)
        .cte("taken")
    )
    answer = select(*(taken.c[column.name] for column in ENVELOPE), taken.c.part, taken.c.turn, taken.c.place, clock_row.c.now)
    return Statement(answer.select_from(clock_row.outerjoin(taken, true())), POSTGRES)


def _in_turn(found: CTE) -> CTE:
    """With the turn of each: so many overdue ones, then the ready ones, then the other overdue ones."""
    number = func.row_number().over(partition_by=found.c.part == READY, order_by=(found.c.place, found.c.uid))
    turn = case((found.c.part == READY, ONE), (number <= given("overdue", Integer()), ZERO), else_=literal_column("2", Integer))
    return select(found.c.uid, found.c.part, found.c.place, turn.label("turn")).cte("candidates")


def _candidates(part: ColumnElement[int], place: ColumnElement[Any]) -> Select[Any]:
    return select(actors.c.uid, part.label("part"), place.label("place"))


def _is_mine() -> ColumnElement[bool]:
    return actors.c.binding == func.any(given_array("bindings", ID))


def _ready(now: ColumnElement[Any]) -> Select[Any]:
    """Of each binding the first by rank."""
    bindings = func.unnest(given_array("bindings", ID)).table_valued(literal_column("binding", ID), name="bindings").render_derived()
    first = (
        select(actors.c.uid, actors.c.rank)
        .where(actors.c.binding == bindings.c.binding, ready(now))
        .order_by(actors.c.rank)
        .limit(given("candidates", Integer()))
        .lateral("first")
    )
    return select(first.c.uid, READY.label("part"), first.c.rank.label("place")).select_from(bindings.join(first, true()))


def _lapsed(now: ColumnElement[Any]) -> Select[Any]:
    whom = or_(anybodys(now), and_(_is_mine(), unsuspected()))
    found = _candidates(LAPSED, actors.c.lease_until).where(lapsed(now), whom)
    return _first(found, actors.c.lease_until, given("candidates", Integer()))


def _suspects(now: ColumnElement[Any]) -> Select[Any]:
    whom = and_(_is_mine(), ~anybodys(now), suspected(now, given("delay", BigInteger())))
    found = _candidates(LAPSED, actors.c.lease_until).where(lapsed(now), whom)
    return _first(found, actors.c.lease_until, given("suspects", Integer()))


def _care(now: ColumnElement[Any]) -> Select[Any]:
    found = _candidates(CARE, actors.c.care_at).where(care_due(now))
    return _first(found, actors.c.care_at, given("candidates", Integer()))


def _first(found: Select[Any], by: ColumnElement[Any], limit: ColumnElement[int]) -> Select[Any]:
    return select(found.order_by(by).limit(limit).subquery())


def _still(candidates: CTE, now: ColumnElement[Any]) -> ColumnElement[bool]:
    """What makes a candidate one, asked of the locked row."""
    return or_(
        and_(candidates.c.part == READY, ready(now)),
        and_(candidates.c.part == LAPSED, lapsed(now)),
        and_(candidates.c.part == CARE, care_due(now)),
    )


def _taken(picked: CTE, now: ColumnElement[Any]) -> dict[str, Any]:
    recovered = case((picked.c.part == LAPSED, ONE), else_=ZERO)
    return {
        "lease_owner": given("owner", ID),
        "lease_until": now + given("ttl", BigInteger()),
        "leg": actors.c.leg + ONE,
        "revision": actors.c.revision + ONE,
        "recoveries": actors.c.recoveries + recovered,
        "status": case((is_ended(actors.c.status), actors.c.status), else_=RUNNING),
        "started_at": func.coalesce(actors.c.started_at, now),
        "drain_leg": null(),
        "ready_at": null(),
    }
