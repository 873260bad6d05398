"""Why is this run not moving? One structured answer, from what is stored of the run and of the workers that live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from runward.core.kernel.actor import FORMAT, Envelope, Status
from runward.core.runs.state import KIND, RunState
from runward.core.times import rfc3339
from runward.engine.callers import Caller, Permission
from runward.engine.found import readable, run_of
from runward.engine.reasons import GOES_ON, Reason, doing, since, told, waits
from runward.engine.services import Services, WorkerSettings
from runward.ports.directory import WorkerRow
from runward.ports.reads import ActorQuery, Order

QUEUE_LOOK = 500
"""How much of the queue is counted."""
MOST_WORKERS_NAMED = 10


class Whys:
    """Answers why a run is not moving. `working` is how the workers of this service work."""

    def __init__(self, services: Services, working: WorkerSettings) -> None:
        self._services = services
        self._working = working

    async def why(self, caller: Caller, run_id: str) -> dict[str, Any]:
        """Where the run stands, what it waits for, who has it, and every reason for that, each with what to do next. Raises NotFound."""
        caller.require(Permission.RUNS_READ)
        row = await run_of(self._services, caller, run_id)
        run = readable(row)
        arrived = await self._arrived(row)
        waiting = [] if run is None else list(waits(row, run, arrived))
        now = await self._services.store.now()  # read behind the row: by this process's idea of the time its own row may lie ahead
        workers = await self.live_workers(now)
        reasons = [*self._state(row, run, now), *(each.reason for each in waiting)]
        bounds = await self._bounds(caller, row, now)
        if self._is_due(row, now):
            reasons += bounds or await self._takers(caller, row, workers, now)
        held = row.lease_owner is not None and row.lease_until is not None
        return {
            "run_id": row.public_id,
            "status": row.status.value,
            "since": rfc3339(since(row, run)),
            "waiting_on": [each.shown for each in waiting],
            "lease": {"worker": row.lease_owner, "expires_at": rfc3339(row.lease_until)} if held and row.lease_until else None,
            "claimable": self._is_due(row, now) and not bounds and any(self._can(worker, row, now) for worker in workers),
            "reasons": told(iter(reasons)),
        }

    async def live_workers(self, now: int) -> Sequence[WorkerRow]:
        """The workers that, at store time `now`, said less than a lease's length ago that they live: whoever is silent for longer has lost
        what it had."""
        silent_since = now - round(self._working.lease_ttl * 1000)
        return [worker for worker in await self._services.directory.workers() if worker.beat_at >= silent_since]

    # -- the run -----------------------------------------------------------------------------------------------------------

    async def _arrived(self, row: Envelope) -> frozenset[str]:
        if row.mail_received == row.mail_applied:
            return frozenset()
        return frozenset(mail.key for mail in await self._services.reads.mail(row.uid, after=row.mail_applied, limit=None))

    def _state(self, row: Envelope, run: RunState | None, now: int) -> Iterator[Reason]:
        if row.status.ended:
            yield _ended(row, run)
        elif row.cancel_requested_at is not None:
            detail = f"A cancel was accepted at {rfc3339(row.cancel_requested_at)}; the run ends as soon as a worker has applied it."
            yield Reason(code="cancel_requested", detail=detail, next=GOES_ON)
        if row.format > FORMAT:
            detail = f"The run is stored in format {row.format}, and this version reads {FORMAT} at most."
            yield Reason(code="format_too_new", detail=detail, next="Start workers of the version that wrote it.")
        if row.mail_received > row.mail_applied:
            detail = f"{row.mail_received - row.mail_applied} inputs have arrived that no leg has applied yet."
            yield Reason(
                code="inbox_unapplied", detail=detail, next=f"GET /runs/{row.public_id}/inbox shows them. The next leg applies them first."
            )
        if row.lease_owner is not None and row.lease_until is not None:
            yield from self._leased(row, run, row.lease_until, now)
        elif row.status is Status.QUEUED and row.ready_at is not None and row.ready_at > now:
            detail = f"The run is not to start before {rfc3339(row.ready_at)}."
            yield Reason(code="starts_later", detail=detail, next=GOES_ON)

    def _leased(self, row: Envelope, run: RunState | None, until: int, now: int) -> Iterator[Reason]:
        if until < now:
            wrote = rfc3339(row.updated_at)
            detail = f"Worker {row.lease_owner} stopped renewing its lease, which ran out at {rfc3339(until)}; it last wrote at {wrote}."
            yield Reason(code="lease_lapsed", detail=detail, next="Nothing: a worker takes the run over. POST /ops/recover does so now.")
            claim_at = self._suspect_until(row, until)
            if claim_at > now:
                detail = (
                    f"The run was recovered {row.recoveries} times without getting on, so the next claim waits until {rfc3339(claim_at)}."
                )
                yield Reason(code="suspect_delay", detail=detail, next="Look for what kills its workers. POST /ops/recover does not wait.")
            return
        detail = f"Worker {row.lease_owner} drives it, under a lease until {rfc3339(until)}; it last wrote at {rfc3339(row.updated_at)}."
        todo = "Nothing while it works. If that worker hangs, POST /ops/recover with the run_id and force takes the run from it."
        yield Reason(code="lease_held", detail=detail, next=todo)
        if row.drain_leg == row.leg:
            yield Reason(code="draining", detail="The leg was asked to give the run back at the next boundary.", next=GOES_ON)
        if run is not None:
            yield from doing(row, run, now)

    # -- the workers -------------------------------------------------------------------------------------------------------

    def _suspect_until(self, row: Envelope, until: int) -> int:
        """Until when a run whose lease ran out at `until` is not claimed (R40)."""
        if row.recoveries == 0 or row.recoveries >= self._working.max_recoveries:
            return until
        return until + int(self._working.recovery_delay * 1000 * 2 ** (row.recoveries - 1))

    def _is_due(self, row: Envelope, now: int) -> bool:
        """Whether the store would give the run to a worker that asks for it."""
        if row.format > FORMAT:
            return False
        care = row.care_at is not None and row.care_at <= now
        if row.lease_until is not None:
            return row.lease_until < now and (care or self._suspect_until(row, row.lease_until) <= now)
        ready = row.status in (Status.QUEUED, Status.SUSPENDED) and row.ready_at is not None and row.ready_at <= now
        return care or ready

    def _can(self, worker: WorkerRow, row: Envelope, now: int) -> bool:
        """Whether a worker may take the run: it has its code, or none is needed (R41)."""
        if worker.draining or worker.asked_to_drain:
            return False
        care = row.care_at is not None and row.care_at <= now
        exhausted = row.lease_until is not None and row.recoveries >= self._working.max_recoveries
        return care or exhausted or row.binding in worker.bindings

    async def _bounds(self, caller: Caller, row: Envelope, now: int) -> list[Reason]:
        """What of the run's own tenant keeps it from being taken: as many as may be are being driven. Care is not bounded."""
        bounded = row.concurrency_key is not None or self._working.per_tenant is not None
        if not bounded or row.lease_owner is not None or not self._is_due(row, now) or (row.care_at is not None and row.care_at <= now):
            return []
        taken = await self._services.reads.slots_taken(row.scope.tenant, row.concurrency_key)
        reasons = []
        if row.concurrency_key is not None and taken.of_key >= self._working.per_key:
            ahead = await self._ahead(caller, row, now, same_key=True)
            detail = f"{taken.of_key} runs with its concurrency_key are being driven, as many as may be; {ahead} wait before this one."
            todo = "Wait until one of them is done, waits for somebody, or is cancelled. RUNWARD_CONCURRENCY_PER_KEY is how many may be."
            reasons.append(Reason(code="concurrency_key_full", detail=detail, next=todo))
        if self._working.per_tenant is not None and taken.of_tenant >= self._working.per_tenant:
            ahead = await self._ahead(caller, row, now)
            detail = f"{taken.of_tenant} runs of its tenant are being driven, as many as may be; {ahead} wait before this one."
            todo = "Wait until one of them is done or waits for somebody. RUNWARD_CONCURRENCY_PER_TENANT is how many may be."
            reasons.append(Reason(code="tenant_at_limit", detail=detail, next=todo))
        return reasons

    async def _takers(self, caller: Caller, row: Envelope, workers: Sequence[WorkerRow], now: int) -> list[Reason]:
        """Why nobody has taken a run that could be taken."""
        staying = [worker for worker in workers if not worker.draining and not worker.asked_to_drain]
        able = [worker for worker in staying if self._can(worker, row, now)]
        if not staying:
            return [Reason(code="no_worker_at_all", detail="No worker lives that takes runs.", next="Start one: `runward worker`.")]
        if not able:
            names = ", ".join(worker.id for worker in staying[:MOST_WORKERS_NAMED])
            detail = f"No worker has the binding {row.binding} ({row.agent}, version {row.agent_version}). Those that live: {names}."
            todo = "Start a worker with that version of the agent, let a newer one accept it, or POST /ops/rebind."
            return [Reason(code="no_worker_with_binding", detail=detail, next=todo)]
        if all(worker.driving >= worker.slots for worker in able):
            detail = f"Every slot of the {len(able)} workers that have its code is taken."
            return [Reason(code="workers_full", detail=detail, next="Wait, start more workers, or raise RUNWARD_WORKER_CONCURRENCY.")]
        if row.status is Status.QUEUED:
            return [Reason(code="queued", detail=await self._place(caller, row, now), next=GOES_ON)]
        return [Reason(code="due", detail="A worker with a free slot is about to take it.", next=GOES_ON)]

    async def _place(self, caller: Caller, row: Envelope, now: int) -> str:
        """The run's place in its queue, among the runs that the caller may see."""
        ahead = await self._ahead(caller, row, now)
        return f"It is in the queue, behind {ahead}, and a worker has a free slot."

    async def _ahead(self, caller: Caller, row: Envelope, now: int, *, same_key: bool = False) -> str:
        """How many runs are before this one of those that the caller may see."""
        query = ActorQuery(
            kind=KIND, scope=caller.reads, statuses=(Status.QUEUED,), agent=row.agent, order=Order.OLDEST, horizon=now, limit=QUEUE_LOOK
        )
        rows = await self._services.reads.list(query)
        of_key = [other for other in rows if not same_key or other.concurrency_key == row.concurrency_key]
        ahead = sum(_goes_first(other, row, now) for other in of_key)
        least = "at least " if len(rows) == QUEUE_LOOK else ""
        return f"{least}{ahead} other runs that you may see"


def _goes_first(other: Envelope, row: Envelope, now: int) -> bool:
    ready = other.ready_at is not None and other.ready_at <= now
    return ready and other.binding == row.binding and (other.rank, other.uid) < (row.rank, row.uid)


def _ended(row: Envelope, run: RunState | None) -> Reason:
    failure = run.ended.failure if run is not None and run.ended is not None else None
    todo = "Nothing: an ended run stays as it is."
    if row.status is Status.FAILED and failure is not None and failure.transient:
        todo = f'The cause may have passed: POST /runs/{row.public_id}/resume with {{"retry_failed": true}}.'
    return Reason(code="ended", detail=f"The run has ended: {row.stop_reason or row.status.value}.", next=todo)
