"""Requests for approval across runs: the inbox, and deciding one at its own address (R18-R23)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from runward.core.errors import Conflict, Invalid, NotFound, Problem, Unauthenticated
from runward.core.ids import canonical_json
from runward.core.redaction import SECRETS, Redactor
from runward.core.times import optional_rfc3339, rfc3339
from runward.engine.callers import Caller, Permission
from runward.engine.deliveries import Deliveries, Input
from runward.engine.letters import VerdictIn
from runward.engine.pages import Page, cursor_of, horizon, mark_of, opened
from runward.engine.services import Services
from runward.ports.reads import ApprovalQuery, Order, StoredApproval

_DECIDED = ("approved", "denied")


class Approvals:
    """Lists, reads and decides requests for approval."""

    def __init__(self, services: Services, deliveries: Deliveries) -> None:
        self._services = services
        self._deliveries = deliveries

    async def list(self, caller: Caller, query: ApprovalQuery, cursor: str | None) -> Page:
        """A page of the inbox. `query.scope`, `after` and `horizon` are set here; a cursor belongs to its filters. Raises Invalid."""
        caller.require(Permission.APPROVALS_DECIDE)
        query = replace(query, scope=caller.reads)
        mark = mark_of(caller.reads, replace(query, limit=0))
        query = replace(query, after=None if cursor is None else opened(cursor, mark))
        if query.order is not Order.NEWEST:
            query = replace(query, horizon=horizon(self._services.time))
        rows = await self._services.reads.approvals(replace(query, limit=query.limit + 1))
        more, rows = len(rows) > query.limit, rows[: query.limit]
        following = cursor_of(mark, rows[-1].created_at, rows[-1].id) if rows and more else None
        return Page(data=[self._shown(row) for row in rows], next_cursor=following)

    async def read(self, caller: Caller, approval_id: str) -> dict[str, Any]:
        """One request, with its decision once there is one. Raises NotFound."""
        caller.require(Permission.APPROVALS_DECIDE)
        stored = await self._stored(caller, approval_id)
        if caller.grant is not None and stored.status in _DECIDED:
            raise _token_is_spent()
        return self._shown(stored)

    async def decide(self, caller: Caller, verdict: VerdictIn) -> dict[str, Any]:
        """Records a verdict and shows the request decided; the same verdict again changes nothing.

        Raises NotFound; Invalid for arguments that may not be edited so; Conflict: `already_answered` with what stands, `approval_expired`,
        `run_ended`. An access token decides once: later it is as good as none, but for repeating the very same verdict.
        """
        verdict = _spoken_for(caller, verdict)
        self._deliveries.require(caller, Input(approvals=(verdict,)))
        stored = await self._stored(caller, verdict.approval_id)
        if stored.status != "pending":
            return self._standing(stored, verdict, caller)
        if stored.expires_at is not None and stored.expires_at <= self._services.time.now():
            raise _expired()
        try:
            row = await self._services.reads.get(stored.uid)
            await self._deliveries.deliver_to(caller, row, Input(approvals=(verdict,)))
        except Invalid as error:
            raise _at_its_own_address(error) from None
        except Conflict:
            stored = await self._stored(caller, verdict.approval_id)
            if stored.status == "pending":
                raise
            return self._standing(stored, verdict, caller)
        return self._shown(await self._stored(caller, verdict.approval_id))

    def _shown(self, stored: StoredApproval) -> dict[str, Any]:
        return shown_approval(stored, self._services.redactor)

    def _standing(self, stored: StoredApproval, verdict: VerdictIn, caller: Caller) -> dict[str, Any]:
        """What is answered to a verdict on a request that is closed."""
        if stored.status == "expired":
            raise _expired()
        if stored.status == "cancelled":
            raise Conflict("The run has ended: it takes no more input.", code="run_ended")
        decision = json.loads(stored.decision or "{}")
        if caller.grant is not None and decision.get("token") != caller.grant.id:
            raise _token_is_spent()
        same = stored.status == ("approved" if verdict.approved else "denied")
        if same and canonical_json(decision.get("edited_arguments")) == canonical_json(verdict.edited_arguments):
            return self._shown(stored)
        raise Conflict("Another verdict was recorded first, and stands.", code="already_answered", recorded=self._shown(stored))

    async def _stored(self, caller: Caller, approval_id: str) -> StoredApproval:
        stored = await self._services.reads.approval(caller.reads, approval_id)
        if stored is None or not caller.reaches(stored.id):
            raise NotFound("There is no such request for approval.")
        return stored


def shown_approval(stored: StoredApproval, redactor: Redactor = SECRETS) -> dict[str, Any]:
    """A request for approval as callers see it: without secrets, and saying so where some were taken out."""
    data = json.loads(stored.data)
    decision = json.loads(stored.decision) if stored.decision else {}
    arguments = json.loads(data["arguments"])
    shown = redactor.json(arguments)
    return {
        "approval_id": stored.id,
        "status": stored.status,
        "run_id": stored.run_id,
        "agent": stored.agent,
        "scope": {"tenant": stored.scope.tenant, "user": stored.scope.user, "namespace": stored.scope.namespace},
        "step": data["step"],
        "tool_call_id": data["tool_call_id"],
        "tool_name": stored.tool,
        "effect": data["effect"],
        "arguments": shown,
        "arguments_digest": data["arguments_digest"],
        "redacted": shown != arguments,
        "editable": data["editable"],
        "arguments_schema": data.get("arguments_schema"),
        "request_reason": data.get("request_reason"),
        "created_at": rfc3339(stored.created_at),
        "expires_at": optional_rfc3339(stored.expires_at),
        "on_expiry": data["on_expiry"],
        "decided_at": optional_rfc3339(stored.decided_at),
        "decided_by": decision.get("by"),
        "reason": redactor.json(decision.get("reason")),
        "edited_arguments": redactor.json(decision.get("edited_arguments")),
        "links": {"self": f"/approvals/{stored.id}", "run": f"/runs/{stored.run_id}"},
    }


def _spoken_for(caller: Caller, verdict: VerdictIn) -> VerdictIn:
    """The verdict in the name of whom the caller's token is for."""
    name = caller.grant.decides_as if caller.grant else None
    if name is None or verdict.decided_by in (None, name):
        return replace(verdict, decided_by=name or verdict.decided_by)
    detail = "This access token says who decides with it."
    raise Invalid(detail, problems=[Problem(pointer="/decided_by", code="invalid_value", detail=detail)])


def _at_its_own_address(error: Invalid) -> Invalid:
    """What is wrong with a verdict that was sent alone."""
    problems = [replace(problem, pointer=problem.pointer.removeprefix("/approvals/0")) for problem in error.problems]
    return Invalid(error.detail, code=error.code, problems=problems)


def _token_is_spent() -> Unauthenticated:
    return Unauthenticated("This access token is not valid any more: the request has been decided.")


def _expired() -> Conflict:
    return Conflict("Nobody decided in time: the request has expired.", code="approval_expired")
