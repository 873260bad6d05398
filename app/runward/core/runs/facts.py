"""What can happen to a run. A fact is a value with a time; `apply` folds it into the state.

The first group is what the world did: a worker reports it, it cannot be taken back. The second group are `decide`'s own moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runward.core.budgets import Shortage
from runward.core.kernel.mail import Mail
from runward.core.messages import Message
from runward.core.runs.asking import GenerationAsked, GenerationEnded, HangUp
from runward.core.runs.calls import ApprovalTerms, How, Result, ToolTraits
from runward.core.runs.ledger import CallTerms, Rates
from runward.core.runs.state import Answer, Ending
from runward.core.runs.unsettled import ProbeStatus
from runward.core.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class LegStarted:
    """A worker took the run. `recovered`: the leg before it did not give it back; `last_write_at` is when it last wrote. `exhausted`: that
    happened too often by now (R40). `caretaker`: this worker lacks the agent's code and does only what needs none (R41). `reopened`: the
    run had failed and somebody asked for another try (R10). `binding` is what code has to provide to drive it.
    `guards_output`: that code has guardrails on output; `terms` is what this worker knows of the run's model calls."""

    at: int
    leg: int
    worker: str
    binding: str = ""
    reopened: bool = False
    recovered: bool = False
    last_write_at: int = 0
    exhausted: bool = False
    caretaker: bool = False
    guards_output: bool = False
    terms: CallTerms = field(default_factory=CallTerms)


@dataclass(frozen=True, slots=True, kw_only=True)
class MailCame:
    """One item of the inbox, in order (R6a)."""

    at: int
    mail: Mail


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCame:
    """The store's clock has reached `at`: what is due by then is due."""

    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAsked:
    """This leg is to give the run back at the next boundary; `hurried`: at once, whatever can be repeated is broken off (R39)."""

    at: int
    hurried: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChosen:
    """Which model this run uses, decided once (authoring: `model` may be a function), and what it costs, where that is known."""

    at: int
    model: str
    rates: Rates | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAsked:
    """A call in a model's answer: what the model wrote, unchecked. `offered`: a tool of this name was among those it was shown."""

    provider_id: str
    tool_name: str
    arguments: str
    offered: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReceived:
    """A model call gave a whole answer. `opaque` is the provider's own form of it, kept for replay. In finalization `output` is the
    value it stands for, or `complaint` says why it is none. `cut`: the model was allowed less than asked for, to keep the run's bounds."""

    at: int
    step: int
    attempt: int
    text: str
    reasoning: str
    calls: tuple[CallAsked, ...]
    finish: str
    usage: Usage
    opaque: bytes | None
    opaque_format: str | None
    output: Any = None
    complaint: str | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRefused:
    """A model call was not made: its prompt, now that it was there, took more than was left (R33). `prompt` is in tokens."""

    at: int
    step: int
    attempt: int
    prompt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFailed:
    """A model call gave no whole answer. `sent`: the request may have been sent."""

    at: int
    step: int
    attempt: int
    code: str
    message: str
    transient: bool
    billed: bool
    after_content: bool
    retry_after_ms: int | None
    sent: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBrokenOff:
    """The service itself broke a model call off. `started`: the request may have been sent."""

    at: int
    step: int
    attempt: int
    started: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetsAnswered:
    """The budgets that the run shares with others have admitted its reservation; `shortage`: one has refused it. `closed`: it is over, as
    they know it. `crossed` are those by now past the mark at which somebody wants a warning."""

    at: int
    id: str
    crossed: tuple[str, ...] = ()
    shortage: Shortage | None = None
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetClosed:
    """The budgets know that a reservation is over."""

    at: int
    id: str
    crossed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A guardrail blocked or rewrote something: which hook it is of, its name, and why it blocked."""

    hook: str
    action: Literal["block", "rewrite"]
    name: str
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputGuarded:
    """The guardrails looked at the input: `messages` is what they have left of it; None when one of them blocked it."""

    at: int
    messages: tuple[Message, ...] | None
    guarded: tuple[Guarded, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputGuarded:
    """The guardrails looked at the answer of a step: `answer` is what they have left of it; None when one of them blocked it."""

    at: int
    step: int
    answer: Answer | None
    guarded: tuple[Guarded, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """What stations 2 to 4 say of one call: its traits and canonical arguments, or the result that refuses it. `approval`: how a person is
    to approve it first, None when nobody has to."""

    call_id: str
    traits: ToolTraits | None
    arguments: str
    refusal: Result | None
    approval: ApprovalTerms | None = None
    guarded: tuple[Guarded, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """All proposed and cleared calls of the turn were looked at."""

    at: int
    screenings: tuple[Screening, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """An attempt of a call is over. `result` goes with RETURNED, TOOL_ERROR and BAD_RESULT; `raw` with RETURNED if a projection follows;
    `question` and `choices` with ASKS."""

    at: int
    call_id: str
    attempt: int
    how: How
    result: Result | None = None
    raw: Any = None
    question: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A tool wants a text kept for later attempts of its call."""

    at: int
    call_id: str
    attempt: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """What the model will see of an executed call."""

    at: int
    call_id: str
    result: Result
    guarded: tuple[Guarded, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A tool's probe answered about the unknown effect of an attempt. `result` and `raw` go with HAPPENED; `detail` is for people."""

    at: int
    call_id: str
    attempt: int
    status: ProbeStatus
    detail: str = ""
    result: Result | None = None
    raw: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceChecked:
    """A tool looked at the evidence of a settlement. `refusal` says why it does not hold, None when it does."""

    at: int
    call_id: str
    attempt: int
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictGiven:
    """The agent's verifier looked at the candidate: `verified`, `rejected` with feedback for the model, or `inconclusive`."""

    at: int
    attempt: int
    kind: Literal["verified", "rejected", "inconclusive"]
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broke:
    """The worker cannot go on with this run, for a reason of the agent's or the service's own. Ends it `failed`."""

    at: int
    code: str
    message: str
    details: Mapping[str, Any]


# -- moves ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Makes the next model call's reservation: of the next step, or of the next attempt of the open one."""

    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Marks calls `executing`: they start once this is durable."""

    at: int
    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginVerifying:
    """The candidate goes to the verifier: the attempt counts from now on."""

    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseTurn:
    """Every call has its result: they enter the transcript, in the model's order."""

    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Closes every wait whose time has come: requests, client calls and questions that nobody answered in time, and timers (R20, R26)."""

    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Settles an unknown effect by what its probe found."""

    at: int
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspend:
    """Nothing can be done until somebody acts or a time comes."""

    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """The run goes back into the queue for another leg."""

    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The run ends."""

    at: int
    ending: Ending


Happening = (
    LegStarted
    | MailCame
    | TimeCame
    | DrainAsked
    | ModelChosen
    | AnswerReceived
    | CallRefused
    | BudgetsAnswered
    | BudgetClosed
    | ModelFailed
    | ModelBrokenOff
    | GenerationAsked
    | GenerationEnded
    | InputGuarded
    | OutputGuarded
    | Screened
    | AttemptEnded
    | CheckpointSaved
    | Projected
    | Probed
    | EvidenceChecked
    | VerdictGiven
    | Broke
)
Move = Reserve | Mark | BeginVerifying | CloseTurn | Close | Settle | HangUp | Suspend | GiveBack | End
Fact = Happening | Move
