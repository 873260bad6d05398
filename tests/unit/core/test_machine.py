"""Any number of legs, crashes, cancels, drains and clocks in any order: the promises of the core hold (Hypothesis finds the order).

A failing run prints its steps, and a line that repeats it.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from runward.core.kernel.actor import Status
from runward.core.kernel.mail import MailKind
from runward.core.runs import frames
from runward.core.runs.calls import CallStage, How, Result
from runward.core.runs.decide import CallModel, ChooseModel, Project, RunCall, Screen, due_ending
from runward.core.runs.emitted import Emitted
from runward.core.runs.facts import (
    AnswerReceived,
    AttemptEnded,
    Broke,
    CallAsked,
    CheckpointSaved,
    DrainAsked,
    ModelBrokenOff,
    ModelChosen,
    ModelFailed,
    Projected,
    Screened,
)
from runward.core.runs.limits import Limits
from runward.core.usage import Usage
from tests.unit.core.driving import T0, given, ok
from tests.unit.core.shell import Going, Leg, Store, World
from tests.unit.core.tooling import TOOLS, asked, screening

PATIENCE = 400
"""A run that meets no more trouble is over, or waits for a person, within so many steps."""

limits = st.builds(
    Limits,
    max_steps=st.integers(1, 4),
    timeout_seconds=st.none() | st.sampled_from([1.0, 20.0]),
    expires_seconds=st.none() | st.sampled_from([5.0, 100.0]),
    max_parallel_tools=st.integers(1, 3),
    model_retries=st.integers(0, 2),
)
GOOD, BAD = ["{}", "", '{"n":1}', '{"n":1.0}', '{"b":1,"a":[2]}', '{"s":"\\u0000"}'], ["[1]", "{bad", '{"n":1e400}']
calls = st.lists(
    st.builds(
        asked,
        st.sampled_from([*TOOLS] * 4 + ["nope", "Look", ""]),
        st.sampled_from(GOOD * 4 + BAD),
        id=st.sampled_from(["call_1", "call_2", ""]),
        offered=st.sampled_from([None] * 12 + [False]),
    ),
    min_size=1,
    max_size=4,
)
FINISHES = ["tool_calls", "stop"] * 15 + ["length", "content_filter", "refusal"]
STREAMING = ["answers"] * 8 + ["streams"] * 6 + ["fails"]
NATURAL = [How.RETURNED] * 6 + [How.TOOL_ERROR, How.BAD_RESULT, How.RAISED, How.TIMED_OUT, How.CANNOT_TELL]
USELESS = [MailKind.STEER, MailKind.RETRY, MailKind.RECONCILE, MailKind.HOLD]
TROUBLE = [
    *["drain"] * 5,
    *["dies", "dies_at_a_commit", "time_passes"] * 3,
    *["flush", "mail_without_use", "look"] * 2,
    *["a_caretaker_comes", "recovered_too_often", "cancel", "the_agents_code_breaks"],
]
SELDOM = st.sampled_from([False] * 5 + [True])


class Runs(RuleBasedStateMachine):
    """Plays everybody whom a run can meet. `works` is what goes well."""

    @initialize(limits=limits, model=st.sampled_from(["test:model", "test:model", None]))
    def create(self, limits: Limits, model: str | None) -> None:
        self.store = Store(limits, model)
        self.world = World()
        self.leg: Leg | None = None
        self.at = T0
        self.died = False

    # -- what goes well ------------------------------------------------------------------------------------------------------

    @rule(beats=st.integers(3, 12), data=st.data())
    def works(self, beats: int, data: st.DataObject) -> None:
        """A worker takes the run and goes on with it. After a run that has ended comes another one."""
        for _ in range(beats):
            if self.leg is None and self.store.status.ended:
                self._looks_again()
                self.create(data.draw(limits), "test:model")
            if self.leg is None:
                self._claim(caretaker=False)
            elif self.leg.going and data.draw(st.sampled_from([True, True, False])):
                self._happens(data)
            else:
                self._round(early=data.draw(st.booleans()))

    def _claim(self, *, caretaker: bool, exhausted: bool = False) -> None:
        self.leg = Leg(self.store, self.world, self.at, recovered=self.died, exhausted=exhausted, caretaker=caretaker)
        self.died = False

    def _round(self, *, early: bool = False, unsaved: bool = False, unacted: bool = False) -> None:
        assert self.leg is not None
        self.leg.at = self.at
        if self.leg.round(early=early, unsaved=unsaved, unacted=unacted):
            self.died = self.store.status is Status.RUNNING
            self.leg = None
            if self.store.status.ended:
                self.store.check_ended()

    def _looks_again(self) -> None:
        """A caretaker takes a run that has ended, and the run is as it was."""
        text, said = self.store.text, [*self.store.journal.frames]
        self._claim(caretaker=True)
        self._round()
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
        self.at += data.draw(st.sampled_from([1, 100, 999, 4_000, 30_000]))

    def _cancel(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(["{}", '{"reason":"user left"}']))
        self.store.cancelled = self.store.cancelled or self.store.post(MailKind.CANCEL, text, self.at)

    def _mail_without_use(self, data: st.DataObject) -> None:
        self.store.post(data.draw(st.sampled_from(USELESS)), "{}", self.at)

    def _look(self, _: st.DataObject) -> None:
        """A leg hears of its mail before a commit tells it."""
        if self.leg is not None:
            self.leg.read_mail()

    def _the_agents_code_breaks(self, data: st.DataObject) -> None:
        if self.leg is not None and self.leg.going:
            broke = Broke(at=self.at, code="internal", message="A bug of the agent.", details={})
            self._report(data.draw(st.sampled_from([*self.leg.going])), broke)

    # -- what is under way -----------------------------------------------------------------------------------------------------

    def _happens(self, data: st.DataObject) -> None:
        """Something under way goes on or ends."""
        assert self.leg is not None
        activity = data.draw(st.sampled_from([*self.leg.going]))
        going = self.leg.going[activity]
        match activity:
            case ChooseModel():
                self._report(activity, ModelChosen(at=self.at, model="test:chosen"))
            case CallModel():
                self._model(activity, going, data)
            case Screen():
                self._screen(activity, going)
            case RunCall():
                self._tool(activity, going, data)
            case Project():
                shown = data.draw(st.sampled_from([ok("shown"), Result(output="unshown", is_error=True, outcome="invalid_result")]))
                self._report(activity, Projected(at=self.at, call_id=activity.call_id, result=shown))

    def _report(self, activity: Any, fact: Any) -> None:
        assert self.leg is not None
        del self.leg.going[activity]
        self.leg.facts.append(fact)

    def _screen(self, activity: Screen, going: Going) -> None:
        proposed = [screening(call) for call in going.run.turn if call.stage is CallStage.PROPOSED]
        self._report(activity, Screened(at=self.at, screenings=tuple(proposed)))

    def _model(self, activity: CallModel, going: Going, data: st.DataObject) -> None:
        step, attempt = activity.step, activity.attempt
        if going.stopped and (not going.begun or data.draw(st.booleans())):
            self._report(activity, ModelBrokenOff(at=self.at, step=step, attempt=attempt, started=going.begun))
            return
        self.at = max(self.at, activity.not_before or 0)
        going.begun = True
        match data.draw(st.sampled_from(STREAMING)):
            case "streams":
                self._streams(activity, going, data.draw(st.sampled_from(["text", "reasoning"])))
            case "answers":
                asks = data.draw(calls) if data.draw(st.sampled_from([True, True, True, False])) else []
                self._answers(activity, going, asks, data.draw(st.sampled_from(FINISHES)))
            case "fails":
                failed = ModelFailed(
                    at=self.at,
                    step=step,
                    attempt=attempt,
                    code="server_error",
                    message="The provider failed.",
                    transient=not data.draw(SELDOM),
                    billed=data.draw(st.booleans()),
                    after_content=bool(going.text or going.reasoning),
                    retry_after_ms=data.draw(st.sampled_from([None, None, 2_000, 2_000, 90_000])),
                )
                self._report(activity, failed)

    def _streams(self, activity: CallModel, going: Going, kind: str) -> None:
        assert self.leg is not None
        delta = f"<{activity.step}/{activity.attempt} {kind} {len(going.text) + len(going.reasoning)}>"
        if kind == "text":
            going.text += delta
            self.leg.waiting += Emitted(frames=(frames.text_delta(activity.step, activity.attempt, delta),))
        else:
            going.reasoning += delta
            self.leg.waiting += Emitted(frames=(frames.reasoning_delta(activity.step, activity.attempt, delta),))

    def _answers(self, activity: CallModel, going: Going, calls: list[CallAsked], finish: str) -> None:
        answer = AnswerReceived(
            at=self.at,
            step=activity.step,
            attempt=activity.attempt,
            text=going.text,
            reasoning=going.reasoning,
            calls=tuple(calls),
            finish=finish,
            usage=Usage(input_tokens=7, output_tokens=3),
            opaque=None,
            opaque_format=None,
        )
        self._report(activity, answer)

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
        ended = AttemptEnded(at=self.at, call_id=activity.call_id, attempt=activity.attempt, how=how, result=given(how), raw=raw)
        self._report(activity, ended)

    # -- what holds ----------------------------------------------------------------------------------------------------------

    @invariant()
    def always(self) -> None:
        if self.leg is not None:
            self.leg.check()

    def teardown(self) -> None:
        """Trouble is over: the run comes to its end, or waits for a person (I-22)."""
        if not hasattr(self, "store"):
            return
        for _ in range(PATIENCE):
            waits = self.store.status is Status.SUSPENDED and len(self.store.mail) == self.store.mail_applied
            if self.leg is None and (waits or self.store.status.ended):
                break
            self._heals()
        else:
            raise AssertionError(f"the run never came to rest: {self.store.run}")
        assert self.store.status.ended or self.store.run.unknowns
        if not self.store.status.ended:
            assert not self.store.cancelled

    def _heals(self) -> None:
        if self.leg is None:
            self._claim(caretaker=False)
        self._round()
        if self.leg is None:
            return
        self.leg.read_mail()
        for activity, going in [*self.leg.going.items()]:
            match activity:
                case ChooseModel():
                    self._report(activity, ModelChosen(at=self.at, model="test:chosen"))
                case CallModel() if going.stopped:
                    self._report(activity, ModelBrokenOff(at=self.at, step=activity.step, attempt=activity.attempt, started=going.begun))
                case CallModel():
                    self._answers(activity, going, [], "stop")
                case Screen():
                    self._screen(activity, going)
                case RunCall() if going.stopped and not going.begun:
                    self._end(activity, How.NOT_STARTED)
                case RunCall():
                    if not going.begun:
                        self.world.start(self.store, self.leg.run, activity)
                    self._end(activity, How.RETURNED)
                case Project():
                    self._report(activity, Projected(at=self.at, call_id=activity.call_id, result=ok("shown")))


SETTINGS = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


@pytest.mark.timeout(900)
def test_R12_R13_R17b_R32_R37_and_R39_hold_whatever_happens_in_whatever_order() -> None:
    """About ten seconds when all is well; when it is not, some minutes go into finding the shortest way there."""
    run_state_machine_as_test(Runs, settings=SETTINGS)
