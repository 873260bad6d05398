"""What operators ask of runs: give them back, park them, cancel many of them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

from fastapi import Body
from starlette.responses import Response

from runward.api.asking import Asked, answer
from runward.api.filters import filtered
from runward.api.routing import Answer, Route
from runward.api.schemas.control import CancelledRuns, CancelRuns, Drained, DrainRun, Why
from runward.api.schemas.values import RunId
from runward.engine.queries import shown


async def drain_run(asked: Asked, run_id: RunId, body: Annotated[DrainRun | None, Body()] = None) -> Response:
    """Lets the worker that drives a run finish the step in hand and give the run back, so that another one goes on with it.

    With `hold` the run is parked instead, whatever it is doing: it waits until `/resume` releases it. Parking it again changes nothing.
    """
    body = body or DrainRun()
    operations = asked.door.operations
    drained = await (operations.hold_run(asked.caller, run_id, body.reason) if body.hold else operations.drain_run(asked.caller, run_id))
    outcome, status = ("accepted", 202) if drained.accepted else ("not_running", 200)
    return answer({"outcome": outcome, "run": shown(drained.row).shown}, status)


async def cancel_runs(asked: Asked, body: CancelRuns) -> Response:
    """Cancels many runs: one page of those that a filter matches, or those that are named. `next_cursor` leads to the next page.

    Each is cancelled as by itself, so a request whose answer was lost can be sent again.
    """
    operations = asked.door.operations
    if body.filter is None:
        done = await operations.cancel_named(asked.caller, body.run_ids or (), body.reason, dry_run=body.dry_run)
    else:
        query = replace(filtered(body.filter, body.filter.metadata), limit=body.limit)
        done = await operations.cancel_listed(asked.caller, query, body.cursor, body.reason, dry_run=body.dry_run)
    return answer(asdict(done), 202)


async def why_run(asked: Asked, run_id: RunId) -> Response:
    """Why a run is not moving: what it waits for, who has it, whether a worker could take it, and every reason with what to do next."""
    return answer(await asked.door.whys.why(asked.caller, run_id))


ROUTES = (
    Route(
        method="GET",
        path="/runs/{run_id}/why",
        endpoint=why_run,
        summary="Why is it not moving?",
        answers={200: Answer(description="Where the run stands, and why.", model=Why)},
    ),
    Route(
        method="POST",
        path="/runs/{run_id}/drain",
        endpoint=drain_run,
        summary="Give a run back, or park it",
        answers={
            202: Answer(description="Accepted: it happens at the next boundary.", model=Drained),
            200: Answer(description="Nobody drives the run.", model=Drained),
        },
    ),
    Route(
        method="POST",
        path="/runs/cancel",
        endpoint=cancel_runs,
        summary="Cancel many runs",
        answers={202: Answer(description="What became of them.", model=CancelledRuns)},
    ),
)
