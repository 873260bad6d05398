"""Taking actors to drive: one statement, that locks no more than it takes and waits for nobody; two where several tenants wait.

Candidates are read first, without locks and a few more than are wanted, then locked in order, skipping what others hold, until there are
enough. What a candidate has to fulfil is asked again of the row as it is when it is locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import asyncpg
from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
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
from runward.stores.sql.expressions import ONE, RUNNING, TRUE, ZERO, is_ended
from runward.stores.sql.lanes import Walks
from runward.stores.sql.postgres.connections import Connections
from runward.stores.sql.postgres.crowd import HELD, WALK, crowded, first_by_rank, look
from runward.stores.sql.postgres.parts import clock, unnested
from runward.stores.sql.rows import ENVELOPE, Values, envelope_of
from runward.stores.sql.statements import POSTGRES, Statement, given, given_array
from runward.stores.sql.tables import ID, actors
from runward.stores.turns import Held, Served, Turn, Waiting, in_turn

READY, LAPSED, CARE = (literal_column(str(part), Integer) for part in (1, 2, 3))

NOW: Final = literal_column("clock.now", BigInteger())
"""The server's time, for what is joined to the clock: one look at it, and not one for each place that it is needed at."""

SLOTS: Final = ("key_slot", "tenant_slot")

SPARE: Final = 32
"""How many more candidates than wanted are read, so that there are enough beside those that other workers are just taking."""

SPARE_IN_LANE: Final = 4
"""The same of each lane, where there are several."""

SLOTS_LOCK: Final = 7_310_642_118
"""Ours in the database; its tables' owner alone can write what it guards."""

ATTEMPTS: Final = 8
"""How often those whose turn it is are looked for again, when another worker was just faster with a slot."""


STAYS: Final = 16
"""How many claims look first after one that found several tenants or keys, though they find none: such runs often come one by one."""


