"""Cancel, deadlines and what outranks what (R35a, R37, R38)."""

from __future__ import annotations

import json

import pytest

from runward.core.kernel.actor import Status
from runward.core.kernel.mail import MailKind
from runward.core.kernel.records import Stage
from runward.core.runs.calls import How
from runward.core.runs.decide import CallModel, LegOver, Project, RunCall, Screen, Work, due_ending
from runward.core.runs.dues import work_due
from runward.core.runs.face import face_of
from runward.core.runs.facts import Broke, TimeCame
from runward.core.runs.limits import Limits
from runward.core.runs.sentences import CANCELLED, FINISHED_UNSEEN, NOT_STARTED, UNKNOWN_TO_MODEL
from runward.core.runs.state import Ending, RunState, StopReason
from tests.unit.core.driving import T0, UID, Drive, ok
from tests.unit.core.tooling import asked

# -- cancel: where the run may be ----------------------------------------------------------------------------------------


def cancelled(drive: Drive) -> list[tuple[str, str]]:
    """The run ended cancelled; what is said of each call in hand."""
    drive.ended()
    reason, calls = drive.stopped
    assert (drive.status, reason, drive.shown["final"]) == (Status.STOPPED, "cancelled", True)
    return calls


def test_R37_a_queued_run_is_cancelled_by_the_leg_that_takes_it() -> None:
    drive = Drive().claim().gets(data={"reason": "user left"})
    assert drive.settle() == Work(stop=(CallModel(1, 1),))
    drive.broken_off(started=False)
    assert cancelled(drive) == []
    assert drive.shown["stop"] == {"reason": "cancelled", "details": {"reason": "user left", "calls": []}}
    assert drive.run.usage.model_calls == 0


def test_R37_a_cancel_in_the_middle_of_the_model_call_breaks_it_off() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.gets()
    assert drive.settle() == Work(stop=(CallModel(1, 1),))
    drive.broken_off()
    assert cancelled(drive) == []


def test_R37_an_answer_that_came_while_it_was_being_cancelled_is_kept_and_changes_nothing() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.gets()
    drive.settle()
    drive.answer("all done")
    assert cancelled(drive) == []
    assert drive.shown["text"] == "all done" and drive.messages[-1].text == "all done"


def test_R38_calls_that_were_proposed_or_ready_are_answered_as_not_started() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.answer("", asked("charge", {"order": 7}), asked("nope", "{"))
    assert drive.settle() == Work(start=(Screen(1),))
    drive.gets()
    assert cancelled(drive) == [("1.1", "not_started"), ("1.2", "not_started")]
    assert drive.results() == [("1.1", NOT_STARTED), ("1.2", NOT_STARTED)]
    drive = Drive(max_parallel_tools=1).running("look", "charge")
    drive.gets()
    drive.settle()
    drive.ends("1.1", How.CANCELLED)
    assert cancelled(drive) == [("1.1", "cancelled"), ("1.2", "not_started")]


def test_R32_a_call_that_is_answered_was_announced() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.answer("", asked("charge", {"order": 7}), asked("nope", "{"))
    drive.gets()
    cancelled(drive)
    told = [(frame.type, frame.fields["tool_call_id"]) for frame in drive.frames if frame.type in ("tool-call", "tool-output")]
    assert told == [("tool-call", "1.1"), ("tool-output", "1.1"), ("tool-call", "1.2"), ("tool-output", "1.2")]


@pytest.mark.parametrize(
    ("tool", "how", "state", "text"),
    [
        ("look", How.CANCELLED, "cancelled", CANCELLED),
        ("note", How.CANCELLED, "cancelled", CANCELLED),
        ("charge", How.CANCELLED, "unknown", UNKNOWN_TO_MODEL),
        ("poke", How.CANCELLED, "unknown", UNKNOWN_TO_MODEL),
        ("ship", How.CANCELLED, "unknown", UNKNOWN_TO_MODEL),
        ("look", How.NOT_STARTED, "not_started", NOT_STARTED),
        ("charge", How.NOT_STARTED, "not_started", NOT_STARTED),
        ("look", How.RETURNED, "finished", "ok"),
        ("charge", How.RETURNED, "finished", "ok"),
        ("charge", How.TOOL_ERROR, "finished", "on hold"),
        ("charge", How.TIMED_OUT, "unknown", UNKNOWN_TO_MODEL),
        ("look", How.TIMED_OUT, "cancelled", CANCELLED),
        ("note", How.RAISED, "cancelled", CANCELLED),
    ],
)
def test_R38_a_call_under_way_reports_and_the_run_says_what_is_known(tool: str, how: How, state: str, text: str) -> None:
    drive = Drive().running(tool)
    drive.gets()
    assert drive.settle() == Work(stop=(RunCall("1.1", 1),)), "the run waits for what has an effect"
    drive.ends("1.1", how)
    assert cancelled(drive) == [("1.1", state)]
    assert drive.results() == [("1.1", text)]
    unknown = state == "unknown"
    assert drive.shown["task_outcome"] == ("needs_reconciliation" if unknown else "failed")
    assert [item["tool_call_id"] for item in drive.shown["pending"]["unknown_effects"]] == (["1.1"] if unknown else [])
    assert drive.receipts["1.1"].stage is (Stage.COMPLETED if how is How.RETURNED else Stage.FAILED)


