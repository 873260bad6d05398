"""What is answered about input and approvals, as the OpenAPI document describes it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from runward.api.schemas.pending import EffectName
from runward.api.schemas.values import View
from runward.api.schemas.views import Run, ScopeView


class TakenItem(View):
    """What became of one item: it has one of the ids, or is named by `input`. `ignored`: it had no use as the run stands."""

    result: Literal["accepted", "duplicate", "ignored"]
    approval_id: str | None = None
    tool_call_id: str | None = None
    question_id: str | None = None
    input: Literal["retry_failed", "release_hold"] | None = None


class Taken(View):
    """The run, and what became of each item. All of it is durable; what was accepted is not `pending` any more."""

    run: Run
    items: list[TakenItem]


class ApprovalLinks(View):
    """Where a request for approval and its run are found."""

    self: str
    run: str


class ApprovalView(View):
    """A request for approval. `arguments` are exactly those that will run; the digest is the SHA-256 of their canonical JSON."""

    approval_id: str
    status: Literal["pending", "approved", "denied", "expired", "cancelled"]
    run_id: str
    agent: str
    scope: ScopeView
    step: int
    tool_call_id: str
    tool_name: str
    effect: EffectName
    arguments: Any
    arguments_digest: str
    redacted: bool
    editable: bool
    arguments_schema: dict[str, Any] | None = Field(description="What edited arguments have to fit.")
    request_reason: str | None
    created_at: str
    expires_at: str | None
    on_expiry: Literal["deny", "stop"]
    decided_at: str | None
    decided_by: str | None
    reason: str | None
    edited_arguments: dict[str, Any] | None
    links: ApprovalLinks


class ApprovalPage(View):
    """A page of requests for approval."""

    data: list[ApprovalView]
    next_cursor: str | None


class Principal(View):
    """Who sent something: a key's id or `local`, and from where."""

    by: str


class MailView(View):
    """One input of a run, and what became of it. `principal` is null for what the service itself sent."""

    seq: int
    kind: str
    data: dict[str, Any]
    principal: Principal | None
    received_at: str
    state: Literal["pending", "applied", "ignored"]
    applied_revision: int | None


class MailPage(View):
    """A page of a run's inbox, in the order things came."""

    data: list[MailView]
    next_cursor: str | None
