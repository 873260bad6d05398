"""The operators' hands on real processes: a worker is drained, a run is taken from one that is frozen, and nobody touches what lives."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

from tests.e2e.deployment import SECONDS, Deployment, Script
from tests.e2e.test_takeovers import pause

OTHERS = Path(__file__).with_name("others.py")
TWO_CHARGES: Script = [{"calls": [["charge", {"order_id": 1}]]}, {"calls": [["charge", {"order_id": 2}]]}, {"text": "Both charged."}]
LOOKUP: Script = [{"calls": [["lookup", {"order_id": 1}]]}, {"text": "Read."}]


def workers(deployment: Deployment, *pids: int) -> list[dict[str, Any]]:
    """The workers there are, the one that began first at the front, once they are these: a worker is heard of shortly after it claims."""
    deadline = time.monotonic() + SECONDS
    while True:
        data: list[dict[str, Any]] = deployment.http.get("/ops/workers").json()["data"]
        data.sort(key=lambda worker: str(worker["started_at"]))
        if [worker["pid"] for worker in data] == [*pids]:
            return data
        assert time.monotonic() < deadline, data
        time.sleep(0.05)


def test_R39_a_worker_that_an_operator_drains_hands_its_runs_over_and_exits_0(deployment: Deployment) -> None:
    ledger = deployment.ledger
    deployment.serve("--no-worker")
    leaving = deployment.worker()
    ledger.hold("charge 1")
    run_id = deployment.create(TWO_CHARGES)
    ledger.arrived("charge 1")
    staying = deployment.worker()
    worker, _ = workers(deployment, leaving.pid, staying.pid)
    assert deployment.http.post(f"/ops/workers/{worker['worker_id']}/drain").status_code == 202
    leaving.hears("draining")
    ledger.release()
    assert leaving.ended() == 0
    assert deployment.ended(run_id)["text"] == "Both charged."
    assert ledger.counts() == {"charge 1": 1, "charge 2": 1} and ledger.at("charge 2")[0].pid == staying.pid
    workers(deployment, staying.pid)
    deployment.frames(run_id).check()


def test_R39_a_server_whose_worker_is_drained_goes_on_answering(on_sqlite: Deployment) -> None:
    server = on_sqlite.serve()
    (worker,) = workers(on_sqlite, server.pid)
    assert on_sqlite.http.post(f"/ops/workers/{worker['worker_id']}/drain").status_code == 202
    server.hears("draining")
    run_id = on_sqlite.create([{"text": "Hello."}])
    assert on_sqlite.http.get("/readyz").status_code == 200
    other = on_sqlite.worker()
    assert on_sqlite.ended(run_id)["text"] == "Hello."
    workers(on_sqlite, other.pid)
    assert server.stop() == 0


def test_R40_a_run_is_taken_by_force_from_a_frozen_worker_long_before_its_lease_is_over(deployment: Deployment) -> None:
    ledger = deployment.ledger
    deployment.serve("--no-worker", lease_ttl_seconds="60")
    frozen = deployment.worker(lease_ttl_seconds="60")
    ledger.hold("lookup 1")
    run_id = deployment.create(LOOKUP)
    ledger.arrived("lookup 1")
    pause(frozen, deployment)
    other = deployment.worker(lease_ttl_seconds="60")
    ledger.release()
    refused = deployment.http.post("/ops/recover", json={"run_id": run_id}).json()
    assert refused == {"recovered": 0, "failed": [{"run_id": run_id, "code": "lease_held"}]}
    assert deployment.http.post("/ops/recover", json={"run_id": run_id, "force": True}).json() == {"recovered": 1, "failed": []}
    view, journal = deployment.ended(run_id, seconds=20), deployment.frames(run_id)
    assert view["text"] == "Read."
    frozen.signal(signal.SIGCONT)
    frozen.hears("lease_lost")
    assert (deployment.run(run_id), deployment.frames(run_id)) == (view, journal)
    journal.check()
    assert [call.pid for call in ledger.at("lookup 1")] == [frozen.pid, other.pid]
    (mail,) = deployment.http.get(f"/runs/{run_id}/inbox").json()["data"]
    assert (mail["kind"], mail["state"], mail["principal"]["by"]) == ("takeover", "applied", "local")


def test_R41_a_worker_without_the_code_leaves_a_run_alone_that_another_one_drives(deployment: Deployment) -> None:
    """A-33: for several leases, and when its holder has died, too."""
    ledger = deployment.ledger
    deployment.serve("--no-worker")
    holder = deployment.worker()
    ledger.hold("charge 1")
    run_id = deployment.create(TWO_CHARGES)
    ledger.arrived("charge 1")
    deployment.worker(agents=str(OTHERS))
    done = deployment.http.post("/ops/recover", json={})
    assert done.json() == {"recovered": 0, "failed": []}
    assert deployment.http.get("/ops/unclaimable").json()["data"] == []
    assert (deployment.run(run_id)["status"], deployment.http.get("/ops/leases").json()["data"][0]["leg"]) == ("running", 1)
    ledger.release()
    assert deployment.ended(run_id)["text"] == "Both charged."
    assert {call.pid for point in ("charge 1", "charge 2") for call in ledger.at(point)} == {holder.pid}
    holder.kill()
    waiting = deployment.create(TWO_CHARGES)
    why = deployment.http.get(f"/runs/{waiting}/why").json()
    assert {reason["code"] for reason in why["reasons"]} <= {"no_worker_with_binding", "queued"}, why
