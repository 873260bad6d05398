"""Bodies and queries of runs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from runward.api.headers import MAX_WAIT_SECONDS
from runward.api.query_strings import Bounds, Cursor, Limit, Query, Truth, Whole
from runward.api.schemas.messages import Input, ToolName
from runward.api.schemas.pending import EffectName, RiskName
from runward.api.schemas.values import Body, Dollars, Label, Metadata, NewId, Reason, Time, Tokens
from runward.core.ids import BUDGET_PATTERN
from runward.ports.reads import Order

MAX_SECONDS = 31_536_000
"""A year: the longest a limit may be."""
MAX_TOOLS = 64
MAX_DESCRIPTION = 4_096
MAX_BUDGETS = 8

ModelName = Annotated[str, Field(min_length=1, max_length=255)]
PermissionName = Annotated[str, Field(min_length=1, max_length=64)]
Seconds = Annotated[float, Field(ge=0.001, le=MAX_SECONDS)]


def _different(value: list[str]) -> list[str]:
    if len(set(value)) != len(value):
        raise PydanticCustomError("repeated", "Name each of them once.")
    return value


BudgetKeyIn = Annotated[str, Field(pattern=BUDGET_PATTERN)]


class ScopeIn(Body):
    """Narrows the key's scope; it cannot widen it."""

    user: Label | None = None
    namespace: Label | None = None


class LimitsIn(Body):
    """Bounds that can only be tighter than the agent's own; what is looser is cut to those."""

    max_steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(default=None, description="Model calls.")
    max_output_attempts: Annotated[int, Field(ge=1, le=1_000)] | None = Field(default=None, description="Answers that fit no schema.")
    max_verify_attempts: Annotated[int, Field(ge=1, le=1_000)] | None = Field(default=None, description="Verdicts on candidates.")
    timeout_seconds: Seconds | None = Field(default=None, description="Time worked on the run; waiting does not count.")
    expires_seconds: Seconds | None = Field(default=None, description="The run's whole life.")
    max_total_tokens: Tokens | None = Field(default=None, description="Tokens of all model calls.")
    max_cost_usd: Dollars | None = Field(default=None, description="What all model calls may cost.")


class ClientToolIn(Body):
    """A tool that the caller's own program runs: the run waits for a result of each call."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION)] = ""
    parameters: dict[str, Any] = Field(default_factory=dict, description="A JSON Schema of an object; `type` may be left out.")
    output_schema: dict[str, Any] | None = Field(default=None, description="What a result has to fit; anything does without it.")
    expires_seconds: Seconds | None = Field(default=None, description="How long the run waits for a result; for good without it.")

    @property
    def fields(self) -> dict[str, Any]:
        """What a client tool is made of."""
        return {**self.model_dump(), "parameters": {"type": "object", **self.parameters}}


class OutputIn(Body):
    """The type of the answer."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]})

    schema_: dict[str, Any] = Field(alias="schema", description="A JSON Schema.")
    name: ToolName = Field(default="answer", description="What the model knows the answer as.")
    mode: Literal["auto", "native", "tool", "prompted"] = Field(default="auto", description="How the model is held to it.")


