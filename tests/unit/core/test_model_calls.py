"""Model calls: reserved before they start, tried again, taken back when they are lost (R30, R32, the reservation of R33)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import Status
from runward.core.runs.answers import LONGEST_RETRY_AFTER_MS
from runward.core.runs.calls import How
from runward.core.runs.decide import CallModel, ChooseModel, LegOver, Work
from runward.core.runs.facts import Broke, ModelBrokenOff, ModelChosen, ModelFailed, Reserve
from runward.core.runs.state import Reservation
from runward.core.usage import Usage
from tests.unit.core.driving import Drive
from tests.unit.core.tooling import asked

START = ("start-step", 1, 1)


def steps(drive: Drive) -> list[tuple[str, int, int | None]]:
    """What the frames say of steps: type, step, attempt."""
    return [(f.type, f.fields["step"], f.fields.get("attempt")) for f in drive.frames if f.type.endswith("-step")]


# -- the reservation -----------------------------------------------------------------------------------------------------


def test_R32_the_reservation_made_at_creation_is_the_first_legs_own() -> None:
    drive = Drive()
    assert drive.run.reservation == Reservation(step=1, attempt=1, leg=0, prompt=2, output=4096) and drive.run.step == 0
    drive.claim()
    assert drive.settle() == Work(start=(CallModel(1, 1),))
    assert drive.run.reservation == Reservation(step=1, attempt=1, leg=1, prompt=2, output=4096)
    assert steps(drive) == [START]
    drive.answer("hi").ended()
    assert steps(drive) == [START, ("finish-step", 1, None)] and drive.run.lost_model_calls == 0


def test_R32_a_reservation_left_open_is_taken_back_first() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.crash()
    assert drive.types()[-2:] == ["data-agent", "reset-step"]
    assert drive.settle() == Work(start=(CallModel(1, 2),))
    assert steps(drive) == [START, ("reset-step", 1, 1), ("start-step", 1, 2)]
    assert (drive.run.lost_model_calls, drive.run.usage.model_calls) == (1, 1)


def test_R32_a_first_leg_that_died_before_it_said_anything_leaves_its_reservation_open_too() -> None:
    drive = Drive()
    drive.leg = 1
    drive.claim(recovered=True)
    assert steps(drive) == [("reset-step", 1, 1)]
    assert drive.settle() == Work(start=(CallModel(1, 2),))


def test_R32_a_step_keeps_its_number_over_all_attempts_and_crashes() -> None:
    drive = Drive().claim()
    for attempt in range(1, 6):
        assert drive.settle() == Work(start=(CallModel(1, attempt),))
        drive.crash()
    drive.settle()
    drive.answer("", asked("look"))
    drive.settle()
    drive.screen()
    drive.settle()
    assert [call.id for call in drive.run.turn] == ["1.1"]


def test_R32_after_an_answer_a_crash_costs_no_model_call() -> None:
    drive = Drive().running("look")
    drive.crash()
    drive.settle()
    assert (drive.run.step, drive.run.attempt, drive.run.reservation, drive.run.lost_model_calls) == (1, 1, None, 0)
    assert "reset-step" not in drive.types()


def test_R33_a_reservation_is_made_before_each_call_and_settled_by_its_answer() -> None:
    drive = Drive().running("look")
    drive.ends("1.1", How.RETURNED)
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.run.reservation == Reservation(step=2, attempt=1, leg=1, prompt=15 + 2, output=4096), "what it counted, and the result"
    run = drive.answer("done", usage=Usage(input_tokens=3, output_tokens=4)).run
    assert run.reservation is None
    assert run.usage == Usage(input_tokens=13, output_tokens=9, model_calls=2)


def test_R49_no_second_reservation_beside_an_open_one_or_a_turn() -> None:
    drive = Drive().claim()
    with pytest.raises(InvariantViolated):
        drive.apply(Reserve(at=drive.at))
    drive = Drive().running("look")
    with pytest.raises(InvariantViolated):
        drive.apply(Reserve(at=drive.at))


@pytest.mark.parametrize(("step", "attempt"), [(1, 2), (2, 1), (0, 0)])
def test_R49_only_the_call_under_way_can_be_answered_fail_or_be_broken_off(step: int, attempt: int) -> None:
    drive = Drive().claim()
    drive.settle()
    run = drive.run
    drive.run = replace(run, step=step, attempt=attempt)
    for happens in (drive.answer, drive.fails, drive.broken_off):
        with pytest.raises(InvariantViolated):
            happens()


def test_R49_an_answer_of_an_earlier_leg_is_refused() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.run = replace(drive.run, leg=2)
    with pytest.raises(InvariantViolated):
        drive.answer("from the grave")


# -- failures ------------------------------------------------------------------------------------------------------------


def test_R30_a_passing_fault_is_tried_again_with_backoff_then_fails_the_run() -> None:
    drive = Drive(model_retries=2).claim()
    drive.settle()
    for attempt, wait in ((1, 500), (2, 1000)):
        drive.fails()
        assert drive.settle() == Work(start=(CallModel(1, attempt + 1, drive.at + wait),))
        drive.after(wait / 1000)
    drive.fails().ended()
    error = drive.shown["error"]
    assert (drive.status, error["code"], error["transient"]) == (Status.FAILED, "model_error", True)
    assert error["details"] == {"kind": "server_error", "step": 1} and error["message"] == "The provider failed."
    assert steps(drive) == [
        ("start-step", 1, 1),
        ("reset-step", 1, 1),
        ("start-step", 1, 2),
        ("reset-step", 1, 2),
        ("start-step", 1, 3),
        ("reset-step", 1, 3),
    ]
    assert drive.shown["steps"] == 1


def test_R30_retries_are_counted_over_legs() -> None:
    drive = Drive(model_retries=1).claim()
    drive.settle()
    drive.fails()
    drive.settle()
    drive.crash()
    drive.settle()
    drive.fails().ended()
    assert drive.shown["error"]["transient"] is True


def test_R30_an_answer_forgets_the_failures_before_it() -> None:
    drive = Drive(model_retries=1).claim()
    drive.settle()
    drive.fails()
    drive.settle()
    drive.answer("", asked("nope"))
    drive.settle()
    drive.screen()
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    drive.fails()
    assert isinstance(drive.settle(), Work)
    drive.fails().ended()


def test_R30_a_lasting_fault_fails_the_run_at_once() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.fails(transient=False, code="auth", message="The key was refused.").ended()
    assert drive.shown["error"] == {
        "code": "model_error",
        "message": "The key was refused.",
        "transient": False,
        "details": {"kind": "auth", "step": 1},
    }


def test_R30_a_stream_broken_off_after_content_is_not_tried_again_but_may_be_retried() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.fails(after_content=True, code="cut_off", billed=True).ended()
    assert drive.shown["error"]["transient"] is True and steps(drive)[-1] == ("reset-step", 1, 1)


@pytest.mark.parametrize(
    ("asks", "waits"), [(None, 500), (0, 500), (499, 500), (7_000, 7_000), (LONGEST_RETRY_AFTER_MS, LONGEST_RETRY_AFTER_MS)]
)
def test_R30_a_provider_may_ask_for_patience(asks: int | None, waits: int) -> None:
    drive = Drive().claim()
    drive.settle()
    drive.fails(code="rate_limited", retry_after_ms=asks)
    assert drive.settle() == Work(start=(CallModel(1, 2, drive.at + waits),))


def test_R30_a_provider_that_asks_for_too_much_patience_fails_the_run_as_transient() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.fails(code="rate_limited", retry_after_ms=LONGEST_RETRY_AFTER_MS + 1).ended()
    assert drive.shown["error"]["transient"] is True


def test_R30_patience_the_provider_asked_for_outlives_the_leg() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.fails(retry_after_ms=30_000)
    due = drive.at + 30_000
    assert drive.settle() == Work(start=(CallModel(1, 2, due),))
    drive.after(1).drain(hurried=True)
    assert drive.settle() == Work(stop=(CallModel(1, 2, due),))
    drive.broken_off(started=False)
    assert drive.settle() == LegOver() and drive.status is Status.QUEUED
    drive.claim()
    assert drive.settle() == Work(start=(CallModel(1, 3, due),))


@pytest.mark.parametrize(("billed", "lost"), [(False, 0), (True, 1)])
def test_R30_the_failed_call_stays_counted_and_its_cost_is_unknown_if_the_provider_may_bill_it(billed: bool, lost: int) -> None:
    drive = Drive().claim()
    drive.settle()
    drive.fails(billed=billed)
    assert (drive.run.usage.model_calls, drive.run.lost_model_calls) == (1, lost)


@pytest.mark.parametrize(("started", "calls"), [(True, 1), (False, 0)])
def test_R32_a_call_the_service_broke_off_is_taken_back_and_counted_once_it_was_sent(started: bool, calls: int) -> None:
    drive = Drive().claim()
    drive.settle()
    drive.gets()
    drive.broken_off(started=started).ended()
    assert steps(drive) == [START, ("reset-step", 1, 1)]
    assert drive.types()[-3:] == ["reset-step", "finish", "data-agent"]
    assert (drive.run.usage.model_calls, drive.run.lost_model_calls) == (calls, calls)


def test_R32_a_call_broken_off_without_a_reason_is_asked_again() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.apply(ModelBrokenOff(at=drive.at, step=1, attempt=1, started=True))
    assert drive.settle() == Work(start=(CallModel(1, 2),))


def test_the_run_breaks_when_the_agents_own_code_does() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.apply(Broke(at=drive.at, code="internal", message="The agent's function failed.", details={"function": "instructions"}))
    assert drive.settle() == Work(stop=(CallModel(1, 1),)), "what was begun is accounted for first"
    drive.broken_off(started=False).ended()
    assert drive.shown["error"] == {
        "code": "internal",
        "message": "The agent's function failed.",
        "transient": False,
        "details": {"function": "instructions"},
    }


# -- choosing the model --------------------------------------------------------------------------------------------------


def test_the_model_is_chosen_once_before_the_first_call() -> None:
    drive = Drive(model=None).claim()
    assert drive.settle() == Work(start=(ChooseModel(),))
    drive.apply(ModelChosen(at=drive.at, model="test:large"))
    assert drive.settle() == Work(start=(CallModel(1, 1),))
    drive.crash()
    assert drive.settle() == Work(start=(CallModel(1, 2),)) and drive.run.model == "test:large"
    assert [frame.get("model") for frame in drive.of("start-step")] == [None, "test:large"]


# -- max_steps -----------------------------------------------------------------------------------------------------------


def test_R10_max_steps_counts_model_calls_and_the_last_turn_still_runs() -> None:
    drive = Drive(max_steps=1).running("look")
    drive.ends("1.1", How.RETURNED)
    drive.ended()
    assert (drive.status, drive.stopped) == (Status.STOPPED, ("max_steps", []))
    assert drive.results() == [("1.1", "ok")] and drive.shown["steps"] == 1


def test_R10_further_attempts_of_the_last_step_are_allowed() -> None:
    drive = Drive(max_steps=1).claim()
    drive.settle()
    drive.crash()
    assert drive.settle() == Work(start=(CallModel(1, 2),))
    drive.fails()
    assert isinstance(drive.settle(), Work)
    drive.answer("in time").ended()
    assert drive.status is Status.COMPLETED


def test_a_late_failure_is_refused_like_a_late_answer() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.answer("", asked("look"))
    with pytest.raises(InvariantViolated):
        drive.apply(
            ModelFailed(
                at=drive.at, step=1, attempt=1, code="x", message="x", transient=True, billed=True, after_content=True, retry_after_ms=None
            )
        )
