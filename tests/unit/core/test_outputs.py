"""Typed answers: asked for, repaired, verified, each attempt counted; and models that take over (R27-R31)."""

from __future__ import annotations

from typing import Any

import pytest

from runward.core.kernel.actor import Status
from runward.core.runs.calls import How
from runward.core.runs.decide import CallModel, VerifyOutput, Work
from runward.core.runs.facts import Broke
from runward.core.runs.sentences import FINAL_ANSWER
from runward.core.runs.state import OutputTerms, Phase
from tests.unit.core.driving import Drive
from tests.unit.core.tooling import asked

TYPED, VERIFIED = OutputTerms(), OutputTerms(verifies=True)
OK, NONE = {"answer": 42}, "it is not JSON"


def finalizing(outputs: OutputTerms = TYPED, **limits: Any) -> Drive:
    """A run whose next answer is to be the typed one."""
    drive = Drive(outputs=outputs, loops=False, **limits).claim()
    assert drive.settle() == Work(start=(CallModel(1, 1),)) and drive.run.phase is Phase.FINALIZING
    return drive


def reopened(drive: Drive) -> Drive:
    """A run that failed and is tried again."""
    assert drive.status is Status.FAILED and drive.shown["error"]["transient"]
    return drive.claim(reopened=True)


def stop(drive: Drive) -> str:
    drive.ended()
    reason: str = drive.shown["stop"]["reason"]
    assert drive.shown["output"] is None
    return reason


def told(drive: Drive) -> list[str]:
    """What the service said to the model, after the input."""
    return [message.text for message in drive.messages if message.role == "user"][1:]


# -- the turn ------------------------------------------------------------------------------------------------------------


def test_R27_the_loops_last_answer_is_followed_by_a_turn_of_its_own() -> None:
    drive = Drive(outputs=TYPED).running("look")
    drive.ends("1.1", How.RETURNED)
    drive.settle()
    drive.answer("thinking")
    assert drive.settle() == Work(start=(CallModel(3, 1),))
    assert (drive.run.phase, told(drive)) == (Phase.FINALIZING, [FINAL_ANSWER])
    drive.says(OK).ended()
    assert (drive.status, drive.run.output, drive.shown["output"]) == (Status.COMPLETED, OK, OK)


def test_R28_calls_of_that_turn_are_answered_and_none_runs() -> None:
    drive = finalizing()
    drive.answer("", asked("look"), output=None, complaint=NONE)
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert [call for call, _ in drive.results()] == ["1.1"] and drive.receipts["1.1"].attempt == 0


# -- repair ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_R28_answers_that_are_none_are_bounded(bound: int) -> None:
    drive = finalizing(max_output_attempts=bound)
    for number in range(1, bound):
        drive.says(complaint=NONE)
        assert drive.settle() == Work(start=(CallModel(number + 1, 1),))
        assert NONE in told(drive)[-1]
    assert stop(drive.says(complaint=NONE)) == "output_attempts_exhausted"
    assert len(told(drive)) == bound - 1, "nobody reads what is wrong with the last one"


def test_R28_an_answer_that_was_cut_off_is_one_of_them() -> None:
    drive = finalizing(max_output_attempts=2).says(complaint=NONE, finish="length")
    drive.settle()
    assert stop(drive.says(complaint=NONE, finish="length")) == "output_attempts_exhausted"


def test_R28_a_refusal_ends_the_run_as_one() -> None:
    assert stop(finalizing().says(complaint=NONE, finish="refusal")) == "refusal"


def test_R28_each_candidate_has_its_own_attempts() -> None:
    """An answer that fitted and was rejected does not count among those that did not fit."""
    drive = finalizing(VERIFIED, max_output_attempts=2, max_verify_attempts=2)
    for _ in range(2):
        drive.says(complaint=NONE)
        drive.settle()
        drive.says(OK)
        drive.settle()
        drive.judges("rejected", "Look again.").settle()
    assert stop(drive) == "verification_attempts_exhausted" and told(drive).count("Look again.") == 1


def test_R10_repairs_are_steps() -> None:
    drive = finalizing(max_steps=1)
    assert stop(drive.says(complaint=NONE)) == "max_steps"


# -- verification ----------------------------------------------------------------------------------------------------------


def candidate(**limits: Any) -> Drive:
    """A run whose candidate is with the verifier."""
    drive = finalizing(VERIFIED, **limits).says(OK)
    assert drive.settle() == Work(start=(VerifyOutput(1),)) and drive.run.output is None
    return drive


def test_R28_a_verified_candidate_is_the_answer() -> None:
    drive = candidate().judges("verified")
    drive.ended()
    assert (drive.status, drive.run.output) == (Status.COMPLETED, OK)


def test_R28_an_inconclusive_one_stops_the_run() -> None:
    drive = candidate().judges("inconclusive", "Cannot tell.")
    assert stop(drive) == "verification_inconclusive" and drive.shown["stop"]["details"] == {"why": "Cannot tell."}


@pytest.mark.parametrize("attempt", [0, 2])
@pytest.mark.parametrize("kind", ["verified", "rejected", "inconclusive"])
def test_R28_a_verdict_counts_for_its_own_attempt(kind: str, attempt: int) -> None:
    drive = candidate()
    before = drive.run
    assert drive.judges(kind, attempt=attempt).run == before


