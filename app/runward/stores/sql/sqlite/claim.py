"""Taking actors to drive, in the writer's turn: nobody else takes any meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Integer, Select, and_, case, func, null, or_, select, union_all, update

from runward.core.kernel.commit import Claimed, Claims
from runward.ports.store import ClaimRequest
from runward.stores.sql.claims import anybodys, care_due, lapsed, ready, suspected, unsuspected
from runward.stores.sql.expressions import ONE, RUNNING, ZERO, is_ended
from runward.stores.sql.lanes import Walks, beside, leases_by_lane, walked
from runward.stores.sql.rows import ENVELOPE, Row, Values, envelope_of
from runward.stores.sql.sqlite.connection import Session
from runward.stores.sql.statements import SQLITE, Statement, among, as_list, given
from runward.stores.sql.tables import ID, LANED, actors
from runward.stores.turns import Held, Served, Turn, Waiting, in_turn

LANE: Final = (actors.c.tenant, actors.c.concurrency_key)
NOW: ColumnElement[Any] = given("now", BigInteger())


@dataclass(frozen=True, slots=True)
class Past:
    """What a store remembers of the claims before."""

    walks: Walks = field(default_factory=Walks)
    served: Served = field(default_factory=Served)


def claim(session: Session, past: Past, request: ClaimRequest) -> Claims:
    """`Store.claim`."""
    values: Values = {
        "now": session.now,
        "owner": request.owner,
        "until": session.now + request.ttl_ms,
        "bindings": as_list(request.bindings, SQLITE),
        "limit": request.limit,
        "window": request.limit + 1,
        "per_key": request.per_key,
        "suspects": request.suspects,
        "delay": request.recovery_delay_ms,
        "max_recoveries": request.max_recoveries,
    }
    turns = _turns(session, past, request, values)
    late = session.rows(_overdue(), values) if session.row(_any_overdue(), values) else []
    overdue = [uid for _, uid in sorted((since, uid) for uid, since, _ in late)]
    recoveries = {uid for uid, _, has_lapsed in late if has_lapsed}
    of_turns = {turn.uid: turn for turn in turns}
    chosen = list(dict.fromkeys((*overdue[: request.overdue], *of_turns, *overdue[request.overdue :])))[: request.limit]
    rows = {row[0]: row for row in _take(session, chosen, of_turns, values)}
    taken = tuple(Claimed(envelope=envelope_of(rows[uid]), recovered=uid in recoveries) for uid in chosen)
    return past.served.note(Claims(taken=taken, now=session.now))


def _take(session: Session, chosen: Sequence[str], turns: Mapping[str, Turn], values: Values) -> Iterator[Row]:
    """Takes them: at once those that get no slots."""
    alone = chosen if len(chosen) == 1 else [uid for uid in chosen if uid in turns and turns[uid].has_slots]
    for uid in alone:
        turn = turns.get(uid)
        slots = {"key_slot": turn and turn.key_slot, "tenant_slot": turn and turn.tenant_slot}
        yield from session.rows(_take_one(), values | slots | {"uid": uid})
    if len(alone) < len(chosen):
        together = as_list([uid for uid in chosen if uid not in alone], SQLITE)
        yield from session.rows(_take_all(), values | {"uids": together, "key_slot": None, "tenant_slot": None})


def _turns(session: Session, past: Past, request: ClaimRequest, values: Values) -> Sequence[Turn]:
    """Those that are ready, in turn: of the lowest ranks, as a rule. Only if these are of several tenants, have keys, or hide others
    behind them, it costs more to find out who they are."""
    rows, full = [], []
    for binding in request.bindings:
        first = session.rows(_ready(), values | {"binding": binding})
        rows += first
        if len(first) > request.limit and session.row(_hides(), {"binding": binding, "tenant": first[0][2]}):
            full.append(binding)
    hidden = [row for binding in full for row in _of_lanes(session, past.walks, binding, values)]
    if request.per_tenant is None and not hidden and all(tenant == rows[0][2] and not key for _, _, tenant, key in rows):
        return [Turn(uid=uid) for _, uid in sorted((rank, uid) for uid, rank, _, _ in rows)]
    waiting = {uid: Waiting(uid=uid, tenant=tenant, key=key, rank=rank) for uid, rank, tenant, key in (*rows, *hidden)}
    lanes = session.rows(_leases_by_lane(), {})
    held = [Held(tenant=row[0], key=row[1], key_slot=row[2], tenant_slot=row[3], count=row[4]) for row in lanes]
    return in_turn(waiting.values(), held, past.served, request)


def _of_lanes(session: Session, walks: Walks, binding: str, values: Values) -> list[Row]:
    """The first of each lane that a walk comes by."""
    tenant, key = walks.start(binding)
    of = values | {"binding": binding}
    steps = session.rows(_walk(), of | {"after_tenant": tenant, "after_key": key})
    tenant, key, is_open, found, number = steps[-1]
    walks.ended(binding, (tenant, key), found=found + is_open, steps=number)
    lanes = [{"tenant": tenant, "key": key} for tenant, key, is_open, *_ in steps if is_open]
    return [row for lane in lanes for row in session.rows(_in_lane(), of | lane)]


# -- statements ----------------------------------------------------------------------------------------------------------


def _candidates(which: ColumnElement[bool], limit: str) -> Statement:
    """The first by rank of those that a condition holds for; of equal ones, those that an index has first."""
    by_rank = select(actors.c.uid, actors.c.rank, *LANE).where(which).order_by(actors.c.rank)
    return Statement(by_rank.limit(given(limit, Integer())), SQLITE)


def _is_mine() -> ColumnElement[bool]:
    return among(actors.c.binding, "bindings", SQLITE)


@cache
def _ready() -> Statement:
    """Of one binding: with all of them at once there would be no index to read them in order by."""
    return _candidates(and_(actors.c.binding == given("binding", ID), ready(NOW)), "window")


@cache
def _in_lane() -> Statement:
    lane = [
        actors.c[column] == given(name, ID) for column, name in (("binding", "binding"), ("tenant", "tenant"), ("concurrency_key", "key"))
    ]
    return _candidates(and_(*lane, ready(NOW, LANED)), "limit")


@cache
def _walk() -> Statement:
    start = {"binding": "binding", "tenant": "after_tenant", "key": "after_key"}
    starts = select(*(given(name, ID).label(column) for column, name in start.items())).subquery("starts")
    walk = walked(starts, NOW, SQLITE)
    return Statement(select(walk.c.tenant, walk.c.concurrency_key, walk.c.open, walk.c.found, walk.c.steps), SQLITE)


@cache
def _hides() -> Statement:
    """Whether something with a key waits for a binding, or of another tenant."""
    mine = actors.c.binding == given("binding", ID)
    waits = (select(ONE).where(mine, which).exists() for which in beside(given("tenant", ID)))
    return Statement(select(ONE).where(or_(*waits)), SQLITE)


@cache
def _leases_by_lane() -> Statement:
    return Statement(leases_by_lane(), SQLITE)


@cache
def _any_overdue() -> Statement:
    """Whether it is worth to look who is overdue: mostly nobody is."""
    return Statement(select(ONE).where(or_(*(select(ONE).where(which).exists() for which in (lapsed(NOW), care_due(NOW))))), SQLITE)


@cache
def _overdue() -> Statement:
    """Since when who is overdue, and whether that is a lapsed lease: the first of those never suspected, of suspects, and of those due for
    care."""
    whom = or_(anybodys(NOW), and_(_is_mine(), unsuspected()))
    suspects = and_(_is_mine(), ~anybodys(NOW), suspected(NOW, given("delay", BigInteger())))
    parts = (
        _longest(actors.c.lease_until, and_(lapsed(NOW), whom), ONE, "limit"),
        _longest(actors.c.lease_until, and_(lapsed(NOW), suspects), ONE, "suspects"),
        _longest(actors.c.care_at, care_due(NOW), ZERO, "limit"),
    )
    return Statement(union_all(*(select(*part.subquery().c) for part in parts)), SQLITE)


def _longest(since: ColumnElement[Any], which: ColumnElement[bool], has_lapsed: ColumnElement[int], limit: str) -> Select[Any]:
    found = select(actors.c.uid, since, has_lapsed.label("lapsed")).where(which)
    return found.order_by(since, actors.c.uid).limit(given(limit, Integer()))


@cache
def _take_one() -> Statement:
    return _taking(actors.c.uid == given("uid", ID))


@cache
def _take_all() -> Statement:
    return _taking(among(actors.c.uid, "uids", SQLITE))


def _taking(whom: ColumnElement[bool]) -> Statement:
    """Who has a lease has lost it: they keep their slots, and are recovered."""
    is_lost = actors.c.lease_owner.is_not(None)
    taken: dict[str, Any] = {
        "lease_owner": given("owner", ID),
        "lease_until": given("until", BigInteger()),
        "leg": actors.c.leg + ONE,
        "revision": actors.c.revision + ONE,
        "recoveries": actors.c.recoveries + is_lost,
        "status": case((is_ended(actors.c.status), actors.c.status), else_=RUNNING),
        "started_at": func.coalesce(actors.c.started_at, NOW),
        "drain_leg": null(),
        "ready_at": null(),
        **{name: case((is_lost, actors.c[name]), else_=given(name, Integer())) for name in ("key_slot", "tenant_slot")},
    }
    return Statement(update(actors).where(whom).values(taken).returning(*ENVELOPE), SQLITE)
