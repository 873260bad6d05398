"""Any number of legs, crashes, cancels, drains and clocks in any order: the promises of the core hold (Hypothesis finds the order).

A failing run prints its steps, and a line that repeats it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from runward.core.budgets import OnExhausted, Terms
from runward.core.kernel.actor import Status
from runward.core.kernel.mail import MailKind, cancel_key, retry_key
from runward.core.messages import Message, TextPart
from runward.core.runs import frames, sharing
from runward.core.runs.asking import GenerationAsked, GenerationEnded
from runward.core.runs.calls import CallStage, How, Result
from runward.core.runs.decide import (
    Activity,
    AskBudgets,
    CallModel,
    CheckEvidence,
    ChooseModel,
    CloseBudget,
    GuardInput,
    GuardOutput,
    Probe,
    Project,
    RunCall,
    Screen,
    VerifyOutput,
    due_ending,
)
from runward.core.runs.emitted import Emitted
from runward.core.runs.facts import (
    AnswerReceived,
    AttemptEnded,
    Broke,
    BudgetClosed,
    BudgetsAnswered,
    CallAsked,
    CheckpointSaved,
    DrainAsked,
    EvidenceChecked,
    Guarded,
    InputGuarded,
    ModelBrokenOff,
    ModelChosen,
    ModelFailed,
    OutputGuarded,
    Probed,
    Projected,
    Screened,
    VerdictGiven,
)
from runward.core.runs.limits import Limits
from runward.core.runs.state import Generation, OutputTerms, Phase, Reservation, RunState
from runward.core.runs.unsettled import Decision, ProbeStatus
from runward.core.usage import Usage
from tests.unit.core.driving import RATES, T0, given, ok
from tests.unit.core.people import Input, answers, hand_of_an_operator
from tests.unit.core.purse import Question
from tests.unit.core.shell import Going, Leg, World
from tests.unit.core.storing import TERMS, Store
from tests.unit.core.tooling import TOOLS, asked, screening, terms

PATIENCE = 400
"""A run that meets no more trouble is over, or waits for a person, within so many steps."""

limits = st.builds(
    Limits,
    max_steps=st.integers(1, 6),
    timeout_seconds=st.sampled_from([None, None, None, 1.0, 20.0]),
    expires_seconds=st.sampled_from([None, None, None, 5.0, 100.0]),
    max_parallel_tools=st.integers(1, 3),
    model_retries=st.integers(0, 2),
    max_output_attempts=st.integers(1, 3),
    max_verify_attempts=st.integers(1, 3),
    max_total_tokens=st.sampled_from([None, None, 1, 60, 200, 700]),
    max_cost_usd=st.sampled_from([None, None, "0.000000000001", "0.0001", "0.001"]),
)
OUTPUTS = st.sampled_from([None, None, OutputTerms(), OutputTerms(verifies=True), OutputTerms(verifies=True)])
FALLBACKS = st.sampled_from([(), (), ("test:second",), ("test:second", "test:third")])
VERDICTS: list[Literal["verified", "rejected", "inconclusive"]] = ["verified", "verified", "rejected", "rejected", "inconclusive"]
FAULTS = ["server_error", "server_error", "circuit_open"]
budgets = st.builds(
    Terms,
    max_total_tokens=st.sampled_from([None, 60, 150, 400, 2_000]),
    window_seconds=st.sampled_from([None, None, 60]),
    warn_at=st.sampled_from([None, 50]),
    on_exhausted=st.sampled_from([OnExhausted.SUSPEND, OnExhausted.SUSPEND, OnExhausted.STOP]),
)
purses: st.SearchStrategy[dict[str, Terms]] = st.one_of(st.just({}), st.dictionaries(st.sampled_from("ab"), budgets, max_size=2))
ASKS = '{"question":"Which?","choices":["a","b"],"seconds":20}'
GOOD, BAD = ["{}", "", '{"n":1}', '{"n":1.0}', '{"b":1,"a":[2]}', '{"s":"\\u0000"}'], ["[1]", "{bad", '{"n":1e400}']
WAITING = [name for name, tool in TOOLS.items() if tool.awaits is not None]
OTHERS = [name for name in TOOLS if name not in WAITING]
UNKNOWN = [name for name in OTHERS if not TOOLS[name].effect.repeatable]
ids, offered = st.sampled_from(["call_1", "call_2", ""]), st.sampled_from([None] * 12 + [False])
working = st.builds(
    asked, st.sampled_from((OTHERS + UNKNOWN * 2) * 3 + ["nope", "Look", ""]), st.sampled_from(GOOD * 4 + BAD), id=ids, offered=offered
)
waiting = st.builds(asked, st.sampled_from(WAITING), st.sampled_from([ASKS] * 8 + BAD), id=ids, offered=offered)
calls = st.lists(
    st.sampled_from([True, True, False]).flatmap(lambda works: working if works else waiting),
    min_size=1,
    max_size=4,
)
FINISHES = ["tool_calls", "stop"] * 25 + ["length", "content_filter", "refusal"]
STREAMING = ["answers"] * 8 + ["streams"] * 6 + ["fails"]
USED = ["less"] * 8 + ["all", "more", "unsaid"]
NATURAL = [How.RETURNED] * 5 + [How.TOOL_ERROR, How.BAD_RESULT, How.RAISED, How.TIMED_OUT, How.ASKS] + [How.CANNOT_TELL] * 4
PROBED = [ProbeStatus.HAPPENED, ProbeStatus.DID_NOT_HAPPEN, ProbeStatus.CANNOT_TELL, ProbeStatus.FAILED]
GATES = {
    "charge": terms(editable=True),
    "look": terms(expires_seconds=20, on_expiry="stop"),
    "scan": terms(expires_seconds=5),
    "pay": terms(),
    "wire": terms(expires_seconds=40, editable=True),
}
TROUBLE = [
    *["somebody_acts"] * 8,
    *["an_operator_acts", "deploys"] * 2,
    *["drain"] * 5,
    *["its_code_asks_a_model"] * 4,
    *["its_code_hears_of_a_model"] * 4,
    *["dies", "dies_at_a_commit", "time_passes"] * 3,
    *["flush", "mail_without_use", "look", "an_old_verdict_comes"] * 2,
    *["a_caretaker_comes", "recovered_too_often", "cancel", "the_agents_code_breaks"],
    *["a_late_question_comes", "budgets_are_raised"],
]
DEARER = replace(TERMS, rates={"test:model": (replace(RATES[0], output=RATES[0].output * 3),)})
LONGER = replace(TERMS, max_output_tokens=200)
SELDOM = st.sampled_from([False] * 5 + [True])
MOSTLY = st.sampled_from([True] * 5 + [False])
GUARDS = st.sets(st.sampled_from(["input", "output"]))


def usage_of(used: str, reservation: Reservation | Generation) -> Usage:
    """What a provider says that a call used of what was reserved for it."""
    match used:
        case "unsaid":
            return Usage()
        case "all":
            return Usage(input_tokens=reservation.prompt, output_tokens=reservation.output)
        case "more":
            return Usage(input_tokens=reservation.prompt + 40, output_tokens=reservation.output + 3, cache_write_tokens=9)
        case _:
            return Usage(input_tokens=7, output_tokens=3)


class Runs(RuleBasedStateMachine):
    """Plays everybody whom a run can meet. `works` is what goes well."""

    @initialize(
        limits=limits,
        model=st.sampled_from(["test:model", "test:model", None]),
        gated=st.sets(st.sampled_from([*GATES])),
        typed=st.tuples(OUTPUTS, st.booleans(), FALLBACKS),
        guards=GUARDS,
        purse=purses,
    )
    def create(
        self,
        limits: Limits,
        model: str | None,
        gated: set[str],
        typed: tuple[OutputTerms | None, bool, tuple[str, ...]],
        guards: set[str],
        *,
        purse: dict[str, Terms],
    ) -> None:
        self.gates = {name: GATES[name] for name in sorted(gated)}
        self.guards = guards
        outputs, loops, fallbacks = typed
        self.store = Store(limits, model, outputs=outputs, loops=loops, fallbacks=fallbacks, guards_input="input" in guards, budgets=purse)
        self.late: list[Question] = []
        self.world = World()
        self.leg: Leg | None = None
        self.at = T0
        self.died = False
        self.terms = TERMS
        self.asked = 0

    # -- what goes well ------------------------------------------------------------------------------------------------------

    @rule(beats=st.integers(3, 12), data=st.data())
    def works(self, beats: int, data: st.DataObject) -> None:
        """A worker takes the run and goes on with it. After a run that has ended comes another one, or the same again."""
        for _ in range(beats):
            if self.leg is None and self.store.status.ended:
                self._ended(data)
            if self.leg is None and self.store.status is Status.SUSPENDED and data.draw(MOSTLY):
                self._wakes(data)
            elif self.leg is None:
                self._claim(caretaker=False)
            elif self.leg.going and data.draw(st.sampled_from([True, True, False])):
                self._happens(data)
            else:
                self._round(early=data.draw(st.booleans()))

    def _claim(self, *, caretaker: bool, exhausted: bool = False) -> None:
        self.leg = Leg(
            self.store,
            self.world,
            self.at,
            recovered=self.died,
            exhausted=exhausted,
            caretaker=caretaker,
            terms=self.terms,
            guards_output="output" in self.guards,
        )
        self.died = False

    def _round(self, *, early: bool = False, unsaved: bool = False, unacted: bool = False) -> None:
        assert self.leg is not None
        self.leg.at = self.at
        if self.leg.round(early=early, unsaved=unsaved, unacted=unacted):
            self.died = self.store.status is Status.RUNNING
            self.leg = None
            if self.store.status.ended:
                self.store.check_ended()

    def _wakes(self, data: st.DataObject) -> None:
        """A run that waits is woken by what it waits for: somebody, or a time."""
        if self.store.ready_at is not None and data.draw(st.booleans()):
            self.at = max(self.at, self.store.ready_at)
            self._claim(caretaker=data.draw(SELDOM))
        elif self.store.run.hold is not None and data.draw(st.booleans()):
            self._operates(hand_of_an_operator(self.store)[0])
        elif self.store.run.budget_wait is not None and data.draw(st.booleans()):
            self._budgets_are_raised(data)
        else:
            self._somebody_acts(data)

    def _ended(self, data: st.DataObject) -> None:
        if not self.store.unread:
            self._looks_again()
        if data.draw(st.booleans()) and self._retries():
            return
        while data.draw(st.booleans()) and (choices := answers(self.store)):
            self._post(data.draw(st.sampled_from(choices)))
        if self.store.unread:
            self._claim(caretaker=True)
            self._round()
        typed = data.draw(st.tuples(OUTPUTS, st.booleans(), FALLBACKS))
        gated, guards = data.draw(st.sets(st.sampled_from([*GATES]))), data.draw(GUARDS)
        self.create(data.draw(limits), "test:model", gated, typed, guards, purse=data.draw(purses))

    def _retries(self) -> bool:
        key = retry_key(self.store.revision)
        return self.store.status is Status.FAILED and self.store.post(MailKind.RETRY, key, {}, self.at)

    def _looks_again(self) -> None:
        """A caretaker takes a run that has ended, and the run is as it was."""
        text, said = self.store.text, [*self.store.journal.frames]
        self._claim(caretaker=True)
        self._round()
        assert self.leg is None
        assert (self.store.text, self.store.journal.frames) == (text, said)

    # -- trouble --------------------------------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(TROUBLE), data=st.data())
    def trouble(self, kind: str, data: st.DataObject) -> None:
        getattr(self, f"_{kind}")(data)

    def _dies(self, data: st.DataObject) -> None:
        """A worker dies between two things it does. What it has said may have gone out, or not."""
        if self.leg is not None:
            if data.draw(st.booleans()):
                self.leg.flush()
            self.late += [
                Question.of(going.run)
                for activity, going in self.leg.going.items()
                if isinstance(activity, AskBudgets) and data.draw(st.booleans())
            ]
            self.leg, self.died = None, self.store.status is Status.RUNNING

    def _dies_at_a_commit(self, data: st.DataObject) -> None:
        if self.leg is not None:
            unsaved = data.draw(st.booleans())
            self._round(unsaved=unsaved, unacted=not unsaved)

    def _a_caretaker_comes(self, _: st.DataObject) -> None:
        if self.leg is None and not self.store.status.ended:
            self._claim(caretaker=True)
            self._round()

    def _recovered_too_often(self, data: st.DataObject) -> None:
        if self.leg is None and self.died:
            self._claim(caretaker=data.draw(st.booleans()), exhausted=True)

    def _drain(self, data: st.DataObject) -> None:
        if self.leg is not None:
            self.leg.facts.append(DrainAsked(at=self.at, hurried=data.draw(st.sampled_from([False, True, True]))))

    def _flush(self, _: st.DataObject) -> None:
        """What a leg has said goes out before its next commit."""
        if self.leg is not None:
            self.leg.flush()

    def _time_passes(self, data: st.DataObject) -> None:
        self.at += data.draw(st.sampled_from([1, 100, 999, 4_000, 30_000, 70_000]))

    def _cancel(self, data: st.DataObject) -> None:
        said = data.draw(st.sampled_from([{}, {"reason": "user left"}]))
        self.store.cancelled = self.store.post(MailKind.CANCEL, cancel_key(), said, self.at) or self.store.cancelled

    def _somebody_acts(self, data: st.DataObject) -> None:
        """Somebody answers, decides or settles something that is pending."""
        choices = answers(self.store)
        if choices:
            self._post(data.draw(st.sampled_from(choices)))

    def _post(self, item: Input) -> None:
        assert self.store.post(item.kind, item.key, item.data, self.at), f"{item} is shown as pending and cannot be answered"
        if item.permits is not None:
            self.world.again.add(item.permits)

    def _an_operator_acts(self, data: st.DataObject) -> None:
        self._operates(data.draw(st.sampled_from(hand_of_an_operator(self.store))))

    def _operates(self, item: Input) -> None:
        self.store.post(item.kind, item.key, item.data, self.at)

    def _deploys(self, data: st.DataObject) -> None:
        """Approvals get another version, or an old one again; and the next worker may know of other prices, or allow longer answers."""
        version = data.draw(st.sampled_from(["1", "2", "3"]))
        self.gates = {name: replace(gate, version=version) for name, gate in self.gates.items()}
        self.terms = data.draw(st.sampled_from([TERMS, DEARER, LONGER]))

    def _a_late_question_comes(self, data: st.DataObject) -> None:
        """A worker that was paused asks the budgets for what another one has long closed, or will."""
        if self.late:
            self.store.purse.reserve(self.late.pop(), self.at)
            if self.leg is None and not self.died and self.store.run.shared is not None and self.store.status is not Status.QUEUED:
                self.store.purse.check_rest(self.store.run)

    def _budgets_are_raised(self, data: st.DataObject) -> None:
        """An operator sets their terms, and tells who waits."""
        for key, told in self.store.purse.raised(data.draw(st.sampled_from([0, 10, 1_000])), self.at):
            self.store.post(MailKind.BUDGET, key, told, self.at)

    def _mail_without_use(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from([MailKind.STEER, MailKind.TAKEOVER, MailKind.CHILD]))
        self.store.post(kind, f"m{len(self.store.mail)}", {}, self.at)

    def _look(self, _: st.DataObject) -> None:
        """A leg hears of its mail before a commit tells it."""
        if self.leg is not None:
            self.leg.read_mail()

    def _the_agents_code_breaks(self, data: st.DataObject) -> None:
        going = [] if self.leg is None else [activity for activity in self.leg.going if not isinstance(activity, CloseBudget)]
        if going:
            broke = Broke(at=self.at, code="internal", message="A bug of the agent.", details={})
            self._report(data.draw(st.sampled_from(going)), broke)

    def _its_code_asks_a_model(self, data: st.DataObject) -> None:
        """Author code under way asks a model. The call is made once its reservation is durable."""
        if self.leg is not None and self.leg.going:
            self.asked += 1
            fact = GenerationAsked(
                at=self.at,
                key=f"g{self.asked}",
                model=data.draw(st.sampled_from(["test:model", "test:other"])),
                prompt=data.draw(st.sampled_from([1, 20, 90])),
                wanted=data.draw(st.sampled_from([None, 30])),
                rates=data.draw(st.sampled_from([RATES, None])),
            )
            self.leg.facts.append(fact)

    def _its_code_hears_of_a_model(self, data: st.DataObject) -> None:
        """A call that was made is over; what it says may come late, and twice."""
        stored = self.store.run.generations
        if self.leg is not None and stored:
            one = data.draw(st.sampled_from(stored))
            if self.store.run.shared is not None:
                answer = self.store.purse.reserve(Question.of_code(self.store.run, one), self.at)
                if answer.shortage is not None or answer.closed:
                    self.leg.facts.append(GenerationEnded(at=self.at, key=one.key, sent=False, billed=False))
                    return
            used = data.draw(st.sampled_from([*USED, "lost", "released", "cut"]))
            usage = None if used in ("lost", "released") else usage_of(used, one)
            fact = GenerationEnded(at=self.at, key=one.key, usage=usage, billed=used == "lost", cut_off=used == "cut")
            self.leg.facts += [fact] * data.draw(st.sampled_from([1, 1, 2]))

    # -- what is under way -----------------------------------------------------------------------------------------------------

    def _happens(self, data: st.DataObject) -> None:
        """Something under way goes on or ends."""
        assert self.leg is not None
        activity = data.draw(st.sampled_from([*self.leg.going]))
        going = self.leg.going[activity]
        match activity:
            case ChooseModel():
                self._report(activity, ModelChosen(at=self.at, model="test:chosen", rates=data.draw(st.sampled_from([RATES, RATES, None]))))
            case CallModel():
                self._model(activity, going, data)
            case GuardInput() | GuardOutput():
                self._guard(activity, going, data.draw(st.sampled_from(["", "", "rewrite", "block"])))
            case AskBudgets() | CloseBudget():
                answer = self._budgets_hear(activity, going)
                if data.draw(MOSTLY):
                    self._report(activity, answer)
            case Screen():
                self._screen(activity, going, refuses=data.draw(SELDOM))
            case RunCall():
                self._tool(activity, going, data)
            case Probe():
                self._probe(activity, data.draw(st.sampled_from(PROBED)))
            case CheckEvidence():
                self._check(activity, data.draw(st.sampled_from([None, None, "not ours"])))
            case VerifyOutput():
                self._verdict(activity, data.draw(st.sampled_from(VERDICTS)))
            case Project():
                shown = data.draw(st.sampled_from([ok("shown"), Result(output="unshown", is_error=True, outcome="invalid_result")]))
                self._report(activity, Projected(at=self.at, call_id=activity.call_id, result=shown))

    def _report(self, activity: Any, fact: Any) -> None:
        assert self.leg is not None
        del self.leg.going[activity]
        self.leg.facts.append(fact)

    def _guard(self, activity: GuardInput | GuardOutput, going: Going, action: str) -> None:
        """Guardrails look at the input or at an answer, and are as good as their word."""
        said: tuple[Guarded, ...] = ()
        if action == "block":
            said = (Guarded(hook="on_it", action="block", name="guard", reason="no"),)
        elif action:
            said = (Guarded(hook="on_it", action="rewrite", name="guard"),)
        if isinstance(activity, GuardInput):
            message = Message(seq=1, role="user", content=(TextPart(text="HELLO" if action else "hello"),))
            self._report(activity, InputGuarded(at=self.at, messages=None if action == "block" else (message,), guarded=said))
            return
        answer = going.run.unguarded
        assert answer is not None
        left = replace(answer, text=answer.text.upper(), reasoning="") if action else answer
        self._report(activity, OutputGuarded(at=self.at, step=activity.step, answer=None if action == "block" else left, guarded=said))

    def _screen(self, activity: Screen, going: Going, *, refuses: bool = False) -> None:
        to_see = (CallStage.PROPOSED, CallStage.CLEARED)
        screenings = [screening(call, self.gates) for call in going.run.turn if call.stage in to_see]
        if refuses:
            refusal = Result(output="blocked", is_error=True, outcome="blocked")
            screenings = [replace(seen, refusal=refusal) for seen in screenings]
        self._report(activity, Screened(at=self.at, screenings=tuple(screenings)))

    def _probe(self, activity: Probe, status: ProbeStatus) -> None:
        if status is ProbeStatus.DID_NOT_HAPPEN:
            self.world.again.add((activity.call_id, activity.attempt))
        result, raw = (ok("found"), {"raw": activity.call_id}) if status is ProbeStatus.HAPPENED else (None, None)
        probed = Probed(at=self.at, call_id=activity.call_id, attempt=activity.attempt, status=status, result=result, raw=raw)
        self._report(activity, probed)

    def _check(self, activity: CheckEvidence, refusal: str | None) -> None:
        assert self.leg is not None
        effect = self.leg.run.unknown(activity.call_id)
        if refusal is None and effect is not None and effect.claim is not None and effect.claim.decision is Decision.RETRY:
            self.world.again.add((activity.call_id, activity.attempt))
        self._report(activity, EvidenceChecked(at=self.at, call_id=activity.call_id, attempt=activity.attempt, refusal=refusal))

    def _model(self, activity: CallModel, going: Going, data: st.DataObject) -> None:
        step, attempt = activity.step, activity.attempt
        if going.stopped and (not going.begun or data.draw(st.booleans())):
            self._report(activity, ModelBrokenOff(at=self.at, step=step, attempt=attempt, started=going.begun))
            return
        self.at = max(self.at, activity.not_before or 0)
        stored = self.store.run.reservation
        assert stored is not None and (stored.step, stored.attempt) == (step, attempt), "no reservation before the call (R33)"
        going.begun = True
        match data.draw(st.sampled_from(STREAMING)):
            case "streams":
                self._streams(activity, going, data.draw(st.sampled_from(["text", "reasoning"])))
            case "answers":
                asks = data.draw(calls) if data.draw(st.sampled_from([True] * 6 + [False])) else []
                used, fits = data.draw(st.sampled_from(USED)), data.draw(st.booleans())
                self._answers(activity, going, asks, data.draw(st.sampled_from(FINISHES)), used, fits=fits)
            case "fails":
                code = data.draw(st.sampled_from(FAULTS))
                opened = code == "circuit_open" and not (going.text or going.reasoning)
                failed = ModelFailed(
                    at=self.at,
                    step=step,
                    attempt=attempt,
                    code=code if opened else "server_error",
                    message="The provider failed.",
                    transient=opened or not data.draw(SELDOM),
                    billed=not opened and data.draw(st.booleans()),
                    sent=not opened,
                    after_content=bool(going.text or going.reasoning),
                    retry_after_ms=data.draw(st.sampled_from([None, None, 2_000, 2_000, 90_000])),
                )
                self._report(activity, failed)

    def _budgets_hear(self, activity: AskBudgets | CloseBudget, going: Going) -> BudgetsAnswered | BudgetClosed:
        """What they answer, each time the same; that may get lost."""
        if isinstance(activity, AskBudgets):
            return self.store.purse.reserve(Question.of(going.run), self.at)
        over = next(each for each in sharing.to_close(going.run, ending=True) if each.id == activity.id)
        return self.store.purse.close(over, self.at)

    def _streams(self, activity: CallModel, going: Going, kind: str) -> None:
        assert self.leg is not None
        withheld = going.run.withholds
        delta = f"<{activity.step}/{activity.attempt} {kind} {len(going.text) + len(going.reasoning)}>"
        if kind == "text":
            going.text += delta
            said = frames.text_delta(activity.step, activity.attempt, delta)
        else:
            going.reasoning += delta
            said = frames.reasoning_delta(activity.step, activity.attempt, delta)
        if not withheld:
            self.leg.waiting += Emitted(frames=(said,))

    def _answers(
        self, activity: CallModel, going: Going, calls: list[CallAsked], finish: str, used: str = "less", *, fits: bool = True
    ) -> None:
        typed = going.run.phase is Phase.FINALIZING
        reservation = going.run.reservation
        assert reservation is not None
        answer = AnswerReceived(
            at=self.at,
            step=activity.step,
            attempt=activity.attempt,
            text=going.text,
            reasoning=going.reasoning,
            calls=tuple(calls),
            finish=finish,
            usage=usage_of(used, reservation),
            opaque=None,
            opaque_format=None,
            output={"answer": activity.step} if typed and fits else None,
            complaint="it is not JSON" if typed and not fits else None,
        )
        self._report(activity, answer)

    def _verdict(self, activity: VerifyOutput, kind: Literal["verified", "rejected", "inconclusive"]) -> None:
        self.world.verdicts[activity.attempt] = kind
        self._report(activity, VerdictGiven(at=self.at, attempt=activity.attempt, kind=kind, message="Look again."))

    def _an_old_verdict_comes(self, data: st.DataObject) -> None:
        """One that was given before, or to a worker that has died since: whatever it says, it counts for nothing."""
        if self.leg is None or not self.world.asked or self.store.run.status.ended:
            return
        attempt = data.draw(st.sampled_from([*self.world.asked]))
        if VerifyOutput(attempt) in self.leg.going or any(isinstance(fact, VerdictGiven) for fact in self.leg.facts):
            return
        self.leg.take_facts()
        before = self.leg.run
        self.leg.facts.append(VerdictGiven(at=self.at, attempt=attempt, kind=data.draw(st.sampled_from(VERDICTS)), message="Late."))
        self.leg.take_facts()
        after = self.leg.run
        assert (before.candidate, before.ending, before.verify_attempts) == (after.candidate, after.ending, after.verify_attempts)

    def _tool(self, activity: RunCall, going: Going, data: st.DataObject) -> None:
        assert self.leg is not None
        if not going.begun:
            if going.stopped:
                self._end(activity, How.NOT_STARTED)
                return
            self.at = max(self.at, activity.not_before or 0)
            self.world.start(self.store, self.leg.run, activity)
            going.begun = True
        elif data.draw(SELDOM):
            text = f"page {len(self.world.starts)}"
            self.leg.facts.append(CheckpointSaved(at=self.at, call_id=activity.call_id, attempt=activity.attempt, text=text))
        elif going.stopped and data.draw(st.booleans()):
            leaves = self.leg.run.hurried and due_ending(self.leg.run) is None
            self._end(activity, How.ABANDONED if leaves else How.CANCELLED)
        else:
            self._end(activity, data.draw(st.sampled_from(NATURAL)))

    def _end(self, activity: RunCall, how: How) -> None:
        raw = {"raw": activity.call_id} if how is How.RETURNED else None
        if how is How.ASKS:
            self.world.again.add((activity.call_id, activity.attempt))
        ended = AttemptEnded(at=self.at, call_id=activity.call_id, attempt=activity.attempt, how=how, result=given(how), raw=raw)
        self._report(activity, replace(ended, question="Which?", choices=("a", "b")) if how is How.ASKS else ended)

    # -- what holds ----------------------------------------------------------------------------------------------------------

    @invariant()
    def always(self) -> None:
        if self.leg is not None:
            self.leg.check()
        if hasattr(self, "store") and self.store.status is Status.COMPLETED and self.store.run.outputs is not None:
            self._accepted(self.store.run)

    def _accepted(self, run: RunState) -> None:
        """What is shown as the answer has fitted, and its verifier said so of it and of nothing else (R9, R28)."""
        assert run.output is not None
        if run.outputs is not None and run.outputs.verifies:
            assert self.world.verdicts[run.verify_attempts] == "verified" and self.world.asked[run.verify_attempts] == run.output

    def teardown(self) -> None:
        """Trouble is over, and everybody does what they are waited for: the run comes to its end, and nothing stays unsettled (I-22)."""
        if not hasattr(self, "store"):
            return
        for _ in range(PATIENCE):
            rests = self.leg is None and not self.store.unread and self.store.status is not Status.QUEUED and not self.died
            if not rests:
                self._heals()
            elif not self._somebody_helps():
                break
        else:
            raise AssertionError(f"the run never came to rest: {self.store.run}")
        assert self.store.status.ended and self.store.run.unknowns == (), f"nobody can help: {self.store.run}"
        self.store.check_ended()

    def _somebody_helps(self) -> bool:
        """Whoever is waited for acts, or time passes. False when nobody is."""
        choices = [item for item in answers(self.store) if item.helps]
        if self.store.run.hold is not None:
            item = hand_of_an_operator(self.store)[0]
            assert self.store.post(item.kind, item.key, item.data, self.at), "a held run cannot be released"
        elif choices:
            self._post(choices[0])
        elif self.store.run.budget_wait is not None:
            for key, told in self.store.purse.raised(100_000, self.at):
                assert self.store.post(MailKind.BUDGET, key, told, self.at), "a run that waits for a budget cannot be woken"
        elif not self.store.status.ended and self.store.ready_at is not None:
            self.at = self.store.ready_at
            self._claim(caretaker=False)
        else:
            return False
        return True

    def _heals(self) -> None:
        if self.leg is None:
            self._claim(caretaker=False)
        self._round()
        if self.leg is None:
            return
        self.leg.read_mail()
        for activity, going in [*self.leg.going.items()]:
            self._goes_well(activity, going)

    def _goes_well(self, activity: Activity, going: Going) -> None:
        assert self.leg is not None
        match activity:
            case ChooseModel():
                self._report(activity, ModelChosen(at=self.at, model="test:chosen", rates=RATES))
            case CallModel() if going.stopped:
                self._report(activity, ModelBrokenOff(at=self.at, step=activity.step, attempt=activity.attempt, started=going.begun))
            case CallModel():
                self._answers(activity, going, [], "stop")
            case GuardInput() | GuardOutput():
                self._guard(activity, going, "")
            case AskBudgets() | CloseBudget():
                self._report(activity, self._budgets_hear(activity, going))
            case Screen():
                self._screen(activity, going)
            case Probe():
                self._probe(activity, ProbeStatus.HAPPENED)
            case CheckEvidence():
                self._check(activity, None)
            case VerifyOutput():
                self._verdict(activity, "verified")
            case RunCall() if going.stopped and not going.begun:
                self._end(activity, How.NOT_STARTED)
            case RunCall():
                if not going.begun:
                    self.world.start(self.store, self.leg.run, activity)
                self._end(activity, How.RETURNED)
            case Project():
                self._report(activity, Projected(at=self.at, call_id=activity.call_id, result=ok("shown")))


SETTINGS = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


@pytest.mark.timeout(900)
def test_R12_R13_R17b_R28_R29_R31_R32_R34_R37_and_R39_hold_whatever_happens_in_whatever_order() -> None:
    """About twenty seconds when all is well; when it is not, some minutes go into finding the shortest way there."""
    run_state_machine_as_test(Runs, settings=SETTINGS)
