"""A model turn: its calls get ids, are announced, run within the bound and are answered once, in the model's order."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import Status
from runward.core.kernel.records import Stage
from runward.core.messages import ReasoningPart, TextPart, ToolCallPart
from runward.core.runs.calls import CallStage, Effect, How, Result
from runward.core.runs.decide import CallModel, LegOver, RunCall, Screen, Work
from runward.core.runs.facts import CallAsked, CloseTurn, Mark, Screened, Screening
from runward.core.runs.sentences import CUT_OFF
from tests.unit.core.driving import Drive, ok
from tests.unit.core.tooling import TOOLS, asked


def answered(*calls: CallAsked, **limits: Any) -> Drive:
    """A run whose first answer is stored and not yet screened."""
    drive = Drive(**limits).claim()
    drive.settle()
    return drive.answer("let me see", *calls)


# -- ids -----------------------------------------------------------------------------------------------------------------


def test_R17_calls_get_ids_of_our_own_whatever_the_provider_calls_them() -> None:
    drive = answered(asked("look", id="call_1"), asked("note", id="call_1"), asked("look", id=""))
    assert [call.id for call in drive.run.turn] == ["1.1", "1.2", "1.3"]
    assert [call.provider_id for call in drive.run.turn] == ["call_1", "call_1", ""]
    drive.settle()
    drive.screen()
    drive.settle()
    for call_id in ("1.1", "1.2", "1.3"):
        drive.ends(call_id, How.RETURNED)
    drive.settle()
    drive.answer("", asked("look", id="call_1"))
    assert [call.id for call in drive.run.turn] == ["2.1"]
    assert [(call.step, call.position) for call in drive.run.turn] == [(2, 1)]


def test_R17_the_provider_id_is_kept_to_answer_the_provider_and_shown_nowhere() -> None:
    drive = answered(asked("look", id="toolu_secret"))
    drive.settle()
    drive.screen()
    drive.settle()
    assert json.loads(drive.receipts["1.1"].detail)["provider_id"] == "toolu_secret"
    assert "toolu_secret" not in repr(drive.frames) and "toolu_secret" not in repr(drive.messages)


# -- what is announced ---------------------------------------------------------------------------------------------------


def test_R17_calls_are_announced_as_the_model_issued_them_in_its_order() -> None:
    drive = answered(asked("note", {"b": 1.0, "a": [1]}), asked("look", "{bad"))
    drive.settle()
    drive.screen()
    assert drive.of("tool-call") == [
        {
            "step": 1,
            "tool_call_id": "1.1",
            "tool_name": "note",
            "arguments": {"b": 1.0, "a": [1]},
            "effect": "idempotent_write",
            "requires_approval": False,
        },
        {"step": 1, "tool_call_id": "1.2", "tool_name": "look", "arguments": "{bad", "effect": "read", "requires_approval": False},
    ]


def test_the_answer_is_stored_as_reasoning_text_and_calls() -> None:
    drive = Drive().claim()
    drive.settle()
    drive.answer("let me see", asked("look", {"order": 7}), asked("nope", "{bad"), reasoning="hm")
    message = drive.messages[-1]
    assert (message.seq, message.role, message.step) == (2, "assistant", 1)
    assert message.content == (
        ReasoningPart(text="hm"),
        TextPart(text="let me see"),
        ToolCallPart(tool_call_id="1.1", tool_name="look", arguments={"order": 7}),
        ToolCallPart(tool_call_id="1.2", tool_name="nope", arguments="{bad"),
    )


# -- refused calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "offered", "outcome"),
    [
        ("no_such_tool", {}, False, "unknown_tool"),
        ("Look", {}, False, "unknown_tool"),
        ("look ", {}, False, "unknown_tool"),
        ("", {}, False, "unknown_tool"),
        ("look", {}, False, "unknown_tool"),
        ("look", "[1]", True, "invalid_arguments"),
        ("look", "nonsense", True, "invalid_arguments"),
    ],
)
def test_R17_a_refused_call_is_an_error_the_model_reads(name: str, arguments: object, offered: bool, outcome: str) -> None:
    drive = answered(asked(name, arguments, offered=offered))
    drive.settle()
    drive.screen()
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    receipt = drive.receipts["1.1"]
    assert (receipt.stage, receipt.outcome, receipt.attempt, receipt.started_at, receipt.is_error) == (Stage.FAILED, outcome, 0, None, True)
    (output,) = drive.of("tool-output")
    assert (output["outcome"], output["is_error"], output["tool_call_id"]) == (outcome, True, "1.1")
    assert drive.of("tool-state") == []
    (result,) = drive.messages[-1].tool_results
    assert result.is_error and result.output == output["output"]


def test_R17_good_siblings_of_a_refused_call_run() -> None:
    drive = answered(asked("nope"), asked("charge", {"order": 7}), asked("look", "{"))
    drive.settle()
    drive.screen()
    assert drive.settle() == Work(start=(RunCall("1.2", 1),))
    drive.ends("1.2", How.RETURNED)
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert [call_id for call_id, _ in drive.results()] == ["1.1", "1.2", "1.3"]


def test_R17_an_unknown_tool_has_no_effect_to_show() -> None:
    drive = answered(asked("nope"))
    drive.settle()
    drive.screen()
    assert drive.of("tool-call") == [{"step": 1, "tool_call_id": "1.1", "tool_name": "nope", "arguments": {}}]


def test_R12_a_refused_call_survives_a_crash_like_any_other() -> None:
    drive = answered(asked("nope"), asked("charge"))
    drive.settle()
    drive.screen()
    drive.settle()
    drive.crash()
    drive.settle()
    first = drive.run.call("1.1")
    assert first.result is not None and (first.stage, first.result.outcome) == (CallStage.ENDED, "unknown_tool")


def test_R49_nothing_is_admitted_without_a_tool_or_a_screening() -> None:
    drive = answered(asked("look"), asked("look"))
    one = Screening(call_id="1.1", traits=TOOLS["look"], arguments="{}", refusal=None)
    with pytest.raises(InvariantViolated):
        drive.apply(Screened(at=drive.at, screenings=(one,)))
    bare = Screening(call_id="1.2", traits=None, arguments="{}", refusal=None)
    with pytest.raises(InvariantViolated):
        drive.apply(Screened(at=drive.at, screenings=(one, bare)))


def test_screening_twice_changes_nothing() -> None:
    """A leg that dies screens again: nothing is announced or admitted a second time."""
    drive = answered(asked("look"), asked("nope"))
    drive.settle()
    drive.screen()
    before, frames = drive.run, [*drive.frames]
    drive.screen()
    assert (drive.run, drive.frames) == (before, frames)


# -- the turn runs -------------------------------------------------------------------------------------------------------


def test_R13_executing_is_saved_with_its_receipt_before_the_call_starts() -> None:
    drive = answered(asked("charge", '{"order" : 7}'))
    assert drive.settle() == Work(start=(Screen(1),))
    drive.screen()
    assert drive.next_move() == Mark(at=drive.at, call_ids=("1.1",))
    drive.apply(drive.next_move())
    receipt = drive.receipts["1.1"]
    assert (receipt.stage, receipt.attempt, receipt.arguments) == (Stage.EXECUTING, 1, '{"order":7}')
    assert receipt.effect == "non_idempotent_write"
    assert (receipt.started_at, receipt.ended_at, receipt.output, receipt.outcome) == (drive.at, None, None, None)
    assert json.loads(receipt.detail)["worker"] == "worker-1"
    assert drive.settle() == Work(start=(RunCall("1.1", 1),))


def test_R17a_the_arguments_that_run_stay_on_the_receipt_when_the_state_drops_them() -> None:
    drive = answered(asked("charge", '{"order" : 7}'))
    drive.settle()
    drive.screen()
    drive.settle()
    assert drive.run.call("1.1").arguments == '{"order":7}'
    drive.ends("1.1", How.RETURNED)
    assert (drive.run.call("1.1").arguments, drive.receipts["1.1"].arguments) == ("", '{"order":7}')


def test_R17a_traits_are_those_of_the_screening_for_the_whole_life_of_the_call() -> None:
    drive = answered(asked("charge"))
    drive.settle()
    drive.screen()
    call = drive.run.call("1.1")
    assert (call.effect, call.timeout_seconds, call.max_attempts, call.on_unknown) == (Effect.NON_IDEMPOTENT_WRITE, 60, 3, "reconcile")
    drive.settle()
    drive.crash()
    assert drive.run.call("1.1").effect is Effect.NON_IDEMPOTENT_WRITE


def test_calls_run_together_up_to_the_bound_in_the_models_order() -> None:
    """Station 6: at most `max_parallel_tools` at once; the next starts when one ends, marked by a commit of its own (station 5)."""
    drive = answered(*(asked("look") for _ in range(5)), max_parallel_tools=2)
    drive.settle()
    drive.screen()
    assert drive.settle() == Work(start=(RunCall("1.1", 1), RunCall("1.2", 1)))
    assert drive.receipts.keys() == {"1.1", "1.2"}
    drive.ends("1.2", How.RETURNED)
    assert drive.settle() == Work(start=(RunCall("1.1", 1), RunCall("1.3", 1)))
    assert drive.receipts.keys() == {"1.1", "1.2", "1.3"}
    drive.ends("1.1", How.RAISED)
    drive.ends("1.3", How.RETURNED)
    work = drive.settle()
    assert isinstance(work, Work) and len(work.start) == 2 == len(drive.executing())


@pytest.mark.parametrize("order", [*permutations(("1.1", "1.2", "1.3"))])
def test_R17b_results_enter_the_transcript_once_in_the_models_order(order: tuple[str, ...]) -> None:
    drive = answered(asked("look"), asked("charge"), asked("note"))
    drive.settle()
    drive.screen()
    drive.settle()
    for call_id in order:
        assert [message.role for message in drive.messages] == ["user", "assistant"]
        drive.ends(call_id, How.RETURNED, ok(f"of {call_id}"))
        drive.settle()
    assert [message.role for message in drive.messages] == ["user", "assistant", "tool"]
    assert drive.results() == [("1.1", "of 1.1"), ("1.2", "of 1.2"), ("1.3", "of 1.3")]
    assert drive.run.turn == () and drive.run.messages == 3
    finish = drive.of("finish-step")
    assert [(frame["step"], frame["finish_reason"]) for frame in finish] == [(1, "tool_calls")]


def test_R17b_a_turn_with_an_open_call_cannot_be_closed() -> None:
    drive = Drive().running("look", "look")
    drive.ends("1.1", How.RETURNED)
    with pytest.raises(InvariantViolated):
        drive.apply(CloseTurn(at=drive.at))


def test_R49_only_what_is_ready_can_be_marked() -> None:
    drive = Drive().running("look")
    for call_id in ("1.1", "1.2"):
        with pytest.raises(InvariantViolated):
            drive.apply(Mark(at=drive.at, call_ids=(call_id,)))


def test_files_go_to_the_model_beside_the_result_and_survive_a_crash() -> None:
    file = {"type": "file", "media_type": "image/png", "url": "https://x.test/a.png"}
    drive = Drive().running("look", "charge")
    drive.ends("1.1", How.RETURNED, Result(output="a picture", files=(file,)))
    drive.settle()
    drive.crash()
    first = drive.run.call("1.1")
    assert first.result == Result(output="a picture", files=(file,))
    assert drive.of("tool-output")[0]["files"] == [file]


# -- the finish gate -----------------------------------------------------------------------------------------------------

CUT = ["length", "content_filter", "refusal"]


@pytest.mark.parametrize("finish", CUT)
def test_R10_a_turn_cut_off_or_refused_stops_the_run_and_keeps_its_text(finish: str) -> None:
    drive = Drive().claim()
    drive.settle()
    drive.answer("half an answ", finish=finish).ended()
    assert (drive.status, drive.stopped) == (Status.STOPPED, (finish, []))
    assert drive.shown["text"] == "half an answ" and drive.shown["stop"]["details"] == {}
    assert drive.types()[-3:] == ["finish-step", "finish", "data-agent"]
    assert drive.of("finish")[0]["text"] == "half an answ"


@pytest.mark.parametrize("finish", CUT)
def test_R17b_calls_of_a_turn_that_was_cut_off_are_answered_and_never_run(finish: str) -> None:
    drive = Drive().claim()
    drive.settle()
    drive.answer("", asked("charge", {"order": 7}), asked("look", '{"ord'), finish=finish).ended()
    assert drive.stopped[0] == finish
    assert drive.results() == [("1.1", CUT_OFF), ("1.2", CUT_OFF)]
    assert [(r.stage, r.attempt, r.outcome) for r in drive.receipts.values()] == [(Stage.FAILED, 0, "cancelled")] * 2


@pytest.mark.parametrize("finish", CUT)
def test_R32_whoever_folds_the_frames_of_a_turn_cut_off_sees_its_calls_and_their_results(finish: str) -> None:
    drive = Drive().claim()
    drive.settle()
    drive.answer("", asked("charge", {"order": 7}), asked("look", '{"ord'), finish=finish).ended()
    assert [(frame["tool_call_id"], frame["arguments"]) for frame in drive.of("tool-call")] == [("1.1", {"order": 7}), ("1.2", '{"ord')]
    assert [(frame["tool_call_id"], frame["output"]) for frame in drive.of("tool-output")] == [("1.1", CUT_OFF), ("1.2", CUT_OFF)]


@pytest.mark.parametrize("finish", ["stop", "tool_calls"])
def test_calls_of_a_whole_turn_run_whatever_the_finish_mark_says(finish: str) -> None:
    drive = Drive().claim()
    drive.settle()
    drive.answer("", asked("look"), finish=finish)
    assert drive.settle() == Work(start=(Screen(1),))


@pytest.mark.parametrize("finish", ["stop", "tool_calls"])
@pytest.mark.parametrize("text", ["done", ""])
def test_R9_an_answer_without_calls_completes_the_run(finish: str, text: str) -> None:
    drive = Drive().claim()
    drive.settle()
    drive.answer(text, finish=finish)
    assert drive.settle() == LegOver()
    assert (drive.status, drive.shown["text"], drive.shown["task_outcome"]) == (Status.COMPLETED, text, "resolved")
