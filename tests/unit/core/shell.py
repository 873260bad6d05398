"""A store and an engine in miniature: what a leg does with `decide` and `apply`, with every promise checked as it is made."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace

from runward.core.kernel.actor import Status
from runward.core.kernel.mail import Mail, MailKind
from runward.core.kernel.records import Receipt, Stage
from runward.core.messages import Message, TextPart
from runward.core.runs import codec
from runward.core.runs.apply import apply
from runward.core.runs.begin import begin
from runward.core.runs.calls import CallStage, How
from runward.core.runs.decide import (
    Activity,
    CallModel,
    ChooseModel,
    Decision,
    LegOver,
    Project,
    RunCall,
    Screen,
    Work,
    decide,
    due_ending,
)
from runward.core.runs.dues import work_due
from runward.core.runs.emitted import NOTHING, Emitted
from runward.core.runs.face import face_of
from runward.core.runs.facts import AttemptEnded, Happening, LegStarted, MailCame, Mark, ModelBrokenOff, TimeCame
from runward.core.runs.limits import Limits
from runward.core.runs.receipts import with_results
from runward.core.runs.state import RunState
from runward.core.runs.transitions import RUN
from runward.core.runs.view import control, view
from runward.core.usage import Usage
from tests.unit.core.driving import MOST_MOVES, T0, UID, row_of
from tests.unit.core.folding import Journal, Page

STATUS_CHANGES = {(row.source, row.target) for row in RUN}


class Store:
    """One run as it is stored. A commit is checked against what was there before."""

    def __init__(self, limits: Limits, model: str | None) -> None:
        self.journal = Journal()
        self.messages: list[Message] = []
        self.receipts: dict[str, Receipt] = {}
        self.mail: list[Mail] = []
        self.mail_applied = 0
        self.ignored: set[int] = set()
        self.leg = 0
        self.status = Status.QUEUED
        self.updated_at = T0
        self.cancelled = False
        message = Message(seq=1, role="user", content=(TextPart(text="hello"),))
        run, emitted = begin(uid=UID, agent="support", created_at=T0, limits=limits, model=model, messages=[message])
        self.text = codec.encode(run)
        self.messages += emitted.messages
        for frame in emitted.frames:
            self.journal.append(frame)

    @property
    def run(self) -> RunState:
        """The run as a new leg reads it."""
        return with_results(codec.decode(self.text), [*self.receipts.values()])

    def post(self, kind: MailKind, data: str, at: int) -> bool:
        """Mail comes from outside. False when the run has ended."""
        if self.status.ended:
            return False
        seq = len(self.mail) + 1
        self.mail.append(Mail(seq=seq, kind=kind, key=f"{kind}:{seq}", data=data, principal=None, received_at=at))
        if self.status is Status.SUSPENDED:
            self.status = Status.QUEUED
        return True

    def claim(self) -> None:
        self.leg += 1
        self.status = self.status if self.status.ended else Status.RUNNING

    def commit(self, run: RunState, emitted: Emitted, *, mail_applied: int, at: int) -> None:
        """Everything of a commit, after its gates."""
        before = self.run
        assert emitted.ignored == tuple(sorted(emitted.ignored)) and not self.ignored & {*emitted.ignored}
        for message in emitted.messages:
            assert message.seq == len(self.messages) + 1
            self.messages.append(message)
        for receipt in emitted.receipts:
            self._keep(receipt)
        for frame in emitted.frames:
            self.journal.append(frame)
        self.ignored |= {*emitted.ignored}
        self.mail_applied, self.text, self.updated_at = mail_applied, codec.encode(run), at
        assert self.status in (Status.RUNNING, run.status)
        self.status = run.status
        self._check(before, run)

    def _keep(self, receipt: Receipt) -> None:
        old = self.receipts.get(receipt.tool_call_id)
        if old is not None:
            assert old.output is None, f"{old} has its outcome, and was written again (R12)"
            assert receipt.arguments == old.arguments, "what runs is what was recorded (I-10)"
            assert receipt.attempt >= old.attempt and (old.raw is None or receipt.raw == old.raw)
        assert json.loads(receipt.detail)["failures"] <= 3, "tried too often (R16)"
        self.receipts[receipt.tool_call_id] = receipt

    def _check(self, before: RunState, run: RunState) -> None:
        after = self.run
        assert after == replace(run, leg=0, worker="", caretaker=False, draining=False, hurried=False), "state and receipts are not the run"
        assert (
            before.status is run.status
            or (before.status, run.status) in STATUS_CHANGES
            or before.status in (Status.QUEUED, Status.SUSPENDED)
        )
        if before.status.ended:
            assert before == after, "an ended run changed (I-20)"
        assert (before.step, before.attempt) <= (run.step, run.attempt) and run.step <= run.limits.max_steps
        assert before.worked_ms <= run.worked_ms and before.messages <= run.messages == len(self.messages)
        assert before.lost_model_calls <= run.lost_model_calls
        assert all(getattr(before.usage, name.name) <= getattr(run.usage, name.name) for name in fields(Usage))
        turn = sum(400 + len(call.arguments) + len(call.name) + len(call.provider_id) for call in run.turn)
        unsettled = sum(400 + len(effect.arguments) for effect in run.unknowns)
        assert len(self.text) <= 2_000 + len(run.text or "") + turn + unsettled, "the state grows with the history (R7)"
        self._check_page(run)

    def _check_page(self, run: RunState) -> None:
        """Whoever loads `/messages` and opens the stream at `events_after` sees what one sees who was there from the start (R32)."""
        page = Page.of(self.messages)
        for frame in self.journal.frames[run.events_after :]:
            page.fold(frame)
        for call in run.turn:
            if call.stage is CallStage.PROPOSED and call.id not in self.journal.page.calls:
                del page.calls[call.id]
        assert page == self.journal.page
        if not run.turn:
            opened = self.journal.open[0] if self.journal.open else None
            told, stored = self.journal.page.without(opened), Page.of(self.messages).without(opened)
            assert told == stored, "the frames say something else than the transcript"

    def check_paired(self) -> None:
        """Every call in the transcript has exactly one result, in the next message, in the model's order (I-07)."""
        for index, message in enumerate(self.messages):
            asked = [call.tool_call_id for call in message.tool_calls]
            answered = [result.tool_call_id for result in self.messages[index + 1].tool_results] if asked else []
            assert asked == answered
        results = [result.tool_call_id for message in self.messages for result in message.tool_results]
        assert len(results) == len({*results}) == sum(len(message.tool_calls) for message in self.messages)

    def check_ended(self) -> None:
        """What holds of every run that is over."""
        run = self.run
        assert self.journal.over and run.ended is not None and run.turn == () and run.reservation is None
        self.check_paired()
        assert Page.of(self.messages) == self.journal.page
        assert self.mail_applied == len(self.mail)
        applied = {mail.seq for mail in self.mail if mail.kind is MailKind.CANCEL} - self.ignored
        assert len(applied) == bool(self.cancelled) and len(applied) + len(self.ignored) == len(self.mail)
        if self.cancelled:
            assert (run.status, run.ended.reason) == (Status.STOPPED, "cancelled"), "an accepted cancel was not applied (R37)"
        if run.status is Status.COMPLETED:
            assert not [receipt for receipt in self.receipts.values() if receipt.outcome == "cancelled"], "a drain is no cancel (R39)"
        shown = view(row_of(run), run)
        state = {name: value for name, value in self.journal.control.items() if name != "final"}
        assert state == {name: shown[name] for name in state} and state.keys() >= {"pending", "task_outcome", "usage", "output"}
        stages = {receipt.stage for receipt in self.receipts.values()}
        assert stages <= {Stage.COMPLETED, Stage.FAILED} and all(receipt.output is not None for receipt in self.receipts.values())


