"""Workers drive what they have the code for, and leave the rest alone (R41)."""

from __future__ import annotations

from tests.e2e.deployment import OTHERS, Deployment, Script

CHARGE: Script = [{"calls": [["charge", {"order_id": 1}]]}, {"text": "Charged."}]


def test_R41_a_worker_without_the_code_leaves_a_run_alone_but_cancels_it(deployment: Deployment) -> None:
    deployment.serve("--no-worker")
    deployment.worker(agents=str(OTHERS))
    left, cancelled = deployment.create(CHARGE), deployment.create(CHARGE)
    before = deployment.run(left)
    assert deployment.cancel(cancelled).status_code == 202
    run = deployment.ended(cancelled)
    assert (run["status"], run["stop"]["reason"]) == ("stopped", "cancelled")
    deployment.frames(cancelled).check()
    other = deployment.create([], agent="other")
    assert deployment.ended(other)["text"] == "I know nothing of puppets."
    assert deployment.run(left) == before and before["status"] == "queued"
    deployment.worker()
    assert deployment.ended(left)["text"] == "Charged."
    assert deployment.ledger.counts() == {"charge 1": 1}


def test_R41_a_crashed_run_waits_for_a_worker_that_has_its_code(deployment: Deployment) -> None:
    """Others neither take it over nor fail it, though its lease ran out; a cancel is applied by any of them."""
    deployment.serve("--no-worker")
    dying = deployment.worker()
    deployment.ledger.hold("charge 1", "lookup 2")
    waiting = deployment.create(CHARGE)
    cancelled = deployment.create([{"calls": [["lookup", {"order_id": 2}]]}, {"text": "x"}])
    deployment.ledger.arrived("charge 1")
    deployment.ledger.arrived("lookup 2")
    dying.kill()
    deployment.worker(agents=str(OTHERS))
    before = deployment.run(waiting)
    assert deployment.cancel(cancelled).status_code == 202
    run = deployment.ended(cancelled)
    assert run["stop"] == {
        "reason": "cancelled",
        "details": {"calls": [{"tool_call_id": "1.1", "tool_name": "lookup", "state": "cancelled"}]},
    }
    assert deployment.run(waiting) == before and before["status"] == "running"
    deployment.ledger.release()
    deployment.worker()
    assert [unknown["tool_call_id"] for unknown in deployment.suspended(waiting)["pending"]["unknown_effects"]] == ["1.1"]
    deployment.frames(cancelled).check()


def test_an_api_without_the_code_of_an_agent_serves_what_workers_publish(deployment: Deployment) -> None:
    deployment.serve("--no-worker", agents=str(OTHERS))
    refused = deployment.http.post("/runs", json={"agent": "puppet", "input": "[]"})
    assert (refused.status_code, refused.json()["code"]) == (422, "unknown_agent")
    deployment.worker()
    assert deployment.ended(deployment.create(CHARGE))["text"] == "Charged."
    assert {agent["name"] for agent in deployment.http.get("/agents").json()["data"]} == {"narrow", "other", "puppet"}
    assert [tool["name"] for tool in deployment.http.get("/agents/puppet").json()["tools"]][:2] == ["lookup", "note"]
