"""The life of a run: legs begin and end, statuses follow the table, an ended run stays as it is (section 3, R39 to R41)."""

from __future__ import annotations

import pytest

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import ENDED, Status
from runward.core.kernel.mail import MailKind
from runward.core.messages import Message, TextPart
from runward.core.runs.begin import begin
from runward.core.runs.calls import CallStage, How
from runward.core.runs.decide import CallModel, ChooseModel, LegOver, Project, RunCall, Screen, Work
from runward.core.runs.face import face_of
from runward.core.runs.facts import (
    Broke,
    DrainAsked,
    End,
    Fact,
    GiveBack,
    LegStarted,
    ModelBrokenOff,
    ModelChosen,
    Reserve,
    Suspend,
    TimeCame,
)
from runward.core.runs.limits import Limits
from runward.core.runs.state import Ending, StopReason
from runward.core.runs.transitions import CALL, RUN, CallEvent, RunEvent, next_stage, next_status
from runward.core.runs.waits import Wait
from tests.unit.core.driving import T0, UID, Drive
from tests.unit.core.tooling import asked


def completed() -> Drive:
    drive = Drive().claim()
    drive.settle()
    return drive.answer("done").ended()


def suspended() -> Drive:
    drive = Drive().running("charge")
    drive.ends("1.1", How.CANNOT_TELL)
    assert drive.settle() == LegOver() and drive.status is Status.SUSPENDED
    return drive


# -- the tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("event", RunEvent)
def test_R49_no_status_changes_but_by_the_table(status: Status, event: RunEvent) -> None:
    targets = [row.target for row in RUN if (row.source, row.event) == (status, event)]
    if targets:
        assert [next_status(status, event)] == targets
    else:
        with pytest.raises(InvariantViolated):
            next_status(status, event)


@pytest.mark.parametrize("stage", CallStage)
@pytest.mark.parametrize("event", CallEvent)
def test_R49_no_call_changes_but_by_the_table(stage: CallStage, event: CallEvent) -> None:
    targets = [row.target for row in CALL if (row.source, row.event) == (stage, event)]
    if targets:
        assert [next_stage(stage, event)] == targets
    else:
        with pytest.raises(InvariantViolated):
            next_stage(stage, event)


def test_R10_and_R12_nothing_leads_out_of_an_end() -> None:
    assert [(row.source, row.target) for row in RUN if row.source in ENDED] == [(Status.FAILED, Status.QUEUED)], "by a retry alone"
    assert [row for row in CALL if row.source is CallStage.ENDED] == []
    assert {row.source for row in CALL if row.target is CallStage.EXECUTING} == {CallStage.READY}, "only what is ready starts"


def test_every_status_and_stage_is_reached() -> None:
    assert {row.target for row in RUN} == set(Status)
    assert {row.target for row in CALL} | {CallStage.PROPOSED} == set(CallStage)


# -- how it begins and is taken ------------------------------------------------------------------------------------------


def test_R33_a_run_begins_queued_with_its_input_its_first_frame_and_a_reservation() -> None:
    messages = [Message(seq=9, role="user", content=(TextPart(text=text),), step=4) for text in ("a", "b")]
    run, emitted = begin(uid=UID, agent="support", created_at=T0, limits=Limits(), model="test:model", messages=messages)
    assert (run.status, run.step, run.attempt, run.messages, run.events_after) == (Status.QUEUED, 0, 0, 2, 0)
    assert [(frame.type, dict(frame.fields)) for frame in emitted.frames] == [("start", {"agent": "support"})]
    assert [(message.seq, message.step, message.text) for message in emitted.messages] == [(1, None, "a"), (2, None, "b")]


def test_a_run_that_nobody_holds_asks_for_nothing() -> None:
    assert Drive().decide() == LegOver()
    assert completed().decide() == LegOver()
    assert suspended().decide() == LegOver()


def test_R3_a_new_leg_says_that_the_run_is_running_before_anything_else() -> None:
    drive = Drive().claim()
    assert drive.status is Status.RUNNING and drive.run.worker == "worker-1"
    assert drive.types() == ["start", "data-agent", "start-step"]
    assert drive.of("data-agent") == [{"data": {"status": "running", "phase": "loop", "steps": 0}}]


def test_R40_a_run_whose_worker_died_is_taken_over_from_running() -> None:
    drive = Drive().running("look").crash()
    assert drive.status is Status.RUNNING and drive.run.leg == 2


