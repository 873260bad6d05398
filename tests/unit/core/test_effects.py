"""What becomes of a call after an attempt: every effect, every way an attempt can end (semantics, section 4)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import Status
from runward.core.kernel.records import Stage
from runward.core.runs.calls import AFTER, CallStage, Effect, How, Then, after, backoff_ms
from runward.core.runs.decide import CallModel, LegOver, Project, RunCall, Work
from runward.core.runs.facts import AttemptEnded, CheckpointSaved, Mark
from runward.core.runs.sentences import CANCELLED, NOT_STARTED, TIMED_OUT, UNCERTAIN, UNEXPECTED, UNKNOWN_TO_MODEL
from runward.core.runs.state import RunState
from runward.core.runs.waits import Wait
from tests.unit.core.driving import Drive, ok
from tests.unit.core.tooling import TOOL_OF

REPEATABLE = (Effect.READ, Effect.IDEMPOTENT_WRITE)
OTHERS = (Effect.NON_IDEMPOTENT_WRITE, Effect.UNCLASSIFIED)

WANTED = {
    How.RETURNED: ("complete", "complete"),
    How.ASKS: ("ask", "ask"),
    How.TOOL_ERROR: ("fail", "fail"),
    How.BAD_RESULT: ("fail", "fail"),
    How.RAISED: ("try_again", "fail_uncertain"),
    How.TIMED_OUT: ("try_again", "unknown"),
    How.CANNOT_TELL: ("try_again", "unknown"),
    How.CANCELLED: ("cancel", "unknown"),
    How.ABANDONED: ("start_over", "unknown"),
    How.LOST: ("start_over", "unknown"),
    How.NOT_STARTED: ("start_over", "start_over"),
}
"""The table as the rules say it, written down a second time by hand."""

CELLS = [(effect, how) for effect in Effect for how in How]

BECOMES = {
    Then.COMPLETE: ("ended", None),
    Then.ASK: ("waiting", None),
    Then.FAIL: ("ended", None),
    Then.FAIL_UNCERTAIN: ("ended", "failed"),
    Then.TRY_AGAIN: ("ready", None),
    Then.START_OVER: ("ready", None),
    Then.UNKNOWN: ("unknown", None),
    Then.CANCEL: ("ended", "cancelled"),
}


def with_calls(drive: Drive, **differing: Any) -> RunState:
    """The run, with each of its calls changed."""
    return replace(drive.run, turn=tuple(replace(call, **differing) for call in drive.run.turn))


def detail(drive: Drive, call_id: str = "1.1") -> dict[str, Any]:
    """What the receipt of a call keeps beside its columns."""
    kept: dict[str, Any] = json.loads(drive.receipts[call_id].detail)
    return kept


def test_R13_and_R16_the_table_has_a_row_for_every_ending() -> None:
    assert {how: (row.repeatable.value, row.others.value) for how, row in AFTER.items()} == WANTED
    assert AFTER.keys() == set(How)


@pytest.mark.parametrize(("effect", "how"), CELLS)
def test_R13_and_R16_every_cell_is_what_happens_to_the_call(effect: Effect, how: How) -> None:
    drive = Drive().running(TOOL_OF[effect])
    drive.ends("1.1", how)
    stage, outcome = BECOMES[after(effect, how)]
    call = drive.run.call("1.1")
    assert call.stage == stage
    if outcome is not None:
        assert call.result is not None and call.result.outcome == outcome
    assert bool(drive.run.unknowns) is (stage == "unknown")
    assert call.ran is (how is not How.NOT_STARTED)


@pytest.mark.parametrize("how", [How.RETURNED, How.TOOL_ERROR, How.BAD_RESULT])
@pytest.mark.parametrize("effect", Effect)
def test_R16_what_the_tool_itself_said_is_recorded_as_it_is(effect: Effect, how: How) -> None:
    drive = Drive().running(TOOL_OF[effect])
    drive.ends("1.1", how)
    receipt = drive.receipts["1.1"]
    failed = how is not How.RETURNED
    assert (receipt.stage, receipt.is_error, receipt.attempt) == (Stage.FAILED if failed else Stage.COMPLETED, failed, 1)
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    wanted = {How.RETURNED: "ok", How.TOOL_ERROR: "on hold", How.BAD_RESULT: "not JSON"}[how]
    assert drive.results() == [("1.1", wanted)] and json.loads(receipt.output or "") == wanted


@pytest.mark.parametrize("how", [How.RETURNED, How.TOOL_ERROR, How.BAD_RESULT])
def test_R49_an_outcome_without_a_result_is_a_bug(how: How) -> None:
    drive = Drive().running("look")
    with pytest.raises(InvariantViolated):
        drive.apply(AttemptEnded(at=drive.at, call_id="1.1", attempt=1, how=how))


@pytest.mark.parametrize("effect", OTHERS)
def test_R16_an_unexpected_failure_of_a_dangerous_effect_is_told_as_uncertain(effect: Effect) -> None:
    drive = Drive().running(TOOL_OF[effect])
    drive.ends("1.1", How.RAISED)
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.results() == [("1.1", UNCERTAIN)]
    assert (drive.receipts["1.1"].outcome, detail(drive)["effect_certain"]) == ("failed", False)
    assert drive.run.unknowns == ()


# -- tried again ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", REPEATABLE)
@pytest.mark.parametrize(("how", "outcome", "text"), [(How.RAISED, "failed", UNEXPECTED), (How.TIMED_OUT, "timed_out", TIMED_OUT)])
def test_R16_a_repeatable_call_is_tried_three_times_with_backoff(effect: Effect, how: How, outcome: str, text: str) -> None:
    drive = Drive().running(TOOL_OF[effect])
    for attempt, wait in ((1, 250), (2, 500)):
        drive.ends("1.1", how)
        assert drive.settle() == Work(start=(RunCall("1.1", attempt + 1, drive.at + wait),))
        receipt = drive.receipts["1.1"]
        assert (receipt.stage, receipt.attempt, detail(drive)["failures"]) == (Stage.EXECUTING, attempt + 1, attempt)
        drive.after(wait / 1000)
    drive.ends("1.1", how)
    receipt = drive.receipts["1.1"]
    assert (receipt.stage, receipt.attempt, receipt.outcome, detail(drive)["failures"]) == (Stage.FAILED, 3, outcome, 3)
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.results() == [("1.1", text)]
    assert [frame["state"] for frame in drive.of("tool-state")] == ["executing", "executing", "executing", "failed"]


def test_R16_max_attempts_are_the_tools_own_as_they_were_when_the_call_was_stored() -> None:
    drive = Drive().running("look")
    drive.run = with_calls(drive, max_attempts=1)
    drive.ends("1.1", How.RAISED)
    assert drive.run.call("1.1").stage is CallStage.ENDED and drive.receipts["1.1"].outcome == "failed"


def test_R16_a_good_attempt_after_bad_ones_is_the_outcome() -> None:
    drive = Drive().running("note")
    drive.ends("1.1", How.CANNOT_TELL)
    drive.settle()
    drive.ends("1.1", How.RETURNED, ok({"noted": 1}))
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.results() == [("1.1", {"noted": 1})]
    assert (drive.receipts["1.1"].attempt, detail(drive)["failures"], detail(drive)["effect_certain"]) == (2, 1, True)


def test_R16_backoff_doubles_from_a_quarter_of_a_second_to_ten() -> None:
    assert [backoff_ms(n) for n in range(1, 9)] == [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]
    assert (backoff_ms(0), backoff_ms(2_000)) == (250, 10_000)


@pytest.mark.parametrize("how", [How.RAISED, How.TIMED_OUT, How.CANNOT_TELL, How.CANCELLED])
def test_R16_what_a_write_left_behind_when_it_was_given_up_is_not_certain(how: How) -> None:
    for tool, wanted in (("look", True), ("note", False)):
        drive = Drive().running(tool)
        drive.run = with_calls(drive, max_attempts=1)
        drive.ends("1.1", how)
        assert drive.run.call("1.1").stage is CallStage.ENDED
        assert detail(drive)["effect_certain"] is wanted


# -- unknown effects -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", OTHERS)
@pytest.mark.parametrize("how", [How.TIMED_OUT, How.CANNOT_TELL])
def test_R13_an_unknown_effect_suspends_the_run_and_is_listed(effect: Effect, how: How) -> None:
    drive = Drive().running(TOOL_OF[effect], arguments={"order": 7})
    drive.after(3)
    drive.ends("1.1", how)
    assert drive.settle() == LegOver()
    assert (drive.status, drive.run.waiting_on) == (Status.SUSPENDED, Wait.UNKNOWN_EFFECTS)
    assert drive.shown["task_outcome"] == "needs_reconciliation"
    assert drive.shown["pending"]["unknown_effects"] == [
        {
            "tool_call_id": "1.1",
            "step": 1,
            "tool_name": TOOL_OF[effect],
            "effect": effect.value,
            "arguments": {"order": 7},
            "idempotency_key": f"{drive.run.uid}/1.1",
            "attempt": 1,
            "started_at": "2023-11-14T22:13:20.000Z",
            "worker": "worker-1",
            "evidence_required": False,
            "evidence_refused": None,
            "probe": None,
        }
    ]
    receipt = drive.receipts["1.1"]
    assert (receipt.stage, receipt.outcome, receipt.output, detail(drive)["effect_certain"]) == (Stage.EXECUTING, "unknown", None, False)
    assert drive.of("tool-state")[-1] == {"tool_call_id": "1.1", "tool_name": TOOL_OF[effect], "state": "unknown", "attempt": 1}
    assert drive.results() == []


def test_R13_tell_model_answers_the_model_and_goes_on() -> None:
    drive = Drive().running("ship")
    drive.ends("1.1", How.TIMED_OUT)
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.results() == [("1.1", UNKNOWN_TO_MODEL)]
    (unknown,) = drive.run.unknowns
    assert unknown.told and unknown.tool_call_id == "1.1"
    assert (drive.receipts["1.1"].stage, drive.receipts["1.1"].outcome, detail(drive)["effect_certain"]) == (Stage.FAILED, "unknown", False)
    assert [frame["state"] for frame in drive.of("tool-state")] == ["executing", "unknown"]
    drive.answer("on its way").ended()
    assert (drive.status, drive.shown["task_outcome"]) == (Status.COMPLETED, "needs_reconciliation")


def test_R13_siblings_of_an_unknown_effect_finish_first() -> None:
    drive = Drive().running("charge", "look")
    drive.ends("1.1", How.CANNOT_TELL)
    assert drive.settle() == Work(start=(RunCall("1.2", 1),))
    drive.ends("1.2", How.RETURNED)
    assert drive.settle() == LegOver() and drive.status is Status.SUSPENDED
    assert drive.run.call("1.2").stage is CallStage.ENDED and drive.results() == []


# -- a worker that died --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", REPEATABLE)
def test_R13_a_repeatable_call_found_executing_runs_again_under_the_same_key(effect: Effect) -> None:
    drive = Drive().running(TOOL_OF[effect]).crash()
    assert drive.settle() == Work(start=(RunCall("1.1", 2),))
    receipt = drive.receipts["1.1"]
    assert (receipt.stage, receipt.attempt, detail(drive)["failures"], detail(drive)["worker"]) == (Stage.EXECUTING, 2, 0, "worker-2")


def test_R13_being_lost_is_no_failure_of_the_tool_however_often_it_happens() -> None:
    drive = Drive().running("look")
    for attempt in range(2, 8):
        drive.crash()
        assert drive.settle() == Work(start=(RunCall("1.1", attempt),))
    drive.ends("1.1", How.RETURNED)
    assert drive.settle() == Work(start=(CallModel(2, 1),))


@pytest.mark.parametrize("effect", OTHERS)
def test_R13_another_call_found_executing_is_an_unknown_effect(effect: Effect) -> None:
    drive = Drive().running(TOOL_OF[effect]).crash()
    assert drive.settle() == LegOver() and drive.status is Status.SUSPENDED
    (unknown,) = drive.run.unknowns
    assert (unknown.attempt, unknown.worker, unknown.effect) == (1, "worker-1", effect)


def test_R13_a_lost_call_that_tells_the_model_does_so() -> None:
    drive = Drive().running("ship").crash()
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.results() == [("1.1", UNKNOWN_TO_MODEL)]


def test_R12_siblings_with_a_recorded_outcome_are_answered_from_their_receipts_after_a_crash() -> None:
    drive = Drive(max_parallel_tools=3).running("charge", "look", "charge")
    drive.ends("1.1", How.RETURNED, ok("charged once"))
    drive.settle()
    drive.crash()
    assert drive.settle() == Work(start=(RunCall("1.2", 2),))
    drive.ends("1.2", How.RETURNED, ok("seen"))
    assert drive.settle() == LegOver()
    assert [effect.tool_call_id for effect in drive.run.unknowns] == ["1.3"]
    first = drive.run.call("1.1")
    assert first.stage is CallStage.ENDED and first.result == ok("charged once")


def test_R13_a_call_that_was_never_marked_simply_starts_after_a_crash() -> None:
    drive = Drive(max_parallel_tools=1)
    drive.running("charge", "charge")
    assert [call.id for call in drive.executing()] == ["1.1"]
    drive.crash()
    assert drive.settle() == Work(start=(RunCall("1.2", 1),))
    drive.ends("1.2", How.RETURNED)
    assert drive.settle() == LegOver() and [effect.tool_call_id for effect in drive.run.unknowns] == ["1.1"]


def test_R13_an_outcome_that_was_not_saved_is_lost_with_its_worker() -> None:
    drive = Drive().running("charge")
    drive.ends("1.1", How.RETURNED)
    drive.crash()
    assert drive.settle() == LegOver() and drive.receipts["1.1"].outcome == "unknown"


# -- the projection ------------------------------------------------------------------------------------------------------


def test_R12_a_raw_result_is_stored_first_and_projected_after_a_crash_without_a_second_effect() -> None:
    drive = Drive().running("bill")
    drive.ends("1.1", How.RETURNED, raw={"total": 5})
    assert drive.settle() == Work(start=(Project("1.1"),))
    receipt = drive.receipts["1.1"]
    assert (receipt.stage, receipt.raw, receipt.output, receipt.attempt) == (Stage.EXECUTED, '{"total":5}', None, 1)
    drive.crash()
    assert drive.settle() == Work(start=(Project("1.1"),))
    assert drive.run.call("1.1").raw == {"total": 5}
    drive.projects("1.1", "five")
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    receipt = drive.receipts["1.1"]
    assert (receipt.stage, receipt.raw, receipt.output, receipt.attempt) == (Stage.COMPLETED, '{"total":5}', '"five"', 1)
    assert drive.results() == [("1.1", "five")]
    assert [frame["output"] for frame in drive.of("tool-output")] == ["five"]


def test_R12_a_tool_that_projects_may_fail_like_any_other() -> None:
    drive = Drive().running("paint")
    drive.ends("1.1", How.TOOL_ERROR)
    assert drive.run.call("1.1").stage is CallStage.ENDED
    assert drive.settle() == Work(start=(CallModel(2, 1),))


def test_R12_a_recorded_call_never_runs_again() -> None:
    drive = Drive().running("charge", "look")
    drive.ends("1.1", How.RETURNED)
    drive.settle()
    for fact in (
        Mark(at=drive.at, call_ids=("1.1",)),
        AttemptEnded(at=drive.at, call_id="1.1", attempt=1, how=How.RETURNED, result=ok("another")),
        AttemptEnded(at=drive.at, call_id="1.1", attempt=1, how=How.LOST),
    ):
        with pytest.raises(InvariantViolated):
            drive.apply(fact)


def test_R49_only_the_attempt_under_way_can_end() -> None:
    drive = Drive().running("look")
    for call_id, attempt in (("1.1", 0), ("1.1", 2), ("1.2", 1), ("9.9", 1)):
        with pytest.raises(InvariantViolated):
            drive.apply(AttemptEnded(at=drive.at, call_id=call_id, attempt=attempt, how=How.RETURNED, result=ok()))


# -- checkpoints ---------------------------------------------------------------------------------------------------------


def checkpoint(drive: Drive, text: str, *, attempt: int = 1, call_id: str = "1.1") -> None:
    drive.apply(CheckpointSaved(at=drive.at, call_id=call_id, attempt=attempt, text=text))


def test_R13_a_later_attempt_reads_the_checkpoint_of_an_earlier_one() -> None:
    drive = Drive().running("note")
    checkpoint(drive, "page 3")
    drive.settle()
    assert detail(drive)["checkpoint"] == "page 3"
    drive.crash()
    drive.settle()
    assert (drive.run.call("1.1").checkpoint, detail(drive)["checkpoint"]) == ("page 3", "page 3")


@pytest.mark.parametrize(("call_id", "attempt"), [("1.1", 2), ("1.1", 0), ("1.9", 1)])
def test_R13_a_checkpoint_that_comes_too_late_is_dropped(call_id: str, attempt: int) -> None:
    drive = Drive().running("note")
    before = drive.run
    checkpoint(drive, "late", attempt=attempt, call_id=call_id)
    assert drive.run == before
    drive.ends("1.1", How.RETURNED)
    before = drive.run
    checkpoint(drive, "later", attempt=1)
    assert drive.run == before and "checkpoint" not in detail(drive)


def test_the_words_a_model_reads_differ() -> None:
    words = (UNEXPECTED, UNCERTAIN, UNKNOWN_TO_MODEL, TIMED_OUT, CANCELLED, NOT_STARTED)
    assert len(set(words)) == len(words)
