"""What is answered, as the OpenAPI document describes it. The engine writes the answers; tests hold one against the other."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from runward.api.problems import STATUSES
from runward.api.schemas.pending import EffectName, Pending, RiskName
from runward.api.schemas.values import View
from runward.core.messages import Part, Role

Status = Literal["queued", "running", "suspended", "completed", "stopped", "failed"]
TaskOutcome = Literal["in_progress", "needs_reconciliation", "failed", "denied", "resolved"]


class ScopeView(View):
    """Whose a run is."""

    tenant: str
    user: str | None
    namespace: str | None


class CallState(View):
    """What is known of one call of the turn that was in hand when the run was cancelled."""

    tool_call_id: str
    tool_name: str
    state: Literal["finished", "cancelled", "not_started", "unknown"]


class Stop(View):
    """Why a run is `stopped`. `details.calls` lists the calls of the turn in hand."""

    reason: str
    details: dict[str, Any]


class Failure(View):
    """Why a run is `failed`. `transient`: a retry may help."""

    code: str
    message: str
    transient: bool
    details: dict[str, Any]


class UsageView(View):
    """Tokens of all model calls. All zero: the provider did not say."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    total_tokens: int
    model_calls: int


class AmountView(View):
    """Tokens, and dollars as a decimal text."""

    tokens: int
    usd: str


class Accounting(View):
    """What the model calls of a run cost. `committed` is all of it: `spent`, `reserved` for calls under way, and `unknown`, which may
    have been spent. `unpriced_calls`: nobody knows their dollars."""

    spent: AmountView
    reserved: AmountView
    unknown: AmountView
    committed: AmountView
    unpriced_calls: int


class ModelAccount(View):
    """What the calls of one model cost."""

    model: str
    usage: UsageView
    spent: AmountView
    unknown: AmountView
    unpriced_calls: int


class SpendingLimits(View):
    """What bounds the spending; null is no bound."""

    max_total_tokens: int | None
    max_cost_usd: str | None


class RunAccounting(Accounting):
    """The same with the run's bounds, and by model."""

    limits: SpendingLimits
    by_model: list[ModelAccount]


class Links(View):
    """Where a run is found."""

    self: str
    events: str


class Run(View):
    """A run."""

    run_id: str
    agent: str
    agent_version: str
    scope: ScopeView
    status: Status
    phase: Literal["loop", "finalizing"]
    revision: int = Field(description="Grows with every change of state; the ETag.")
    last_seq: int = Field(description="The id of the newest event.")
    events_after: int = Field(description="The id before the first event that `/messages` does not have yet.")
    created_at: str
    updated_at: str
    started_at: str | None
    ended_at: str | None
    cancel_requested_at: str | None
    steps: int
    model: str | None
    failovers: list[Any]
    text: str | None
    output: Any
    stop: Stop | None
    error: Failure | None
    pending: Pending
    task_outcome: TaskOutcome
    usage: UsageView
    accounting: Accounting
    budgets: list[str]
    parent_run_id: str | None
    metadata: dict[str, Any]
    links: Links


class RunPage(View):
    """A page of runs."""

    data: list[Run]
    next_cursor: str | None


class MessageView(View):
    """One message of a run. `step` is the model call that wrote or caused it; input has none."""

    seq: int
    role: Role
    content: list[Part]
    step: int | None = None


class MessagePage(View):
    """A page of a run's messages. Following the events after `events_after` neither loses nor repeats any of the transcript."""

    data: list[MessageView]
    next_cursor: str | None
    events_after: int


class ReceiptApproval(View):
    """What was decided about a call. `requested_arguments`: those that were shown, where the verdict changed them."""

    approval_id: str
    approved: bool
    at: str
    by: str | None = None
    reason: str | None = None
    requested_arguments: Any = None


class Reconciled(View):
    """How an unknown effect was settled: `by` somebody, or by the tool itself (`probe`). `verified`: the tool looked at the evidence."""

    decision: Literal["retry", "result", "error"]
    at: str
    by: str | None = None
    note: str | None = None
    evidence: dict[str, Any] | None = None
    verified: bool | None = None
    probe: str | None = None


class ReceiptView(View):
    """The durable record of one tool call. `raw` is what the tool returned; only for callers with `ops`."""

    step: int
    tool_call_id: str
    tool_name: str
    stage: Literal["executing", "executed", "completed", "failed", "suspended"]
    effect: EffectName
    attempt: int
    idempotency_key: str
    started_at: str | None
    ended_at: str | None
    is_error: bool
    outcome: str | None
    effect_certain: bool
    approval: ReceiptApproval | None
    reconciled: Reconciled | None
    raw: Any = None


class ReceiptPage(View):
    """A page of a run's tool receipts, in the model's order."""

    data: list[ReceiptView]
    next_cursor: str | None


class Cancelled(View):
    """What became of a cancel. `accepted`: the run ends `stopped`, `cancelled`, whatever it is doing."""

    outcome: Literal["accepted", "already_ended"]
    run: Run


class ToolView(View):
    """A tool of an agent."""

    name: str
    description: str
    kind: str
    effect: EffectName
    risk: RiskName
    permissions: list[str]
    needs_approval: Literal["never", "always", "sometimes"]
    editable: bool
    parameters: dict[str, Any]
    output_schema: dict[str, Any] | None


class AgentView(View):
    """An agent's manifest. `versions` are all there are of it, the one defined last at the end; `warnings` says what does not run yet."""

    name: str
    version: str
    versions: list[str]
    fingerprint: str
    description: str
    models: list[str]
    tools: list[ToolView]
    context_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    verified: bool
    guardrails: dict[str, list[str]]
    policy: dict[str, list[str] | int | str | None]
    limits: dict[str, Any]
    overhead_tokens: int
    max_output_tokens: int | None
    accepts: list[str]
    warnings: list[str]


class AgentList(View):
    """Every agent, by name."""

    data: list[AgentView]


class Health(View):
    """How a process is."""

    status: Literal["ok", "ready"]


class ProblemItem(View):
    """What is wrong with one item: `pointer` is a JSON pointer into the body, or `?name` for a parameter."""

    pointer: str
    code: str
    detail: str
    recorded: Any = None


class ProblemView(View):
    """An error (RFC 9457). `code` is stable and for programs; `instance` names the request in the logs."""

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(json_schema_extra={"enum": list(STATUSES)})
    errors: list[ProblemItem] | None = None
    recorded: Any = None
    instance: str


class RunEvent(View):
    """One event of a stream: the JSON after `data:`. Its further fields depend on `type`; clients skip types they do not know."""

    type: str
    seq: int
    run_id: str
    at: str
