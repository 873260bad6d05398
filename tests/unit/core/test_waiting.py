"""Calls that wait for a client's result, the user's answer, or a time (R24 to R26)."""

from __future__ import annotations

from typing import Any

import pytest

from runward.core.kernel.actor import Status
from runward.core.kernel.mail import MailKind
from runward.core.kernel.records import Stage
from runward.core.runs.calls import CallStage, Effect, How
from runward.core.runs.decide import CallModel, LegOver, RunCall, Work
from runward.core.runs.face import face_of
from runward.core.runs.sentences import CANCELLED, DECLINED, NOBODY_ANSWERED
from runward.core.runs.waits import Wait
from tests.unit.core.driving import T0, Drive, ok
from tests.unit.core.tooling import TOOL_OF

QUESTION = {"question": "Which order?", "choices": ["A-1", "A-2"], "allows_free_text": False}


def states(drive: Drive, call_id: str = "1.1") -> list[str]:
    return [state["state"] for state in drive.of("tool-state") if state["tool_call_id"] == call_id]


# -- client tools --------------------------------------------------------------------------------------------------------


def test_R24_a_client_call_suspends_the_run_until_its_result_comes() -> None:
    drive = Drive().asks("scan", arguments={"path": "/"})
    assert (drive.status, drive.run.waiting_on) == (Status.SUSPENDED, Wait.CLIENT_CALLS)
    assert drive.shown["pending"]["client_calls"] == [
        {"tool_call_id": "1.1", "step": 1, "tool_name": "scan", "arguments": {"path": "/"}, "expires_at": None}
    ]
    assert drive.of("client-call") == [{"tool_call_id": "1.1", "tool_name": "scan", "arguments": {"path": "/"}}]
    assert drive.awaited().output_schema == {"type": "object"}
    assert (drive.receipts["1.1"].stage, drive.receipts["1.1"].attempt) == (Stage.SUSPENDED, 0)
    drive.claim().gives("1.1", {"files": 2})
    drive.crash().gives("1.1", {"files": 2})
    assert drive.settle() == Work(start=(CallModel(2, 1),)), "an interrupted leg loses nothing: the mail is applied again"
    assert drive.results() == [("1.1", {"files": 2})] and states(drive) == ["waiting", "completed"]
    assert (drive.receipts["1.1"].stage, drive.receipts["1.1"].outcome) == (Stage.COMPLETED, None)


def test_R24_a_client_may_say_that_it_failed() -> None:
    drive = Drive().asks("scan").claim().gives("1.1", "no such folder", is_error=True)
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    receipt = drive.receipts["1.1"]
    assert (receipt.outcome, receipt.is_error, states(drive)[-1]) == ("failed", True, "failed")
    drive.answer("well").ended()
    assert drive.shown["task_outcome"] == "resolved"


@pytest.mark.parametrize("call_id", ["1.2", "2.1", "1.3"])
def test_R24_a_result_counts_for_its_own_call_alone(call_id: str) -> None:
    drive = Drive().asks("scan", "ask_user", arguments=QUESTION).claim()
    before = drive.run
    drive.gives(call_id, 1)
    assert drive.run == before and drive.ignored == [1]


def test_R24_the_second_result_has_no_use() -> None:
    drive = Drive().asks("scan", "scan").claim().gives("1.1", 1).gives("1.1", 2)
    assert drive.ignored == [2] and drive.settle() == LegOver()
    assert drive.run.call("1.1").result == ok(1)


def test_R20_a_client_that_says_nothing_in_time_is_answered_as_expired() -> None:
    drive = Drive().asks("poll", "scan")
    face = face_of(drive.run, binding="b", priority=0, at=drive.at)
    assert (face.ready_at, face.care_at) == (T0 + 60_000, T0 + 60_000)
    drive.at = T0 + 60_000
    drive.claim(caretaker=True)
    assert drive.settle() == LegOver() and drive.run.waiting_on == Wait.CLIENT_CALLS, "the other one waits for good"
    face = face_of(drive.run, binding="b", priority=0, at=drive.at)
    assert (face.ready_at, face.care_at) == (None, None)
    assert drive.keys() == ["client:1.1"] and drive.receipts["1.1"].outcome == "expired"
    drive.claim().gives("1.1", "too late").gives("1.2", 1)
    drive.settle()
    assert drive.ignored == [1] and drive.results() == [("1.1", NOBODY_ANSWERED), ("1.2", 1)]
    drive.answer("done").ended()
    assert drive.shown["task_outcome"] == "denied"


