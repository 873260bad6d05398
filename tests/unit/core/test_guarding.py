"""Guardrails on input and output, as facts: what is stored, what is said, and in which order things are asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

from runward.core.messages import Message, TextPart
from runward.core.runs import budget, codec
from runward.core.runs.decide import CallModel, ChooseModel, GuardInput, GuardOutput, VerifyOutput, Work
from runward.core.runs.facts import AnswerReceived, Guarded, InputGuarded, OutputGuarded
from runward.core.runs.ledger import CallTerms
from runward.core.runs.state import OutputTerms
from runward.core.usage import Usage
from tests.unit.core.driving import Drive
from tests.unit.core.tooling import asked

OUTPUT = 'the "answer"'


def said(action: Literal["block", "rewrite"], hook: str = "on_output") -> tuple[Guarded, ...]:
    return (Guarded(hook=hook, action=action, name="guard", reason="no" if action == "block" else None),)


def guards_input(drive: Drive, text: str | None, *guarded: Guarded) -> Drive:
    messages = None if text is None else (Message(seq=9, role="user", content=(TextPart(text=text),)),)
    drive.apply(InputGuarded(at=drive.at, messages=messages, guarded=guarded))
    return drive


def guards_output(drive: Drive, *guarded: Guarded, block: bool = False, **changes: Any) -> Drive:
    answer = drive.run.unguarded
    assert answer is not None
    left = None if block else replace(answer, **changes)
    drive.apply(OutputGuarded(at=drive.at, step=drive.run.step, answer=left, guarded=guarded))
    return drive


def waits(drive: Drive) -> bool:
    """Whether an answer waits for guardrails."""
    return drive.run.unguarded is not None


def text(drive: Drive) -> str | None:
    return drive.run.text


def candidate(drive: Drive, output: Any, complaint: str | None = None, finish: str = "stop", opaque: bytes | None = None) -> Drive:
    drive.apply(
        AnswerReceived(
            at=drive.at,
            step=drive.run.step,
            attempt=drive.run.attempt,
            text=str(output),
            reasoning="thought",
            calls=(),
            finish=finish,
            usage=Usage(input_tokens=1, output_tokens=1),
            opaque=opaque,
            opaque_format=None,
            output=output,
            complaint=complaint,
        )
    )
    return drive


@pytest.mark.parametrize("model", ["test:model", None])
def test_input_is_guarded_before_a_model_is_chosen_or_asked(model: str | None) -> None:
    drive = Drive(guards_input=True, model=model)
    assert drive.messages == [] and drive.run.messages == 0
    drive.claim()
    assert drive.settle() == Work(start=(GuardInput(),))
    guards_input(drive, "left", *said("rewrite", "on_input"))
    assert [(message.seq, message.text) for message in drive.messages] == [(1, "left")]
    assert drive.settle() == Work(start=(CallModel(1, 1) if model else ChooseModel(),))
    assert drive.of("guardrail") == [{"hook": "on_input", "action": "rewrite", "name": "guard"}]
    guards_input(drive, "again")
    assert len(drive.messages) == 1, "what comes too late changes nothing"


def test_R10_a_blocked_input_ends_the_run_without_a_model_call() -> None:
    drive = Drive(guards_input=True).claim()
    drive.settle()
    guards_input(drive, None, *said("rewrite", "on_input"), *said("block", "on_input"))
    assert drive.settle() == Work(stop=(CallModel(1, 1),))
    drive.broken_off(started=False).ended()
    assert drive.shown["stop"] == {"reason": "guardrail_input", "details": {"hook": "on_input", "guardrail": "guard", "reason": "no"}}
    assert drive.messages == [] and drive.run.usage.model_calls == 0


def test_an_input_nobody_looked_at_survives_its_leg() -> None:
    drive = Drive(guards_input=True).claim()
    drive.settle()
    drive.crash()
    assert drive.settle() == Work(start=(GuardInput(),)) and drive.run.attempt == 2


def test_an_answer_is_neither_stored_nor_said_before_it_is_guarded() -> None:
    drive = Drive().claim(guards_output=True)
    drive.settle()
    drive.answer("secret", reasoning="thought")
    assert drive.settle() == Work(start=(GuardOutput(1),))
    assert text(drive) is None and len(drive.messages) == 1 and drive.run.usage.output_tokens == 5
    drive.crash()
    assert drive.decide() == Work(start=(GuardOutput(1),)), "another leg, of whatever code, asks its guardrails first"
    guards_output(drive, *said("rewrite"), text="left", reasoning="")
    drive.ended()
    assert text(drive) == "left" and [message.text for message in drive.messages] == ["hello", "left"]
    assert [frame["delta"] for frame in drive.of("text-delta")] == ["left"] and drive.of("reasoning-delta") == []
    assert drive.types().index("guardrail") < drive.types().index("text-delta") < drive.types().index("finish-step")


def test_R10_a_blocked_answer_is_dropped_and_what_it_cost_is_not() -> None:
    drive = Drive().claim(guards_output=True)
    drive.settle()
    drive.answer("secret")
    guards_output(drive, *said("block"), block=True).ended()
    assert drive.shown["stop"]["reason"] == "guardrail_output" and len(drive.messages) == 1 and text(drive) is None
    assert "finish-step" not in drive.types() and drive.of("reset-step") == [{"step": 1, "attempt": 1}]
    assert drive.run.usage.output_tokens == 5 and "secret" not in codec.encode(drive.run)


def test_R37_a_cancel_that_comes_first_drops_an_unguarded_answer() -> None:
    drive = Drive().claim(guards_output=True)
    drive.settle()
    drive.answer("secret").gets().ended()
    assert drive.stopped[0] == "cancelled" and "secret" not in codec.encode(drive.run) and len(drive.messages) == 1


def test_answers_that_ask_for_tools_are_not_the_answer() -> None:
    drive = Drive().claim(guards_output=True)
    drive.settle()
    drive.answer("I look", asked("look"), reasoning="hm")
    assert len(drive.run.turn) == 1 and not waits(drive)
    assert [frame["delta"] for frame in drive.of("text-delta")] == ["I look"], "it was withheld while it was written"
    assert [frame["delta"] for frame in drive.of("reasoning-delta")] == ["hm"]


@pytest.mark.parametrize("finish", ["length", "refusal", "content_filter"])
def test_what_is_left_of_an_answer_is_guarded_too(finish: str) -> None:
    """R17b: its calls are answered all the same."""
    drive = Drive().claim(guards_output=True)
    drive.settle()
    drive.answer("secret", asked("look"), finish=finish)
    assert drive.settle() == Work(start=(GuardOutput(1),)) and drive.results() == []
    guards_output(drive, *said("rewrite"), text="left").ended()
    assert drive.stopped == (finish, []) and text(drive) == "left" and len(drive.results()) == 1


def test_typed_candidates_are_guarded_before_they_are_verified() -> None:
    drive = Drive(outputs=OutputTerms(verifies=True), loops=False).claim(guards_output=True)
    drive.settle()
    candidate(drive, OUTPUT, opaque=b"\xff\x00")
    assert drive.settle() == Work(start=(GuardOutput(1),))
    drive.crash()
    assert getattr(drive.run.unguarded, "opaque", None) == b"\xff\x00"
    guards_output(drive, *said("rewrite"), output="left", text="left")
    assert drive.settle() == Work(start=(VerifyOutput(1),))
    assert getattr(drive.run.candidate, "value", None) == "left"


@pytest.mark.parametrize(("complaint", "finish"), [("no", "stop"), (None, "refusal")])
def test_what_is_no_candidate_is_not_guarded(complaint: str | None, finish: str) -> None:
    drive = Drive(outputs=OutputTerms(), loops=False).claim(guards_output=True)
    drive.settle()
    candidate(drive, OUTPUT, complaint, finish)
    assert drive.run.output is None and len(drive.messages) >= 2 and not waits(drive)


def test_R39_a_leg_that_has_to_go_leaves_an_answer_to_the_next() -> None:
    drive = Drive().claim(guards_output=True)
    drive.settle()
    drive.answer("secret")
    drive.settle()
    drive.drain()
    assert drive.settle() == Work(start=(GuardOutput(1),)), "it belongs to the step in hand"
    drive.drain(hurried=True)
    drive.settle()
    assert drive.status == "queued"
    drive.claim(caretaker=True)
    drive.settle()
    assert drive.status == "queued" and waits(drive)


# -- and the ledger ----------------------------------------------------------------------------------------------------------


def test_R33_what_is_reserved_is_for_the_input_as_it_came_then_as_guardrails_left_it() -> None:
    drive = Drive(guards_input=True, terms=CallTerms(max_output_tokens=100)).claim()
    drive.settle()
    assert budget.reserved(drive.run).tokens == 2 + 100, "hello"
    guards_input(drive, "a" * 30, *said("rewrite", "on_input"))
    drive.settle()
    assert budget.reserved(drive.run).tokens == 10 + 100 and drive.run.prompt_characters == 30


def test_R33_an_input_that_guardrails_leave_too_long_for_the_bounds_is_not_sent() -> None:
    drive = Drive(guards_input=True, max_total_tokens=100).claim()
    drive.settle()
    guards_input(drive, "a" * 300, *said("rewrite", "on_input"))
    drive.broken_off(started=False).ended()
    assert drive.stopped[0] == "budget_exceeded" and drive.run.usage.model_calls == 0


def test_R33_an_answer_is_settled_before_it_is_guarded_and_counted_once() -> None:
    drive = Drive().claim(guards_output=True)
    drive.settle()
    drive.answer("secret", finish="length")
    drive.settle()
    assert drive.run.ledger.spent.tokens == 15 and len(drive.of("usage")) == 1
    drive.crash()
    guards_output(drive, *said("rewrite"), text="left").ended()
    assert drive.run.ledger.spent.tokens == 15 and len(drive.of("usage")) == 1 and drive.run.prompt_tokens == 15


def test_R33_an_answer_cut_off_by_the_bounds_is_guarded_and_then_over_budget() -> None:
    drive = Drive(max_total_tokens=100).claim(guards_output=True)
    drive.settle()
    drive.answer("half a sen", finish="length")
    drive.settle()
    drive.crash()
    guards_output(drive).ended()
    assert drive.stopped[0] == "budget_exceeded" and text(drive) == "half a sen"