def test_R8_a_suspended_run_that_is_woken_for_nothing_suspends_again_without_a_model_call() -> None:
    drive = suspended()
    calls, frames = drive.run.usage.model_calls, len(drive.frames)
    drive.claim().gets(MailKind.STEER)
    assert drive.settle() == LegOver()
    assert (drive.status, drive.run.usage.model_calls) == (Status.SUSPENDED, calls)
    assert [frame.type for frame in drive.frames[frames:]] == ["data-agent", "warning", "data-agent"]


def test_R40_a_run_recovered_too_often_fails() -> None:
    drive = Drive().running("charge", "look")
    drive.leg += 1
    drive.crash()
    drive.claim(recovered=True, exhausted=True, caretaker=True).ended()
    assert drive.status is Status.FAILED
    error = drive.shown["error"]
    assert (error["code"], error["transient"]) == ("recoveries_exhausted", False)
    assert [call["state"] for call in error["details"]["calls"]] == ["unknown", "cancelled"]
    assert drive.shown["task_outcome"] == "needs_reconciliation"


def test_R40_a_cancel_outranks_exhausted_recoveries() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.leg = 6
    drive.claim(recovered=True, exhausted=True).gets()
    drive.ended()
    assert drive.stopped == ("cancelled", [])


# -- an end is an end ----------------------------------------------------------------------------------------------------

AFTER_THE_END: list[Fact] = [
    ModelChosen(at=T0, model="test:other"),
    Broke(at=T0, code="internal", message="x", details={}),
    Reserve(at=T0),
    ModelBrokenOff(at=T0, step=1, attempt=1, started=True),
    Suspend(at=T0),
    GiveBack(at=T0),
    End(at=T0, ending=Ending(status=Status.COMPLETED)),
    End(at=T0, ending=Ending(status=Status.STOPPED, reason=StopReason.CANCELLED)),
]


@pytest.mark.parametrize("fact", AFTER_THE_END, ids=lambda fact: type(fact).__name__)
def test_R10_an_ended_run_refuses_whatever_would_change_it(fact: Fact) -> None:
    drive = completed()
    before = drive.run
    with pytest.raises(InvariantViolated):
        drive.apply(fact)
    assert drive.run == before


@pytest.mark.parametrize("fact", AFTER_THE_END, ids=lambda fact: type(fact).__name__)
def test_R1_a_run_that_no_leg_drives_refuses_it_too(fact: Fact) -> None:
    for drive in (Drive(), suspended()):
        with pytest.raises(InvariantViolated):
            drive.apply(fact)


def test_R10_neither_time_nor_mail_nor_a_drain_changes_an_ended_run() -> None:
    drive = Drive(expires_seconds=60).claim()
    drive.settle()
    drive.answer("done").ended()
    before, shown = drive.run, drive.shown
    drive.apply(TimeCame(at=drive.at + 10**9))
    drive.apply(DrainAsked(at=drive.at))
    drive.gets()
    assert (drive.run, drive.shown) == (before, shown)


def test_R41_a_caretaker_leg_on_an_ended_run_keeps_its_status_and_says_nothing() -> None:
    drive = completed()
    shown, frames = drive.shown, [*drive.frames]
    drive.claim(caretaker=True)
    assert drive.settle() == LegOver()
    assert (drive.status, drive.shown, drive.frames) == (Status.COMPLETED, shown, frames)


# -- drain ---------------------------------------------------------------------------------------------------------------


def test_R39_a_drain_finishes_the_step_in_hand_then_gives_the_run_back() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.drain()
    assert drive.settle() == Work(start=(CallModel(1, 1),))
    drive.answer("", asked("look"), asked("charge"))
    assert drive.settle() == Work(start=(Screen(1),))
    drive.screen()
    assert drive.settle() == Work(start=(RunCall("1.1", 1), RunCall("1.2", 1)))
    drive.ends("1.1", How.RAISED)
    assert len(drive.settle_work().start) == 2
    drive.ends("1.1", How.RETURNED)
    drive.ends("1.2", How.RETURNED)
    assert drive.settle() == LegOver() and drive.status is Status.QUEUED
    assert [call_id for call_id, _ in drive.results()] == ["1.1", "1.2"] and drive.run.reservation is None
    assert drive.types()[-2:] == ["finish-step", "data-agent"]
    drive.claim()
    assert drive.settle() == Work(start=(CallModel(2, 1),)), "the drain vanished with its leg"