# -- questions -----------------------------------------------------------------------------------------------------------


def test_R26_a_question_shows_what_may_be_answered() -> None:
    drive = Drive().asks("ask_user", arguments=QUESTION)
    assert (drive.status, drive.run.waiting_on) == (Status.SUSPENDED, Wait.QUESTIONS)
    asked = {"question_id": "1.1.1", **QUESTION}
    assert drive.of("question") == [asked]
    (item,) = drive.shown["pending"]["questions"]
    assert item == {"tool_call_id": "1.1", "step": 1, "tool_name": "ask_user", "arguments": QUESTION, "expires_at": None, **asked}
    drive.claim().replies("1.1.1", "A-2")
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.results() == [("1.1", "A-2")]
    assert drive.of("question-answered") == [{"question_id": "1.1.1", "answered": True}], "the answer itself is in no such frame"


@pytest.mark.parametrize(
    ("arguments", "free"),
    [
        ({"question": "?"}, True),
        ({"question": "?", "allows_free_text": False}, True),
        ({"question": "?", "choices": ["a"]}, True),
        ({"question": "?", "choices": ["a"], "allows_free_text": False}, False),
    ],
)
def test_R26_a_question_without_choices_takes_any_text(arguments: dict[str, Any], free: bool) -> None:
    assert Drive().asks("ask_user", arguments=arguments).awaited().allows_free_text is free


def test_R26_a_declined_question_is_answered_as_failed() -> None:
    drive = Drive().asks("ask_user", arguments=QUESTION).claim().gets(MailKind.QUESTION, {"question_id": "1.1.1", "declined": True})
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.results() == [("1.1", DECLINED)] and drive.receipts["1.1"].outcome == "failed"
    assert drive.of("question-answered") == [{"question_id": "1.1.1", "answered": False}]
    drive.answer("fine").ended()
    assert drive.shown["task_outcome"] == "resolved", "to decline is an answer"


def test_R20_a_question_that_nobody_answers_expires() -> None:
    drive = Drive().asks("ask_soon", arguments=QUESTION)
    drive.at = T0 + 30_000
    drive.claim(caretaker=True)
    assert drive.settle() == LegOver() and drive.status is Status.QUEUED
    assert drive.keys() == ["question:1.1.1"] and drive.of("question-answered") == [{"question_id": "1.1.1", "answered": False}]
    drive.claim().replies("1.1.1", "A-1")
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.ignored == [1] and drive.results() == [("1.1", NOBODY_ANSWERED)]


def test_R19a_an_answer_that_came_first_beats_the_expiry() -> None:
    drive = Drive().asks("ask_soon", arguments=QUESTION)
    drive.at = T0 + 99_000
    drive.claim().replies("1.1.1", "A-1")
    drive.settle()
    assert drive.results() == [("1.1", "A-1")] and drive.keys() == []


@pytest.mark.parametrize("effect", Effect)
def test_R26_a_tool_that_asks_runs_again_under_the_same_key_with_the_answers(effect: Effect) -> None:
    drive = Drive().running(TOOL_OF[effect])
    drive.ends("1.1", How.ASKS, question="Which one?", choices=("a", "b"))
    assert drive.settle() == LegOver() and drive.run.waiting_on == Wait.QUESTIONS
    (item,) = drive.shown["pending"]["questions"]
    assert (item["question_id"], item["question"], item["choices"], item["allows_free_text"]) == ("1.1.1", "Which one?", ["a", "b"], False)
    drive.claim().replies("1.1.1", "b")
    assert drive.run.call("1.1").stage is CallStage.READY
    assert drive.settle() == Work(start=(RunCall("1.1", 2),))
    assert drive.run.call("1.1").answers == ("b",) and drive.kept()["answers"] == ["b"] and drive.kept()["failures"] == 0
    drive.ends("1.1", How.ASKS, question="And why?")
    assert drive.settle() == LegOver() and drive.awaited().question_id == "1.1.2" and drive.awaited().allows_free_text
    drive.claim().replies("1.1.1", "a")
    assert drive.ignored == [2], "an answered question takes no other answer"
    drive.replies("1.1.2", "because")
    drive.settle()
    drive.crash()
    assert drive.run.call("1.1").answers == ("b", "because")
    if effect.repeatable:
        assert drive.settle() == Work(start=(RunCall("1.1", 4),))
    else:
        assert drive.settle() == LegOver() and drive.effect().attempt == 3, "an answered tool may have had its effect"


