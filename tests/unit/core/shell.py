"""An engine in miniature: what a leg does with `decide` and `apply`, with every promise checked as it is made."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from runward.core import budgets
from runward.core.kernel.records import Stage
from runward.core.runs import codec
from runward.core.runs.apply import apply
from runward.core.runs.asking import GenerationAsked, GenerationEnded
from runward.core.runs.budget import bounded, only_the_state_tells
from runward.core.runs.budget import reserved as reserved_by
from runward.core.runs.calls import CallStage, How
from runward.core.runs.decide import (
    Activity,
    AskBudgets,
    CallModel,
    CheckEvidence,
    ChooseModel,
    CloseBudget,
    Decision,
    GuardInput,
    GuardOutput,
    LegOver,
    Probe,
    Project,
    RunCall,
    Screen,
    VerifyOutput,
    Work,
    decide,
    due_ending,
)
from runward.core.runs.dues import work_due
from runward.core.runs.emitted import NOTHING, Emitted
from runward.core.runs.face import face_of
from runward.core.runs.facts import (
    AnswerReceived,
    AttemptEnded,
    Close,
    Happening,
    InputGuarded,
    LegStarted,
    MailCame,
    Mark,
    ModelBrokenOff,
    OutputGuarded,
    Settle,
    TimeCame,
)
from runward.core.runs.inputs import in_order
from runward.core.runs.ledger import CallTerms
from runward.core.runs.sharing import to_close
from runward.core.runs.state import RunState
from runward.core.runs.view import control, view
from tests.unit.core.driving import MOST_MOVES, row_of
from tests.unit.core.storing import Store

SAID_WITH_THE_STATE = (AttemptEnded, AnswerReceived, GenerationEnded, InputGuarded, OutputGuarded)


@dataclass
class Going:
    """An activity under way. `run` is the state that asked for it."""

    run: RunState
    begun: bool = False
    stopped: bool = False
    text: str = ""
    reasoning: str = ""


class World:
    """What cannot be taken back: the effects of tools, counted outside of the service. `again` are the attempts after which somebody who
    may say so said that the call can be made once more."""

    def __init__(self) -> None:
        self.starts: dict[str, list[int]] = {}
        self.again: set[tuple[str, int]] = set()
        self.asked: dict[int, Any] = {}
        """The verifier's attempts, each with the candidate it was asked about; `verdicts` is what it said in each."""
        self.verdicts: dict[int, str] = {}

    def start(self, store: Store, run: RunState, activity: RunCall) -> None:
        call, receipt = run.call(activity.call_id), store.receipts[activity.call_id]
        assert (receipt.stage, receipt.attempt, receipt.output) == (Stage.EXECUTING, activity.attempt, None), (
            "no receipt before the effect (I-02)"
        )
        if call.gate is not None:
            verdict = store.verdicts.get(call.gate.id)
            assert verdict is not None and verdict["approved"], f"{call} was called without a verdict (I-31)"
            edited = verdict.get("edited_arguments")
            assert edited is None or call.gate.before or json.loads(call.arguments) == edited, "what runs is what was approved (R21)"
        attempts = self.starts.setdefault(activity.call_id, [])
        assert activity.attempt not in attempts, f"attempt {activity} was made twice"
        unsaid = [attempt for attempt in attempts if (activity.call_id, attempt) not in self.again]
        assert call.effect.repeatable or not unsaid, f"{call} was called twice (I-03)"
        attempts.append(activity.attempt)