def test_R39_between_two_attempts_of_a_model_call_a_drained_run_goes_back_with_its_retry() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.fails().drain()
    assert drive.settle() == LegOver() and drive.status is Status.QUEUED
    drive.claim()
    assert drive.settle() == Work(start=(CallModel(1, 2, T0 + 500),))


def test_R39_an_end_a_cancel_or_a_wait_due_at_the_same_boundary_comes_first() -> None:
    ended = Drive().claim()
    ended.settle()
    ended.answer("done").drain().ended()
    assert ended.status is Status.COMPLETED

    cancelled = Drive().running("look").drain()
    cancelled.ends("1.1", How.RETURNED)
    cancelled.gets().ended()
    assert cancelled.stopped[0] == "cancelled"

    waits = Drive().running("charge").drain()
    waits.ends("1.1", How.CANNOT_TELL)
    assert waits.settle() == LegOver() and waits.status is Status.SUSPENDED

    out_of_steps = Drive(max_steps=1).running("look").drain()
    out_of_steps.ends("1.1", How.RETURNED)
    out_of_steps.ended()
    assert out_of_steps.stopped == ("max_steps", [])


def test_R39_a_hurried_leg_breaks_the_model_call_off() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.drain().drain(hurried=True)
    assert drive.settle() == Work(stop=(CallModel(1, 1),))
    drive.broken_off()
    assert drive.settle() == LegOver() and drive.status is Status.QUEUED
    drive.claim()
    assert drive.settle() == Work(start=(CallModel(1, 2),))


def test_R39_a_hurried_leg_abandons_what_can_be_repeated_and_waits_for_the_rest() -> None:
    drive = Drive().running("look", "charge", "note")
    drive.drain(hurried=True)
    assert drive.settle() == Work(stop=(RunCall("1.1", 1), RunCall("1.3", 1)))
    drive.ends("1.1", How.ABANDONED)
    drive.ends("1.3", How.ABANDONED)
    assert drive.settle() == Work(start=(RunCall("1.2", 1),)), "the lease of a run with a dangerous call is not given back"
    drive.ends("1.2", How.RETURNED)
    assert drive.settle() == LegOver() and drive.status is Status.QUEUED
    drive.claim()
    assert drive.settle() == Work(start=(RunCall("1.1", 2), RunCall("1.3", 2)))


@pytest.mark.parametrize("tool", ["look", "note", "charge"])
def test_R39_a_call_that_was_stopped_before_it_started_is_run_by_the_next_leg(tool: str) -> None:
    drive = Drive().running(tool)
    drive.drain(hurried=True)
    drive.settle()
    drive.ends("1.1", How.NOT_STARTED)
    assert drive.settle() == LegOver() and drive.status is Status.QUEUED and drive.results() == []
    drive.claim()
    assert drive.settle() == Work(start=(RunCall("1.1", 2),))


def test_R39_a_hurried_leg_starts_nothing_new() -> None:
    proposed = Drive().claim()
    proposed.settle()
    proposed.answer("", asked("look")).drain(hurried=True)
    assert proposed.settle() == LegOver() and proposed.status is Status.QUEUED
    proposed.claim()
    assert proposed.settle() == Work(start=(Screen(1),))

    ready = Drive(max_parallel_tools=1).running("look", "charge")
    ready.ends("1.1", How.RETURNED)
    ready.drain(hurried=True)
    assert ready.settle() == LegOver() and ready.run.call("1.2").stage is CallStage.READY

    executed = Drive().running("bill")
    executed.ends("1.1", How.RETURNED, raw=5)
    executed.drain(hurried=True)
    assert executed.settle() == LegOver() and executed.status is Status.QUEUED
    executed.claim()
    assert executed.settle() == Work(start=(Project("1.1"),))


def test_R39_a_hurried_leg_suspends_a_run_that_only_waits() -> None:
    drive = Drive().running("charge", "look")
    drive.ends("1.1", How.CANNOT_TELL)
    drive.ends("1.2", How.RETURNED)
    drive.drain(hurried=True)
    assert drive.settle() == LegOver() and drive.status is Status.SUSPENDED
    mixed = Drive().running("charge", "look")
    mixed.ends("1.1", How.CANNOT_TELL)
    mixed.drain(hurried=True)
    mixed.settle()
    mixed.ends("1.2", How.ABANDONED)
    assert mixed.settle() == LegOver() and mixed.status is Status.QUEUED, "the other call still has to run"


