"""The reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from runward.core.kernel.actor import FORMAT, Envelope, Scope, Status
from runward.core.kernel.commit import CreatedIsGone, IdempotencyKey, KeyReused, Replayed
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.mail import Mail
from runward.core.kernel.records import MessageRow, Receipt
from runward.ports.reads import PAGE_BYTES, ActorQuery, ApprovalQuery, Order, Place, SlotsTaken, StoredApproval
from runward.stores.memory.database import Faults, MemoryDatabase, Rows

T = TypeVar("T")


class MemoryReads:
    """`ports.reads.Reads`."""

    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()

    async def find(self, kind: str, scope: Scope | None, public_id: str) -> Envelope | None:
        return await self._database.turn(self._faults, "find", lambda: _find(self._database, kind, scope, public_id))

    async def tenants_with(self, kind: str, public_id: str) -> Sequence[str]:
        def work() -> list[str]:
            envelopes = (rows.envelope for rows in self._database.actors.values())
            return sorted(each.scope.tenant for each in envelopes if each.public_id == public_id and each.kind == kind)[:2]

        return await self._database.turn(self._faults, "tenants_with", work)

    async def get(self, uid: str) -> Envelope | None:
        return await self._of(uid, "get", None, lambda rows: rows.envelope)

    async def list(self, query: ActorQuery) -> Sequence[Envelope]:
        return await self._database.turn(self._faults, "list", lambda: _list(self._database, query))

    async def frames(self, uid: str, *, after: int, limit: int) -> Sequence[StoredFrame]:
        def work(rows: Rows) -> list[StoredFrame]:
            page: list[StoredFrame] = []
            size = 0
            for frame in rows.frames[after : after + limit]:
                page.append(frame)
                size += len(frame.data)
                if size >= PAGE_BYTES:
                    break
            return page

        return await self._of(uid, "frames", [], work)

    async def messages(self, uid: str, *, after: int, limit: int | None) -> Sequence[MessageRow]:
        def work(rows: Rows) -> list[MessageRow]:
            return [rows.messages[seq] for seq in sorted(rows.messages) if seq > after][:limit]

        return await self._of(uid, "messages", [], work)

    async def receipts(
        self, uid: str, *, step: int | None = None, after: tuple[int, int] = (0, 0), limit: int | None = None
    ) -> Sequence[Receipt]:
        def work(rows: Rows) -> list[Receipt]:
            ordered = sorted(rows.receipts.values(), key=lambda receipt: (receipt.step, receipt.position))
            return [receipt for receipt in ordered if step in (None, receipt.step) and (receipt.step, receipt.position) > after][:limit]

        return await self._of(uid, "receipts", [], work)

    async def mail(self, uid: str, *, after: int, limit: int | None) -> Sequence[Mail]:
        return await self._of(uid, "mail", [], lambda rows: rows.mail[after:][:limit])

    async def mail_by_key(self, uid: str, keys: Sequence[str]) -> Mapping[str, Mail]:
        def work(rows: Rows) -> dict[str, Mail]:
            return {key: rows.mail[rows.mail_seqs[key] - 1] for key in keys if key in rows.mail_seqs}

        return await self._of(uid, "mail_by_key", {}, work)

    async def approval(self, scope: Scope | None, id: str) -> StoredApproval | None:
        def work() -> StoredApproval | None:
            return next((found for found in _approvals(self._database) if found.id == id and _sees(scope, found.scope)), None)

        return await self._database.turn(self._faults, "approval", work)

    async def approvals(self, query: ApprovalQuery) -> Sequence[StoredApproval]:
        return await self._database.turn(self._faults, "approvals", lambda: _list_approvals(self._database, query))

    async def held(self, scope: Scope | None, *, lapsed_for_ms: int | None, after: Place | None, limit: int) -> Sequence[Envelope]:
        def work() -> Sequence[Envelope]:
            before = None if lapsed_for_ms is None else self._database.now() - lapsed_for_ms
            seen = [envelope for envelope in self._database.pending() if _sees(scope, envelope.scope)]
            leased = [(envelope.lease_until, envelope) for envelope in seen if envelope.lease_until is not None]
            return _ascending([(until, envelope) for until, envelope in leased if before is None or until < before], after, limit)

        return await self._database.turn(self._faults, "held", work)

    async def slots_taken(self, tenant: str, key: str | None) -> SlotsTaken:
        def work() -> SlotsTaken:
            leases = [each for each in self._database.pending() if each.lease_owner is not None and each.scope.tenant == tenant]
            of_key = sum(each.key_slot is not None and each.concurrency_key == key for each in leases)
            return SlotsTaken(of_key=of_key, of_tenant=sum(each.tenant_slot is not None for each in leases))

        return await self._database.turn(self._faults, "slots_taken", work)

    async def unclaimable(self, scope: Scope | None, bindings: Sequence[str], *, after: Place | None, limit: int) -> Sequence[Envelope]:
        def work() -> Sequence[Envelope]:
            now = self._database.now()
            waiting = [
                envelope for envelope in self._database.pending() if _sees(scope, envelope.scope) and _waits_for_a_worker(envelope, now)
            ]
            left = [envelope for envelope in waiting if envelope.binding not in bindings or envelope.format > FORMAT]
            return _ascending([(envelope.created_at, envelope) for envelope in left], after, limit)

        return await self._database.turn(self._faults, "unclaimable", work)

    async def remembered(self, key: IdempotencyKey) -> Replayed | KeyReused | CreatedIsGone | None:
        return await self._database.turn(self._faults, "remembered", lambda: self._database.remembered(key))

    async def _of(self, uid: str, name: str, nothing: T, read: Callable[[Rows], T]) -> T:
        """What `read` makes of an actor's rows; `nothing` when there is no such actor."""

        def work() -> T:
            rows = self._database.actors.get(uid)
            return nothing if rows is None else read(rows)

        return await self._database.turn(self._faults, name, work)