class Taker:
    """Takes actors for one process.

    As a rule it takes the lowest ranks, in one statement. That takes nothing, and says so, when something with a key waits, or, when it is
    asked to look, something of another tenant: then, and the next few times, it looks first who waits and who has what, and takes those
    whose turn it is. It is asked to look where the order matters: after a claim that had to leave something, and for a single one.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._walks = Walks()
        self._served = Served()
        self._crowded = 0
        self._full = True
        self._tenant = ""

    async def claim(self, request: ClaimRequest) -> Claims:
        """`Store.claim`."""
        values = _values(request)
        if not self._crowded and request.per_tenant is None:
            looks = self._full or request.limit == 1
            rows = await self._connections.fetch(_claim(looks=looks), values | {"tenant": self._tenant})
            if not rows[0]["crowded"]:
                return self._noted(_claims(rows), request)
            self._crowded = STAYS if self._tenant else 1  # a process that has served nobody yet is told so whoever waits
        for attempt in range(ATTEMPTS):
            turns = await self._turns(request, values) if attempt + 1 < ATTEMPTS else ()
            try:
                return self._noted(_claims(await self._connections.fetch(_take(), values | _turn_values(turns))), request)
            except (asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError):  # somebody has such a slot since; nothing was written
                continue
        raise AssertionError("a claim without slots cannot meet one that is taken")

    def _noted(self, claims: Claims, request: ClaimRequest) -> Claims:
        self._full = len(claims.taken) == request.limit
        if claims.taken:
            self._tenant = claims.taken[-1].envelope.scope.tenant
        return self._served.note(claims)

    async def _turns(self, request: ClaimRequest, values: Values) -> Sequence[Turn]:
        starts = [self._walks.start(binding) for binding in request.bindings]
        starts_values = {"start_binding": list(request.bindings), "start_tenant": [tenant for tenant, _ in starts]}
        rows = await self._connections.fetch(look(), values | starts_values | {"start_key": [key for _, key in starts]})
        waiting, held = [], []
        for part, uid, binding, tenant, key, number, key_slot, tenant_slot, steps in rows:
            if part == HELD:
                held.append(Held(tenant=tenant, key=key, key_slot=key_slot, tenant_slot=tenant_slot, count=number))
            elif part == WALK:
                self._walks.ended(binding, (tenant, key), found=number, steps=steps)
            else:
                waiting.append(Waiting(uid=uid, tenant=tenant, key=key, rank=number))
        several = len({one.tenant for one in waiting}) > 1 or any(one.key for one in waiting)
        self._crowded = STAYS if several else max(self._crowded - 1, 0)
        return in_turn(waiting, held, self._served, request)[: values["candidates"]]


def _values(request: ClaimRequest) -> Values:
    return {
        "owner": request.owner,
        "bindings": list(request.bindings),
        "limit": request.limit,
        "overdue": request.overdue,
        "candidates": 2 * request.limit + SPARE,
        "in_lane": request.limit + SPARE_IN_LANE,
        "suspects": request.suspects,
        "ttl": request.ttl_ms,
        "delay": request.recovery_delay_ms,
        "max_recoveries": request.max_recoveries,
        "per_key": request.per_key,
    }


def _turn_values(turns: Sequence[Turn]) -> Values:
    return {
        "takes_slots": any(turn.has_slots for turn in turns),
        "turn_uid": [turn.uid for turn in turns],
        "turn_place": list(range(len(turns))),
        "turn_key_slot": [turn.key_slot for turn in turns],
        "turn_tenant_slot": [turn.tenant_slot for turn in turns],
    }


def _claims(rows: Sequence[Any]) -> Claims:
    taken = sorted((row for row in rows if row["uid"] is not None), key=lambda row: (row["turn"], row["place"], row["uid"]))
    width = len(ENVELOPE)
    return Claims(
        taken=tuple(Claimed(envelope=envelope_of(row[:width]), recovered=row["part"] == 2) for row in taken),
        now=rows[0]["now"],
    )


@cache
def _claim(*, looks: bool) -> Statement:
    """Takes the lowest ranks, unless it is crowded: then it takes nothing, and says so."""
    first = first_by_rank(NOW)
    ready_ones = select(first.c.uid, READY.label("part"), first.c.rank.label("place"))
    return _taking(clock(crowded(looks=looks).label("crowded")), ready_ones, (), literal_column("NOT clock.crowded", Boolean()))


@cache
def _take() -> Statement:
    """Takes those whose turn it is, with their slots."""
    turns = unnested("turn", {"uid": ID, "place": Integer(), "key_slot": Integer(), "tenant_slot": Integer()})
    ready_ones = select(turns.c.uid, READY.label("part"), turns.c.place, turns.c.key_slot, turns.c.tenant_slot)
    return _taking(clock(_alone().label("alone")), ready_ones, SLOTS, TRUE)


def _alone() -> ColumnElement[bool]:
    """Waits until nobody else takes slots: two that want the same ones in another order would wait for each other."""
    lock = func.pg_advisory_xact_lock(literal_column(str(SLOTS_LOCK), BigInteger())).is_not(None)
    return case((given("takes_slots", Boolean()), lock), else_=TRUE)


def _taking(clock_row: CTE, ready_ones: Select[Any], slots: Sequence[str], condition: ColumnElement[bool]) -> Statement:
    """Takes the overdue ones, and those that are ready, which have these slots; none, if a condition on the clock's row does not hold."""
    no_slots = [literal_column("NULL::integer", Integer).label(name) for name in slots]
    overdue = (each.add_columns(*no_slots) for each in (_lapsed(NOW), _suspects(NOW), _care(NOW)))
    found = union_all(ready_ones, *overdue).lateral("found")
    candidates = _in_turn(select(*found.c, clock_row.c.now).select_from(clock_row.join(found, condition)).cte("timed"), slots)
    picked = (
        select(actors.c.uid, *(candidates.c[name] for name in ("part", "turn", "place", "now", *slots)))
        .select_from(candidates.join(actors, actors.c.uid == candidates.c.uid))
        .where(_still(candidates, candidates.c.now))
        .order_by(candidates.c.turn, candidates.c.place, candidates.c.uid)
        .limit(given("limit", Integer()))
        .with_for_update(of=actors, skip_locked=True, key_share=True)
        .cte("picked")
        .prefix_with("MATERIALIZED")
    )
    taken = (
        update(actors)
        .where(actors.c.uid == picked.c.uid)
        .values(_taken(picked, picked.c.now))
        .returning(*ENVELOPE, picked.c.part, picked.c.turn, picked.c.place)
        .cte("taken")
    )
    columns = (*(taken.c[column.name] for column in ENVELOPE), taken.c.part, taken.c.turn, taken.c.place)
    return Statement(select(*columns, *clock_row.c).select_from(clock_row.outerjoin(taken, true())), POSTGRES)


def _in_turn(found: CTE, slots: Sequence[str]) -> CTE:
    """With the turn of each: so many overdue ones, then the ready ones, then the other overdue ones. In order, so that no more of them are
    joined and locked than are wanted."""
    number = func.row_number().over(partition_by=found.c.part == READY, order_by=(found.c.place, found.c.uid))
    turn = case((found.c.part == READY, ONE), (number <= given("overdue", Integer()), ZERO), else_=literal_column("2", Integer))
    placed = select(*(found.c[name] for name in ("uid", "part", "place", "now", *slots)), turn.label("turn"))
    return placed.order_by(literal_column("turn"), found.c.place, found.c.uid).cte("candidates")


def _candidates(part: ColumnElement[int], place: ColumnElement[Any]) -> Select[Any]:
    return select(actors.c.uid, part.label("part"), place.label("place"))


def _is_mine() -> ColumnElement[bool]:
    return actors.c.binding == func.any(given_array("bindings", ID))


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
    return select(*found.order_by(by).limit(limit).subquery().c)


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
        **{name: case((picked.c.part == LAPSED, actors.c[name]), else_=picked.c.get(name, null())) for name in SLOTS},
    }
