"""Calls that a person has to approve: asked for, decided once, expired, looked at again (R18 to R22)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from runward.core.ids import approval_id
from runward.core.kernel.actor import Status
from runward.core.kernel.records import Stage
from runward.core.runs.calls import ApprovalTerms, CallStage, How
from runward.core.runs.decide import CallModel, LegOver, RunCall, Screen, Work
from runward.core.runs.face import face_of
from runward.core.runs.facts import Screened
from runward.core.runs.sentences import DENIED, NOBODY_DECIDED, NOT_STARTED
from runward.core.runs.waits import Wait
from tests.unit.core.driving import T0, UID, Drive, ok
from tests.unit.core.tooling import asked, screening, terms


def gated(*names: str, arguments: Any = None, **differing: Any) -> Drive:
    """A run that waits for approvals of `charge`."""
    drive = Drive(gates={"charge": terms(**differing)})
    return drive.asks(*(names or ("charge",)), arguments=arguments)


def waits(drive: Drive) -> bool:
    return drive.status is Status.SUSPENDED and Wait.APPROVALS in drive.run.waiting_on


# -- asked for -----------------------------------------------------------------------------------------------------------


def test_R19_a_run_waits_for_its_verdict_and_starts_nothing_without_one() -> None:
    drive = gated(arguments={"order": 7}, expires_seconds=60, reason="over 100", editable=True)
    assert waits(drive) and drive.receipts["1.1"].attempt == 0
    gate = drive.gate()
    assert gate.id == approval_id(UID, "1.1", "charge", "1", '{"order":7}')
    assert drive.of("tool-call")[0]["requires_approval"] is True
    assert drive.of("tool-approval-request") == [
        {
            "approval_id": gate.id,
            "tool_call_id": "1.1",
            "tool_name": "charge",
            "arguments": {"order": 7},
            "expires_at": "2023-11-14T22:14:20.000Z",
        }
    ]
    assert drive.of("tool-state")[-1]["state"] == "awaiting_approval"
    assert drive.shown["pending"]["approvals"] == [
        {
            "tool_call_id": "1.1",
            "step": 1,
            "tool_name": "charge",
            "arguments": {"order": 7},
            "approval_id": gate.id,
            "effect": "non_idempotent_write",
            "editable": True,
            "request_reason": "over 100",
            "created_at": "2023-11-14T22:13:20.000Z",
            "expires_at": "2023-11-14T22:14:20.000Z",
            "on_expiry": "deny",
        }
    ]
    (row,) = drive.requests
    assert (row.id, row.tool, row.created_at, row.expires_at) == (gate.id, "charge", T0, T0 + 60_000)
    data = json.loads(row.data)
    assert (data["arguments"], data["request_reason"], data["arguments_schema"]) == ('{"order":7}', "over 100", {"type": "object"})
    drive.claim()
    assert drive.settle() == LegOver() and waits(drive), "woken for nothing it waits on"


def test_R18_twins_of_one_turn_have_ids_of_their_own() -> None:
    drive = gated("charge", "charge", arguments={"order": 7})
    first, second = drive.gate("1.1").id, drive.gate("1.2").id
    assert first != second
    drive.claim().decides(first).decides(second, approved=False)
    drive.settle()
    drive.screen()
    assert drive.settle() == Work(start=(RunCall("1.1", 1),))


@pytest.mark.parametrize("uid", [UID, "0" * 32])
def test_R18_an_id_is_made_of_the_run_the_call_the_tool_the_version_and_the_arguments(uid: str) -> None:
    drive = Drive(gates={"charge": terms()})
    drive.run = replace(drive.run, uid=uid)
    drive._save()
    drive.asks("charge", arguments='{"b" : 1.0, "a":1}')
    assert drive.gate().id == approval_id(uid, "1.1", "charge", "1", '{"a":1,"b":1.0}')


def test_R18_a_verdict_for_another_id_is_ignored_aloud() -> None:
    drive = gated()
    other = approval_id(UID, "1.1", "charge", "2", "{}")
    drive.claim().decides(other)
    assert drive.settle() == LegOver() and waits(drive) and drive.ignored == [1]


def test_I_32_whether_a_call_needs_approval_was_decided_when_the_model_asked_for_it() -> None:
    drive = Drive().lost("charge")
    drive.gates = {"charge": terms()}
    drive.claim().reconciles("1.1", "retry")
    assert drive.settle() == Work(start=(Screen(1),))
    drive.screen()
    assert drive.settle() == Work(start=(RunCall("1.1", 2),)) and drive.requests == []


def test_R22_a_call_that_needs_no_approval_any_more_had_one_and_runs() -> None:
    drive = gated()
    drive.claim().decides(drive.gate().id)
    drive.gates = {}
    drive.settle()
    drive.screen()
    assert drive.settle() == Work(start=(RunCall("1.1", 1),))


# -- decided -------------------------------------------------------------------------------------------------------------


def test_R19_an_approved_call_is_looked_at_again_and_runs_once() -> None:
    drive = gated(arguments={"order": 7})
    gate = drive.gate()
    drive.claim().decides(gate.id, reason="fine")
    assert drive.run.call("1.1").stage is CallStage.CLEARED
    assert drive.settle() == Work(start=(Screen(1),))
    drive.crash()
    assert drive.settle() == Work(start=(Screen(1),)), "nobody is asked again"
    drive.screen()
    assert drive.settle() == Work(start=(RunCall("1.1", 1),))
    drive.ends("1.1", How.RETURNED, ok("charged"))
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.results() == [("1.1", "charged")]
    assert drive.of("tool-approval-response") == [{"approval_id": gate.id, "approved": True, "reason": "fine"}]
    assert drive.kept()["approval"] == {"approval_id": gate.id, "approved": True, "at": T0, "by": "ann", "reason": "fine"}
    assert len(drive.requests) == len(drive.of("tool-call")) == 1


@pytest.mark.parametrize(("reason", "text"), [(None, DENIED), ("too much", "The call was denied: too much")])
def test_R19_and_R11_a_denied_call_never_runs_and_the_model_reads_why(reason: str | None, text: str) -> None:
    drive = gated("charge", "look")
    drive.decides(drive.gate().id, approved=False, reason=reason)
    assert drive.settle() == Work(start=(RunCall("1.2", 1),))
    receipt = drive.receipts["1.1"]
    assert (receipt.stage, receipt.outcome, receipt.attempt, receipt.is_error) == (Stage.FAILED, "denied", 0, True)
    assert drive.of("tool-output")[-1]["output"] == text
    assert {"denied"} == {state["state"] for state in drive.of("tool-state") if state["tool_call_id"] == "1.1"} - {"awaiting_approval"}
    assert drive.kept()["approval"]["approved"] is False


def test_R11_a_run_that_completed_past_a_denial_is_denied() -> None:
    drive = gated()
    drive.claim().decides(drive.gate().id, approved=False)
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.shown == {"status": "running", "phase": "loop", "steps": 2}
    drive.answer("It was denied.").ended()
    assert (drive.status, drive.shown["task_outcome"]) == (Status.COMPLETED, "denied")


@pytest.mark.parametrize("approved", [True, False])
def test_R19_a_second_verdict_has_no_use(approved: bool) -> None:
    drive = gated()
    gate = drive.gate()
    drive.claim().decides(gate.id)
    before = drive.run
    drive.decides(gate.id, approved=approved)
    assert drive.run == before and drive.ignored == [2] and drive.of("warning")[-1]["code"] == "input_ignored"


def test_R22_a_call_that_has_its_outcome_ignores_a_verdict_that_slipped_in() -> None:
    drive = gated()
    gate = drive.gate()
    drive.claim().decides(gate.id, approved=False).decides(gate.id)
    drive.settle()
    assert drive.receipts["1.1"].outcome == "denied" and drive.ignored == [2]


def test_R21_edited_arguments_run_and_the_receipt_shows_both() -> None:
    drive = gated(arguments={"amount": 900}, editable=True)
    drive.claim().decides(drive.gate().id, edited_arguments={"b": 1, "amount": 90})
    drive.settle()
    drive.screen()
    assert drive.settle() == Work(start=(RunCall("1.1", 1),))
    assert drive.receipts["1.1"].arguments == '{"amount":90,"b":1}'
    assert drive.kept()["approval"]["requested_arguments"] == {"amount": 900}
    assert drive.of("tool-call")[0]["arguments"] == {"amount": 900}, "history keeps what the model asked for"
    assert drive.messages[1].tool_calls[0].arguments == {"amount": 900}
    drive.ends("1.1", How.RETURNED)
    assert drive.kept()["approval"]["requested_arguments"] == {"amount": 900}


def test_R19_a_verdict_is_that_of_a_person_known_by_name() -> None:
    drive = gated()
    drive.claim().decides(drive.gate().id, decided_by="bob of accounts")
    assert drive.kept()["approval"]["by"] == "bob of accounts"


# -- looked at again -------------------------------------------------------------------------------------------------------


def test_R22_another_version_asks_anew_and_the_old_verdict_does_not_count() -> None:
    drive = gated()
    old = drive.gate()
    drive.claim().decides(old.id)
    drive.gates = {"charge": terms(version="2")}
    drive.settle()
    drive.screen()
    assert drive.settle() == LegOver() and waits(drive)
    new = drive.gate()
    assert new.id == approval_id(UID, "1.1", "charge", "2", "{}") != old.id and new.verdict is None
    assert [row.id for row in drive.requests] == [old.id, new.id]
    drive.claim().decides(old.id)
    assert drive.settle() == LegOver() and waits(drive), "only the issued id counts"
    drive.claim().decides(new.id)
    drive.settle()
    drive.screen()
    assert drive.settle() == Work(start=(RunCall("1.1", 1),))


def test_R22_a_version_that_comes_back_asks_for_nothing_that_is_decided_already() -> None:
    drive = gated()
    first = drive.gate()
    drive.claim().decides(first.id)
    drive.gates = {"charge": terms(version="2")}
    drive.settle()
    drive.screen().settle()
    drive.claim().decides(drive.gate().id)
    drive.gates = {"charge": terms(version="1")}
    drive.settle()
    drive.screen()
    assert drive.settle() == Work(start=(RunCall("1.1", 1),)), "its key is taken: nobody could decide it once more"
    assert len({row.id for row in drive.requests}) == len(drive.requests) == 2


def test_R18_other_arguments_than_those_approved_are_asked_for_anew() -> None:
    drive = gated(arguments={"order": 7})
    drive.claim().decides(drive.gate().id)
    drive.settle()
    rewritten = replace(screening(drive.run.call("1.1"), drive.gates), arguments='{"order":8}')
    drive.apply(Screened(at=drive.at, screenings=(rewritten,)))
    assert drive.settle() == LegOver() and waits(drive)
    assert drive.gate().id == approval_id(UID, "1.1", "charge", "1", '{"order":8}')


def test_R22_what_no_longer_fits_the_schema_is_answered_after_its_approval() -> None:
    drive = gated()
    drive.claim().decides(drive.gate().id)
    drive.settle()
    drive.refuses("1.1")
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    receipt = drive.receipts["1.1"]
    assert (receipt.outcome, receipt.attempt) == ("invalid_arguments", 0) and drive.results() == [("1.1", "refused")]


def test_R15_and_R22_a_retry_of_an_approved_call_uses_its_recorded_verdict() -> None:
    drive = gated()
    drive.claim().decides(drive.gate().id)
    drive.settle()
    drive.screen()
    drive.settle()
    drive.ends("1.1", How.CANNOT_TELL)
    assert drive.settle() == LegOver()
    drive.claim().reconciles("1.1", "retry")
    drive.settle()
    drive.screen()
    assert drive.settle() == Work(start=(RunCall("1.1", 2),)) and len(drive.requests) == 1


def test_R22_screening_once_more_changes_nothing_of_a_call_that_waits() -> None:
    drive = gated()
    drive.claim()
    before = drive.run
    drive.apply(Screened(at=drive.at, screenings=(screening(drive.run.call("1.1")),)))
    assert drive.run == before


# -- nobody decides ------------------------------------------------------------------------------------------------------


def test_R20_a_request_that_expires_is_denied_by_itself() -> None:
    drive = gated(expires_seconds=60)
    face = face_of(drive.run, binding="b", priority=0, at=drive.at)
    assert (face.ready_at, face.care_at) == (T0 + 60_000, T0 + 60_000)
    drive.at = T0 + 59_999
    drive.claim(caretaker=True)
    assert drive.settle() == LegOver() and waits(drive)
    drive.at += 1
    drive.claim(caretaker=True)
    assert drive.settle() == LegOver() and drive.status is Status.QUEUED
    gate_id = drive.gate().id
    assert drive.keys() == [f"approval:{gate_id}"]
    assert [(closing.id, closing.status) for closing in drive.closed_requests] == [(gate_id, "expired")]
    assert drive.of("tool-approval-response") == [{"approval_id": gate_id, "approved": False, "reason": NOBODY_DECIDED}]
    drive.claim()
    assert drive.settle() == Work(start=(CallModel(2, 1),)) and drive.results() == [("1.1", NOBODY_DECIDED)]
    drive.answer("Nobody decided.").ended()
    assert drive.shown["task_outcome"] == "denied"


def test_R20_a_request_that_expires_stops_the_run_where_its_author_chose_so() -> None:
    drive = gated("charge", "look", expires_seconds=60, on_expiry="stop")
    drive.after(60)
    assert drive.settle() == Work(stop=(RunCall("1.2", 1),)), "what runs has its say"
    drive.ends("1.2", How.RETURNED)
    drive.ended()
    stop = drive.shown["stop"]
    assert (stop["reason"], stop["details"]["tool_call_id"], stop["details"]["approval_id"]) == (
        "approval_expired",
        "1.1",
        drive.closed_requests[0].id,
    )
    assert [(call["tool_call_id"], call["state"]) for call in stop["details"]["calls"]] == [("1.1", "not_started"), ("1.2", "finished")]
    assert drive.results() == [("1.1", NOBODY_DECIDED), ("1.2", "ok")]


def test_R19_a_verdict_that_was_first_is_not_overruled_by_time() -> None:
    drive = gated(expires_seconds=60)
    drive.at = T0 + 60_000
    drive.claim().decides(drive.gate().id)
    assert drive.settle() == Work(start=(Screen(1),)) and drive.keys() == []


def test_R19a_an_expiry_that_was_first_makes_a_verdict_useless() -> None:
    drive = gated(expires_seconds=60)
    gate_id = drive.gate().id
    drive.at = T0 + 60_000
    drive.claim()
    drive.settle()
    drive.decides(gate_id)
    assert drive.ignored == [1] and drive.receipts["1.1"].outcome == "expired"


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_R37_an_end_withdraws_what_was_asked_for(end: str) -> None:
    drive = Drive(gates={"charge": terms()}, expires_seconds=10).asks("charge")
    drive.claim()
    drive.gets() if end == "cancel" else drive.after(10)
    drive.ended()
    assert [(closing.id, closing.status) for closing in drive.closed_requests] == [(drive.requests[0].id, "cancelled")]
    assert drive.stopped[1] == [("1.1", "not_started")] and drive.results() == [("1.1", NOT_STARTED)]
    assert drive.shown["pending"]["approvals"] == [] and drive.keys() == []


def test_R37_a_verdict_beside_a_cancel_is_ignored() -> None:
    drive = gated()
    drive.claim().gets().decides(drive.gate().id)
    drive.ended()
    assert drive.ignored == [2] and drive.receipts["1.1"].attempt == 0


def test_R25_gated_client_and_plain_calls_are_answered_once_in_the_models_order() -> None:
    drive = Drive(gates={"charge": terms()}).asks("charge", "scan", "look", "note")
    assert drive.executing() == [drive.run.call("1.3"), drive.run.call("1.4")]
    drive.ends("1.4", How.RETURNED, ok("noted"))
    drive.ends("1.3", How.RETURNED, ok("seen"))
    assert drive.settle() == LegOver()
    assert drive.run.waiting_on == Wait.APPROVALS | Wait.CLIENT_CALLS
    drive.claim().gives("1.2", {"n": 1})
    assert drive.settle() == LegOver() and drive.run.waiting_on == Wait.APPROVALS
    drive.claim().decides(drive.gate().id)
    drive.settle()
    drive.screen()
    drive.settle()
    drive.ends("1.1", How.RETURNED, ok("charged"))
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.results() == [("1.1", "charged"), ("1.2", {"n": 1}), ("1.3", "seen"), ("1.4", "noted")]


def test_R8_a_call_whose_own_gate_opened_runs_while_others_still_wait() -> None:
    drive = gated("charge", "charge")
    drive.claim().decides(drive.gate("1.2").id)
    assert drive.settle() == Work(start=(Screen(1),))
    drive.screen()
    assert drive.settle() == Work(start=(RunCall("1.2", 1),))
    drive.ends("1.2", How.RETURNED)
    assert drive.settle() == LegOver() and waits(drive)
    assert [item["tool_call_id"] for item in drive.shown["pending"]["approvals"]] == ["1.1"]
    assert drive.run.usage.model_calls == 1


def test_an_approved_client_call_waits_for_its_client_then() -> None:
    gates: dict[str, ApprovalTerms] = {"scan": terms()}
    drive = Drive(gates=gates).claim()
    drive.settle()
    drive.answer("", asked("scan"))
    drive.settle()
    drive.screen()
    assert drive.settle() == LegOver() and waits(drive)
    drive.claim().decides(drive.gate().id)
    drive.settle()
    drive.screen()
    assert drive.settle() == LegOver() and drive.run.waiting_on == Wait.CLIENT_CALLS
