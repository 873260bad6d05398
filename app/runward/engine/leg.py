"""A leg: one worker driving one run, from taking its lease to giving it back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from runward.core.kernel.actor import Envelope, Position, Status
from runward.core.kernel.commit import Changes, Claimed, Written
from runward.core.kernel.frames import StoredFrame
from runward.core.runs.apply import apply
from runward.core.runs.asking import GenerationEnded
from runward.core.runs.budget import only_the_state_tells
from runward.core.runs.decide import Activity, Decision, LegOver, Work, decide
from runward.core.runs.dues import deadline, work_due
from runward.core.runs.emitted import NOTHING, Emitted
from runward.core.runs.facts import (
    AttemptEnded,
    Broke,
    Close,
    DrainAsked,
    Happening,
    MailCame,
    Mark,
    Settle,
    TimeCame,
)
from runward.core.runs.inputs import in_order
from runward.core.runs.state import RunState
from runward.engine.activities import Activities, broke_off, never_started
from runward.engine.changes import changes_of
from runward.engine.durable import NEEDS_NOTHING_DURABLE, SAID_WITH_THE_STATE, TOLD_BY_THE_STATE
from runward.engine.hands import Hands
from runward.engine.hold import Hold, LeaseLost
from runward.engine.journal import Journal
from runward.engine.kept import Kept, WaitedFor
from runward.engine.loading import leg_started, loaded
from runward.engine.patience import patiently
from runward.engine.performer import Performer
from runward.engine.services import Services
from runward.engine.sharing import BudgetDialogue
from runward.engine.timing import Timer
from runward.ports.store import Head

SUSPECT_RECOVERIES = 2
"""From the second recovery on a run is a suspect: one at a time per worker (R40)."""
GATHER_SECONDS = 0.002
"""Calls that end within so long of each other share a commit."""
SCREEN_SECONDS = 0.005
"""How long a commit waits for what needs no commit first."""
UNREADABLE = "The run's stored state cannot be read."
T = TypeVar("T")


class Subscribers(Protocol):
    """Who hears of what a leg made durable, in this process and, by a hint, in others."""

    def journaled(self, uid: str, frames: Sequence[StoredFrame]) -> None: ...


class Leg:
    """Drives one run: folds facts into its state, makes each change durable, and keeps going on what `decide` wants (docs/concepts.md)."""

    def __init__(
        self,
        *,
        claimed: Claimed,
        performer: Performer | None,
        worker: str,
        max_recoveries: int,
        hold: Hold,
        services: Services,
        subscribers: Subscribers,
    ) -> None:
        self._claimed = claimed
        self._row: Envelope = claimed.envelope
        self._performer = performer
        self._worker = worker
        self._max_recoveries = max_recoveries
        self._services = services
        self._subscribers = subscribers
        self.hold = hold
        self._hands = Hands(performer, BudgetDialogue(services, hold, tenant=self._row.scope.tenant))
        self._facts: deque[Happening] = deque()
        self._kept = Kept()
        self._wake = asyncio.Event()
        self._activities = Activities(services.clock, self.report, self._failed)
        self._timer = Timer(services.clock, self._wake.set)
        self._decided_at = 0
        self._news = False
        self._asked_to_drain = False
        self._unsaved = False
        """Whether something changed that only the state tells of, and has to be durable before the leg goes on: the model, which is chosen
        once, what it or the author's code is about to use of its bounds, or mail that was applied."""
        self._mail_applied = self._row.mail_applied
        self._recoveries = self._row.recoveries
        self._emitted: Emitted = NOTHING
        self._run = RunState(uid=self._row.uid, agent=self._row.agent, created_at=self._row.created_at)
        self.journal = Journal(
            store=services.store,
            clock=services.clock,
            time=services.time,
            hold=hold,
            uid=self._row.uid,
            run_id=self._row.public_id,
            leg=self._row.leg,
            position=Position(revision=self._row.revision, last_seq=self._row.last_seq),
            listener=self,
            redactor=services.redactor,
        )

    @property
    def uid(self) -> str:
        return self._row.uid

    @property
    def number(self) -> int:
        """Which of the run's legs it is: its lease's token."""
        return self._row.leg

    @property
    def run(self) -> RunState:
        """The run as it stands: part of `performer.Driver`."""
        return self._run

    @property
    def recoveries(self) -> int:
        """How often the run was recovered since it last got on."""
        return self._recoveries

    @property
    def was_suspect(self) -> bool:
        """Whether the run had been recovered twice or more when this leg took it."""
        return self._row.recoveries >= SUSPECT_RECOVERIES

    @property
    def status(self) -> Status:
        """The run's status as this leg last made it durable."""
        return self._run.status

    # -- what others tell the leg ------------------------------------------------------------------------------------------

    def heard(self, head: Head) -> None:
        """Where the store says the run stands: news, or it is somebody else's by now. An answer from before this leg began says nothing."""
        if head.leg > self._row.leg:
            self.lose()
        elif head.leg == self._row.leg:
            self._noticed(head.mail_received, head.drain_leg)

    def poke(self) -> None:
        """There may be news: look."""
        self._news = True
        self._wake.set()

    def drain(self, *, hurried: bool = False) -> None:
        """Give the run back at the next boundary; `hurried`, break off what can be repeated and give it back at once (R39)."""
        self.report(DrainAsked(at=self._services.time.now(), hurried=hurried))

    def lose(self) -> None:
        """The lease is gone: stop at once, also what runs while a write is under way, and write nothing more."""
        self.hold.lose()
        self._activities.cancel()
        self._wake.set()

    def wrote(self, frames: Sequence[StoredFrame], written: Written | None) -> None:
        """Part of `journal.Listener`: a write of this leg is durable."""
        if frames:
            self._subscribers.journaled(self.uid, frames)
        if written is None:
            self.poke()
        else:
            self._noticed(written.mail_received, written.drain_leg)

    def broke(self) -> None:
        """Part of `journal.Listener`: the leg cannot say anything any more, so it is over."""
        self._activities.cancel()
        self._wake.set()

    async def keep(self, fact: WaitedFor) -> None:
        """Folds a fact, and returns once it is durable: part of `performer.Driver`."""
        durable = self._kept.add(fact)
        self.report(fact)
        await durable

    # -- the leg -----------------------------------------------------------------------------------------------------------

    async def drive(self) -> None:
        """Drives the run until the leg is over. Raises LeaseLost when it ended without giving the run back."""
        try:
            await self._begin()
            while await self._round():
                pass
        finally:
            self._timer.cancel()
            await self._activities.abort()
            await self.journal.close()
            self._kept.drop()

    async def _begin(self) -> None:
        row, at = self._row, self._services.time.now()
        run = await loaded(row, self._services, self.hold)
        self._run = run or self._run
        self._fold(leg_started(self._claimed, self._run, self._performer, at=at, worker=self._worker, max_recoveries=self._max_recoveries))
        if run is None:  # trying for ever would help nobody
            self._fold(Broke(at=at, code="internal", message=UNREADABLE, details={}))
        if row.mail_received > row.mail_applied:
            await self._read_mail()
        if self._claimed.recovered and (faults := self._services.faults) is not None:
            await faults.reach("recovery")

    async def _round(self) -> bool:
        """One turn of the loop: decide, make durable, act, wait. False once the leg is over."""
        self._take_facts()
        self._check_time()
        run, emitted, gated, decision = self._settled()
        if isinstance(decision, Work) and run is self._run:  # what follows from a move can only start once the move is durable
            free = [activity for activity in decision.start if self._is_new(activity) and isinstance(activity, NEEDS_NOTHING_DURABLE)]
            self._start(free, run)
            if free and (emitted or run.unguarded is not None):
                await self._activities.moment(free, SCREEN_SECONDS)
                if self._facts:
                    self._take_facts()
                    return True
        over = isinstance(decision, LegOver)
        changed = emitted or run is not self._run or over or self._unsaved
        if changed and not await self._commit(run, emitted, gated=gated, release=over):
            await self._read_mail()
            return True
        if isinstance(decision, LegOver):
            return False
        assert isinstance(decision, Work)
        if not self._facts:  # what ended during the commit would look like something that has not begun, and start again
            self._act(decision)
            await self._wait()
        return True

    def _settled(self) -> tuple[RunState, Emitted, bool, Decision]:
        """The run with every move made that needs nothing from outside. Moves are only kept once they are durable: mail that arrives
        first changes what they are."""
        run, emitted, gated = self._run, self._emitted, False
        at = self._decided_at = self._services.time.now()
        while True:
            decision = decide(run, at)
            if isinstance(decision, Work | LegOver):
                return run, emitted, gated or isinstance(decision, LegOver), decision
            if isinstance(decision, Mark):
                gated = gated or any(run.call(call_id).effect.writes for call_id in decision.call_ids)
            gated = gated or isinstance(decision, Close | Settle)
            run, more = apply(run, decision)
            emitted += more

    async def _commit(self, run: RunState, emitted: Emitted, *, gated: bool, release: bool) -> bool:
        """Makes the settled run durable. False when mail has to be applied first."""
        at = self._services.time.now()
        recoveries = 0 if emitted.got_on else self._recoveries
        covered = run

        def changes(follows: Position, frames: tuple[StoredFrame, ...], waited: int) -> Changes:
            nonlocal covered
            if emitted.messages:
                covered = replace(run, events_after=waited + emitted.before_message)
            return changes_of(
                self._row,
                covered,
                emitted,
                follows=follows,
                frames=frames,
                mail_applied=self._mail_applied,
                gated=gated,
                recoveries=recoveries,
                release=release,
                at=at,
            )

        if await self.journal.commit(changes, emitted.frames, at) is not None:
            return False
        self._run, self._emitted, self._recoveries, self._unsaved = covered, NOTHING, recoveries, False
        self._mail_applied += len(emitted.closings)
        self._kept.committed(self._facts)
        if self._performer is not None:
            self._performer.transcript.add(emitted.messages)
        return True

    def _act(self, work: Work) -> None:
        """Starts what should be going on and is not; stops what should not. What has not begun and need not any more is over."""
        self._start([activity for activity in work.start if self._is_new(activity)], self._run)
        for activity in work.stop:
            if not self._activities.stop(activity):
                self.report(never_started(activity, self._services.time.now()))
        for activity in work.finish:
            if self._is_new(activity):
                self.report(never_started(activity, self._services.time.now()))

    def _start(self, activities: Sequence[Activity], run: RunState) -> None:
        for activity in activities:
            self._activities.start(activity, self._hands.begin(activity, run, self))

    def _is_new(self, activity: Activity) -> bool:
        return activity not in self._activities

    # -- facts -------------------------------------------------------------------------------------------------------------

    def _fold(self, fact: Happening) -> None:
        """A fact changes the run. What it only says goes out at once; what it stores, and what counts, waits for the next commit."""
        before, (self._run, emitted) = self._run, apply(self._run, fact)
        self._unsaved = self._unsaved or isinstance(fact, TOLD_BY_THE_STATE) or only_the_state_tells(before, self._run)
        if emitted.only_frames and not self._emitted and not isinstance(fact, SAID_WITH_THE_STATE):
            self.journal.emit(emitted.frames)
        else:
            self._emitted += emitted

    def _take_facts(self) -> None:
        while self._facts:
            self._fold(self._facts.popleft())

    async def _wait(self) -> None:
        """Waits until there is something to fold, and folds it."""
        self._timer.set(self._seconds_until_due())
        await self._wake.wait()
        if any(isinstance(fact, AttemptEnded | GenerationEnded) for fact in self._facts) and len(self._activities):
            await self._services.clock.sleep(GATHER_SECONDS)
        self._wake.clear()
        if self.journal.failure is not None:
            raise self.journal.failure
        self.hold.check()
        self._take_facts()
        if self._news:
            self._news = False
            await self._look()

    async def _look(self) -> None:
        """Reads where the run stands, and what is new in its inbox."""
        head = (await self._read(lambda: self._services.store.heads([self.uid]))).get(self.uid)
        if head is None or head.leg != self._row.leg:
            raise LeaseLost
        self._noticed(head.mail_received, head.drain_leg)
        if head.mail_received > self._mail_applied:
            await self._read_mail()
        self._news = False

    async def _read_mail(self) -> None:
        """Applies whatever the inbox holds, none skipped (R6a)."""
        items = await self._read(lambda: self._services.reads.mail(self.uid, after=self._mail_applied, limit=None))
        for item in in_order(items):
            self._fold(MailCame(at=self._services.time.now(), mail=item))
            self._mail_applied = max(self._mail_applied, item.seq)
        self._unsaved = self._unsaved or (bool(items) and self._run.cancel is None)

    async def _read(self, read: Callable[[], Awaitable[T]]) -> T:
        return await patiently(read, hold=self.hold, clock=self._services.clock)

    def _noticed(self, mail_received: int, drain_leg: int | None) -> None:
        if drain_leg == self._row.leg and not self._asked_to_drain:
            self._asked_to_drain = True
            self.drain()
        if mail_received > self._mail_applied:
            self.poke()

    def report(self, fact: Happening) -> None:
        """Folds a fact: part of `performer.Driver`."""
        self._facts.append(fact)
        self._wake.set()

    def _failed(self, activity: Activity, error: BaseException) -> Happening:
        """What the run was waiting for broke in a way nobody had foreseen. It must not wait for ever."""
        if isinstance(error, LeaseLost):
            self.lose()
        else:
            self._services.telemetry.problem("activity_failed", error, uid=self.uid)
        return broke_off(activity, self._services.time.now())

    def _check_time(self) -> None:
        due = deadline(self._run)
        now = self._services.time.now()
        if due is not None and due <= now and not self._run.out_of_time:
            self._fold(TimeCame(at=now))

    def _seconds_until_due(self) -> float | None:
        due = work_due(self._run, after=self._decided_at)
        return None if due is None else self._services.time.seconds_until(due) + 0.001
