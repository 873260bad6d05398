"""Tool calls: what is stored of one, and what becomes of it (semantics section 4).

`Effect` x how an attempt ended -> what happens next is one table, `AFTER`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

from runward.core.ids import canonical_json
from runward.core.text import clean, clean_json, within_depth


class Effect(StrEnum):
    """What a tool does to the world, as its author declares it. It decides what may happen after a crash (R13)."""

    READ = "read"
    IDEMPOTENT_WRITE = "idempotent_write"
    NON_IDEMPOTENT_WRITE = "non_idempotent_write"
    UNCLASSIFIED = "unclassified"

    @property
    def repeatable(self) -> bool:
        """Whether an attempt whose outcome is unknown may simply be made again under the same key."""
        return self in (Effect.READ, Effect.IDEMPOTENT_WRITE)

    @property
    def writes(self) -> bool:
        return self is not Effect.READ


class CallStage(StrEnum):
    """Where a call stands on its way. `executing` is always durable before the tool is called (I-02)."""

    PROPOSED = "proposed"
    READY = "ready"
    EXECUTING = "executing"
    EXECUTED = "executed"
    UNKNOWN = "unknown"
    ENDED = "ended"


class How(StrEnum):
    """How one attempt of a call ended, as the worker saw it."""

    RETURNED = "returned"
    TOOL_ERROR = "tool_error"
    BAD_RESULT = "bad_result"
    RAISED = "raised"
    TIMED_OUT = "timed_out"
    CANNOT_TELL = "cannot_tell"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"
    LOST = "lost"
    NOT_STARTED = "not_started"


class Then(StrEnum):
    """What happens to the call next."""

    COMPLETE = "complete"
    FAIL = "fail"
    FAIL_UNCERTAIN = "fail_uncertain"
    TRY_AGAIN = "try_again"
    START_OVER = "start_over"
    UNKNOWN = "unknown"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class After:
    """One row of `AFTER`: what follows for repeatable effects (`read`, `idempotent_write`), and for the others."""

    repeatable: Then
    others: Then


AFTER: Final[Mapping[How, After]] = {
    How.RETURNED: After(Then.COMPLETE, Then.COMPLETE),
    How.TOOL_ERROR: After(Then.FAIL, Then.FAIL),
    How.BAD_RESULT: After(Then.FAIL, Then.FAIL),
    How.RAISED: After(Then.TRY_AGAIN, Then.FAIL_UNCERTAIN),
    How.TIMED_OUT: After(Then.TRY_AGAIN, Then.UNKNOWN),
    How.CANNOT_TELL: After(Then.TRY_AGAIN, Then.UNKNOWN),
    How.CANCELLED: After(Then.CANCEL, Then.UNKNOWN),
    How.ABANDONED: After(Then.START_OVER, Then.UNKNOWN),
    How.LOST: After(Then.START_OVER, Then.UNKNOWN),
    How.NOT_STARTED: After(Then.START_OVER, Then.START_OVER),
}
"""What becomes of a call after an attempt (R13, R16, R38). `try_again` counts as a failure and ends in `fail` once `max_attempts` is used
up; `start_over` does not count: the tool never had its say. A run that is about to end starts nothing over: it answers the call instead."""


def after(effect: Effect, how: How) -> Then:
    row = AFTER[how]
    return row.repeatable if effect.repeatable else row.others


RETRY_BACKOFF_MS: Final = 250
RETRY_BACKOFF_CAP_MS: Final = 10_000


def backoff_ms(failures: int) -> int:
    """How long the next attempt waits after so many failed ones: 0.25 s, doubled each time, at most 10 s."""
    return int(min(RETRY_BACKOFF_CAP_MS, RETRY_BACKOFF_MS * 2 ** max(0, failures - 1)))


OnUnknown = Literal["reconcile", "tell_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTraits:
    """What the run has to know of a tool. Stored with each call when the model asks for it, so that what holds for a call never changes
    with a new deployment (R17a)."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    effect: Effect
    timeout_seconds: float = 60
    max_attempts: int = 3
    on_unknown: OnUnknown = "reconcile"
    projects: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the model sees of a call. `output` is JSON; for errors it is the sentence the model reads."""

    output: Any
    is_error: bool = False
    outcome: str | None = None
    effect_certain: bool = True
    files: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tool call of the turn in hand.

    - `arguments` is the canonical text of what runs, and empty once the call has ended: the receipt keeps it.
    - `offered`: the model was shown this tool when it asked.
    - `attempt` counts starts, `failures` the attempts that failed by themselves; `leg` is the leg that marked it `executing`. `ran`: the
      tool was called, or may have been.
    - `raw`, `result` and `checkpoint` live on the receipt and are only carried along in memory.

    Times are store time in milliseconds.
    """

    id: str
    provider_id: str
    name: str
    arguments: str
    effect: Effect
    stage: CallStage
    offered: bool = True
    timeout_seconds: float = 60
    max_attempts: int = 3
    on_unknown: OnUnknown = "reconcile"
    projects: bool = False
    attempt: int = 0
    failures: int = 0
    not_before: int | None = None
    leg: int = 0
    worker: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    ran: bool = False
    raw: Any = None
    result: Result | None = None
    checkpoint: str | None = None

    @property
    def step(self) -> int:
        return int(self.id.split(".")[0])

    @property
    def position(self) -> int:
        return int(self.id.split(".")[1])

    @property
    def open(self) -> bool:
        return self.stage is not CallStage.ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEffect:
    """A call that may or may not have happened, until somebody settles it (R13, R15). `told`: the model was told so and went on."""

    tool_call_id: str
    step: int
    tool_name: str
    effect: Effect
    arguments: str
    attempt: int
    started_at: int
    worker: str
    told: bool


# -- what the model reads ------------------------------------------------------------------------------------------------

UNEXPECTED = "The tool failed unexpectedly."
UNCERTAIN = "The tool failed unexpectedly. Its effect may have happened all the same: do not repeat this call unless the user asks for it."
UNKNOWN_TO_MODEL = "The outcome of this call is unknown: it may or may not have happened. Do not repeat it unless the user asks for it."
TIMED_OUT = "The tool did not answer in time."
CANCELLED = "The call was cancelled."
NOT_STARTED = "The call was not started."
CUT_OFF = "The call was not started: the answer that asked for it was cut off."


# -- arguments -----------------------------------------------------------------------------------------------------------

MAX_DEPTH: Final = 64
"""How deep a JSON value of a request or a model may be nested (R46)."""

MAX_ARGUMENT_BYTES: Final = 262_144
"""How long one call's arguments may be, as canonical text."""

MAX_CALLS_PER_TURN: Final = 128
"""How many calls of one answer are looked at; the others are refused."""


def parse_arguments(text: str) -> tuple[Any, str | None]:
    """A model's arguments: as they are shown, and their canonical text, or None where they are not a JSON object that can run (R17, R17a).

    No text at all is an empty object. Strings are cleaned (R47). What is not valid JSON, or nested too deep, is shown as the text it was.
    """
    text = clean(text)
    try:
        value = clean_json(json.loads(text or "{}"))
        canonical = canonical_json(value)
    except (ValueError, RecursionError):
        return text, None
    if not within_depth(value, MAX_DEPTH):
        return text, None
    return value, canonical if isinstance(value, dict) and len(canonical.encode()) <= MAX_ARGUMENT_BYTES else None