class Leg:
    """One worker driving the run."""

    def __init__(
        self,
        store: Store,
        world: World,
        at: int,
        *,
        recovered: bool,
        exhausted: bool,
        caretaker: bool,
        terms: CallTerms,
        guards_output: bool = False,
    ) -> None:
        self.reopened = store.run.status.ended and not store.status.ended
        store.claim()
        self.store = store
        self.world = world
        self.at = at
        self.caretaker = caretaker
        self.number = store.leg
        self.emitted: Emitted = NOTHING
        self.waiting: Emitted = NOTHING
        self.unsaved = False
        self.facts: list[Happening] = []
        self.going: dict[Activity, Going] = {}
        self.mail_applied = store.mail_applied
        self.run = store.run
        self.fold(
            LegStarted(
                at=at,
                leg=self.number,
                worker=f"worker-{self.number}",
                binding=store.binding,
                reopened=self.reopened,
                recovered=recovered,
                last_write_at=store.updated_at,
                exhausted=exhausted,
                caretaker=caretaker,
                guards_output=guards_output and not caretaker,
                terms=CallTerms() if caretaker else terms,
            )
        )
        self.read_mail()

    def fold(self, fact: Happening) -> None:
        """What a fact only says goes out at once; what it stores waits for the next commit."""
        before, (self.run, emitted) = self.run, apply(self.run, fact)
        self.unsaved = self.unsaved or isinstance(fact, GenerationAsked) or only_the_state_tells(before, self.run)
        if isinstance(fact, GenerationAsked) and (asked := self.run.generation(fact.key)) is not None:
            self.store.asked += asked.amount
        if emitted.only_frames and not self.emitted and not isinstance(fact, SAID_WITH_THE_STATE):
            self.waiting += emitted
        else:
            self.emitted += emitted

    def read_mail(self) -> None:
        for mail in in_order(self.store.mail[self.mail_applied :]):
            self.fold(MailCame(at=self.at, mail=mail))
        self.mail_applied = len(self.store.mail)

    def flush(self) -> None:
        """Frames become durable between commits."""
        for frame in self.waiting.frames:
            self.store.journal.append(frame)
        self.waiting = NOTHING

    def settled(self) -> tuple[RunState, Emitted, bool, Decision]:
        run, emitted, gated = self.run, self.emitted, False
        for _ in range(MOST_MOVES + len(run.turn)):
            decision = decide(run, self.at)
            if isinstance(decision, Work | LegOver):
                return run, emitted, gated or isinstance(decision, LegOver), decision
            if isinstance(decision, Mark):
                gated = gated or any(run.call(call_id).effect.writes for call_id in decision.call_ids)
            gated = gated or isinstance(decision, Close | Settle)
            run, more = apply(run, decision)
            emitted += more
        raise AssertionError(f"decide runs in circles: {run}")

    def take_facts(self) -> None:
        for fact in self.facts:
            self.fold(fact)
        self.facts = []
        due = work_due(self.run)
        if due is not None and due <= self.at:
            self.fold(TimeCame(at=self.at))

    def round(self, *, early: bool, unsaved: bool, unacted: bool) -> bool:
        """One turn of the leg's loop. True when the leg is over. `early`: what has no effect starts first, and reports before the commit;
        `unsaved` and `unacted`: the worker dies before or after the commit."""
        self.take_facts()
        run, emitted, gated, decision = self.settled()
        if early and isinstance(decision, Work):
            self._start([a for a in decision.start if isinstance(a, Screen | ChooseModel | GuardInput | GuardOutput)], run)
            return False
        if unsaved:
            return True
        over = isinstance(decision, LegOver)
        if emitted or run is not self.run or over or self.unsaved:
            if (gated and len(self.store.mail) > self.mail_applied) or not self.store.takes(emitted):
                self.read_mail()
                return False
            waited = len(self.store.journal.frames) + len(self.waiting.frames)
            if emitted.messages:
                run = replace(run, events_after=waited + emitted.before_message)
            self.flush()
            self.store.commit(run, emitted, mail_applied=self.mail_applied, at=self.at, release=over)
            self.mail_applied += len(emitted.closings)
            self.run, self.emitted, self.unsaved = run, NOTHING, False
        if over or unacted:
            return True
        assert isinstance(decision, Work) and (decision.start or decision.stop or decision.finish), "nothing would ever happen again"
        self._act(decision)
        return False

    def _act(self, work: Work) -> None:
        assert not self.caretaker or all(isinstance(activity, CloseBudget) for activity in work.start), "a caretaker has no code to run"
        if due_ending(self.run) is None:
            stopped = [self.run.call(activity.call_id) for activity in work.stop if isinstance(activity, RunCall)]
            assert all(call.effect.repeatable for call in stopped), "what may not be repeated is waited for (R39)"
        if self.run.hold is not None:
            new = [activity for activity in work.start if activity not in self.going]
            assert not [
                activity for activity in new if isinstance(activity, CallModel | AskBudgets | Screen | Probe | GuardInput | GuardOutput)
            ], "a held run starts nothing (R39)"
        self._start([*work.start], self.run)
        for activity in work.stop:
            if activity in self.going:
                self.going[activity].stopped = True
            else:
                self.facts.append(self._never_started(activity))
        self.facts += [self._never_started(activity) for activity in work.finish if activity not in self.going]
        running = [activity for activity in self.going if isinstance(activity, RunCall)]
        assert len(running) <= self.run.limits.max_parallel_tools

    def _start(self, activities: list[Activity], run: RunState) -> None:
        for activity in activities:
            if activity in self.going:
                continue
            match activity:
                case CallModel():
                    reserved = codec.decode(self.store.text).reservation
                    assert reserved is not None and (reserved.step, reserved.attempt) == (activity.step, activity.attempt)
                    assert reserved.leg == self.number or (reserved.leg, self.number) == (0, 1)
                    assert not run.turn and run.model is not None
                    durable = reserved_by(codec.decode(self.store.text))
                    assert durable == reserved_by(run) or not bounded(run), "a call could cost more than is durable (R33)"
                    assert not run.input_unguarded and self.store.messages, "the model sees an input that nobody looked at"
                    assert run.shared is None or self.store.purse.is_open(run), "no call before its budgets have admitted it (R34)"
                    self.store.check_paired()
                case AskBudgets():
                    reserved = codec.decode(self.store.text).reservation
                    assert reserved is not None and (reserved.step, reserved.attempt) == (activity.step, activity.attempt)
                case CloseBudget():
                    over = next(each for each in to_close(run, ending=True) if each.id == activity.id)
                    told = codec.decode(self.store.text).shared
                    assert over.how is not budgets.Close.SETTLED or (told is not None and over in told.closings), "a cost is durable first"
                case RunCall():
                    receipt = self.store.receipts[activity.call_id]
                    assert (receipt.stage, receipt.attempt) == (Stage.EXECUTING, activity.attempt)
                case Project():
                    receipt = self.store.receipts[activity.call_id]
                    assert receipt.stage is Stage.EXECUTED and json.loads(receipt.raw or "null") == {"raw": activity.call_id}
                    assert run.call(activity.call_id).raw == {"raw": activity.call_id}
                case Probe():
                    call = run.call(activity.call_id)
                    assert call.stage is CallStage.UNKNOWN and call.probes and call.attempt == activity.attempt
                case CheckEvidence():
                    effect = run.unknown(activity.call_id)
                    assert effect is not None and effect.claim is not None and effect.claim.evidence is not None
                case GuardInput():
                    assert run.input_unguarded and not self.store.messages
                case GuardOutput():
                    assert run.unguarded is not None and activity.step == run.step
                case VerifyOutput():
                    stored = codec.decode(self.store.text)
                    assert (stored.verifying, stored.verify_attempts) == (True, activity.attempt), (
                        "an attempt counts before it begins (R29)"
                    )
                    assert activity.attempt not in self.world.asked, "one attempt, and the verifier is asked twice"
                    assert run.candidate is not None and run.candidate == stored.candidate
                    self.world.asked[activity.attempt] = run.candidate.value
                case Screen() | ChooseModel():
                    pass
            self.going[activity] = Going(run)

    def _never_started(self, activity: Activity) -> Happening:
        if isinstance(activity, CallModel):
            return ModelBrokenOff(at=self.at, step=activity.step, attempt=activity.attempt, started=False)
        assert isinstance(activity, RunCall)
        return AttemptEnded(at=self.at, call_id=activity.call_id, attempt=activity.attempt, how=How.NOT_STARTED)

    def check(self) -> None:
        """Holds at every moment: `decide` has an answer, and whatever is asked of the run's state is answered."""
        decide(self.run, self.at)
        control(self.run)
        view(row_of(self.run), self.run)
        face_of(self.run, binding="b", priority=0, at=self.at)
        codec.decode(codec.encode(self.run))