class PolicyIn(Body):
    """Narrows the agent's policy; nothing becomes allowed by it."""

    allow_tools: Annotated[list[ToolName], Field(max_length=MAX_TOOLS)] | None = Field(default=None, description="The only ones.")
    deny_tools: Annotated[list[ToolName], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    require_approval: Annotated[list[ToolName], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    allow_models: Annotated[list[ModelName], Field(max_length=MAX_TOOLS)] | None = Field(default=None, description="The only ones.")
    deny_models: Annotated[list[ModelName], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    allow_effects: Annotated[list[EffectName], Field(max_length=MAX_TOOLS)] | None = Field(
        default=None, description="The only effects of tools that may be called: `read`, for instance."
    )
    approve_effects: Annotated[list[EffectName], Field(max_length=MAX_TOOLS)] = Field(
        default_factory=list, description="A person approves calls of tools with these effects."
    )
    allow_permissions: Annotated[list[PermissionName], Field(max_length=MAX_TOOLS)] | None = Field(
        default=None, description="The only permissions that called tools may need."
    )
    approve_permissions: Annotated[list[PermissionName], Field(max_length=MAX_TOOLS)] = Field(
        default_factory=list, description="A person approves calls of tools that need one of these."
    )
    max_risk: RiskName | None = Field(default=None, description="The highest risk that called tools may have.")
    approve_risk: RiskName | None = Field(default=None, description="A person approves calls of tools with this risk or a higher one.")


class CreateRun(Body):
    """A run to be made. Only `agent` and `input` are required."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"agent": "support", "input": "Where is order 7?"},
                {"agent": "support", "input": "Where is order 7?", "run_id": "order-7-status", "metadata": {"ticket": "T-9"}},
            ]
        }
    )

    agent: Label
    input: Input
    agent_version: Label | None = Field(default=None, description="The version defined last without it.")
    run_id: NewId | None = Field(default=None, description="The run's public id, unique in the tenant; one is made without it.")
    scope: ScopeIn = ScopeIn()
    context: dict[str, Any] | None = Field(default=None, description="For author code only: never shown, never sent to a model.")
    tool_context: Annotated[dict[ToolName, dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = Field(
        default=None, description="The same, each only for its tool."
    )
    client_tools: Annotated[list[ClientToolIn], Field(max_length=MAX_TOOLS)] = Field(
        default_factory=list, description="Tools for this run alone, beside the agent's own."
    )
    output: OutputIn | None = Field(default=None, description="The answer's type, in place of the agent's.")
    policy: PolicyIn | None = Field(default=None, description="What this run is held to besides the agent's own policy.")
    limits: LimitsIn = LimitsIn()
    budgets: Annotated[list[BudgetKeyIn], Field(max_length=MAX_BUDGETS), AfterValidator(_different)] = Field(
        default_factory=list,
        description="Keys of the tenant's budgets that this run spends from, together with other runs.",
        json_schema_extra={"uniqueItems": True},
    )
    concurrency_key: Label | None = Field(
        default=None,
        description="Of the tenant's runs with one key only so many are driven at a time, one by default; the others wait.",
    )
    priority: Annotated[int, Field(ge=-100, le=100)] = Field(default=0, description="Higher goes first.")
    start_at: Time | None = Field(default=None, description="Not before this time.")
    metadata: Metadata = Field(default_factory=dict, description="Shown and filtered by: at most 64 keys and 16 KiB.")


class CancelRun(Body):
    """Why a run is cancelled."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "The customer left."}]})

    reason: Reason | None = Field(default=None, description="At most 4 KiB.")


class ReadRun(Query):
    """How to read one run."""

    wait: Annotated[Whole, Field(ge=0, le=MAX_WAIT_SECONDS), Bounds()] | None = Field(
        default=None, description="Seconds to wait for `until`."
    )
    until: Literal["suspended", "ended"] = Field(default="suspended", description="`suspended`: until it has ended or waits for somebody.")


class FollowRun(Query):
    """How to follow one run. `after` is read as it came: what is wrong with a cursor has a code of its own."""

    after: tuple[str, ...] = Field(default=(), description="The id of the last event that was seen. `Last-Event-ID` wins over it.")
    until: Literal["ended", "suspended"] = Field(default="ended", description="When the stream ends by itself.")
    wire: Literal["native"] = "native"


class ListPart(Query):
    """A page of what belongs to one run."""

    cursor: Cursor | None = Field(default=None, description="The `next_cursor` of the page before.")
    limit: Limit = 100


class ListApprovals(Query):
    """Which requests for approval to list. `status` may be given more than once."""

    status: tuple[Literal["pending", "approved", "denied", "expired", "cancelled"], ...] = ()
    run_id: Label | None = None
    agent: Label | None = None
    tool: Label | None = None
    user: Label | None = None
    created_after: Time | None = Field(default=None, description="Inclusive.")
    order: Literal["-created_at", "created_at"] = Field(
        default=Order.NEWEST.value, description="The ascending one shows what happened at least 5 s ago."
    )
    cursor: Cursor | None = Field(default=None, description="The `next_cursor` of the page before, with the same filters.")
    limit: Limit = 100


class ReadAgent(Query):
    """How to read one agent."""

    version: Label | None = Field(default=None, description="The version defined last without it.")


class ListRuns(Query):
    """Which runs to list. `status` and `waiting_on` may be given more than once; `metadata.<key>` matches a string of the metadata."""

    open_prefix: ClassVar[str | None] = "metadata."

    status: tuple[Literal["queued", "running", "suspended", "completed", "stopped", "failed"], ...] = ()
    waiting_on: tuple[
        Literal["approvals", "client_calls", "questions", "timers", "tasks", "children", "unknown_effects", "budget", "hold"], ...
    ] = ()
    agent: Label | None = None
    agent_version: Label | None = None
    user: Label | None = None
    namespace: Label | None = None
    stop_reason: Label | None = None
    task_outcome: Literal["in_progress", "needs_reconciliation", "failed", "denied", "resolved"] | None = None
    cancel_requested: Truth | None = None
    created_after: Time | None = Field(default=None, description="Inclusive; `_before` is not.")
    created_before: Time | None = None
    ended_after: Time | None = None
    ended_before: Time | None = None
    updated_before: Time | None = None
    order: Literal["-created_at", "created_at", "ended_at"] = Field(
        default=Order.NEWEST.value,
        description="The ascending ones show what happened at least 5 s ago, so that a saved cursor misses nothing.",
    )
    cursor: Cursor | None = Field(default=None, description="The `next_cursor` of the page before, with the same filters.")
    limit: Limit = 100
