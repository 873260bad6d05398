"""What operators see and do across runs: the workers that live, the leases they hold, what nobody can drive, and what is over for good.

Operators see every tenant. Another caller with `ops` sees the runs of its own, and of workers no more than their ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runward.core.errors import NotFound
from runward.core.ids import canonical_json
from runward.core.kernel.actor import FORMAT, Envelope
from runward.core.kernel.mail import Letter, MailKind
from runward.core.times import optional_rfc3339, rfc3339
from runward.engine.callers import Caller, Permission
from runward.engine.found import run_of
from runward.engine.operations import Failed
from runward.engine.pages import Page, cursor_of, mark_of, opened
from runward.engine.services import Services
from runward.engine.why import Whys
from runward.ports.bus import Hint, Topic
from runward.ports.directory import WorkerRow
from runward.ports.reads import Place

PRUNE_BATCH = 100
"""How much one statement deletes: it must not keep others from the store."""

Read = Callable[[Place | None, int], Awaitable[Sequence[Envelope]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """How many runs were taken from their holders, and which were not, and why."""

    recovered: int
    failed: Sequence[Failed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """How many runs and budgets were deleted, and how many idempotency keys, and reservations of budgets, forgotten."""

    runs: int = 0
    keys: int = 0
    budgets: int = 0
    reservations: int = 0


class Oversight:
    """Lists workers and leases, takes runs from holders that hang, deletes what is old. Every method needs `ops`."""

    def __init__(self, services: Services, whys: Whys) -> None:
        self._services = services
        self._whys = whys

    # -- processes ---------------------------------------------------------------------------------------------------------

    async def workers(self, caller: Caller) -> Sequence[dict[str, Any]]:
        """Every worker that did not take its leave, latest beat first."""
        caller.require(Permission.OPS)
        live = {worker.id for worker in await self._whys.live_workers(await self._services.store.now())}
        return [_worker(row, row.id in live, whole=caller.runs_the_service) for row in await self._services.directory.workers()]

    async def drain_worker(self, caller: Caller, worker_id: str) -> None:
        """Asks a worker to give every run back and to take no more; it hears of that with its next beat (R39). Raises NotFound."""
        caller.require(Permission.OPS)
        caller.require_operator()
        if not await self._services.directory.ask_worker_drain(worker_id):
            raise NotFound("There is no such worker.")

    # -- lists -------------------------------------------------------------------------------------------------------------

    async def leases(self, caller: Caller, *, cursor: str | None, limit: int, stale_ms: int | None = None) -> Page:
        """A page of the runs under a lease, in the order in which the leases run out; with `stale_ms` of those whose lease ran out at least
        so long ago. A renewal moves a run. Raises Invalid for a cursor of another list."""

        def read(after: Place | None, most: int) -> Awaitable[Sequence[Envelope]]:
            return self._services.reads.held(caller.reads, lapsed_for_ms=stale_ms, after=after, limit=most)

        return await self._page(caller, read, _lease_place, _lease, mark=("leases", stale_ms), cursor=cursor, limit=limit)

    async def unclaimable(self, caller: Caller, *, cursor: str | None, limit: int) -> Page:
        """A page of the runs that are ready and that no living worker can take, oldest first (R41)."""
        now = await self._services.store.now()
        staying = [worker for worker in await self._whys.live_workers(now) if not worker.draining]
        bindings = sorted({binding for worker in staying for binding in worker.bindings})

        def read(after: Place | None, most: int) -> Awaitable[Sequence[Envelope]]:
            return self._services.reads.unclaimable(caller.reads, bindings, after=after, limit=most)

        return await self._page(
            caller, read, _age_place, lambda row: _unclaimable(row, now), mark=("unclaimable",), cursor=cursor, limit=limit
        )

    async def _page(
        self,
        caller: Caller,
        read: Read,
        place: Callable[[Envelope], Place],
        shown: Callable[[Envelope], dict[str, Any]],
        *,
        mark: tuple[Any, ...],
        cursor: str | None,
        limit: int,
    ) -> Page:
        """A page of a list of runs that the caller may see."""
        caller.require(Permission.OPS)
        bound = mark_of(*mark, caller.reads)
        rows = await read(None if cursor is None else opened(cursor, bound), limit + 1)
        more, rows = len(rows) > limit, rows[:limit]
        last = place(rows[-1]) if rows and more else None
        return Page(data=[shown(row) for row in rows], next_cursor=None if last is None else cursor_of(bound, last.at, last.uid))

    # -- recovery ----------------------------------------------------------------------------------------------------------

    async def recover(self, caller: Caller, limit: int) -> Recovered:
        """Takes at most `limit` runs whose lease has run out from their holders, at once: nobody has to wait for them (R40)."""
        caller.require(Permission.OPS)
        rows = await self._services.reads.held(caller.reads, lapsed_for_ms=0, after=None, limit=limit)
        return await self._seize(caller, rows, lapsed_only=True)

    async def recover_run(self, caller: Caller, run_id: str, *, force: bool) -> Recovered:
        """Takes one run from its holder: with `force` from one that is alive, too. What it does from then on changes nothing (R3).

        Raises NotFound."""
        caller.require(Permission.OPS)
        row = await run_of(self._services, caller, run_id)
        return await self._seize(caller, [row], lapsed_only=not force)

    async def _seize(self, caller: Caller, rows: Sequence[Envelope], *, lapsed_only: bool) -> Recovered:
        failed = []
        for row in rows:
            letter = Letter(
                kind=MailKind.TAKEOVER,
                key=f"takeover:{self._services.chance.uid()}",
                data=canonical_json({"worker": row.lease_owner}),
                principal=caller.principal,
            )
            if await self._services.store.seize(row.uid, letter, lapsed_only=lapsed_only) is None:
                failed.append(Failed(run_id=row.public_id, code="not_running" if row.lease_owner is None else "lease_held"))
            else:
                self._services.bus.publish((Hint(Topic.MAIL, row.uid), Hint(Topic.READY, row.uid)))
        return Recovered(recovered=len(rows) - len(failed), failed=failed)

    # -- pruning -----------------------------------------------------------------------------------------------------------

    async def prune(
        self, caller: Caller, *, runs_before: int | None, keys_before: int | None, budgets_before: int | None, limit: int
    ) -> Pruned:
        """Deletes ended runs last saved before a time, forgets idempotency keys older than one, and deletes budgets that nobody has used
        since one, with reservations that were over by then; at most `limit` of each (R45)."""
        caller.require(Permission.OPS)
        caller.require_operator()
        store, budgets = self._services.store, self._services.budgets
        done = Pruned()
        if runs_before is not None:
            runs = await in_batches(lambda most: store.prune(ended_before=runs_before, limit=most), limit)
            done = replace(done, runs=runs)
        if keys_before is not None:
            keys = await in_batches(lambda most: store.prune_keys(created_before=keys_before, limit=most), limit)
            done = replace(done, keys=keys)
        if budgets_before is not None:
            forgotten = await in_batches(lambda most: budgets.prune_reservations(made_before=budgets_before, limit=most), limit)
            unused = await in_batches(lambda most: budgets.prune(used_before=budgets_before, limit=most), limit)
            done = replace(done, budgets=unused, reservations=forgotten)
        return done


async def in_batches(delete: Callable[[int], Awaitable[int]], limit: int) -> int:
    """Deletes at most `limit` in small statements, until one of them finds less than it could have deleted. Returns how many."""
    deleted = 0
    while deleted < limit:
        most = min(PRUNE_BATCH, limit - deleted)
        count = await delete(most)
        deleted += count
        if count < most:
            break
    return deleted


def _lease_place(row: Envelope) -> Place:
    return Place(at=row.lease_until or 0, uid=row.uid)


def _age_place(row: Envelope) -> Place:
    return Place(at=row.created_at, uid=row.uid)


def _worker(row: WorkerRow, live: bool, *, whole: bool) -> dict[str, Any]:
    shown = {
        "worker_id": row.id,
        "live": live,
        "draining": row.draining or row.asked_to_drain,
        "beat_at": rfc3339(row.beat_at),
        "bindings": list(row.bindings),
    }
    if whole:
        shown |= {"host": row.host, "pid": row.pid, "started_at": rfc3339(row.started_at), "slots": row.slots, "driving": row.driving}
    return shown


def _run(row: Envelope) -> dict[str, Any]:
    return {
        "run_id": row.public_id,
        "scope": {"tenant": row.scope.tenant, "user": row.scope.user, "namespace": row.scope.namespace},
        "agent": row.agent,
        "agent_version": row.agent_version,
        "binding": row.binding,
        "status": row.status.value,
        "updated_at": rfc3339(row.updated_at),
    }


def _lease(row: Envelope) -> dict[str, Any]:
    """A run under a lease, as operators see it."""
    held = {"worker": row.lease_owner, "leg": row.leg, "expires_at": optional_rfc3339(row.lease_until)}
    return {**_run(row), **held, "recoveries": row.recoveries, "draining": row.drain_leg == row.leg}


def _unclaimable(row: Envelope, now: int) -> dict[str, Any]:
    """A run that nobody can take, and why."""
    code = "format_too_new" if row.format > FORMAT else "no_worker_with_binding"
    age = max(0, now - (row.ready_at or row.created_at)) // 1000
    return {**_run(row), "code": code, "format": row.format, "created_at": rfc3339(row.created_at), "waiting_seconds": age}
