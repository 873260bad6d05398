"""What operators see and do across runs: workers, leases, what nobody can drive, recovery, rebinding, limits, pruning."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import Query as FromQuery
from starlette.responses import Response

from runward.api.asking import Asked, answer
from runward.api.routing import Answer, Route
from runward.api.schemas import ops
from runward.api.schemas.requests import ListPart
from runward.api.schemas.values import RunId
from runward.engine.queries import shown
from runward.engine.rebinding import Rebind


async def list_workers(asked: Asked) -> Response:
    """Every worker that did not take its leave, what it can drive, and when it last said that it lives."""
    return answer({"data": await asked.door.oversight.workers(asked.caller)})


async def drain_worker(asked: Asked, worker_id: ops.WorkerId) -> Response:
    """Lets a worker give every run back and take no more. It hears of that with its next beat, a third of a lease away at most.

    A `runward worker` exits 0 then; a `runward serve` goes on without a worker. Operator keys only.
    """
    await asked.door.oversight.drain_worker(asked.caller, worker_id)
    return answer({"outcome": "accepted"}, 202)


async def list_leases(asked: Asked, query: Annotated[ListPart, FromQuery()]) -> Response:
    """Who drives what, and until when. A renewal moves a run to the end of the list."""
    page = await asked.door.oversight.leases(asked.caller, cursor=query.cursor, limit=query.limit)
    return answer({"data": page.data, "next_cursor": page.next_cursor})


async def list_stale(asked: Asked, query: Annotated[ops.ListStale, FromQuery()]) -> Response:
    """Runs whose worker has gone: their lease ran out so long ago, and nobody has taken them over."""
    stale_ms = query.stale_seconds * 1_000
    page = await asked.door.oversight.leases(asked.caller, cursor=query.cursor, limit=query.limit, stale_ms=stale_ms)
    return answer({"data": page.data, "next_cursor": page.next_cursor})


async def list_unclaimable(asked: Asked, query: Annotated[ListPart, FromQuery()]) -> Response:
    """Runs that are ready and that no living worker can take: none has their binding, or a newer version wrote them."""
    page = await asked.door.oversight.unclaimable(asked.caller, cursor=query.cursor, limit=query.limit)
    return answer({"data": page.data, "next_cursor": page.next_cursor})


async def recover_runs(asked: Asked, body: ops.RecoverRuns) -> Response:
    """Takes runs from holders whose lease has run out, or, by `force`, one from a holder that lives. Whatever that one does from then on
    changes nothing. It is recorded in the run's inbox."""
    if body.run_id is None:
        done = await asked.door.oversight.recover(asked.caller, body.limit)
    else:
        done = await asked.door.oversight.recover_run(asked.caller, body.run_id, force=body.force)
    return answer(asdict(done))


async def rebind_runs(asked: Asked, body: ops.RebindRuns) -> Response:
    """Lets runs go on with other code of the same agent, from their next leg on. It is recorded in their inboxes.

    What open calls need has to be there and the same: tools, their kind, effect and approval.
    """
    rebind = Rebind(source=body.source, target=body.target, reason=body.reason)
    rebinding = asked.door.rebinding
    if body.run_id is not None:
        done = await rebinding.rebind_run(asked.caller, body.run_id, rebind)
    else:
        done = await rebinding.rebind_agent(asked.caller, body.agent or "", rebind, cursor=body.cursor, limit=body.limit)
    return answer(asdict(done), 202)


async def raise_limits(asked: Asked, run_id: RunId, body: ops.RaiseLimits) -> Response:
    """Raises limits of a run that has not ended; it goes on by itself. It is recorded in the run's inbox."""
    row = await asked.door.rebinding.raise_limits(asked.caller, run_id, body.limits.given, body.reason)
    return answer({"run": shown(row).shown}, 202)


async def prune(asked: Asked, body: ops.Prune) -> Response:
    """Deletes ended runs, whole, forgets idempotency keys, and deletes budgets that nobody uses, in small batches. Operator keys only."""
    times = {"runs_before": body.runs_before, "keys_before": body.keys_before, "budgets_before": body.budgets_before}
    done = await asked.door.oversight.prune(asked.caller, **times, limit=body.limit)
    return answer(asdict(done))


ROUTES = (
    Route(
        method="GET",
        path="/ops/workers",
        endpoint=list_workers,
        summary="List workers",
        tag="operations",
        answers={200: Answer(description="All of them.", model=ops.WorkerList)},
    ),
    Route(
        method="POST",
        path="/ops/workers/{worker_id}/drain",
        endpoint=drain_worker,
        summary="Drain a worker",
        tag="operations",
        answers={202: Answer(description="It was asked to.", model=ops.Accepted)},
    ),
    Route(
        method="GET",
        path="/ops/leases",
        endpoint=list_leases,
        summary="List leases",
        tag="operations",
        answers={200: Answer(description="A page.", model=ops.LeasePage)},
    ),
    Route(
        method="GET",
        path="/ops/stale",
        endpoint=list_stale,
        summary="List runs left behind",
        tag="operations",
        answers={200: Answer(description="A page.", model=ops.LeasePage)},
    ),
    Route(
        method="GET",
        path="/ops/unclaimable",
        endpoint=list_unclaimable,
        summary="List runs that nobody can take",
        tag="operations",
        answers={200: Answer(description="A page.", model=ops.UnclaimablePage)},
    ),
    Route(
        method="POST",
        path="/ops/recover",
        endpoint=recover_runs,
        summary="Take runs from their holders",
        tag="operations",
        answers={200: Answer(description="What became of them.", model=ops.RecoveredRuns)},
    ),
    Route(
        method="POST",
        path="/ops/rebind",
        endpoint=rebind_runs,
        summary="Bind runs to other code",
        tag="operations",
        answers={202: Answer(description="What became of them.", model=ops.ReboundRuns)},
    ),
    Route(
        method="POST",
        path="/ops/runs/{run_id}/limits",
        endpoint=raise_limits,
        summary="Raise a run's limits",
        tag="operations",
        answers={202: Answer(description="Accepted: they hold from its next step on.", model=ops.RaisedRun)},
    ),
    Route(
        method="POST",
        path="/ops/prune",
        endpoint=prune,
        summary="Delete what is old",
        tag="operations",
        answers={200: Answer(description="How much was deleted.", model=ops.PrunedRows)},
    ),
)