def test_R39_a_drain_before_the_model_was_chosen_does_not_wait_for_it() -> None:
    drive = Drive(model=None).claim()
    assert drive.settle() == Work(start=(ChooseModel(),))
    drive.drain(hurried=True)
    assert drive.settle() == Work(stop=(CallModel(1, 1),))


def test_R49_a_leg_with_something_under_way_cannot_give_the_run_back_or_end_it() -> None:
    calling = Drive().claim()
    calling.settle()
    working = Drive().running("look")
    for drive in (calling, working):
        for move in (GiveBack(at=T0), Suspend(at=T0), End(at=T0, ending=Ending(status=Status.COMPLETED))):
            with pytest.raises(InvariantViolated):
                drive.apply(move)


# -- care ----------------------------------------------------------------------------------------------------------------


def test_R41_a_caretaker_starts_nothing_and_gives_the_run_back() -> None:
    fresh = Drive().claim(caretaker=True)
    assert fresh.settle() == Work(stop=(CallModel(1, 1),))
    fresh.broken_off(started=False)
    assert fresh.settle() == LegOver() and fresh.status is Status.QUEUED and fresh.run.usage.model_calls == 0
    fresh.claim()
    assert fresh.settle() == Work(start=(CallModel(1, 2),))

    for tools, stage in ((("look",), CallStage.READY), (("bill",), CallStage.EXECUTED)):
        drive = Drive().running(*tools)
        if stage is CallStage.EXECUTED:
            drive.ends("1.1", How.RETURNED, raw=1)
        drive.settle()
        drive.crash()
        drive.claim(caretaker=True)
        assert drive.settle() == LegOver() and drive.status is Status.QUEUED
        assert drive.run.call("1.1").stage is stage


def test_R41_a_caretaker_leaves_a_waiting_run_waiting() -> None:
    drive = suspended().claim(caretaker=True)
    assert drive.settle() == LegOver() and drive.status is Status.SUSPENDED


def test_R41_a_caretaker_ends_what_is_due() -> None:
    drive = Drive(max_steps=1).running("look")
    drive.ends("1.1", How.RETURNED)
    drive.drain(hurried=True)
    assert drive.settle() == LegOver() and drive.status is Status.QUEUED
    drive.claim(caretaker=True).gets().ended()
    assert drive.stopped == ("cancelled", [("1.1", "finished")])


# -- the face ------------------------------------------------------------------------------------------------------------


def test_R8_what_lists_and_claims_read_of_each_status() -> None:
    queued = face_of(Drive(expires_seconds=60).run, binding="b", priority=2, at=T0 + 5)
    assert (queued.status, queued.ready_at, queued.care_at, queued.rank) == (Status.QUEUED, T0 + 5, T0 + 60_000, T0 + 5 - 120_000)
    assert (queued.waiting_on, queued.stop_reason, queued.task_outcome, queued.ended_at) == (0, None, "in_progress", None)

    running = face_of(Drive().claim().run, binding="b", priority=0, at=T0)
    assert (running.status, running.ready_at, running.waiting_on) == (Status.RUNNING, None, 0)

    waiting = face_of(suspended().run, binding="b", priority=0, at=T0)
    assert (waiting.status, waiting.ready_at, waiting.care_at) == (Status.SUSPENDED, None, None)
    assert (waiting.waiting_on, waiting.task_outcome) == (int(Wait.UNKNOWN_EFFECTS), "needs_reconciliation")

    drive = Drive(expires_seconds=60).claim().gets()
    drive.settle()
    drive.broken_off(started=False).ended()
    ended = face_of(drive.run, binding="b", priority=0, at=T0 + 1)
    assert (ended.status, ended.stop_reason, ended.task_outcome, ended.ended_at) == (Status.STOPPED, "cancelled", "failed", T0)
    assert (ended.ready_at, ended.care_at, ended.updated_at) == (None, None, T0 + 1)


def test_a_leg_start_on_an_ended_run_is_only_a_look() -> None:
    drive = completed()
    before = drive.run
    drive.apply(LegStarted(at=T0 + 5, leg=9, worker="w", caretaker=True))
    assert (drive.run.ended, drive.run.ended_at, drive.run.worked_ms) == (before.ended, before.ended_at, before.worked_ms)
