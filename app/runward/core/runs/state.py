"""The state of a run: small, typed, frozen. What grows (messages, receipts, frames) are rows of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import Status
from runward.core.runs.calls import Awaits, Call, CallStage
from runward.core.runs.ledger import CallTerms, Ledger, Plan, Rates
from runward.core.runs.limits import Limits
from runward.core.runs.shared import BudgetWait, SharedBudgets
from runward.core.runs.unsettled import UnknownEffect
from runward.core.runs.waits import NOTHING, Wait
from runward.core.usage import Usage

KIND = "run"
"""The kind of actor a run is."""


class Phase(StrEnum):
    """What a run is doing, while it is `running` and also while it waits."""

    LOOP = "loop"
    FINALIZING = "finalizing"


class StopReason(StrEnum):
    """Why a run is `stopped` (R10)."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    MAX_STEPS = "max_steps"
    BUDGET_EXCEEDED = "budget_exceeded"
    REFUSAL = "refusal"
    CONTENT_FILTER = "content_filter"
    LENGTH = "length"
    APPROVAL_EXPIRED = "approval_expired"
    OUTPUT_ATTEMPTS_EXHAUSTED = "output_attempts_exhausted"
    VERIFICATION_ATTEMPTS_EXHAUSTED = "verification_attempts_exhausted"
    VERIFICATION_INCONCLUSIVE = "verification_inconclusive"
    GUARDRAIL_INPUT = "guardrail_input"
    GUARDRAIL_OUTPUT = "guardrail_output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a run is `failed`: a stable code, a sentence without secrets, and whether the cause may pass (R9, R30)."""

    code: str
    message: str
    transient: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run is about to end, once nothing is in flight any more."""

    status: Status
    reason: StopReason | None = None
    failure: Failure | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation(Plan):
    """A model call that may be under way, durable before it starts (R33). `leg` 0: made at creation, the first leg's own (R32)."""

    step: int
    attempt: int
    leg: int
    not_before: int | None = None
    prompt: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Plan):
    """A model call of the agent's own code that may be under way, durable before it starts (R33)."""

    key: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """An accepted cancel, applied (R37)."""

    at: int
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """An operator parked the run, until it is released (R39)."""

    since: int
    by: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTerms:
    """The run's answer has a type. `verifies`: somebody looks at each candidate before it is the answer."""

    verifies: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An answer that fits its schema, and nobody has verified yet."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a model answered, whole. In finalization `output` is the value it stands for, or `complaint` says why it is none. `cut`: it
    could be less long than asked for, because of what was left."""

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    text: str
    finish: str
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    opaque: bytes | None = None
    opaque_format: str | None = None
    output: Any = None
    complaint: str | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """A model failed before it had said anything, and the next one was asked in its place (R31)."""

    step: int
    source: str
    target: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands. Changed only by `apply`.

    - `start_at` is when it may begin, None for at once.
    - `step` is the last step begun, `attempt` its attempt; `step_open` says that no answer of it is stored yet.
    - `messages` counts the stored messages; `events_after` is the seq before the first frame that is not yet in them.
    - `turn` are the calls of the last answer until all have their result and the results are in the transcript; `finish_reason` and
      `step_usage` are that answer's, until its step is finished.
    - `unknowns` are the unsettled unknown effects, of this turn and of earlier ones.
    - `fallbacks` are the models left to be asked when `model` fails, `failovers` what has become of those before.
    - `outputs`: the answer has a type. `candidate` is verified now or next, `verifying` says that the verifier was asked;
      `output_attempts` counts the answers since the last candidate that were none, `verify_attempts` the verifier's attempts. `output` is
      the accepted answer, in an ended run.
    - `input_unguarded`: the input is not in the transcript yet, the agent's guardrails look at it first. `unguarded` is an answer that they
      have not looked at: neither stored as a message nor shown.
    - `hold` parks the run; `holds` and `releases` count those applied. `denied`: a call was denied, or nobody decided in time.
    - `ending` is decided and waits for what is in flight; `cancel` and `out_of_time` outrank it.
    - `worked_ms` is what earlier legs worked; `leg_started_at` when this one began.
    - `model_failures` counts the failed attempts of the model call in hand, the last one failed with the code `model_failure`;
      `model_retry_at` is when the next may start.
    - `lost_model_calls` counts the calls whose cost nobody knows: broken off, or lost with their worker.
    - `ledger` is what all calls cost. `prompt_tokens` are those of the last prompt and answer as the model counted them, and
      `prompt_characters` what was stored since: together the next prompt. `rates` are the models' prices, recorded where dollars bound it.
    - `generations` are the model calls of the agent's own code that may be under way; `spent_out` is how the run ends at the next boundary
      because one of them was refused.
    - `shared` are the budgets that it spends from together with other runs; None: none.

    The fields at the end are the leg's own and never stored. Defaults are part of the stored format: they are left out of it.
    """

    uid: str
    agent: str
    created_at: int
    start_at: int | None = None
    limits: Limits = field(default_factory=Limits)
    status: Status = Status.QUEUED
    phase: Phase = Phase.LOOP
    model: str | None = None
    fallbacks: tuple[str, ...] = ()
    failovers: tuple[Failover, ...] = ()
    outputs: OutputTerms | None = None
    candidate: Candidate | None = None
    output_attempts: int = 0
    verify_attempts: int = 0
    verifying: bool = False
    output: Any = None
    input_unguarded: bool = False
    unguarded: Answer | None = None
    step: int = 0
    attempt: int = 0
    step_open: bool = False
    messages: int = 0
    events_after: int = 0
    text: str | None = None
    usage: Usage = field(default_factory=Usage)
    reservation: Reservation | None = None
    lost_model_calls: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    rates: Mapping[str, Rates] = field(default_factory=dict)
    prompt_tokens: int = 0
    prompt_characters: int = 0
    generations: tuple[Generation, ...] = ()
    spent_out: Ending | None = None
    shared: SharedBudgets | None = None
    model_failures: int = 0
    model_failure: str = ""
    model_retry_at: int | None = None
    turn: tuple[Call, ...] = ()
    finish_reason: str = ""
    step_usage: Usage = field(default_factory=Usage)
    unknowns: tuple[UnknownEffect, ...] = ()
    denied: bool = False
    hold: Hold | None = None
    holds: int = 0
    releases: int = 0
    ending: Ending | None = None
    cancel: Cancel | None = None
    out_of_time: bool = False
    ended: Ending | None = None
    ended_at: int | None = None
    worked_ms: int = 0
    leg_started_at: int | None = None
    leg: int = 0
    worker: str = ""
    binding: str = ""
    reopened: bool = False
    caretaker: bool = False
    draining: bool = False
    hurried: bool = False
    guards_output: bool = False
    terms: CallTerms = field(default_factory=CallTerms)

    @property
    def withholds(self) -> bool:
        """Whether what the model says now may be the answer, and is shown only once guardrails have let it pass."""
        return self.guards_output and (self.outputs is None or self.phase is Phase.FINALIZING)

    @property
    def waiting_on(self) -> Wait:
        """What stands between this run and its next model call, and no worker can do anything about."""
        waits = NOTHING if self.hold is None else Wait.HOLD
        if self.budget_wait is not None:
            waits |= Wait.BUDGET
        for call in self.turn:
            if call.stage is CallStage.GATED:
                waits |= Wait.APPROVALS
            elif call.stage is CallStage.UNKNOWN:
                waits |= Wait.UNKNOWN_EFFECTS
            elif call.stage is CallStage.WAITING and call.awaited is not None:
                waits |= _WAITS[call.awaited.what]
        return waits

    @property
    def budget_wait(self) -> BudgetWait | None:
        """What keeps the run waiting for a budget, as long as it does not ask again."""
        return None if self.shared is None or self.reservation is not None else self.shared.waiting

    @property
    def model_call_open(self) -> bool:
        """Whether this leg may have a model call under way."""
        return self.reservation is not None and self.reservation.leg == self.leg

    def unknown(self, call_id: str) -> UnknownEffect | None:
        """The unsettled effect of this call, if it has one."""
        return next((effect for effect in self.unknowns if effect.tool_call_id == call_id), None)

    def generation(self, key: str) -> Generation | None:
        """The model call of the agent's own code with this key, while it may be under way."""
        return next((generation for generation in self.generations if generation.key == key), None)

    def call(self, call_id: str) -> Call:
        """The call of the turn in hand with this id. Raises InvariantViolated when there is none."""
        for call in self.turn:
            if call.id == call_id:
                return call
        raise InvariantViolated(f"There is no call {call_id} in the turn in hand.")


_WAITS = {Awaits.RESULT: Wait.CLIENT_CALLS, Awaits.ANSWER: Wait.QUESTIONS, Awaits.TIME: Wait.TIMERS}
