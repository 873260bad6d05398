"""A run's state as text and back, with what the receipts keep (R7, R41a)."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from runward.core.kernel.actor import FORMAT
from runward.core.kernel.records import Stage
from runward.core.runs import codec
from runward.core.runs.calls import Call, CallStage, Effect, How, Result
from runward.core.runs.facts import CheckpointSaved
from runward.core.runs.limits import Limits
from runward.core.runs.receipts import receipt_of, to_text, with_results
from runward.core.runs.state import RunState
from tests.unit.core.driving import T0, Drive, ok
from tests.unit.core.test_views import STORIES
from tests.unit.core.tooling import asked, terms

LEG_ONLY = {"leg", "worker", "binding", "reopened", "caretaker", "draining", "hurried", "guards_output", "terms"}


def unled(run: RunState) -> RunState:
    """The run without what belongs to a leg, which is never stored."""
    return replace(run, leg=0, worker="", binding="", reopened=False, caretaker=False, draining=False, hurried=False)


def stored(run: RunState) -> RunState:
    """The run as it is stored: nothing of the leg, and nothing that a receipt keeps."""
    return replace(unled(run), turn=tuple(replace(call, raw=None, result=None, checkpoint=None, settled=None) for call in run.turn))


@pytest.mark.parametrize("story", STORIES)
def test_R41a_a_state_comes_back_as_it_was_stored(story: Any) -> None:
    run = story().run
    text = codec.encode(run)
    assert codec.decode(text) == stored(run)
    assert codec.encode(codec.decode(text)) == text


@pytest.mark.parametrize("story", STORIES)
def test_R7_the_receipts_give_back_what_the_state_leaves_to_them(story: Any) -> None:
    drive = story()
    assert with_results(codec.decode(codec.encode(drive.run)), [*drive.receipts.values()]) == unled(drive.run)


def every_stage() -> Drive:
    """A turn with a call in each stage but the first."""
    gates = {"poke": terms(), "ship": terms()}
    drive = Drive(max_parallel_tools=5, gates=gates)
    drive.asks("look", "bill", "charge", "note", "look", "look", "poke", "ship", "scan")
    drive.ends("1.1", How.RETURNED, Result(output={"a": [1, 1.0, None, "ü"]}, files=({"type": "file", "media_type": "a/b", "url": "u"},)))
    drive.ends("1.2", How.RETURNED, raw={"total": [5]})
    drive.ends("1.3", How.CANNOT_TELL)
    drive.apply(CheckpointSaved(at=drive.at, call_id="1.4", attempt=1, text="page 3"))
    drive.decides(drive.gate("1.7").id)
    assert {call.stage for call in drive.run.turn} == set(CallStage) - {CallStage.PROPOSED}
    return drive


def test_R7_nothing_of_a_result_is_in_the_state() -> None:
    drive = every_stage()
    text = codec.encode(drive.run)
    assert not [word for word in ("total", "ü", "page 3", "a/b", '"raw"', '"result":', "checkpoint") if word in text]
    assert with_results(codec.decode(text), [*drive.receipts.values()]) == unled(drive.run)


def test_R7_receipts_of_other_turns_and_missing_ones_are_no_matter() -> None:
    drive = every_stage()
    other = replace(drive.receipts["1.1"], tool_call_id="7.1")
    run = codec.decode(codec.encode(drive.run))
    assert with_results(run, [other]) == run


def test_R41a_defaults_are_left_out_of_the_text() -> None:
    text = codec.encode(Drive().run)
    assert json.loads(text) == {
        "uid": Drive().run.uid,
        "agent": "support",
        "created_at": T0,
        "model": "test:model",
        "messages": 1,
        "prompt_characters": 5,
        "reservation": {"step": 1, "attempt": 1, "leg": 0, "prompt": 2, "output": 4096},
    }


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"uid":"x"}', '{"uid":"x","agent":"a","created_at":"soon"}', "{", '{"status":"odd"}']
)
def test_R41a_what_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="validation error"):
        codec.decode(text)


def test_R41a_the_stored_names_are_a_format_and_do_not_change_by_themselves() -> None:
    """A renamed field would be read as its default: new names need a new format version."""
    assert FORMAT == 1
    assert {field.name for field in fields(RunState)} - LEG_ONLY == {
        *(
            "uid",
            "agent",
            "created_at",
            "start_at",
            "limits",
            "status",
            "phase",
            "model",
            "step",
            "attempt",
            "step_open",
            "messages",
            "events_after",
        ),
        *("fallbacks", "failovers", "outputs", "candidate", "output_attempts", "verify_attempts", "verifying", "output"),
        *("input_unguarded", "unguarded"),
        *(
            "text",
            "usage",
            "reservation",
            "lost_model_calls",
            "model_failures",
            "model_failure",
            "model_retry_at",
            "turn",
            "finish_reason",
            "step_usage",
        ),
        *("ledger", "rates", "prompt_tokens", "prompt_characters", "generations", "spent_out", "shared"),
        *(
            "unknowns",
            "denied",
            "hold",
            "holds",
            "releases",
            "ending",
            "cancel",
            "out_of_time",
            "ended",
            "ended_at",
            "worked_ms",
            "leg_started_at",
        ),
    }
    assert {field.name for field in fields(Call)} == {
        *(
            "id",
            "provider_id",
            "name",
            "arguments",
            "given",
            "effect",
            "stage",
            "offered",
            "timeout_seconds",
            "max_attempts",
            "on_unknown",
            "projects",
            "probes",
            "wants_evidence",
        ),
        *("gate", "awaited", "answers", "asked", "settled"),
        *("attempt", "failures", "not_before", "leg", "worker", "started_at", "ended_at", "ran", "raw", "result", "checkpoint"),
    }


def test_R41a_a_state_that_this_version_wrote_is_still_read() -> None:
    text = (
        '{"uid":"00000000000000000000000000000001","agent":"support","created_at":1700000000000,"status":"suspended","model":"test:model",'
        '"step":1,"attempt":1,"messages":2,"events_after":3,"text":"","usage":{"input_tokens":10,"output_tokens":5,"model_calls":1},'
        '"ledger":{"accounts":[{"model":"test:model","usage":{"input_tokens":10,"output_tokens":5,"model_calls":1},'
        '"spent":{"tokens":15},"unpriced":1}]},"prompt_tokens":15,'
        '"turn":[{"id":"1.1","provider_id":"call_1","name":"charge","arguments":"{}","effect":"non_idempotent_write","stage":"unknown",'
        '"attempt":1,"leg":1,"worker":"worker-1","started_at":1700000000000,"ran":true}],"finish_reason":"tool_calls",'
        '"step_usage":{"input_tokens":10,"output_tokens":5,"model_calls":1},"unknowns":[{"tool_call_id":"1.1","step":1,"tool_name":"charge",'
        '"effect":"non_idempotent_write","arguments":"{}","attempt":1,"started_at":1700000000000,"worker":"worker-1","told":false}]}'
    )
    drive = Drive().running("charge")
    drive.ends("1.1", How.CANNOT_TELL)
    drive.settle()
    drive.run = replace(drive.run, events_after=3)
    assert codec.encode(drive.run) == text and codec.decode(text) == stored(drive.run)


def test_R41a_integers_and_amounts_of_any_size_survive() -> None:
    limits = Limits(max_total_tokens=10**30, max_cost_usd="0.10", timeout_seconds=0.5)
    run = replace(Drive().run, limits=limits, worked_ms=2**62)
    again = codec.decode(codec.encode(run))
    assert (again.limits, again.worked_ms) == (limits, 2**62)
    assert again.limits.max_cost_usd == "0.10"


def test_R7_the_state_does_not_grow_with_the_history() -> None:
    drive = Drive(max_steps=1_000).claim()
    sizes = []
    for step in range(1, 101):
        drive.settle()
        drive.answer("x" * 100, asked("look", {"page": step}))
        drive.settle()
        drive.screen()
        drive.settle()
        sizes.append(len(codec.encode(drive.run)))
        drive.ends(f"{step}.1", How.RETURNED, ok("y" * 1_000))
    assert len(drive.messages) == 200 and max(sizes) - min(sizes) < 60


# -- receipts ----------------------------------------------------------------------------------------------------------------------


def call(stage: CallStage, **differing: Any) -> Call:
    made = Call(id="3.2", provider_id="p", name="note", arguments="{}", effect=Effect.IDEMPOTENT_WRITE, stage=stage)
    return replace(made, **differing)


@pytest.mark.parametrize(
    ("stage", "result", "wanted"),
    [
        (CallStage.READY, None, Stage.SUSPENDED),
        (CallStage.EXECUTING, None, Stage.EXECUTING),
        (CallStage.UNKNOWN, None, Stage.EXECUTING),
        (CallStage.EXECUTED, None, Stage.EXECUTED),
        (CallStage.ENDED, ok(), Stage.COMPLETED),
        (CallStage.ENDED, Result(output="x", is_error=True, outcome="failed"), Stage.FAILED),
    ],
)
def test_the_stage_of_a_receipt_is_that_of_its_call(stage: CallStage, result: Result | None, wanted: Stage) -> None:
    assert receipt_of(call(stage, result=result), "{}").stage is wanted


def test_a_receipt_names_its_call_and_keeps_texts_as_json() -> None:
    done = call(
        CallStage.ENDED,
        result=ok({"ü": [1.0, "\u2028"]}),
        raw="r",
        attempt=2,
        started_at=T0,
        ended_at=T0 + 5,
        failures=1,
        leg=4,
        worker="w",
    )
    receipt = receipt_of(done, '{"a":1}')
    assert (receipt.tool_call_id, receipt.step, receipt.position, receipt.tool_name, receipt.format) == ("3.2", 3, 2, "note", FORMAT)
    assert (receipt.arguments, receipt.raw, receipt.output) == ('{"a":1}', '"r"', '{"ü":[1.0,"\u2028"]}')
    assert (receipt.attempt, receipt.started_at, receipt.ended_at, receipt.effect) == (2, T0, T0 + 5, "idempotent_write")
    assert json.loads(receipt.detail) == {"worker": "w", "leg": 4, "failures": 1, "provider_id": "p", "effect_certain": True}


@pytest.mark.parametrize("output", [None, False, 0, "", [], {}, [None], 10**30, 1.0, "ü\u2028\ufffd"])
def test_R7_any_json_output_comes_back_from_its_receipt(output: Any) -> None:
    drive = Drive().running("look", "charge")
    drive.ends("1.1", How.RETURNED, ok(output))
    drive.settle()
    drive.crash()
    result = drive.run.call("1.1").result
    assert result == ok(output) and type(result.output) is type(output)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_R47_what_is_no_json_is_never_stored(value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        to_text({"x": value})
