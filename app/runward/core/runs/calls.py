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


class Risk(StrEnum):
    """How much a call can do harm, as the tool's author sees it. Policies go by it; nothing else does."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """The higher, the more harm."""
        return list(Risk).index(self)


RISK_OF: Final[Mapping[Effect, Risk]] = {
    Effect.READ: Risk.LOW,
    Effect.IDEMPOTENT_WRITE: Risk.MEDIUM,
    Effect.NON_IDEMPOTENT_WRITE: Risk.HIGH,
    Effect.UNCLASSIFIED: Risk.HIGH,
}
"""The risk of a tool whose author says none."""


class CallStage(StrEnum):
    """Where a call stands on its way. `executing` is always durable before the tool is called (I-02).

    `gated` waits for a verdict. `cleared` has one, or is to run once more: it is looked at again before it is `ready` (R22). `waiting`
    waits for somebody else's answer or for a time.
    """

    PROPOSED = "proposed"
    GATED = "gated"
    CLEARED = "cleared"
    WAITING = "waiting"
    READY = "ready"
    EXECUTING = "executing"
    EXECUTED = "executed"
    UNKNOWN = "unknown"
    ENDED = "ended"


class How(StrEnum):
    """How one attempt of a call ended, as the worker saw it."""

    RETURNED = "returned"
    ASKS = "asks"
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
    ASK = "ask"
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
    How.ASKS: After(Then.ASK, Then.ASK),
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
OnExpiry = Literal["deny", "stop"]


class Awaits(StrEnum):
    """What a call waits for that no tool of the service runs: a result from the caller's program, the user's answer, or a time."""

    RESULT = "result"
    ANSWER = "answer"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTraits:
    """What the run has to know of a tool. Stored with each call when the model asks for it, so that what holds for a call never changes
    with a new deployment (R17a); but for `risk` and `permissions`, which the policy is asked about each time a call is screened (R22).

    `awaits` is set for tools that nobody runs here: then `expires_seconds` bounds the wait, and `output_schema` is what a result has to
    fit. `probes`: the tool can ask the outside world what became of an unknown effect. `wants_evidence`: whoever settles one has to
    prove it. `permissions` are what a call needs, in the author's words.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    effect: Effect
    timeout_seconds: float = 60
    max_attempts: int = 3
    on_unknown: OnUnknown = "reconcile"
    projects: bool = False
    awaits: Awaits | None = None
    expires_seconds: float | None = None
    output_schema: Mapping[str, Any] | None = None
    probes: bool = False
    wants_evidence: bool = False
    risk: Risk | None = None
    permissions: tuple[str, ...] = ()

    @property
    def risk_level(self) -> Risk:
        """The risk its author says, else the one that its effect has."""
        return self.risk or RISK_OF[self.effect]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalTerms:
    """How a call is to be approved, as its author says when the model asks for it (R18, R20). `schema` is that of its arguments."""

    version: str
    editable: bool
    expires_seconds: float | None
    on_expiry: OnExpiry
    reason: str | None
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a person decided about a call, when and why (R23). `issued` are the arguments before they edited them."""

    approved: bool
    at: int
    by: str | None = None
    reason: str | None = None
    issued: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A call's request for approval. `verdict` is None until somebody decides. `before` are the ids of the requests it was approved under
    before another version, or other arguments, asked anew."""

    id: str
    version: str
    requested_at: int
    expires_at: int | None
    on_expiry: OnExpiry
    editable: bool
    reason: str | None
    verdict: Verdict | None = None
    before: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """What a `waiting` call waits for. `question_id`, `question`, `choices` and `allows_free_text` go with an answer, `output_schema` with
    a result. `due_at` is when a wait for a time is over, `expires_at` when nobody's answer counts any more."""

    what: Awaits
    due_at: int | None = None
    expires_at: int | None = None
    output_schema: Mapping[str, Any] | None = None
    question_id: str = ""
    question: str = ""
    choices: tuple[str, ...] = ()
    allows_free_text: bool = True


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

    - `arguments` is the canonical text of what runs, and empty once the call has ended: the receipt keeps it. `given` is what guardrails
      made it of, where they left something else: they are shown the same whenever the call is looked at again.
    - `offered`: the model was shown this tool when it asked.
    - `attempt` counts starts, `failures` the attempts that failed by themselves; `leg` is the leg that marked it `executing`. `ran`: the
      tool was called, or may have been.
    - `gate` is its newest request for approval, `awaited` what it waits for. `answers` are the user's to what its tool asked, `asked` how
      often it did.
    - `settled` says how an unknown effect of it was settled, as JSON; `raw`, `result`, `checkpoint` and it live on the receipt and are only
      carried along in memory.

    Times are store time in milliseconds.
    """

    id: str
    provider_id: str
    name: str
    arguments: str
    effect: Effect
    stage: CallStage
    given: str | None = None
    offered: bool = True
    timeout_seconds: float = 60
    max_attempts: int = 3
    on_unknown: OnUnknown = "reconcile"
    projects: bool = False
    probes: bool = False
    wants_evidence: bool = False
    gate: Gate | None = None
    awaited: Awaited | None = None
    answers: tuple[str, ...] = ()
    asked: int = 0
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
    settled: Mapping[str, Any] | None = None

    @property
    def step(self) -> int:
        return int(self.id.split(".")[0])

    @property
    def position(self) -> int:
        return int(self.id.split(".")[1])

    @property
    def open(self) -> bool:
        return self.stage is not CallStage.ENDED


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
