"""Tools that can find out what became of an effect nobody knows of (R13)."""

from __future__ import annotations

import json

import pytest

from runward.core.kernel.actor import Status
from runward.core.runs.decide import CallModel, CheckEvidence, LegOver, Probe, Project, RunCall, Screen, Work
from runward.core.runs.face import face_of
from runward.core.runs.facts import Probed
from runward.core.runs.sentences import NOT_STARTED, UNKNOWN_TO_MODEL
from runward.core.runs.unsettled import ProbeStatus, probe_backoff_ms
from runward.core.runs.view import pending
from tests.unit.core.driving import T0, Drive, ok

HAPPENED, DID_NOT_HAPPEN = ProbeStatus.HAPPENED, ProbeStatus.DID_NOT_HAPPEN
KNOWS_NOT = [ProbeStatus.CANNOT_TELL, ProbeStatus.FAILED]


def test_R13_a_tool_that_can_find_out_is_asked_before_anybody_else() -> None:
    drive = Drive().running("wire").crash()
    assert drive.settle() == Work(start=(Probe("1.1", 1),))
    drive.crash()
    assert drive.settle() == Work(start=(Probe("1.1", 1),)), "to ask has no effect"


def test_R13_what_a_probe_finds_settles_the_call_under_the_key_of_a_decision() -> None:
    drive = Drive().lost("wire")
    drive.probe("1.1", HAPPENED, result=ok({"id": "w_1"}))
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.keys() == ["unknown:1.1:1"] and drive.run.unknowns == ()
    assert drive.results() == [("1.1", {"id": "w_1"})] and drive.receipts["1.1"].outcome == "reconciled"
    assert drive.kept()["reconciled"] == {"decision": "result", "at": T0, "probe": "happened"}
    assert json.loads(drive.closings[0].data) == {"tool_call_id": "1.1", "attempt": 1, "decision": "result", "probe": "happened"}


def test_R13_what_a_probe_finds_is_projected() -> None:
    drive = Drive().lost("invoice")
    drive.probe("1.1", HAPPENED, result=ok("raw"), raw={"total": 5})
    assert drive.settle() == Work(start=(Project("1.1"),)) and drive.receipts["1.1"].raw == '{"total":5}'
    drive.projects("1.1", "five")
    assert drive.receipts["1.1"].outcome == "reconciled"


def test_R13_an_effect_that_did_not_happen_is_made_under_the_same_key() -> None:
    drive = Drive().lost("wire")
    drive.probe("1.1", DID_NOT_HAPPEN)
    assert drive.settle() == Work(start=(Screen(1),)) and drive.run.unknowns == ()
    drive.screen()
    assert drive.settle() == Work(start=(RunCall("1.1", 2),))
    assert drive.kept()["reconciled"] == {"decision": "retry", "at": T0, "probe": "did_not_happen"}


def test_R38_an_effect_that_a_probe_says_did_not_happen_was_not_started() -> None:
    drive = Drive().lost("wire")
    drive.gets().probe("1.1", DID_NOT_HAPPEN)
    drive.ended()
    assert drive.stopped == ("cancelled", [("1.1", "not_started")]) and drive.results() == [("1.1", NOT_STARTED)]
    assert drive.kept()["effect_certain"] is True and drive.shown["task_outcome"] == "failed"


@pytest.mark.parametrize("status", KNOWS_NOT)
def test_R13_a_probe_that_does_not_know_is_asked_again_later(status: ProbeStatus) -> None:
    drive = Drive().lost("wire")
    for wait in (30, 60, 120, 240):
        drive.probe("1.1", status, detail="down")
        assert drive.settle() == LegOver() and [effect.tool_call_id for effect in drive.run.unknowns] == ["1.1"]
        face = face_of(drive.run, binding="b", priority=0, at=drive.at)
        assert (face.ready_at, face.care_at) == (drive.at + wait * 1000, None), "to ask needs the agent's code"
        item = pending(drive.run)["unknown_effects"][0]
        assert (item["probe"]["status"], item["probe"]["detail"]) == (status.value, "down")
        drive.at += wait * 1000 - 1
        drive.claim()
        assert drive.settle() == LegOver()
        drive.at += 1
        drive.claim(caretaker=True)
        assert drive.settle() == LegOver() and drive.status is Status.QUEUED, "a caretaker leaves it to who can"
        drive.claim()
        assert drive.settle() == Work(start=(Probe("1.1", 1),))


def test_R13_probes_are_asked_after_half_a_minute_doubled_to_an_hour() -> None:
    assert [probe_backoff_ms(asked) for asked in (1, 2, 3, 7, 8, 100)] == [30_000, 60_000, 120_000, 1_920_000, 3_600_000, 3_600_000]


@pytest.mark.parametrize("status", KNOWS_NOT)
def test_R13_a_model_that_is_to_be_told_is_told_when_the_probe_does_not_know(status: ProbeStatus) -> None:
    drive = Drive().lost("mail")
    assert drive.run.turn and not drive.effect().told
    drive.probe("1.1", status)
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.results() == [("1.1", UNKNOWN_TO_MODEL)] and drive.effect().told


def test_R13_a_probe_that_knows_spares_the_model() -> None:
    drive = Drive().lost("mail")
    drive.probe("1.1", HAPPENED, result=ok("sent"))
    drive.settle()
    assert drive.results() == [("1.1", "sent")]


@pytest.mark.parametrize("status", ProbeStatus)
def test_R13_a_probe_that_answers_too_late_changes_nothing(status: ProbeStatus) -> None:
    drive = Drive().lost("wire")
    late = Probed(at=T0, call_id="1.1", attempt=1, status=status, result=ok("w"))
    drive.reconciles("1.1", "retry")
    before = drive.run
    drive.apply(late)
    assert drive.run == before
    drive.settle()
    drive.screen()
    drive.settle()
    drive.crash()
    before = drive.run
    drive.apply(late)
    assert drive.run == before, "that was about the attempt before"


@pytest.mark.parametrize("status", ProbeStatus)
def test_R19a_a_person_who_was_first_is_not_overruled_by_a_probe(status: ProbeStatus) -> None:
    """Their decision has the key already, so the probe's could never be stored."""
    drive = Drive().lost("send")
    drive.reconciles("1.1", "retry", evidence={"proof": "x"})
    drive.probe("1.1", status, result=ok("w"))
    assert drive.settle() == Work(start=(CheckEvidence("1.1", 1),)) and drive.keys() == []
    drive.evidence("1.1")
    assert drive.settle() == Work(start=(Screen(1),)), "and the call is run again, not answered by the way"


def test_R13_nobody_asks_a_probe_while_a_persons_evidence_is_checked() -> None:
    drive = Drive().lost("send")
    assert drive.settle() == Work(start=(Probe("1.1", 1),))
    drive.reconciles("1.1", "result", output=1, evidence={"proof": "x"})
    assert drive.settle() == Work(start=(CheckEvidence("1.1", 1),))


def test_R19a_what_a_probe_found_counts_once_the_evidence_does_not_hold() -> None:
    drive = Drive().lost("send")
    drive.reconciles("1.1", "error", evidence={"proof": "x"})
    drive.probe("1.1", HAPPENED, result=ok("sent"))
    drive.settle()
    drive.evidence("1.1", "not our receipt")
    assert drive.settle() == Work(start=(CallModel(2, 1),))
    assert drive.keys() == ["unknown:1.1:1.1"] and drive.results() == [("1.1", "sent")]