@dataclass
class Going:
    """An activity under way. `run` is the state that asked for it."""

    run: RunState
    begun: bool = False
    stopped: bool = False
    text: str = ""
    reasoning: str = ""


class World:
    """What cannot be taken back: the effects of tools, counted outside of the service."""

    def __init__(self) -> None:
        self.starts: dict[str, list[int]] = {}

    def start(self, store: Store, run: RunState, activity: RunCall) -> None:
        call, receipt = run.call(activity.call_id), store.receipts[activity.call_id]
        assert (receipt.stage, receipt.attempt, receipt.output) == (Stage.EXECUTING, activity.attempt, None), (
            "no receipt before the effect (I-02)"
        )
        attempts = self.starts.setdefault(activity.call_id, [])
        assert activity.attempt not in attempts, f"attempt {activity} was made twice"
        assert call.effect.repeatable or not attempts, f"{call} was called twice (I-03)"
        attempts.append(activity.attempt)


class Leg:
    """One worker driving the run."""

    def __init__(self, store: Store, world: World, at: int, *, recovered: bool, exhausted: bool, caretaker: bool) -> None:
        store.claim()
        self.store = store
        self.world = world
        self.at = at
        self.caretaker = caretaker
        self.number = store.leg
        self.emitted: Emitted = NOTHING
        self.waiting: Emitted = NOTHING
        self.facts: list[Happening] = []
        self.going: dict[Activity, Going] = {}
        self.mail_applied = store.mail_applied
        self.run = store.run
        self.fold(
            LegStarted(
                at=at,
                leg=self.number,
                worker=f"worker-{self.number}",
                recovered=recovered,
                last_write_at=store.updated_at,
                exhausted=exhausted,
                caretaker=caretaker,
            )
        )

    def fold(self, fact: Happening) -> None:
        """What a fact only says goes out at once; what it stores waits for the next commit."""
        self.run, emitted = apply(self.run, fact)
        if emitted.only_frames and not self.emitted and not isinstance(fact, AttemptEnded):
            self.waiting += emitted
        else:
            self.emitted += emitted

    def read_mail(self) -> None:
        for mail in self.store.mail[self.mail_applied :]:
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
            self._start([a for a in decision.start if isinstance(a, Screen | ChooseModel)], run)
            return False
        if unsaved:
            return True
        over = isinstance(decision, LegOver)
        if emitted or run is not self.run or over:
            if gated and len(self.store.mail) > self.mail_applied:
                self.read_mail()
                return False
            waited = len(self.store.journal.frames) + len(self.waiting.frames)
            if emitted.messages:
                run = replace(run, events_after=waited + emitted.before_message)
            self.flush()
            self.store.commit(run, emitted, mail_applied=self.mail_applied, at=self.at)
            self.run, self.emitted = run, NOTHING
        if over or unacted:
            return True
        assert isinstance(decision, Work) and (decision.start or decision.stop), "nothing would ever happen again"
        self._act(decision)
        return False

    def _act(self, work: Work) -> None:
        assert not (work.start and self.caretaker), "a caretaker has no code to run"
        if due_ending(self.run) is None:
            stopped = [self.run.call(activity.call_id) for activity in work.stop if isinstance(activity, RunCall)]
            assert all(call.effect.repeatable for call in stopped), "what may not be repeated is waited for (R39)"
        self._start([*work.start], self.run)
        for activity in work.stop:
            if activity in self.going:
                self.going[activity].stopped = True
            else:
                self.facts.append(self._never_started(activity))
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
                    self.store.check_paired()
                case RunCall():
                    receipt = self.store.receipts[activity.call_id]
                    assert (receipt.stage, receipt.attempt) == (Stage.EXECUTING, activity.attempt)
                case Project():
                    receipt = self.store.receipts[activity.call_id]
                    assert receipt.stage is Stage.EXECUTED and json.loads(receipt.raw or "null") == {"raw": activity.call_id}
                    assert run.call(activity.call_id).raw == {"raw": activity.call_id}
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
