"""Bodies and answers of what operators ask of runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from runward.api.schemas.values import Body, Label, NewId, Reason, Time, View, given
from runward.api.schemas.views import Run, Status, TaskOutcome

MAX_RUN_IDS = 1_000
MAX_PAGE = 1_000
MAX_CURSOR = 1_024
MAX_METADATA_FILTERS = 64

Waits = Literal["approvals", "client_calls", "questions", "timers", "tasks", "children", "unknown_effects", "budget", "hold"]
Cursor = Annotated[str, Field(min_length=1, max_length=MAX_CURSOR)]
Limit = Annotated[int, Field(ge=1, le=MAX_PAGE)]


class DrainRun(Body):
    """How a run is given back. With `hold` it is parked until it is released."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"hold": True, "reason": "The shop is closed."}]})

    hold: bool = False
    reason: Reason | None = Field(default=None, description="Why it is parked, at most 4 KiB.")


class RunFilter(Body):
    """The filters of `GET /runs`. `metadata` matches strings at the top of a run's metadata."""

    model_config = ConfigDict(json_schema_extra=lambda schema: schema.update(anyOf=[_names(name) for name in schema["properties"]]))

    status: Annotated[list[Status], Field(max_length=6)] = Field(default_factory=list)
    waiting_on: Annotated[list[Waits], Field(max_length=9)] = Field(default_factory=list)
    agent: Label | None = None
    agent_version: Label | None = None
    user: Label | None = None
    namespace: Label | None = None
    stop_reason: Label | None = None
    task_outcome: TaskOutcome | None = None
    cancel_requested: bool | None = None
    metadata: Annotated[dict[Label, Annotated[str, Field(max_length=1_024)]], Field(max_length=MAX_METADATA_FILTERS)] = Field(
        default_factory=dict
    )
    created_after: Time | None = Field(default=None, description="Inclusive; `_before` is not.")
    created_before: Time | None = None
    ended_after: Time | None = None
    ended_before: Time | None = None
    updated_before: Time | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> RunFilter:
        if all(value is None or value in ([], {}) for value in (getattr(self, name) for name in type(self).model_fields)):
            raise PydanticCustomError("empty_filter", "An empty filter would match every run. Say which ones are meant.")
        return self


def _names(name: str) -> dict[str, Any]:
    """For the document: that a field of a filter is there and says something."""
    return {"required": [name], "properties": {name: {"not": {"enum": [None, [], {}]}}}}


class CancelRuns(Body):
    """Which runs to cancel: those that a filter matches, page by page, or some by their ids."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"filter": {"agent": "support", "status": ["queued", "suspended"]}, "reason": "The shop is closed.", "dry_run": True},
                {"run_ids": ["order-7-status"]},
            ],
            "oneOf": [given("filter"), given("run_ids")],
        }
    )

    filter: RunFilter | None = None
    run_ids: Annotated[list[NewId], Field(min_length=1, max_length=MAX_RUN_IDS)] | None = None
    reason: Reason | None = Field(default=None, description="At most 4 KiB.")
    dry_run: bool = Field(default=False, description="Only count what would be cancelled.")
    cursor: Cursor | None = Field(default=None, description="The `next_cursor` of the page before, with the same filter.")
    limit: Limit = Field(default=100, description="How many runs of a filter one request looks at.")

    @model_validator(mode="after")
    def _one_of_both(self) -> CancelRuns:
        if (self.filter is None) == (self.run_ids is None):
            raise PydanticCustomError("one_of_both", "Give either a filter or run_ids.")
        if self.filter is None and self.cursor is not None:
            raise PydanticCustomError("cursor_without_filter", "A cursor goes with a filter.")
        return self


class Drained(View):
    """What became of a drain. `not_running`: nobody drives the run, so nothing was stored."""

    outcome: Literal["accepted", "not_running"]
    run: Run


class WaitingView(View):
    """One thing that a run waits for; `due_at` is when that wait ends by itself."""

    kind: Literal["approval", "client_call", "question", "timer", "unknown_effect", "hold"]
    id: str
    since: str
    due_at: str | None = None


class LeaseView(View):
    """Who drives a run, and until when that holds without being renewed."""

    worker: str
    expires_at: str


class ReasonView(View):
    """One reason why a run is not moving: `code` is for programs, `detail` says it of this run, `next` what to do."""

    code: str
    detail: str
    next: str


class Why(View):
    """Why a run is not moving. `claimable`: a worker that lives could take it now."""

    run_id: str
    status: Status
    since: str
    waiting_on: list[WaitingView]
    lease: LeaseView | None
    claimable: bool
    reasons: list[ReasonView]


class FailedRun(View):
    """A run that nothing could be done with, and why."""

    run_id: str
    code: str


class CancelledRuns(View):
    """What became of a page of runs. `matched` counts those looked at; what is neither accepted nor ended is in `failed`."""

    matched: int
    accepted: int
    already_ended: int
    failed: list[FailedRun]
    next_cursor: str | None