def test_R38_a_call_waiting_for_its_next_attempt_did_start() -> None:
    drive = Drive().running("note")
    drive.ends("1.1", How.TIMED_OUT)
    (waiting,) = drive.settle_work().start
    drive.gets()
    assert drive.settle() == Work(stop=(waiting,))
    drive.ends("1.1", How.NOT_STARTED)
    assert cancelled(drive) == [("1.1", "cancelled")]
    assert drive.results() == [("1.1", CANCELLED)]
    assert json.loads(drive.receipts["1.1"].detail)["effect_certain"] is False


def test_R38_a_call_lost_with_its_worker_may_have_started() -> None:
    drive = Drive().running("note").crash()
    drive.gets()
    assert cancelled(drive) == [("1.1", "cancelled")]
    assert json.loads(drive.receipts["1.1"].detail)["effect_certain"] is False


def test_R38_a_call_whose_result_was_not_shown_yet_finished() -> None:
    drive = Drive().running("bill", "look")
    drive.ends("1.1", How.RETURNED, raw={"total": 5})
    drive.ends("1.2", How.RETURNED)
    assert drive.settle() == Work(start=(Project("1.1"),))
    drive.gets()
    assert cancelled(drive) == [("1.1", "finished"), ("1.2", "finished")]
    assert drive.results() == [("1.1", FINISHED_UNSEEN), ("1.2", "ok")]
    receipt = drive.receipts["1.1"]
    assert (receipt.stage, receipt.raw, receipt.is_error) == (Stage.COMPLETED, '{"total":5}', False)


def test_R37_a_run_that_waits_for_an_unknown_effect_can_be_cancelled() -> None:
    drive = Drive().running("charge", "look")
    drive.ends("1.1", How.CANNOT_TELL)
    drive.ends("1.2", How.RETURNED)
    assert drive.settle() == LegOver() and drive.status is Status.SUSPENDED
    drive.claim(caretaker=True).gets()
    assert cancelled(drive) == [("1.1", "unknown"), ("1.2", "finished")]
    assert drive.results() == [("1.1", UNKNOWN_TO_MODEL), ("1.2", "ok")]
    assert drive.receipts["1.1"].outcome == "unknown" and drive.shown["task_outcome"] == "needs_reconciliation"


def test_R37_a_cancel_saved_by_a_leg_that_dies_is_not_forgotten() -> None:
    drive = Drive().running("charge", "look")
    drive.gets()
    drive.ends("1.2", How.RETURNED)
    assert drive.settle() == Work(stop=(RunCall("1.1", 1),))
    drive.crash()
    assert cancelled(drive) == [("1.1", "unknown"), ("1.2", "finished")]


def test_R6a_a_second_cancel_and_whatever_has_no_use_is_ignored_aloud() -> None:
    drive = Drive().running("look")
    useless = [
        (MailKind.STEER, {}),
        (MailKind.RETRY, {}),
        (MailKind.RECONCILE, {"tool_call_id": "1.1", "attempt": 1, "decision": "error"}),
        (MailKind.APPROVAL, {"approval_id": "ap_1", "approved": True}),
        (MailKind.CLIENT, {"tool_call_id": "1.1", "output": 1}),
        (MailKind.QUESTION, {"question_id": "1.1.1", "answer": "yes"}),
        (MailKind.REBIND, {"from": "another", "to": "b"}),
        (MailKind.CHILD, {}),
    ]
    for kind, data in useless:
        before = drive.run
        drive.gets(kind, data)
        assert drive.run == before and drive.of("warning")[-1]["code"] == "input_ignored"
    drive.gets(data={"reason": "first"})
    drive.gets(data={"reason": "second"})
    assert drive.ignored == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    drive.settle()
    drive.ends("1.1", How.CANCELLED)
    cancelled(drive)
    assert drive.shown["stop"]["details"]["reason"] == "first"