def test_R28_no_verdict_is_applied_twice() -> None:
    drive = candidate(max_verify_attempts=3).judges("rejected", "Look again.")
    before = drive.run
    assert drive.judges("verified", attempt=1).run == before and told(drive) == ["Look again."]
    assert drive.settle() == Work(start=(CallModel(2, 1),))


def test_R29_an_attempt_is_counted_before_it_begins_and_lost_with_its_worker() -> None:
    drive = candidate(max_verify_attempts=2).crash()
    assert drive.settle() == Work(start=(VerifyOutput(2),)), "no model call"
    assert stop(drive.crash()) == "verification_attempts_exhausted"


def test_R37_a_cancel_outranks_the_verdict() -> None:
    drive = candidate().gets()
    drive.judges("verified")
    assert stop(drive) == "cancelled"


def test_R28_a_verdict_changes_nothing_about_an_end_that_is_decided() -> None:
    drive = candidate()
    drive.apply(Broke(at=drive.at, code="internal", message="A bug of the agent.", details={}))
    drive.judges("verified").ended()
    assert (drive.status, drive.run.output) == (Status.FAILED, None)


def test_R28_a_verifier_that_breaks_leaves_nothing_of_its_attempt_but_the_count() -> None:
    drive = candidate()
    assert drive.run.verifying
    drive.apply(Broke(at=drive.at, code="verifier_failed", message="The candidate cannot be verified.", details={}))
    drive.ended()
    assert (drive.status, drive.shown["error"]["code"]) == (Status.FAILED, "verifier_failed")
    assert (drive.run.candidate, drive.run.verifying, drive.run.verify_attempts) == (None, False, 1)


# -- failures --------------------------------------------------------------------------------------------------------------


def test_R30_a_call_that_fails_the_run_in_finalization_is_an_output_attempt() -> None:
    drive = finalizing(model_retries=0, max_output_attempts=2).fails().ended()
    reopened(drive)
    assert drive.settle() == Work(start=(CallModel(1, 2),)) and drive.run.phase is Phase.FINALIZING
    assert stop(drive.says(complaint=NONE)) == "output_attempts_exhausted"


def test_R30_without_an_output_attempt_left_a_retry_stops_and_asks_no_model() -> None:
    drive = finalizing(model_retries=0, max_output_attempts=1).fails().ended()
    assert stop(reopened(drive)) == "output_attempts_exhausted" and drive.run.attempt == 1


def test_R30_in_the_loop_it_is_none() -> None:
    drive = Drive(outputs=TYPED, model_retries=0, max_output_attempts=1).claim()
    drive.settle()
    drive.fails().ended()
    reopened(drive)
    assert drive.settle() == Work(start=(CallModel(1, 2),)) and drive.run.phase is Phase.LOOP


def test_R30_the_calls_own_retries_are_none_either() -> None:
    drive = finalizing(model_retries=2, max_output_attempts=1)
    for _ in range(2):
        drive.fails()
        drive.settle()
    drive.says(OK).ended()
    assert drive.status is Status.COMPLETED


def test_R31_a_call_of_finalization_that_failed_over_uses_up_no_output_attempt() -> None:
    drive = finalizing(fallbacks=["test:second"], model_retries=0, max_output_attempts=1).fails()
    assert drive.settle() == Work(start=(CallModel(1, 2),)) and drive.run.model == "test:second"
    drive.says(OK).ended()
    assert drive.status is Status.COMPLETED


# -- models that take over ---------------------------------------------------------------------------------------------------


def test_R31_each_model_is_asked_in_turn_and_none_again_after_a_crash() -> None:
    drive = Drive(fallbacks=["test:second", "test:third"], model_retries=1).claim()
    drive.settle()
    for model in ("test:second", "test:third"):
        for _ in range(2):
            drive.fails()
            drive.settle()
        drive.crash()
        drive.settle()
        assert drive.run.model == model
    assert [(each.source, each.target, each.code) for each in drive.run.failovers] == [
        ("test:model", "test:second", "server_error"),
        ("test:second", "test:third", "server_error"),
    ]
    drive.fails()
    drive.settle()
    drive.fails().ended()
    reopened(drive)
    drive.settle()
    assert drive.run.model == "test:third" and drive.run.fallbacks == ()


def test_R31_an_open_circuit_costs_no_retry_where_another_model_is_left() -> None:
    drive = Drive(fallbacks=["test:second"], model_retries=2).claim()
    drive.settle()
    drive.fails(code="circuit_open", sent=False, retry_after_ms=15_000)
    assert drive.settle() == Work(start=(CallModel(1, 2),))
    assert drive.run.model == "test:second" and drive.run.usage.model_calls == 0


def test_R30_an_open_circuit_is_waited_for_where_none_is() -> None:
    drive = Drive(model_retries=1).claim()
    drive.settle()
    drive.fails(code="circuit_open", sent=False, retry_after_ms=15_000)
    assert drive.settle() == Work(start=(CallModel(1, 2, drive.at + 15_000),))
    assert (drive.run.model_failure, drive.run.usage.model_calls) == ("circuit_open", 0)
    drive.after(15).answer("here").ended()
    assert drive.status is Status.COMPLETED and drive.run.model_failure == ""


def test_R31_what_asks_for_too_much_patience_is_left_for_the_next_model() -> None:
    drive = Drive(fallbacks=["test:second"]).claim()
    drive.settle()
    drive.fails(code="rate_limited", retry_after_ms=600_000)
    drive.settle()
    assert drive.run.model == "test:second" and drive.run.model_retry_at is None
