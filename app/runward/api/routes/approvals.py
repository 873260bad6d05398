"""Requests for approval across runs: the inbox of whoever decides."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query as FromQuery
from starlette.responses import Response

from runward.api.asking import Asked, answer
from runward.api.headers import idempotency_key
from runward.api.routes.inputs import verdict_of
from runward.api.routing import Answer, Route
from runward.api.schemas.answers import ApprovalPage, ApprovalView
from runward.api.schemas.inputs import Decide
from runward.api.schemas.requests import ListApprovals
from runward.api.schemas.values import ApprovalId
from runward.ports.reads import ApprovalQuery, Order

_ORDERS: dict[str, Literal[Order.NEWEST, Order.OLDEST]] = {Order.NEWEST.value: Order.NEWEST, Order.OLDEST.value: Order.OLDEST}


async def list_approvals(asked: Asked, query: Annotated[ListApprovals, FromQuery()]) -> Response:
    """A page of requests for approval, newest first unless ordered otherwise. What is decided does not show as pending any more."""
    wanted = ApprovalQuery(
        scope=None,
        statuses=query.status,
        run_id=query.run_id,
        agent=query.agent,
        tool=query.tool,
        user=query.user,
        created_after=query.created_after,
        order=_ORDERS[query.order],
        limit=query.limit,
    )
    page = await asked.door.approvals.list(asked.caller, wanted, query.cursor)
    return answer({"data": page.data, "next_cursor": page.next_cursor})


async def read_approval(asked: Asked, approval_id: ApprovalId) -> Response:
    """A request for approval, with its decision once there is one."""
    return answer(await asked.door.approvals.read(asked.caller, approval_id))


async def decide(asked: Asked, approval_id: ApprovalId, body: Decide) -> Response:
    """Approves or denies a call. The first verdict stands; the same one again changes nothing, another one is told what stands."""
    idempotency_key(asked.headers.getlist("idempotency-key"))
    return answer(await asked.door.approvals.decide(asked.caller, verdict_of(body, approval_id)))


ROUTES = (
    Route(
        method="GET",
        path="/approvals",
        endpoint=list_approvals,
        summary="List requests for approval",
        tag="approvals",
        answers={200: Answer(description="A page.", model=ApprovalPage)},
    ),
    Route(
        method="GET",
        path="/approvals/{approval_id}",
        endpoint=read_approval,
        summary="Read a request for approval",
        tag="approvals",
        answers={200: Answer(description="The request.", model=ApprovalView)},
    ),
    Route(
        method="POST",
        path="/approvals/{approval_id}",
        endpoint=decide,
        summary="Decide a request for approval",
        tag="approvals",
        headers=("Idempotency-Key",),
        answers={200: Answer(description="The request with its decision, recorded now or before.", model=ApprovalView)},
    ),
)
