"""A run driven by hand: every fact in the test's own words, every move made as the engine makes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runward.core.kernel.actor import FORMAT, Envelope, Scope, Status
from runward.core.kernel.frames import Frame
from runward.core.kernel.mail import Letter, Mail, MailKind
from runward.core.kernel.records import ApprovalClosing, ApprovalRow, Receipt
from runward.core.messages import Message, TextPart
from runward.core.runs import codec
from runward.core.runs.apply import apply
from runward.core.runs.begin import begin
from runward.core.runs.calls import ApprovalTerms, Awaited, Call, CallStage, Gate, How, Result
from runward.core.runs.decide import Decision, LegOver, RunCall, Work, decide
from runward.core.runs.emitted import Emitted
from runward.core.runs.facts import (
    AnswerReceived,
    AttemptEnded,
    CallAsked,
    DrainAsked,
    EvidenceChecked,
    Fact,
    LegStarted,
    MailCame,
    ModelBrokenOff,
    ModelFailed,
    Move,
    Probed,
    Projected,
    Screened,
    TimeCame,
    VerdictGiven,
)
from runward.core.runs.ledger import CallTerms, Rate
from runward.core.runs.limits import Limits
from runward.core.runs.receipts import with_results
from runward.core.runs.state import OutputTerms, RunState
from runward.core.runs.unsettled import ProbeStatus, UnknownEffect
from runward.core.runs.view import control, task_outcome
from runward.core.usage import Usage
from tests.unit.core.tooling import asked, screening

T0 = 1_700_000_000_000
"""When every run of these tests is created, in milliseconds."""

RATES = (Rate(input=250_000, output=2_000_000, cache_read=25_000, cache_write=312_500),)
"""What the models of these tests cost: USD 0.25, 2, 0.025 and 0.3125 for a million tokens."""

UID = "0" * 31 + "1"

MOST_MOVES = 12
"""A settled state is reached within so many moves, or `decide` runs in circles."""


def ok(output: Any = "ok") -> Result:
    return Result(output=output)


def given(how: How) -> Result | None:
    """The result that goes with an attempt that ended so, where one does."""
    match how:
        case How.RETURNED:
            return ok()
        case How.TOOL_ERROR:
            return Result(output="on hold", is_error=True, outcome="failed")
        case How.BAD_RESULT:
            return Result(output="not JSON", is_error=True, outcome="invalid_result")
        case _:
            return None


def row_of(run: RunState, **differing: Any) -> Envelope:
    """The row that a run's state is shown with."""
    made = Envelope(
        uid=run.uid,
        kind="run",
        format=FORMAT,
        public_id="order-7",
        scope=Scope(tenant="acme"),
        status=run.status,
        revision=3,
        leg=1,
        recoveries=0,
        lease_owner=None,
        lease_until=None,
        drain_leg=None,
        last_seq=9,
        mail_received=0,
        mail_applied=0,
        ready_at=None,
        care_at=None,
        rank=0,
        priority=0,
        binding="b",
        agent=run.agent,
        agent_version="1",
        session_id=None,
        parent_uid=None,
        waiting_on=int(run.waiting_on),
        stop_reason=None,
        task_outcome=task_outcome(run),
        metadata='{"ticket":"T-9"}',
        context=None,
        state="",
        created_at=run.created_at,
        updated_at=T0,
        started_at=None,
        ended_at=run.ended_at,
        cancel_requested_at=None,
    )
    return replace(made, **differing)