def _find(database: MemoryDatabase, kind: str, scope: Scope | None, public_id: str) -> Envelope | None:
    if scope is not None:
        uid = database.public_ids.get((scope.tenant, public_id))
        envelope = None if uid is None else database.actors[uid].envelope
        return envelope if envelope is not None and envelope.kind == kind and _sees(scope, envelope.scope) else None
    found = [envelope for rows in database.actors.values() if (envelope := rows.envelope).public_id == public_id and envelope.kind == kind]
    return max(found, key=lambda envelope: (envelope.created_at, envelope.uid), default=None)


def _sees(scope: Scope | None, of: Scope) -> bool:
    return scope is None or scope.covers(of)


def _list(database: MemoryDatabase, query: ActorQuery) -> Sequence[Envelope]:
    placed = []
    for rows in database.actors.values():
        at = _at(rows.envelope, query.order)
        if at is not None and _fits(rows.envelope, query) and _in_page((at, rows.envelope.uid), query):
            placed.append((at, rows.envelope.uid, rows.envelope))
    placed.sort(key=lambda place: place[:2], reverse=query.order is Order.NEWEST)
    return [envelope for _, _, envelope in placed[: query.limit]]


def _at(envelope: Envelope, order: Order) -> int | None:
    """When it happened, in the sense of the order; None leaves it out."""
    return envelope.ended_at if order is Order.ENDED else envelope.created_at


def _waits_for_a_worker(envelope: Envelope, now: int) -> bool:
    if envelope.lease_owner is not None or envelope.ready_at is None:
        return False
    return envelope.status is Status.QUEUED or (envelope.status is Status.SUSPENDED and envelope.ready_at <= now)


def _ascending(found: Iterable[tuple[int, Envelope]], after: Place | None, limit: int) -> Sequence[Envelope]:
    placed = sorted((((at, envelope.uid), envelope) for at, envelope in found), key=lambda item: item[0])
    return [envelope for place, envelope in placed if after is None or place > (after.at, after.uid)][:limit]


def _approvals(database: MemoryDatabase) -> Iterator[StoredApproval]:
    for rows in database.actors.values():
        for row, closing in rows.approvals.values():
            yield StoredApproval(
                id=row.id,
                uid=rows.envelope.uid,
                run_id=rows.envelope.public_id,
                scope=rows.envelope.scope,
                agent=rows.envelope.agent,
                tool=row.tool,
                status="pending" if closing is None else closing.status,
                created_at=row.created_at,
                expires_at=row.expires_at,
                data=row.data,
                decided_at=None if closing is None else closing.decided_at,
                decision=None if closing is None else closing.decision,
            )


def _list_approvals(database: MemoryDatabase, query: ApprovalQuery) -> Sequence[StoredApproval]:
    placed = [((found.created_at, found.id), found) for found in _approvals(database) if _is_asked_for(found, query)]
    placed.sort(key=lambda item: item[0], reverse=query.order is Order.NEWEST)
    return [found for place, found in placed if _in_page(place, query)][: query.limit]


def _is_asked_for(found: StoredApproval, query: ApprovalQuery) -> bool:
    return (
        _sees(query.scope, found.scope)
        and (not query.statuses or found.status in query.statuses)
        and query.run_id in (None, found.run_id)
        and query.agent in (None, found.agent)
        and query.tool in (None, found.tool)
        and query.user in (None, found.scope.user)
        and _within(found.created_at, query.created_after, None)
    )


def _in_page(place: tuple[int, str], query: ActorQuery | ApprovalQuery) -> bool:
    if query.order is Order.NEWEST:
        return query.after is None or place < (query.after.at, query.after.uid)
    if query.horizon is not None and place[0] > query.horizon:
        return False
    return query.after is None or place > (query.after.at, query.after.uid)


def _fits(envelope: Envelope, query: ActorQuery) -> bool:
    return (
        envelope.kind == query.kind
        and _sees(query.scope, envelope.scope)
        and (not query.statuses or envelope.status in query.statuses)
        and (not query.waiting_on or bool(envelope.waiting_on & query.waiting_on))
        and query.agent in (None, envelope.agent)
        and query.agent_version in (None, envelope.agent_version)
        and query.user in (None, envelope.scope.user)
        and query.namespace in (None, envelope.scope.namespace)
        and query.stop_reason in (None, envelope.stop_reason)
        and query.task_outcome in (None, envelope.task_outcome)
        and query.cancel_requested in (None, envelope.cancel_requested_at is not None)
        and _within(envelope.created_at, query.created_after, query.created_before)
        and _within(envelope.ended_at, query.ended_after, query.ended_before)
        and _within(envelope.updated_at, None, query.updated_before)
        and _has_metadata(envelope.metadata, query.metadata)
    )


def _within(at: int | None, after: int | None, before: int | None) -> bool:
    """Whether a time is in a range; one that is not set is in no bounded range."""
    if at is None:
        return after is None and before is None
    return (after is None or at >= after) and (before is None or at < before)


def _has_metadata(metadata: str, wanted: Mapping[str, str]) -> bool:
    if not wanted:
        return True
    stored = json.loads(metadata)
    return all(isinstance(stored.get(key), str) and stored[key] == value for key, value in wanted.items())
