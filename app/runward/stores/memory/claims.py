"""Taking actors to drive, giving back those that a lost answer left behind, and taking them from their holders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from runward.core.kernel.actor import FORMAT, Envelope, Status, rank_of
from runward.core.kernel.commit import Claimed, Claims
from runward.core.kernel.mail import Letter
from runward.ports.store import ClaimRequest
from runward.stores.guards import check_letters
from runward.stores.memory.database import MemoryDatabase
from runward.stores.memory.mailbox import put_letters
from runward.stores.turns import Held, Served, Waiting, in_turn


def claim(database: MemoryDatabase, served: Served, request: ClaimRequest) -> Claims:
    """`Store.claim`."""
    now = database.now()
    readable = [envelope for envelope in database.pending() if envelope.format <= FORMAT]
    chosen: dict[str, Envelope] = {}
    overdue = _overdue(readable, request, now)
    late = {envelope.uid for envelope in overdue}
    ready = _ready(database, served, [envelope for envelope in readable if envelope.uid not in late], request, now)
    for envelope in (*overdue[: request.overdue], *ready, *overdue[request.overdue :]):
        if len(chosen) < request.limit:
            chosen.setdefault(envelope.uid, envelope)
    return served.note(Claims(taken=tuple(_taken(database, envelope, request, now) for envelope in chosen.values()), now=now))


def owned(database: MemoryDatabase, owner: str) -> dict[str, int]:
    """`Store.owned`."""
    return {envelope.uid: envelope.leg for envelope in database.pending() if envelope.lease_owner == owner}


def disown(database: MemoryDatabase, owner: str, legs: Mapping[str, int]) -> tuple[str, ...]:
    """`Store.disown`."""
    now = database.now()
    lost = [envelope for envelope in database.pending() if envelope.lease_owner == owner and legs.get(envelope.uid) == envelope.leg]
    for envelope in lost:
        database.put(_given_back(envelope, now))
    return tuple(sorted(envelope.uid for envelope in lost))


def seize(database: MemoryDatabase, uid: str, letter: Letter, *, lapsed_only: bool) -> int | None:
    """`Store.seize`."""
    check_letters((letter,))
    rows, now = database.actors.get(uid), database.now()
    if rows is None or rows.envelope.lease_until is None or rows.envelope.format > FORMAT or letter.key in rows.mail_seqs:
        return None
    envelope, lapsed = rows.envelope, rows.envelope.lease_until < now
    if lapsed_only and not lapsed:
        return None
    put_letters(rows, (letter,), now=now)
    taken = replace(_given_back(envelope, now), mail_received=len(rows.mail), recoveries=envelope.recoveries + lapsed)
    database.put(replace(taken, care_at=now) if taken.status.ended else taken)
    return envelope.leg


def _given_back(envelope: Envelope, now: int) -> Envelope:
    ended = envelope.status.ended
    return replace(
        envelope,
        revision=envelope.revision + 1,
        status=envelope.status if ended else Status.QUEUED,
        lease_owner=None,
        lease_until=None,
        drain_leg=None,
        ready_at=None if ended else now,
        rank=envelope.rank if ended else min(envelope.rank, rank_of(now, envelope.priority)),
    )


def _ready(database: MemoryDatabase, served: Served, readable: list[Envelope], request: ClaimRequest, now: int) -> Iterator[Envelope]:
    """In turn, with the slots that they are taken with."""
    ready = {
        envelope.uid: envelope
        for envelope in readable
        if envelope.lease_owner is None
        and envelope.status in (Status.QUEUED, Status.SUSPENDED)
        and envelope.binding in request.bindings
        and _due(envelope.ready_at, now)
    }
    waiting = [Waiting(uid=each.uid, tenant=each.scope.tenant, key=each.concurrency_key or "", rank=each.rank) for each in ready.values()]
    held = [
        Held(tenant=each.scope.tenant, key=each.concurrency_key or "", key_slot=each.key_slot, tenant_slot=each.tenant_slot)
        for each in database.pending()
        if each.lease_owner is not None
    ]
    for turn in in_turn(waiting, held, served, request):
        yield replace(ready[turn.uid], key_slot=turn.key_slot, tenant_slot=turn.tenant_slot)


def _overdue(readable: list[Envelope], request: ClaimRequest, now: int) -> list[Envelope]:
    due = [*_lapsed(readable, request, now), *_due_for_care(readable, now)]
    return [envelope for _, _, envelope in sorted(due, key=lambda item: item[:2])]


def _lapsed(readable: list[Envelope], request: ClaimRequest, now: int) -> Iterator[tuple[int, str, Envelope]]:
    lapsed = [(envelope.lease_until, envelope.uid, envelope) for envelope in readable if envelope.lease_until is not None]
    suspects = request.suspects
    for until, uid, envelope in sorted(lapsed, key=lambda item: item[:2]):
        if until >= now:
            continue
        if envelope.recoveries >= request.max_recoveries or _due(envelope.care_at, now):
            yield until, uid, envelope
        elif envelope.binding not in request.bindings:
            continue
        elif envelope.recoveries == 0:
            yield until, uid, envelope
        elif suspects > 0 and until + request.recovery_delay_ms * 2 ** (envelope.recoveries - 1) < now:
            suspects -= 1
            yield until, uid, envelope


def _due_for_care(readable: list[Envelope], now: int) -> Iterator[tuple[int, str, Envelope]]:
    for envelope in readable:
        if envelope.lease_owner is None and envelope.care_at is not None and envelope.care_at <= now:
            yield envelope.care_at, envelope.uid, replace(envelope, key_slot=None, tenant_slot=None)


def _due(at: int | None, now: int) -> bool:
    return at is not None and at <= now


def _taken(database: MemoryDatabase, envelope: Envelope, request: ClaimRequest, now: int) -> Claimed:
    recovered = envelope.lease_owner is not None
    taken = replace(
        envelope,
        lease_owner=request.owner,
        lease_until=now + request.ttl_ms,
        leg=envelope.leg + 1,
        revision=envelope.revision + 1,
        recoveries=envelope.recoveries + recovered,
        status=envelope.status if envelope.status.ended else Status.RUNNING,
        started_at=now if envelope.started_at is None else envelope.started_at,
        drain_leg=None,
        ready_at=None,
    )
    database.put(taken)
    return Claimed(envelope=taken, recovered=recovered)
