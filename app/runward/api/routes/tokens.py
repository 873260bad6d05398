"""Access tokens: for browsers, which cannot hold a key, and for links that decide."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body
from starlette.responses import Response

from runward.api.asking import Asked, answer
from runward.api.routing import Answer, Route
from runward.api.schemas.answers import ApprovalToken, RunToken
from runward.api.schemas.tokens import GrantDecision, GrantRun
from runward.api.schemas.values import ApprovalId, RunId
from runward.engine.callers import Allow


async def grant_run(asked: Asked, run_id: RunId, body: Annotated[GrantRun | None, Body()] = None) -> Response:
    """Makes a token for this run: as bearer, or as `?token=` of a `GET`. It does what it allows, and nothing else, until it expires."""
    body = body or GrantRun()
    allows = [Allow(allow) for allow in body.allow]
    issued = await asked.door.tokens.for_run(asked.caller, run_id, allows=allows, ttl_seconds=body.ttl_seconds)
    events = f"/runs/{run_id}/events?token={issued.text}" if Allow.EVENTS in allows else None
    return answer({"token": issued.text, "expires_at": issued.expires_at, "events_url": events}, 201)


async def grant_decision(asked: Asked, approval_id: ApprovalId, body: Annotated[GrantDecision | None, Body()] = None) -> Response:
    """Makes a token that reads and decides this request, and nothing else. It is spent once somebody has decided, or when it expires."""
    body = body or GrantDecision()
    issued = await asked.door.tokens.for_approval(asked.caller, approval_id, decides_as=body.decides_as, ttl_seconds=body.ttl_seconds)
    url = f"/approvals/{approval_id}?token={issued.text}"
    return answer({"token": issued.text, "expires_at": issued.expires_at, "url": url}, 201)


ROUTES = (
    Route(
        method="POST",
        path="/runs/{run_id}/access-tokens",
        endpoint=grant_run,
        summary="Make a token for a run",
        tag="access tokens",
        answers={201: Answer(description="The token; it is shown this once.", model=RunToken)},
    ),
    Route(
        method="POST",
        path="/approvals/{approval_id}/access-tokens",
        endpoint=grant_decision,
        summary="Make a token that decides",
        tag="access tokens",
        answers={201: Answer(description="The token; it is shown this once.", model=ApprovalToken)},
    ),
)
