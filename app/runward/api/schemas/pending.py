"""What a run waits for, as the OpenAPI document describes it."""

from __future__ import annotations

from typing import Any, Literal

from runward.api.schemas.values import View

EffectName = Literal["read", "idempotent_write", "non_idempotent_write", "unclassified"]
RiskName = Literal["low", "medium", "high", "critical"]


class PendingCall(View):
    """A call that waits. `arguments` are those that will run."""

    tool_call_id: str
    step: int
    tool_name: str
    arguments: Any


class PendingApproval(PendingCall):
    """A call that waits for a verdict. `on_expiry` is what happens when nobody decides in time."""

    approval_id: str
    effect: EffectName
    editable: bool
    request_reason: str | None
    created_at: str
    expires_at: str | None
    on_expiry: Literal["deny", "stop"]


class ClientCall(PendingCall):
    """A call that the caller's own program has to answer."""

    expires_at: str | None


class Question(PendingCall):
    """A question to the user: one of `choices`, or any text where that is allowed."""

    question_id: str
    question: str
    choices: list[str]
    allows_free_text: bool
    expires_at: str | None


class Timer(PendingCall):
    """A call that waits for a time."""

    due_at: str


class ProbeView(View):
    """What the tool itself found out about an unknown effect, and when it looked."""

    status: Literal["happened", "did_not_happen", "cannot_tell", "failed"]
    detail: str
    checked_at: str


class UnknownEffect(PendingCall):
    """A call that may have happened, and nobody knows. `evidence_refused` says why the evidence that came last did not hold."""

    effect: EffectName
    idempotency_key: str
    attempt: int
    started_at: str
    worker: str
    evidence_required: bool
    evidence_refused: str | None
    probe: ProbeView | None


class HoldView(View):
    """Somebody holds the run: it goes on when it is released."""

    since: str
    by: str | None
    reason: str | None


class RemainingTokens(View):
    """What a budget has left; null where tokens do not bound it."""

    tokens: int | None


class BudgetWaitView(View):
    """A budget has too little left for the next model call. `limit` is its bound that is reached, null when there is no such budget any
    more. The run asks again at `due_at`, and whenever the budget's terms are set."""

    budget: str
    limit: Literal["max_total_tokens", "max_cost_usd"] | None
    remaining: RemainingTokens
    resets_at: str | None
    since: str
    due_at: str | None


class Pending(View):
    """What a run waits for, or has left unsettled. What has arrived is not pending any more, also before the run has taken it in."""

    approvals: list[PendingApproval]
    client_calls: list[ClientCall]
    questions: list[Question]
    timers: list[Timer]
    tasks: list[Any]
    children: list[Any]
    unknown_effects: list[UnknownEffect]
    budget: BudgetWaitView | None
    hold: HoldView | None
