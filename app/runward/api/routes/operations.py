"""What operators and tools ask of a process, without a key."""

from __future__ import annotations

from starlette.responses import Response

from runward.api.asking import Asked, answer
from runward.api.problems import problem_of
from runward.api.routing import Answer, Route
from runward.api.schemas.views import Health
from runward.core.errors import Unavailable


async def health(asked: Asked) -> Response:
    """Whether the process is alive."""
    return answer({"status": "ok"})


async def readiness(asked: Asked) -> Response:
    """Whether requests should be sent here: the store answers, and the process is not about to stop."""
    if asked.door.closing.is_set() or not await asked.door.ready():
        return problem_of(Unavailable("This process takes no requests: its store is away, or it is about to stop."), asked.scope)
    return answer({"status": "ready"})


async def document(asked: Asked) -> Response:
    """This description."""
    return Response(asked.app.state.document(), 200, {"Cache-Control": "no-cache"}, "application/json")


ROUTES = (
    Route(
        method="GET",
        path="/healthz",
        endpoint=health,
        summary="Is it alive?",
        tag="operations",
        answers={200: Answer(description="It is.", model=Health)},
    ),
    Route(
        method="GET",
        path="/readyz",
        endpoint=readiness,
        summary="Is it ready?",
        tag="operations",
        answers={200: Answer(description="It is.", model=Health)},
    ),
    Route(
        method="GET",
        path="/openapi.json",
        endpoint=document,
        summary="The OpenAPI document",
        tag="operations",
        answers={200: Answer(description="OpenAPI 3.1.", media_type="application/json")},
    ),
)