class Drive:
    """One run. `settle` makes the moves that `decide` asks for and saves, as a leg's commit does; `crash` loses what was not saved.
    `gates` says which tools' calls have to be approved, and how; `terms` what is known of its model calls."""

    def __init__(
        self,
        *,
        model: str | None = "test:model",
        created_at: int = T0,
        gates: Mapping[str, ApprovalTerms] | None = None,
        outputs: OutputTerms | None = None,
        loops: bool = True,
        fallbacks: Sequence[str] = (),
        guards_input: bool = False,
        terms: CallTerms | None = None,
        **limits: Any,
    ) -> None:
        message = Message(seq=1, role="user", content=(TextPart(text="hello"),))
        self.at = created_at
        self.frames: list[Frame] = []
        self.messages: list[Message] = []
        self.receipts: dict[str, Receipt] = {}
        self.gates = dict(gates or {})
        self.terms = terms or CallTerms()
        self.requests: list[ApprovalRow] = []
        self.closed_requests: list[ApprovalClosing] = []
        self.closings: list[Letter] = []
        self.ignored: list[int] = []
        self.mail = 0
        self.leg = 0
        self.run, emitted = begin(
            uid=UID,
            agent="support",
            created_at=created_at,
            limits=Limits(**limits),
            model=model,
            messages=[message],
            fallbacks=fallbacks,
            outputs=outputs,
            loops=loops,
            guards_input=guards_input,
            terms=self.terms,
        )
        self._take(emitted)
        self._save()

    # -- as the engine does it -------------------------------------------------------------------------------------------

    def apply(self, fact: Fact) -> Emitted:
        self.run, emitted = apply(self.run, fact)
        self._take(emitted)
        return emitted

    def settle(self) -> Work | LegOver:
        """Makes every move that needs nothing from outside, then saves. Answers the work that is to go on."""
        for _ in range(MOST_MOVES):
            decision = self.decide()
            if isinstance(decision, Work | LegOver):
                self._save()
                return decision
            self.apply(decision)
        raise AssertionError(f"decide runs in circles: {self.run}")

    def settle_work(self) -> Work:
        """`settle` where the run has to go on."""
        decision = self.settle()
        assert isinstance(decision, Work), self.run
        return decision

    def decide(self) -> Decision:
        return decide(self.run, self.at)

    def next_move(self) -> Move:
        decision = self.decide()
        assert not isinstance(decision, Work | LegOver)
        return decision

    def claim(self, **differing: Any) -> Drive:
        """A new leg reads what was saved."""
        self.leg += 1
        self.run = with_results(codec.decode(self._text), [*self.receipts.values()])
        self.apply(replace(LegStarted(at=self.at, leg=self.leg, worker=f"worker-{self.leg}", terms=self.terms), **differing))
        return self

    def crash(self) -> Drive:
        """The worker dies: what was not saved never happened. The next leg takes over."""
        self.frames, self.messages, self.receipts = [*self._saved[0]], [*self._saved[1]], dict(self._saved[2])
        return self.claim(recovered=True, last_write_at=self._saved_at)

    def _take(self, emitted: Emitted) -> None:
        self.frames += emitted.frames
        self.messages += emitted.messages
        self.receipts |= {receipt.tool_call_id: receipt for receipt in emitted.receipts}
        self.requests += emitted.approvals
        self.closed_requests += emitted.approval_closings
        self.closings += emitted.closings
        self.ignored += emitted.ignored

    def _save(self) -> None:
        self._text = codec.encode(self.run)
        self._saved = ([*self.frames], [*self.messages], dict(self.receipts))
        self._saved_at = self.at

    # -- what happens ----------------------------------------------------------------------------------------------------

    def after(self, seconds: float) -> Drive:
        """Time passes, and the leg looks at the clock."""
        self.at += round(seconds * 1000)
        self.apply(TimeCame(at=self.at))
        return self

    def answer(
        self, text: str = "", *calls: CallAsked, finish: str = "", reasoning: str = "", usage: Usage | None = None, **typed: Any
    ) -> Drive:
        self.apply(
            AnswerReceived(
                at=self.at,
                step=self.run.step,
                attempt=self.run.attempt,
                text=text,
                reasoning=reasoning,
                calls=calls,
                finish=finish or ("tool_calls" if calls else "stop"),
                usage=usage or Usage(input_tokens=10, output_tokens=5),
                opaque=None,
                opaque_format=None,
                **typed,
            )
        )
        return self

    def says(self, value: Any = None, *, complaint: str | None = None, finish: str = "") -> Drive:
        """A turn of finalization gives this value, or something that is none."""
        return self.answer(json.dumps(value) if complaint is None else "nope", finish=finish, output=value, complaint=complaint)

    def judges(self, kind: Any, message: str = "", *, attempt: int | None = None) -> Drive:
        """The verifier has decided."""
        attempt = self.run.verify_attempts if attempt is None else attempt
        self.apply(VerdictGiven(at=self.at, attempt=attempt, kind=kind, message=message))
        return self

    def fails(self, **differing: Any) -> Drive:
        """The model call gives no whole answer; without more words a passing fault before anything was said."""
        failed = ModelFailed(
            at=self.at,
            step=self.run.step,
            attempt=self.run.attempt,
            code="server_error",
            message="The provider failed.",
            transient=True,
            billed=False,
            after_content=False,
            retry_after_ms=None,
        )
        self.apply(replace(failed, **differing))
        return self

    def broken_off(self, *, started: bool = True) -> Drive:
        self.apply(ModelBrokenOff(at=self.at, step=self.run.step, attempt=self.run.attempt, started=started))
        return self

    def screen(self) -> Drive:
        looked_at = [call for call in self.run.turn if call.stage in (CallStage.PROPOSED, CallStage.CLEARED)]
        self.apply(Screened(at=self.at, screenings=tuple(screening(call, self.gates) for call in looked_at)))
        return self

    def refuses(self, call_id: str, outcome: str = "invalid_arguments") -> Drive:
        """Screening refuses one call."""
        refusal = Result(output="refused", is_error=True, outcome=outcome)
        looked_at = replace(screening(self.run.call(call_id)), refusal=refusal)
        self.apply(Screened(at=self.at, screenings=(looked_at,)))
        return self

    def ends(self, call_id: str, how: How, result: Result | None = None, **differing: Any) -> Drive:
        """An attempt of a call is over."""
        attempt = self.run.call(call_id).attempt
        ended = AttemptEnded(at=self.at, call_id=call_id, attempt=attempt, how=how, result=result or given(how))
        self.apply(replace(ended, **differing))
        return self

    def probe(self, call_id: str, status: ProbeStatus, **differing: Any) -> Drive:
        """The probe of the newest attempt answers."""
        probed = Probed(at=self.at, call_id=call_id, attempt=self.effect(call_id).attempt, status=status)
        self.apply(replace(probed, **differing))
        return self

    def evidence(self, call_id: str, refusal: str | None = None) -> Drive:
        """The tool has looked at the evidence."""
        attempt = self.effect(call_id).attempt
        self.apply(EvidenceChecked(at=self.at, call_id=call_id, attempt=attempt, refusal=refusal))
        return self

    def projects(self, call_id: str, output: Any = "shown") -> Drive:
        self.apply(Projected(at=self.at, call_id=call_id, result=ok(output)))
        return self

    def gets(self, kind: MailKind = MailKind.CANCEL, data: Any = None, *, by: str | None = None) -> Drive:
        """Mail comes."""
        self.mail += 1
        sender = None if by is None else json.dumps({"by": by})
        mail = Mail(seq=self.mail, kind=kind, key=f"k{self.mail}", data=json.dumps(data or {}), principal=sender, received_at=self.at)
        self.apply(MailCame(at=self.at, mail=mail))
        return self

    def decides(self, approval_id: str, approved: bool = True, **data: Any) -> Drive:
        """A person's verdict comes."""
        return self.gets(MailKind.APPROVAL, {"approval_id": approval_id, "approved": approved, **data}, by="ann")

    def gives(self, call_id: str, output: Any, **data: Any) -> Drive:
        """The caller's program gives a result."""
        return self.gets(MailKind.CLIENT, {"tool_call_id": call_id, "output": output, **data})

    def replies(self, question_id: str, answer: str) -> Drive:
        """The user answers."""
        return self.gets(MailKind.QUESTION, {"question_id": question_id, "answer": answer})

    def reconciles(self, call_id: str, decision: str, **data: Any) -> Drive:
        """A person settles the unknown effect of a call's newest attempt."""
        attempt = self.effect(call_id).attempt
        return self.gets(MailKind.RECONCILE, {"tool_call_id": call_id, "attempt": attempt, "decision": decision, **data}, by="ann")

    def drain(self, *, hurried: bool = False) -> Drive:
        self.apply(DrainAsked(at=self.at, hurried=hurried))
        return self

    # -- shortcuts to where tests begin ----------------------------------------------------------------------------------

    def running(self, *names: str, arguments: Any = None) -> Drive:
        """A run whose first answer asked for these tools, all of them under way."""
        self.claim()
        self.settle()
        self.answer("", *(asked(name, arguments) for name in names))
        self.settle()
        self.screen()
        assert self.settle() == Work(start=tuple(RunCall(call.id, call.attempt) for call in self.executing()))
        return self

    def asks(self, *names: str, arguments: Any = None) -> Drive:
        """A run whose first answer asked for these tools, and that was left to itself then."""
        self.claim()
        self.settle()
        self.answer("", *(asked(name, arguments) for name in names))
        self.settle()
        self.screen()
        self.settle()
        return self

    def lost(self, name: str, *, how: How = How.CANNOT_TELL, arguments: Any = None) -> Drive:
        """A run whose one call of this tool ended so that nobody knows what became of it."""
        self.running(name, arguments=arguments).ends("1.1", how)
        self.settle()
        return self

    def ended(self) -> Drive:
        """The run is over, as `decide` sees it."""
        assert self.settle() == LegOver() and self.run.status.ended, self.run
        return self

    # -- what there is to see --------------------------------------------------------------------------------------------

    def gate(self, call_id: str = "1.1") -> Gate:
        """The call's newest request for approval."""
        gate = self.run.call(call_id).gate
        assert gate is not None
        return gate

    def awaited(self, call_id: str = "1.1") -> Awaited:
        """What the call waits for."""
        awaited = self.run.call(call_id).awaited
        assert awaited is not None
        return awaited

    def effect(self, call_id: str = "1.1") -> UnknownEffect:
        """The unsettled effect of a call."""
        effect = self.run.unknown(call_id)
        assert effect is not None
        return effect

    def kept(self, call_id: str = "1.1") -> dict[str, Any]:
        """What the receipt of a call keeps beside its columns."""
        detail: dict[str, Any] = json.loads(self.receipts[call_id].detail)
        return detail

    def keys(self) -> list[str]:
        """The keys that the service itself has taken."""
        return [letter.key for letter in self.closings]

    def executing(self) -> Sequence[Call]:
        return [call for call in self.run.turn if call.stage is CallStage.EXECUTING]

    def types(self) -> list[str]:
        return [frame.type for frame in self.frames]

    def of(self, type: str) -> list[dict[str, Any]]:
        """The fields of every frame of a type."""
        return [dict(frame.fields) for frame in self.frames if frame.type == type]

    def results(self) -> list[tuple[str, Any]]:
        """The results in the transcript, in order: call id and what the model reads."""
        return [(part.tool_call_id, part.output) for message in self.messages for part in message.tool_results]

    @property
    def shown(self) -> dict[str, Any]:
        """The control state as of now."""
        return control(self.run)

    @property
    def status(self) -> Status:
        return self.run.status

    @property
    def stopped(self) -> tuple[str, list[tuple[str, str]]]:
        """Why the run stopped, and what is said of each call in hand."""
        stop = self.shown["stop"]
        return stop["reason"], [(call["tool_call_id"], call["state"]) for call in stop["details"].get("calls", [])]
