"""Taking actors to drive, and giving back those that a lost answer left behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from runward.core.kernel.actor import FORMAT, Envelope, Status, rank_of
from runward.core.kernel.commit import Claimed, Claims
from runward.ports.store import ClaimRequest
from runward.stores.memory.database import MemoryDatabase


def claim(database: MemoryDatabase, request: ClaimRequest) -> Claims:
    """`Store.claim`."""
    now = database.now()
    readable = [envelope for envelope in database.pending() if envelope.format <= FORMAT]
    chosen: dict[str, Envelope] = {}
    for envelope in (*_ready(readable, request, now), *_lapsed(readable, request, now), *_due_for_care(readable, now)):
        if len(chosen) < request.limit:
            chosen.setdefault(envelope.uid, envelope)
    return Claims(taken=tuple(_taken(database, envelope, request, now) for envelope in chosen.values()), now=now)


def owned(database: MemoryDatabase, owner: str) -> dict[str, int]:
    """`Store.owned`."""
    return {envelope.uid: envelope.leg for envelope in database.pending() if envelope.lease_owner == owner}


def disown(database: MemoryDatabase, owner: str, legs: Mapping[str, int]) -> tuple[str, ...]:
    """`Store.disown`."""
    now = database.now()
    lost = [envelope for envelope in database.pending() if envelope.lease_owner == owner and legs.get(envelope.uid) == envelope.leg]
    for envelope in lost:
        given_back = replace(
            envelope,
            revision=envelope.revision + 1,
            status=envelope.status if envelope.status.ended else Status.QUEUED,
            lease_owner=None,
            lease_until=None,
            drain_leg=None,
            ready_at=None if envelope.status.ended else now,
            rank=min(envelope.rank, rank_of(now, envelope.priority)),
        )
        database.put(given_back)
    return tuple(sorted(envelope.uid for envelope in lost))


def _ready(readable: list[Envelope], request: ClaimRequest, now: int) -> list[Envelope]:
    ready = [
        envelope
        for envelope in readable
        if envelope.lease_owner is None
        and envelope.status in (Status.QUEUED, Status.SUSPENDED)
        and envelope.binding in request.bindings
        and _due(envelope.ready_at, now)
    ]
    return sorted(ready, key=lambda envelope: (envelope.rank, envelope.uid))


def _lapsed(readable: list[Envelope], request: ClaimRequest, now: int) -> Iterator[Envelope]:
    lapsed = [(envelope.lease_until, envelope.uid, envelope) for envelope in readable if envelope.lease_until is not None]
    suspects = request.suspects
    for until, _, envelope in sorted(lapsed, key=lambda item: item[:2]):
        if until >= now:
            continue
        if envelope.recoveries >= request.max_recoveries or _due(envelope.care_at, now):
            yield envelope
        elif envelope.binding not in request.bindings:
            continue
        elif envelope.recoveries == 0:
            yield envelope
        elif suspects > 0 and until + request.recovery_delay_ms * 2 ** (envelope.recoveries - 1) < now:
            suspects -= 1
            yield envelope


def _due_for_care(readable: list[Envelope], now: int) -> list[Envelope]:
    due = [
        (envelope.care_at, envelope.uid, envelope) for envelope in readable if envelope.lease_owner is None and _due(envelope.care_at, now)
    ]
    return [envelope for _, _, envelope in sorted(due, key=lambda item: item[:2])]


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
