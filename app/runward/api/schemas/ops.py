"""Bodies, queries and answers of what operators see and do across runs."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path
from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from runward.api.query_strings import Bounds, Whole
from runward.api.schemas.control import FailedRun
from runward.api.schemas.control import Limit as BodyLimit
from runward.api.schemas.requests import ListPart, Seconds
from runward.api.schemas.values import Body, Dollars, Label, NewId, Reason, Time, Tokens, View, given
from runward.api.schemas.views import Run, ScopeView, Status
from runward.core.ids import ID_PATTERN

MAX_STALE_SECONDS = 31_536_000
MAX_PRUNED = 10_000

WorkerId = Annotated[
    str, Path(pattern=ID_PATTERN, description="The worker's id.", examples=["shop-1-4711-01a22e3c686c705c828f924d76cb479f"])
]
Fingerprint = Annotated[str, Field(min_length=1, max_length=128)]
BodyCursor = Annotated[str, Field(min_length=1, max_length=1_024)]


class ListStale(ListPart):
    """Which leases count as left behind."""

    stale_seconds: Annotated[Whole, Field(ge=0, le=MAX_STALE_SECONDS), Bounds()] = Field(
        default=60, description="Since when they have run out."
    )


class RecoverRuns(Body):
    """Which runs to take from their holders: those whose lease has run out, or one."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"limit": 100}, {"run_id": "order-7-status", "force": True}]})

    limit: BodyLimit = Field(default=100, description="How many runs whose lease has run out.")
    run_id: NewId | None = None
    force: bool = Field(default=False, description="Take the named run also from a worker that lives.")

    @model_validator(mode="after")
    def _names_whom_it_forces(self) -> RecoverRuns:
        if self.force and self.run_id is None:
            raise PydanticCustomError("force_without_run", "`force` goes with one run_id.")
        return self


class RebindRuns(Body):
    """Which runs go on with other code: one, or those of an agent."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"agent": "support", "from": "1f0c77…", "to": "9ab2d4…", "reason": "Version 2 only corrects a description."}],
            "oneOf": [given("run_id"), given("agent")],
        }
    )

    source: Fingerprint = Field(alias="from", description="The fingerprint the runs are bound to.")
    target: Fingerprint = Field(alias="to", description="A published fingerprint of the same agent.")
    run_id: NewId | None = None
    agent: Label | None = None
    reason: Reason | None = Field(default=None, description="At most 4 KiB.")
    cursor: BodyCursor | None = Field(default=None, description="The `next_cursor` of the page before, for the same agent and bindings.")
    limit: BodyLimit = Field(default=100, description="How many runs of an agent one request looks at.")

    @model_validator(mode="after")
    def _one_of_both(self) -> RebindRuns:
        if (self.run_id is None) == (self.agent is None):
            raise PydanticCustomError("one_of_both", "Give either a run_id or an agent.")
        if self.source == self.target:
            raise PydanticCustomError("same_binding", "`from` and `to` are the same.")
        return self


class RaisedLimits(Body):
    """Bounds that are looser than the run's own."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [given(name) for name in ("max_steps", "timeout_seconds", "expires_seconds", "max_total_tokens", "max_cost_usd")]
        }
    )

    max_steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(default=None, description="Model calls.")
    timeout_seconds: Seconds | None = Field(default=None, description="Time worked on the run.")
    expires_seconds: Seconds | None = Field(default=None, description="The run's whole life.")
    max_total_tokens: Tokens | None = Field(default=None, description="Tokens of all model calls.")
    max_cost_usd: Dollars | None = Field(default=None, description="What all model calls may cost.")

    @property
    def given(self) -> dict[str, float | str]:
        """Those that are there."""
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}

    @model_validator(mode="after")
    def _something(self) -> RaisedLimits:
        if not self.given:
            raise PydanticCustomError("no_limit", "Name at least one limit.")
        return self


class RaiseLimits(Body):
    """Which limits of a run to raise, and why."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"limits": {"max_steps": 40}, "reason": "A long case."}]})

    limits: RaisedLimits
    reason: Reason | None = Field(default=None, description="At most 4 KiB.")


class Prune(Body):
    """What to delete for good."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"runs_before": "2026-01-31T00:00:00Z", "limit": 1_000}],
            "anyOf": [given("runs_before"), given("keys_before")],
        }
    )

    runs_before: Time | None = Field(default=None, description="Ended runs last saved before this time.")
    keys_before: Time | None = Field(default=None, description="Idempotency keys older than this, but none younger than 24 h.")
    budgets_before: Time | None = Field(
        default=None,
        description="Budgets that nobody has used or changed since this time, with nothing reserved, and what was reserved before it.",
    )
    limit: Annotated[int, Field(ge=1, le=MAX_PRUNED)] = Field(default=1_000, description="At most so many of each.")

    @model_validator(mode="after")
    def _something(self) -> Prune:
        if self.runs_before is None and self.keys_before is None and self.budgets_before is None:
            raise PydanticCustomError("nothing_named", "Say what is to go: runs_before, keys_before or budgets_before.")
        return self


class WorkerView(View):
    """A worker. `live`: it said so within the length of a lease. Only operators see its host, process and slots."""

    worker_id: str
    live: bool
    draining: bool
    beat_at: str
    bindings: list[str]
    host: str | None = None
    pid: int | None = None
    started_at: str | None = None
    slots: int | None = None
    driving: int | None = None


class WorkerList(View):
    """Every worker that did not take its leave, latest beat first."""

    data: list[WorkerView]


class Accepted(View):
    """It was asked to; it happens soon."""

    outcome: Literal["accepted"]


class PlacedRun(View):
    """A run, as far as its place in the service goes."""

    run_id: str
    scope: ScopeView
    agent: str
    agent_version: str
    binding: str
    status: Status
    updated_at: str


class LeasedRun(PlacedRun):
    """A run under a lease. `recoveries` counts how often it was recovered since it last got on."""

    worker: str
    leg: int
    expires_at: str
    recoveries: int
    draining: bool


class LeasePage(View):
    """A page of leases, in the order in which they run out."""

    data: list[LeasedRun]
    next_cursor: str | None


class UnclaimableRun(PlacedRun):
    """A run that no living worker can take, and why."""

    code: Literal["no_worker_with_binding", "format_too_new"]
    format: int
    created_at: str
    waiting_seconds: int


class UnclaimablePage(View):
    """A page of them, oldest first."""

    data: list[UnclaimableRun]
    next_cursor: str | None


class RecoveredRuns(View):
    """How many runs were taken from their holders. `failed`: `lease_held` by a worker that lives, or `not_running`."""

    recovered: int
    failed: list[FailedRun]


class ReboundRuns(View):
    """How many runs were bound anew."""

    rebound: int
    failed: list[FailedRun]
    next_cursor: str | None


class RaisedRun(View):
    """The run whose limits were raised."""

    run: Run


class PrunedRows(View):
    """How much was deleted. `reservations` are those of budgets that were over."""

    runs: int
    keys: int
    budgets: int
    reservations: int
