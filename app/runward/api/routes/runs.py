"""Runs: creating, listing, reading, cancelling, deleting."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Body
from fastapi import Query as FromQuery
from starlette.responses import Response

from runward.agents.rules import Policy
from runward.api.asking import Asked, answer
from runward.api.filters import filtered
from runward.api.following import RunFollower
from runward.api.headers import preferred_wait, wants_stream
from runward.api.repeating import repeatable
from runward.api.routing import Answer, Route
from runward.api.schemas.messages import messages_of
from runward.api.schemas.requests import CancelRun, CreateRun, ListRuns, ReadRun
from runward.api.schemas.values import RunId
from runward.api.schemas.views import Cancelled, Run, RunAccounting, RunPage
from runward.api.sse import EventStream
from runward.api.waiting import waited
from runward.core.runs.limits import TighterLimits
from runward.engine.commands import NewRun, RunCreated
from runward.engine.queries import RunView, is_over, shown
from runward.ports.reads import Order

RETRY_SECONDS = "1"
"""When to look again after a wait that was too short."""


async def create_run(asked: Asked, body: CreateRun) -> Response:
    """Makes a run. It is durable when the answer comes, and workers drive it from then on.

    With an `Idempotency-Key` the request can be repeated: the same key and body answer with the same run. With `Prefer: wait=N` the answer
    comes once the run has ended or waits for somebody, or after N seconds. With `Accept: text/event-stream` it is the run's own stream.
    """
    wait = preferred_wait(asked.headers.getlist("prefer"))
    streamed = wants_stream(asked.headers.getlist("accept"))
    created = await asked.door.commands.create_run(asked.caller, _new_run(body), repeatable(asked))
    run = shown(created.row, redactor=asked.door.services.redactor)
    headers = {"Location": run.shown["links"]["self"], **({"Idempotent-Replayed": "true"} if created.replayed else {})}
    if streamed:
        return _streamed(asked, created, headers)
    if wait is not None:
        run = await waited(asked, run, wait, "suspended")
        headers["Preference-Applied"] = f"wait={wait}"
        if not is_over(run.status, "suspended"):
            headers["Retry-After"] = RETRY_SECONDS
    done = created.replayed or (wait is not None and is_over(run.status, "suspended"))
    return answer(run.shown, 200 if done else 202, **headers, ETag=_etag(run))


async def list_runs(asked: Asked, query: Annotated[ListRuns, FromQuery()]) -> Response:
    """A page of runs, newest first unless ordered otherwise. Pages never repeat or miss a run, whatever happens meanwhile."""
    wanted = replace(filtered(query, query.named), order=Order(query.order), limit=query.limit)
    page = await asked.door.queries.runs(asked.caller, wanted, query.cursor)
    return answer({"data": page.data, "next_cursor": page.next_cursor})


async def read_run(asked: Asked, run_id: RunId, query: Annotated[ReadRun, FromQuery()]) -> Response:
    """A run as it is, or, with `wait`, as it is once it has ended or waits for somebody."""
    run = await asked.door.queries.run(asked.caller, run_id)
    if query.wait is not None:
        run = await waited(asked, run, query.wait, query.until)
    return answer(run.shown, ETag=_etag(run))


async def read_accounting(asked: Asked, run_id: RunId) -> Response:
    """What the run's model calls have cost, may have cost, and are about to, against its bounds and model by model."""
    return answer(await asked.door.queries.accounting(asked.caller, run_id))


async def cancel_run(asked: Asked, run_id: RunId, body: Annotated[CancelRun | None, Body()] = None) -> Response:
    """Ends a run as `stopped`, `cancelled`. What was accepted will happen, through any crash; asking again changes nothing."""
    repeatable(asked)  # a run is cancelled once, with a key and without it: only the form of the key counts
    wait = preferred_wait(asked.headers.getlist("prefer"))
    cancelled = await asked.door.commands.cancel_run(asked.caller, run_id, None if body is None else body.reason)
    run, headers = shown(cancelled.row), {}
    if wait is not None:
        run = await waited(asked, run, wait, "ended")
        headers["Preference-Applied"] = f"wait={wait}"
    outcome, status = ("accepted", 202) if cancelled.accepted else ("already_ended", 200)
    return answer({"outcome": outcome, "run": run.shown}, status, **headers)


async def delete_run(asked: Asked, run_id: RunId) -> Response:
    """Deletes a run that has ended, with everything that belongs to it. Its idempotency key still knows it, and answers 410."""
    await asked.door.commands.delete_run(asked.caller, run_id)
    return Response(status_code=204)


def _new_run(body: CreateRun) -> NewRun:
    limits = body.limits
    return NewRun(
        agent=body.agent,
        agent_version=body.agent_version,
        messages=messages_of(body.input),
        run_id=body.run_id,
        user=body.scope.user,
        namespace=body.scope.namespace,
        context=body.context,
        tool_context=body.tool_context,
        client_tools=[tool.fields for tool in body.client_tools],
        output=None if body.output is None else body.output.model_dump(by_alias=True),
        policy=None if body.policy is None else Policy(**body.policy.model_dump()),
        limits=TighterLimits(**limits.model_dump()),
        budgets=body.budgets,
        concurrency_key=body.concurrency_key,
        priority=body.priority,
        start_at=body.start_at,
        metadata=body.metadata,
    )


def _streamed(asked: Asked, created: RunCreated, headers: dict[str, str]) -> Response:
    follower = RunFollower(queries=asked.door.queries, clock=asked.door.services.clock, place=created.row, after=0, until="ended")
    return EventStream(asked.streams, follower.follow, headers)


def _etag(run: RunView) -> str:
    return f'"{run.revision}"'


_RUN = Answer(description="The run.", model=Run, headers=("ETag",))

ROUTES = (
    Route(
        method="POST",
        path="/runs",
        endpoint=create_run,
        summary="Create a run",
        headers=("Idempotency-Key", "Prefer"),
        answers={
            202: Answer(
                description="The run, durable and queued.", model=Run, headers=("Location", "ETag", "Preference-Applied", "Retry-After")
            ),
            200: Answer(
                description="The run: it has ended or waits for somebody, or the request was a repetition.",
                model=Run,
                media_type="text/event-stream",
                headers=("Location", "ETag", "Preference-Applied", "Idempotent-Replayed"),
            ),
        },
    ),
    Route(method="GET", path="/runs", endpoint=list_runs, summary="List runs", answers={200: Answer(description="A page.", model=RunPage)}),
    Route(method="GET", path="/runs/{run_id}", endpoint=read_run, summary="Read a run", answers={200: _RUN}),
    Route(
        method="GET",
        path="/runs/{run_id}/accounting",
        endpoint=read_accounting,
        summary="Read what a run costs",
        answers={200: Answer(description="Its ledger.", model=RunAccounting)},
    ),
    Route(
        method="DELETE", path="/runs/{run_id}", endpoint=delete_run, summary="Delete a run", answers={204: Answer(description="Deleted.")}
    ),
    Route(
        method="POST",
        path="/runs/{run_id}/cancel",
        endpoint=cancel_run,
        summary="Cancel a run",
        headers=("Idempotency-Key", "Prefer"),
        answers={
            202: Answer(description="Accepted: the run will end so.", model=Cancelled, headers=("Preference-Applied",)),
            200: Answer(description="The run has ended.", model=Cancelled, headers=("Preference-Applied",)),
        },
    ),
)