def test_R37_an_ended_run_is_not_cancelled_any_more() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.answer("done").ended()
    drive.gets()
    assert (drive.status, drive.run.cancel, drive.ignored) == (Status.COMPLETED, None, [1])


@pytest.mark.parametrize("where", ["proposed", "executing", "suspended"])
def test_R32_the_step_in_hand_is_finished_before_the_run_says_that_it_ended(where: str) -> None:
    if where == "proposed":
        drive = Drive().claim()
        drive.settle()
        drive.answer("", asked("charge")).gets()
    elif where == "executing":
        drive = Drive().running("charge").gets()
        drive.settle()
        drive.ends("1.1", How.CANCELLED)
    else:
        drive = Drive().running("charge")
        drive.ends("1.1", How.CANNOT_TELL)
        drive.settle()
        drive.claim().gets()
    cancelled(drive)
    assert drive.types()[-4:] == ["tool-output", "finish-step", "finish", "data-agent"]


# -- what outranks what --------------------------------------------------------------------------------------------------


def due(drive: Drive) -> Ending:
    ending = due_ending(drive.run)
    assert ending is not None
    return ending


def test_R37_cancel_outranks_the_deadline_and_that_outranks_every_other_ending() -> None:
    drive = Drive(timeout_seconds=10).claim()
    drive.settle()
    drive.answer("done")
    assert due(drive).status is Status.COMPLETED
    drive.apply(Broke(at=drive.at, code="internal", message="x", details={}))
    assert due(drive).status is Status.FAILED
    drive.after(10)
    assert due(drive).reason is StopReason.DEADLINE
    drive.gets()
    assert due(drive).reason is StopReason.CANCELLED
    assert cancelled(drive) == []


def test_R37_a_cancel_that_comes_while_the_deadline_stops_the_calls_wins() -> None:
    drive = Drive(timeout_seconds=10).running("look")
    drive.after(10)
    assert drive.settle() == Work(stop=(RunCall("1.1", 1),))
    drive.gets()
    drive.ends("1.1", How.CANCELLED)
    assert cancelled(drive) == [("1.1", "cancelled")]


# -- deadlines -----------------------------------------------------------------------------------------------------------


def test_R35a_a_run_that_was_worked_on_for_too_long_stops_and_says_what_is_known_of_its_calls() -> None:
    drive = Drive(timeout_seconds=10).running("charge", "look")
    drive.after(9.999)
    assert drive.settle() == Work(start=(RunCall("1.1", 1), RunCall("1.2", 1)))
    drive.after(0.001)
    assert drive.settle() == Work(stop=(RunCall("1.1", 1), RunCall("1.2", 1)))
    drive.ends("1.1", How.CANCELLED)
    drive.ends("1.2", How.CANCELLED)
    drive.ended()
    assert drive.stopped == ("deadline", [("1.1", "unknown"), ("1.2", "cancelled")])
    assert drive.results() == [("1.1", UNKNOWN_TO_MODEL), ("1.2", CANCELLED)]


def test_R35a_an_answer_that_comes_too_late_is_kept_but_does_not_complete_the_run() -> None:
    drive = Drive(timeout_seconds=10).claim()
    drive.settle()
    drive.after(10)
    drive.settle()
    drive.answer("too late").ended()
    assert (drive.stopped, drive.shown["text"]) == (("deadline", []), "too late")


def test_R35a_the_queue_and_waits_for_people_do_not_count() -> None:
    drive = Drive(timeout_seconds=10)
    drive.at += 1_000_000
    drive.claim()
    assert work_due(drive.run) == drive.at + 10_000
    drive.settle()
    drive.answer("", asked("charge"))
    drive.settle()
    drive.screen()
    drive.settle()
    drive.after(4)
    drive.ends("1.1", How.CANNOT_TELL)
    assert drive.settle() == LegOver() and drive.status is Status.SUSPENDED
    assert (drive.run.worked_ms, drive.run.leg_started_at, work_due(drive.run)) == (4_000, None, None)
    drive.at += 1_000_000
    drive.claim()
    assert work_due(drive.run) == drive.at + 6_000
    assert drive.settle() == LegOver()


