"""What becomes of unknown effects: people settle them, and their evidence is checked (R15)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from runward.core.kernel.actor import Status
from runward.core.kernel.mail import MailKind
from runward.core.kernel.records import Stage
from runward.core.runs.calls import CallStage, Effect, How, Result
from runward.core.runs.decide import CallModel, CheckEvidence, LegOver, Project, RunCall, Screen, Work
from runward.core.runs.dues import work_due
from runward.core.runs.facts import EvidenceChecked, Screened
from runward.core.runs.sentences import UNKNOWN_TO_MODEL
from runward.core.runs.view import key_of, pending
from tests.unit.core.driving import T0, Drive, ok
from tests.unit.core.tooling import screening, terms, traits


def listed(drive: Drive) -> list[str]:
    return [item["tool_call_id"] for item in pending(drive.run)["unknown_effects"]]


def told(name: str = "ship") -> Drive:
    """The model was told that nobody knows, and has gone on."""
    drive = Drive().lost(name)
    assert drive.results() == [("1.1", UNKNOWN_TO_MODEL)]
    return drive


def over(name: str = "ship") -> Drive:
    return told(name).answer("Probably.").ended()


# -- a person settles ------------------------------------------------------------------------------------------------------


def test_R15_a_result_that_was_found_is_the_outcome_and_nothing_runs() -> None:
    drive = Drive().lost("charge").claim()
    drive.reconciles("1.1", "result", output={"id": "ch_1"}, note="seen in the ledger")
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.results() == [("1.1", {"id": "ch_1"})] and drive.run.unknowns == ()
    receipt = drive.receipts["1.1"]
    assert (receipt.stage, receipt.outcome, receipt.attempt, receipt.is_error) == (Stage.COMPLETED, "reconciled", 1, False)
    assert drive.kept()["reconciled"] == {"decision": "result", "at": T0, "by": "ann", "note": "seen in the ledger"}
    assert drive.of("tool-state")[-1]["state"] == "completed" and drive.keys() == []
    drive.answer("done").ended()
    assert drive.shown["task_outcome"] == "resolved"


@pytest.mark.parametrize(
    ("data", "text"), [({"output": "declined"}, "declined"), ({"note": "card gone"}, "card gone"), ({}, "The call failed.")]
)
def test_R15_an_error_is_read_by_the_model(data: dict[str, Any], text: str) -> None:
    drive = Drive().lost("charge").claim().reconciles("1.1", "error", **data)
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.results() == [("1.1", text)]
    receipt = drive.receipts["1.1"]
    assert (receipt.stage, receipt.outcome, drive.kept()["effect_certain"]) == (Stage.FAILED, "failed", True)


def test_R15_a_retry_runs_the_call_once_more_under_the_same_key() -> None:
    drive = Drive().lost("charge", arguments={"order": 7}).claim().reconciles("1.1", "retry")
    assert drive.run.call("1.1").stage is CallStage.CLEARED and listed(drive) == []
    assert drive.settle() == Work(start=(Screen(1),))
    drive.screen()
    assert drive.settle() == Work(start=(RunCall("1.1", 2),)) and drive.run.unknowns == ()
    drive.ends("1.1", How.RETURNED, ok("charged"))
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    receipt = drive.receipts["1.1"]
    assert (receipt.outcome, receipt.attempt, receipt.arguments) == (None, 2, '{"order":7}')
    assert drive.kept()["reconciled"] == {"decision": "retry", "at": T0, "by": "ann"}


def test_R11_a_call_that_is_to_run_once_more_needs_nobody_any_more() -> None:
    drive = Drive().lost("charge").claim().reconciles("1.1", "retry").gets(MailKind.HOLD)
    assert drive.settle() == LegOver()
    assert (drive.shown["status"], drive.shown["task_outcome"], listed(drive)) == ("suspended", "in_progress", [])


def test_R17a_a_call_that_is_looked_at_again_keeps_what_held_when_it_was_asked_for() -> None:
    drive = Drive().lost("charge").claim().reconciles("1.1", "retry")
    drive.settle()
    today = replace(screening(drive.run.call("1.1")), traits=traits("charge", Effect.READ, max_attempts=9, on_unknown="tell_model"))
    drive.apply(Screened(at=drive.at, screenings=(today,)))
    call = drive.run.call("1.1")
    assert (call.effect, call.max_attempts, call.on_unknown) == (Effect.NON_IDEMPOTENT_WRITE, 3, "reconcile")


def test_R15_a_repeated_call_that_projects_has_an_outcome_of_its_own() -> None:
    drive = Drive().lost("bill").claim().reconciles("1.1", "retry")
    drive.settle()
    drive.screen()
    drive.settle()
    drive.ends("1.1", How.RETURNED, raw={"total": 5})
    assert drive.settle() == Work(start=(Project("1.1"),))
    drive.projects("1.1", "five")
    assert drive.receipts["1.1"].outcome is None, "the tool itself said so"


def test_R15_a_result_is_projected_like_one_that_the_tool_returned() -> None:
    drive = Drive().lost("bill").claim().reconciles("1.1", "result", output={"total": 5})
    assert drive.settle() == Work(start=(Project("1.1"),))
    assert (drive.receipts["1.1"].stage, drive.receipts["1.1"].raw) == (Stage.EXECUTED, '{"total":5}')
    drive.crash()
    assert drive.settle() == Work(start=(Project("1.1"),))
    drive.projects("1.1", "five")
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.results() == [("1.1", "five")] and drive.receipts["1.1"].outcome == "reconciled"


def test_R15_a_call_that_becomes_unknown_again_can_be_settled_again() -> None:
    drive = Drive().lost("charge").claim().reconciles("1.1", "retry")
    assert key_of(drive.effect()) == "unknown:1.1:1.1"
    drive.settle()
    drive.screen()
    drive.settle()
    drive.crash()
    assert drive.settle() == LegOver() and listed(drive) == ["1.1"]
    assert (drive.effect().attempt, key_of(drive.effect()), drive.effect().worker) == (2, "unknown:1.1:2", "worker-2")
    drive.claim().reconciles("1.1", "result", output=1)
    assert drive.settle() == Work(start=(CallModel(2, 1),)) and drive.results() == [("1.1", 1)]


@pytest.mark.parametrize("decision", ["retry", "result", "error"])
def test_R15_unlisted_calls_stay_unknown(decision: str) -> None:
    drive = Drive().running("charge", "poke")
    drive.ends("1.1", How.CANNOT_TELL)
    drive.ends("1.2", How.TIMED_OUT)
    drive.settle()
    drive.claim().reconciles("1.2", decision, output=1)
    drive.settle()
    assert listed(drive) == ["1.1"]
    assert drive.run.call("1.1").stage is CallStage.UNKNOWN


@pytest.mark.parametrize("data", [{"attempt": 2}, {"attempt": 0}, {"tool_call_id": "1.2"}, {"tool_call_id": "9.9"}])
def test_R15_what_is_not_unknown_cannot_be_settled(data: dict[str, Any]) -> None:
    drive = Drive().lost("charge").claim()
    before = drive.run
    drive.reconciles("1.1", "result", **{"output": 1, **data})
    assert drive.run == before and drive.ignored == [1]


def test_R15_the_second_decision_has_no_use() -> None:
    drive = Drive().lost("charge").claim()
    attempt = {"tool_call_id": "1.1", "attempt": 1}
    drive.reconciles("1.1", "retry")
    drive.gets(MailKind.RECONCILE, {**attempt, "decision": "result", "output": 1})
    assert drive.ignored == [2] and drive.run.call("1.1").stage is CallStage.CLEARED


# -- told, and after the end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("decision", "stage", "outcome"), [("result", Stage.COMPLETED, "reconciled"), ("error", Stage.FAILED, "failed")])
def test_R15_what_the_model_was_told_stays_and_the_records_change(decision: str, stage: Stage, outcome: str) -> None:
    drive = told()
    assert listed(drive.answer("Probably.").ended()) == ["1.1"]
    drive = told()
    drive.reconciles("1.1", decision, output="found")
    assert drive.settle() == Work(start=(CallModel(2, 1),)) and drive.run.unknowns == ()
    receipt = drive.receipts["1.1"]
    assert (receipt.stage, receipt.outcome, receipt.raw, receipt.attempt) == (stage, outcome, '"found"', 1)
    assert json.loads(receipt.output or "") == UNKNOWN_TO_MODEL
    assert drive.results() == [("1.1", UNKNOWN_TO_MODEL)]
    assert drive.of("tool-state")[-1] == {
        "tool_call_id": "1.1",
        "tool_name": "ship",
        "state": "completed" if decision == "result" else "failed",
        "attempt": 1,
    }
    drive.answer("done").ended()
    assert drive.shown["task_outcome"] == "resolved"


def test_R15_what_the_model_was_told_is_not_run_again() -> None:
    drive = told().reconciles("1.1", "retry")
    assert drive.ignored == [1] and drive.effect().told
    assert key_of(drive.effect()) == "unknown:1.1:1.1", "another decision can be taken, under a key of its own"
    drive.reconciles("1.1", "result", output=1)
    assert drive.run.unknowns == ()


def test_R15_what_a_told_call_reads_like_survives_its_settlement_and_a_crash() -> None:
    drive = Drive().running("ship", "look")
    drive.ends("1.1", How.CANNOT_TELL)
    drive.settle()
    drive.reconciles("1.1", "result", output={"parcel": 1})
    drive.settle()
    before = drive.run.call("1.1")
    drive.crash()
    assert drive.run.call("1.1").result == before.result
    drive.settle()
    drive.ends("1.2", How.RETURNED)
    drive.settle()
    (first, _) = drive.messages[-1].tool_results
    assert (first.output, first.is_error) == (UNKNOWN_TO_MODEL, True), "the transcript says what the stream said"


@pytest.mark.parametrize(("decision", "state"), [("result", "completed"), ("error", "failed")])
def test_R10_after_the_end_a_decision_changes_the_records_and_the_task_outcome_alone(decision: str, state: str) -> None:
    drive = over()
    shown, frames = drive.shown, len(drive.frames)
    drive.claim(caretaker=True).reconciles("1.1", decision, output="found")
    assert drive.settle() == LegOver()
    assert [frame.type for frame in drive.frames[frames:]] == ["tool-state", "data-agent"]
    assert drive.of("tool-state")[-1]["state"] == state
    now = drive.shown
    assert (shown.pop("task_outcome"), now.pop("task_outcome")) == ("needs_reconciliation", "resolved")
    assert len(shown.pop("pending")["unknown_effects"]) == 1 and now.pop("pending")["unknown_effects"] == []
    assert now == shown and now["final"] is True


def test_R10_after_the_end_nothing_is_run_again() -> None:
    drive = over().claim(caretaker=True).reconciles("1.1", "retry")
    assert drive.settle() == LegOver() and drive.ignored == [1] and listed(drive) == ["1.1"]
    assert drive.types()[-2:] == ["warning", "data-agent"] and drive.of("data-agent")[-1]["data"]["final"] is True, "a journal ends final"


def test_R10_an_effect_that_an_end_left_unknown_is_not_made_again() -> None:
    drive = Drive(expires_seconds=10).lost("charge").claim().after(10)
    drive.ended()
    drive.claim(caretaker=True).reconciles("1.1", "retry")
    assert drive.settle() == LegOver() and drive.ignored == [1] and listed(drive) == ["1.1"]


def test_R15_a_settled_receipt_keeps_who_approved_the_call() -> None:
    drive = Drive(gates={"ship": terms(editable=True)}).asks("ship", arguments={"to": "A"}).claim()
    drive.decides(drive.gate().id, edited_arguments={"to": "B"})
    drive.settle()
    drive.screen()
    drive.settle()
    drive.ends("1.1", How.CANNOT_TELL)
    drive.settle()
    approval = drive.kept()["approval"]
    drive.answer("Probably.").ended()
    drive.claim(caretaker=True).reconciles("1.1", "result", output=1)
    assert drive.kept()["approval"] == approval and approval["requested_arguments"] == {"to": "A"}


# -- ends in between -------------------------------------------------------------------------------------------------------


def test_R38_a_call_that_was_to_run_once_more_and_did_not_is_still_unknown() -> None:
    drive = Drive().lost("charge").claim().reconciles("1.1", "retry")
    drive.settle()
    drive.screen()
    drive.gets().ended()
    assert drive.stopped == ("cancelled", [("1.1", "unknown")]) and drive.results() == [("1.1", UNKNOWN_TO_MODEL)]
    assert (listed(drive), drive.shown["task_outcome"]) == (["1.1"], "needs_reconciliation")
    assert key_of(drive.effect()) == "unknown:1.1:1.1", "the key of the first decision is taken"
    drive.claim(caretaker=True).reconciles("1.1", "result", output=1)
    assert drive.shown["task_outcome"] == "failed" and drive.run.unknowns == ()


def test_R15_a_call_that_is_refused_when_it_is_looked_at_again_is_still_unknown() -> None:
    drive = Drive().lost("charge").claim().reconciles("1.1", "retry")
    drive.settle()
    drive.refuses("1.1", "unknown_tool")
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.results() == [("1.1", "refused")] and drive.kept()["effect_certain"] is False
    drive.answer("well").ended()
    assert (listed(drive), drive.shown["task_outcome"]) == (["1.1"], "needs_reconciliation")
    drive.claim(caretaker=True).reconciles("1.1", "result", output=1)
    receipt = drive.receipts["1.1"]
    assert (receipt.raw, receipt.outcome, receipt.output) == ("1", "reconciled", '"refused"'), "what the model read stays"


def test_R37_a_retry_beside_a_cancel_comes_to_nothing_and_a_result_counts() -> None:
    drive = Drive().lost("charge").claim().gets().reconciles("1.1", "retry")
    assert drive.ignored == [2]
    drive.reconciles("1.1", "result", output=1)
    drive.ended()
    assert drive.stopped == ("cancelled", [("1.1", "finished")]) and drive.shown["task_outcome"] == "failed"


# -- evidence --------------------------------------------------------------------------------------------------------------

PROOF = {"operation_id": "op_1", "source": "ledger"}


@pytest.mark.parametrize(("decision", "outcome"), [("result", "reconciled"), ("error", "failed")])
def test_R15_evidence_that_holds_settles_the_call(decision: str, outcome: str) -> None:
    drive = Drive().lost("pay")
    assert drive.shown["pending"]["unknown_effects"][0]["evidence_required"] is True
    drive.claim().reconciles("1.1", decision, output="paid", evidence=PROOF)
    assert drive.settle() == Work(start=(CheckEvidence("1.1", 1),)) and listed(drive) == []
    drive.crash()
    assert drive.settle() == Work(start=(CheckEvidence("1.1", 1),))
    drive.evidence("1.1")
    assert drive.settle() == Work(start=(CallModel(2, 1),)) and drive.receipts["1.1"].outcome == outcome
    record = {"decision": decision, "at": T0, "by": "ann", "evidence": PROOF, "verified": True}
    assert drive.kept()["reconciled"] == record


def test_R15_evidence_that_does_not_hold_settles_nothing_and_gives_the_effect_a_new_key() -> None:
    drive = Drive().lost("pay")
    for refused in (1, 2):
        drive.claim().reconciles("1.1", "result", output=1, evidence=PROOF)
        drive.settle()
        drive.evidence("1.1", "unknown operation")
        assert drive.settle() == LegOver() and listed(drive) == ["1.1"]
        assert key_of(drive.effect()) == f"unknown:1.1:1.{refused}"
        assert drive.of("warning")[-1]["code"] == "evidence_refused"
        assert drive.shown["pending"]["unknown_effects"][0]["evidence_refused"] == "unknown operation"
    drive.claim().reconciles("1.1", "result", output=1, evidence=PROOF)
    drive.settle()
    drive.evidence("1.1")
    assert drive.settle() == Work(start=(CallModel(2, 1),))


def test_R15_evidence_is_checked_for_what_the_model_was_told_as_well() -> None:
    drive = told("owe").reconciles("1.1", "result", output=1, evidence=PROOF)
    assert drive.settle() == Work(start=(CallModel(2, 1), CheckEvidence("1.1", 1)))
    drive.evidence("1.1")
    assert drive.run.unknowns == () and drive.kept()["reconciled"]["verified"] is True


def test_R15_a_check_that_comes_too_late_changes_nothing() -> None:
    drive = Drive().lost("pay").claim()
    before = drive.run
    drive.evidence("1.1")
    assert drive.run == before
    drive.reconciles("1.1", "result", output=1, evidence=PROOF)
    before = drive.run
    drive.apply(EvidenceChecked(at=T0, call_id="1.1", attempt=9, refusal=None))
    assert drive.run == before


def test_R15_while_evidence_is_checked_no_other_decision_is_taken() -> None:
    drive = Drive().lost("pay").claim().reconciles("1.1", "result", output=1, evidence=PROOF)
    before = drive.run
    drive.reconciles("1.1", "retry", evidence=PROOF)
    assert drive.run == before and drive.ignored == [2]


@pytest.mark.parametrize("decision", ["result", "error"])
def test_R15_after_the_end_nobody_checks_evidence_and_the_record_says_so(decision: str) -> None:
    drive = over("owe").claim(caretaker=True).reconciles("1.1", decision, output=1, evidence=PROOF)
    assert drive.settle() == LegOver() and drive.run.unknowns == ()
    assert (drive.kept()["reconciled"]["verified"], drive.kept()["reconciled"]["evidence"]) == (False, PROOF)


def test_R15_an_end_takes_decisions_whose_evidence_nobody_has_looked_at() -> None:
    drive = Drive().lost("pay").claim().reconciles("1.1", "result", output={"id": 1}, evidence=PROOF).gets()
    drive.ended()
    assert drive.stopped == ("cancelled", [("1.1", "finished")]) and drive.results() == [("1.1", {"id": 1})]
    assert drive.kept()["reconciled"]["verified"] is False and drive.run.unknowns == ()


def test_R15_an_end_leaves_an_effect_unknown_that_was_to_be_made_again_on_evidence() -> None:
    drive = Drive().lost("pay").claim().reconciles("1.1", "retry", evidence=PROOF).gets()
    drive.ended()
    assert drive.stopped == ("cancelled", [("1.1", "unknown")]) and listed(drive) == ["1.1"]
    assert key_of(drive.effect()) == "unknown:1.1:1.1" and "reconciled" not in drive.kept(), "it was not taken"


def test_R8_a_run_that_waits_for_a_check_wakes_nobody_in_the_past() -> None:
    drive = Drive().lost("pay").claim(caretaker=True).reconciles("1.1", "result", output=1, evidence=PROOF)
    assert drive.settle() == LegOver() and drive.status is Status.QUEUED, "the check needs the agent's code"
    assert work_due(drive.run) is None
    drive.claim()
    assert drive.settle() == Work(start=(CheckEvidence("1.1", 1),))


def test_the_result_of_an_error_names_no_success() -> None:
    drive = Drive().lost("charge").claim().reconciles("1.1", "error", output="no")
    assert drive.run.call("1.1").result == Result(output="no", is_error=True, outcome="failed")