def test_R26_a_tool_whose_question_is_declined_does_not_run_again() -> None:
    drive = Drive().running("charge")
    drive.ends("1.1", How.ASKS, question="Which one?")
    drive.settle()
    drive.claim().gets(MailKind.QUESTION, {"question_id": "1.1.1", "declined": True})
    assert drive.settle() == Work(start=(CallModel(2, 1),)) and drive.results() == [("1.1", DECLINED)]
    assert drive.kept()["effect_certain"] is True and drive.run.unknowns == ()


def test_R26_questions_of_several_calls_are_answered_each_for_itself() -> None:
    drive = Drive().asks("ask_user", "ask_user", arguments=QUESTION)
    drive.claim().replies("1.2.1", "A-2")
    assert drive.settle() == LegOver() and [item["question_id"] for item in drive.shown["pending"]["questions"]] == ["1.1.1"]
    drive.claim().replies("1.1.1", "A-1")
    drive.settle()
    assert drive.results() == [("1.1", "A-1"), ("1.2", "A-2")]


# -- timers --------------------------------------------------------------------------------------------------------------


def test_R26_a_timer_sleeps_without_a_worker_and_fires_by_itself() -> None:
    drive = Drive(timeout_seconds=10).asks("durable_wait", arguments={"seconds": 3600})
    assert (drive.status, drive.run.waiting_on) == (Status.SUSPENDED, Wait.TIMERS)
    assert drive.of("timer-started") == [{"tool_call_id": "1.1", "due_at": "2023-11-14T23:13:20.000Z"}]
    (item,) = drive.shown["pending"]["timers"]
    assert (item["tool_call_id"], item["due_at"]) == ("1.1", "2023-11-14T23:13:20.000Z")
    face = face_of(drive.run, binding="b", priority=0, at=drive.at)
    assert (face.ready_at, face.care_at) == (T0 + 3_600_000, T0 + 3_600_000)
    drive.at = T0 + 3_599_999
    drive.claim()
    assert drive.settle() == LegOver() and drive.status is Status.SUSPENDED
    drive.at += 1
    drive.claim()
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.results() == [("1.1", {"waited_seconds": 3600})] and states(drive) == ["waiting", "completed"]
    assert drive.keys() == [], "nobody else could have closed it"
    drive.answer("good morning").ended()
    assert drive.shown["task_outcome"] == "resolved"


def test_R26_a_timer_that_is_due_while_its_leg_still_works_is_closed_there() -> None:
    drive = Drive().asks("durable_wait", "look", arguments={"seconds": 5})
    assert [call.id for call in drive.executing()] == ["1.2"]
    drive.after(5)
    assert drive.settle() == Work(start=(RunCall("1.2", 1),))
    assert drive.run.call("1.1").result == ok({"waited_seconds": 5})


@pytest.mark.parametrize("tool", ["scan", "ask_user", "durable_wait"])
def test_R38_a_call_that_only_waited_is_cancelled_with_its_run(tool: str) -> None:
    drive = Drive().asks(tool, arguments={**QUESTION, "seconds": 60}).claim(caretaker=True).gets()
    drive.ended()
    assert drive.stopped == ("cancelled", [("1.1", "cancelled")]) and drive.results() == [("1.1", CANCELLED)]
    assert drive.kept()["effect_certain"] is True
