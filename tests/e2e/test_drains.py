"""SIGTERM: every run is given back, and nothing that ran runs again (R39)."""

from __future__ import annotations

import signal
import time

from tests.e2e.deployment import Deployment, Script

TWO_CHARGES: Script = [{"calls": [["charge", {"order_id": 1}]]}, {"calls": [["charge", {"order_id": 2}]]}, {"text": "Both charged."}]


def test_R39_sigterm_finishes_the_step_in_hand_and_hands_the_run_over(deployment: Deployment) -> None:
    ledger = deployment.ledger
    deployment.serve("--no-worker")
    leaving = deployment.worker(lease_ttl_seconds="30")
    ledger.hold("charge 1")
    run_id = deployment.create(TWO_CHARGES)
    ledger.arrived("charge 1")
    staying = deployment.worker(lease_ttl_seconds="30")
    leaving.process.terminate()
    leaving.hears("draining")
    ledger.release()
    assert leaving.ended() == 0
    run = deployment.ended(run_id, seconds=10)
    assert (run["status"], run["text"]) == ("completed", "Both charged.")
    assert ledger.counts() == {"charge 1": 1, "charge 2": 1} and ledger.at("charge 2")[0].pid == staying.pid
    journal = deployment.frames(run_id)
    journal.check()
    assert journal.of("reset-step") == []


def test_R39_when_the_grace_ends_what_can_be_repeated_is_broken_off_and_other_leases_run_out(deployment: Deployment) -> None:
    """A model call and a read are repeated by the next leg; a charge that nobody may repeat is left to its lease, never released."""
    ledger = deployment.ledger
    deployment.serve("--no-worker")
    leaving = deployment.worker(drain_grace_seconds="0.5", lease_ttl_seconds="6")
    ledger.hold("model slow", "lookup 1", "charge 3")
    asking = deployment.create([{"point": "slow", "text": "Hello."}])
    reading = deployment.create([{"calls": [["lookup", {"order_id": 1}]]}, {"text": "Read."}])
    charging = deployment.create([{"calls": [["charge", {"order_id": 3}]]}, {"text": "Charged."}])
    for point in ("model slow", "lookup 1", "charge 3"):
        ledger.arrived(point)
    began = time.monotonic()
    assert leaving.stop() == 0
    assert time.monotonic() - began < 5
    left = deployment.run(charging)
    assert [deployment.run(run_id)["status"] for run_id in (asking, reading)] == ["queued", "queued"] and left["status"] == "running"
    ledger.release()
    deployment.worker()
    assert [deployment.ended(run_id)["text"] for run_id in (asking, reading)] == ["Hello.", "Read."]
    (unknown,) = deployment.suspended(charging)["pending"]["unknown_effects"]
    assert unknown["tool_call_id"] == "1.1"
    assert ledger.counts() == {"model slow": 2, "lookup 1": 2, "charge 3": 1}
    assert len({call.key for call in ledger.at("lookup 1")}) == 1
    for run_id in (asking, reading):
        deployment.frames(run_id).check()


def test_a_second_sigterm_insists(deployment: Deployment) -> None:
    ledger = deployment.ledger
    deployment.serve("--no-worker")
    leaving = deployment.worker(drain_grace_seconds="60")
    ledger.hold("charge 1")
    run_id = deployment.create(TWO_CHARGES)
    ledger.arrived("charge 1")
    leaving.process.terminate()
    leaving.hears("draining")
    began = time.monotonic()
    assert leaving.stop() == 0
    assert time.monotonic() - began < 5
    deployment.worker()
    assert [unknown["tool_call_id"] for unknown in deployment.suspended(run_id)["pending"]["unknown_effects"]] == ["1.1"]
    ledger.release()
    assert ledger.counts() == {"charge 1": 1}


def test_an_idle_process_leaves_at_once(deployment: Deployment) -> None:
    """Also for Ctrl-C."""
    programs = [deployment.serve(), deployment.worker()]
    began = time.monotonic()
    programs[0].signal(signal.SIGINT)
    programs[1].signal(signal.SIGTERM)
    assert [program.ended() for program in programs] == [0, 0]
    assert time.monotonic() - began < 5


def test_serve_drains_its_worker_ends_its_streams_and_answers_until_then(deployment: Deployment) -> None:
    ledger = deployment.ledger
    leaving = deployment.serve()
    ledger.hold("charge 1")
    run_id = deployment.create(TWO_CHARGES)
    ledger.arrived("charge 1")
    with deployment.http.stream("GET", f"/runs/{run_id}/events") as stream:
        lines = stream.iter_lines()
        leaving.process.terminate()
        leaving.hears("draining")
        assert deployment.http.get("/readyz").status_code == 503
        assert deployment.run(run_id)["status"] == "running"
        ledger.release()
        rest = list(lines)
    assert leaving.ended() == 0
    assert "retry: 5000" in rest and "data: [DONE]" not in rest
    assert ledger.counts() == {"charge 1": 1}
    deployment.serve()
    assert deployment.ended(run_id, seconds=10)["text"] == "Both charged."
    assert ledger.counts() == {"charge 1": 1, "charge 2": 1}
    deployment.frames(run_id).check()
