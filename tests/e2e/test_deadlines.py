"""Deadlines in processes: they are stored with the run, and outlive whoever works on it (R35a)."""

from __future__ import annotations

from datetime import datetime

from tests.e2e.deployment import Deployment, Script, View

LOOKS: Script = [{"calls": [["lookup", {"order_id": 1}]]}, {"text": "x"}]
LOOKS_TOO: Script = [{"calls": [["lookup", {"order_id": 2}]]}, {"text": "x"}]


def lived(run: View) -> float:
    """How long the run lived, in seconds."""
    return (datetime.fromisoformat(run["ended_at"]) - datetime.fromisoformat(run["created_at"])).total_seconds()


def test_R35a_a_deadline_outlives_the_worker_that_was_killed(deployment: Deployment) -> None:
    """One run is worked on again when its time is up; that of the other is up by then, and nobody works on it any more."""
    ledger = deployment.ledger
    deployment.start()
    ledger.hold("lookup 1", "lookup 2")
    long = deployment.create(LOOKS, limits={"expires_seconds": 15})
    short = deployment.create(LOOKS_TOO, limits={"expires_seconds": 2})
    ledger.arrived("lookup 1")
    ledger.arrived("lookup 2")
    deployment.crash()
    deployment.recover()
    ended = deployment.ended(short)
    assert (ended["status"], ended["stop"]["reason"]) == ("stopped", "deadline") and len(ledger.at("lookup 2")) == 1
    ledger.arrived("lookup 1", 2)
    ended = deployment.ended(long)
    assert (ended["status"], ended["stop"]["reason"]) == ("stopped", "deadline")
    assert 15 <= lived(ended) < 15 + 5, "and the grace that a tool under way gets"
    assert ended["stop"]["details"]["calls"] == [{"tool_call_id": "1.1", "tool_name": "lookup", "state": "cancelled"}]
    for run_id in (long, short):
        deployment.frames(run_id).check()
