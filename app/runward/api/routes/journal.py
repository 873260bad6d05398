"""What belongs to a run: its events, messages and receipts."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query as FromQuery
from starlette.responses import Response

from runward.api import cursors
from runward.api.asking import Asked, answer
from runward.api.following import RunFollower
from runward.api.routing import Answer, Route
from runward.api.schemas.requests import FollowRun, ListPart
from runward.api.schemas.values import RunId
from runward.api.schemas.views import MessagePage, ReceiptPage
from runward.api.sse import EventStream


async def follow_run(asked: Asked, run_id: RunId, query: Annotated[FollowRun, FromQuery()]) -> Response:
    """The run's events from a cursor on: what was, then what comes, without gap or repeat. Following never affects the run.

    Each event is `id: <seq>` and `data: <JSON>`; after the last one come `data: [DONE]` and the end. 204 when nothing more can come. When
    the process is stopping, has too many streams or cannot reach its store, the stream ends early, with a `retry:`: come back then.
    """
    place = await asked.door.queries.place(asked.caller, run_id)
    after = cursors.of_stream(asked.headers.getlist("last-event-id"), query.after, place.last_seq)
    follower = RunFollower(queries=asked.door.queries, clock=asked.door.services.clock, place=place, after=after, until=query.until)
    if follower.is_over:
        return Response(status_code=204, headers={"Cache-Control": "no-store"})
    return EventStream(asked.streams, follower.follow)


async def list_messages(asked: Asked, run_id: RunId, query: Annotated[ListPart, FromQuery()]) -> Response:
    """The transcript as the model sees it, in order."""
    page = await asked.door.queries.messages(asked.caller, run_id, after=cursors.of_numbered(query.cursor), limit=query.limit)
    return answer({"data": page.data, "next_cursor": page.next_cursor, "events_after": page.events_after})


async def list_receipts(asked: Asked, run_id: RunId, query: Annotated[ListPart, FromQuery()]) -> Response:
    """The durable record of every tool call, in the model's order."""
    page = await asked.door.queries.receipts(asked.caller, run_id, after=cursors.of_receipts(query.cursor), limit=query.limit)
    return answer({"data": page.data, "next_cursor": page.next_cursor})


def _come_back(asked: Asked) -> Response:
    """An EventSource gives up for good on an error status, and comes back after any end of a 200."""
    return EventStream(asked.streams, None)


ROUTES = (
    Route(
        method="GET",
        path="/runs/{run_id}/events",
        endpoint=follow_run,
        summary="Follow a run",
        headers=("Last-Event-ID",),
        turned_away=_come_back,
        answers={
            200: Answer(description="The stream. Every `data` but `[DONE]` is a `RunEvent`.", media_type="text/event-stream"),
            204: Answer(description="Nothing more can come after this cursor."),
        },
    ),
    Route(
        method="GET",
        path="/runs/{run_id}/messages",
        endpoint=list_messages,
        summary="List a run's messages",
        answers={200: Answer(description="A page.", model=MessagePage)},
    ),
    Route(
        method="GET",
        path="/runs/{run_id}/receipts",
        endpoint=list_receipts,
        summary="List a run's tool receipts",
        answers={200: Answer(description="A page.", model=ReceiptPage)},
    ),
)