def test_R35a_time_is_counted_over_all_legs_given_back_or_lost() -> None:
    drive = Drive(timeout_seconds=10).running("look")
    drive.after(3).drain(hurried=True)
    drive.settle()
    drive.ends("1.1", How.ABANDONED)
    assert drive.settle() == LegOver() and drive.run.worked_ms == 3_000
    drive.at += 60_000
    drive.claim()
    drive.settle()
    drive.after(2)
    drive.settle()
    drive.after(2)
    drive.crash()
    assert drive.run.worked_ms == 5_000, "what a dead leg worked is counted up to its last write"
    assert work_due(drive.run) == drive.at + 5_000
    drive.settle()
    drive.after(5)
    work = drive.settle_work()
    assert not work.start and len(work.stop) == 1


def test_R35a_a_leg_that_began_after_its_last_write_by_another_clock_counts_nothing() -> None:
    drive = Drive(timeout_seconds=10).claim()
    drive.settle()
    drive.claim(recovered=True, last_write_at=drive.at - 5_000)
    assert drive.run.worked_ms == 0


def test_R35a_its_whole_life_is_bounded_wherever_it_spends_it() -> None:
    drive = Drive(expires_seconds=60)
    assert work_due(drive.run) == T0 + 60_000
    drive.at += 59_999
    drive.claim()
    drive.apply(TimeCame(at=drive.at))
    assert drive.settle() == Work(start=(CallModel(1, 1),))
    drive.after(0.001)
    drive.settle()
    drive.broken_off().ended()
    assert drive.stopped == ("deadline", [])


def test_R35a_a_suspended_run_expires_and_any_worker_may_see_to_it() -> None:
    drive = Drive(expires_seconds=60, timeout_seconds=10).running("charge")
    drive.ends("1.1", How.CANNOT_TELL)
    drive.settle()
    face = face_of(drive.run, binding="b", priority=0, at=drive.at)
    assert (face.ready_at, face.care_at) == (T0 + 60_000, T0 + 60_000)
    drive.at = T0 + 60_000
    drive.claim(caretaker=True)
    drive.apply(TimeCame(at=drive.at))
    drive.ended()
    assert drive.stopped == ("deadline", [("1.1", "unknown")])


@pytest.mark.parametrize(
    ("timeout", "expires", "worked", "due"),
    [
        (None, None, 0, None),
        (10, None, 0, 15_000),
        (10, None, 4_000, 11_000),
        (None, 10, 4_000, 10_000),
        (10, 12, 0, 12_000),
        (10, 20, 0, 15_000),
        (0.0015, None, 0, 5_002),
    ],
)
def test_R35a_the_earlier_of_both_bounds_is_due(timeout: float | None, expires: float | None, worked: int, due: int | None) -> None:
    limits = Limits(timeout_seconds=timeout, expires_seconds=expires)
    run = RunState(uid=UID, agent="a", created_at=0, limits=limits, leg_started_at=5_000, worked_ms=worked)
    assert work_due(run) == due


def test_R35a_time_that_has_not_come_changes_nothing() -> None:
    drive = Drive(timeout_seconds=10).claim()
    before = drive.run
    drive.apply(TimeCame(at=drive.at + 9_999))
    assert drive.run == before
    unbounded = Drive().claim()
    unbounded.apply(TimeCame(at=10**15))
    assert not unbounded.run.out_of_time


def test_a_failed_run_says_what_is_known_of_its_calls_too() -> None:
    drive = Drive().running("charge", "look")
    drive.apply(Broke(at=drive.at, code="internal", message="no", details={"tool_name": "look"}))
    assert drive.settle() == Work(stop=(RunCall("1.1", 1), RunCall("1.2", 1)))
    drive.ends("1.1", How.RETURNED, ok(7))
    drive.ends("1.2", How.NOT_STARTED)
    drive.ended()
    assert (drive.status, drive.shown["task_outcome"]) == (Status.FAILED, "failed")
    states = [("1.1", "charge", "finished"), ("1.2", "look", "not_started")]
    calls = [{"tool_call_id": call_id, "tool_name": name, "state": state} for call_id, name, state in states]
    assert drive.shown["error"]["details"] == {"tool_name": "look", "calls": calls}
    assert drive.results() == [("1.1", 7), ("1.2", NOT_STARTED)]
