"""`RUNWARD_FAULTS`: processes that break on purpose at a named point, and what becomes of their runs.

Golden runs say something, ask for an approval, pay, and are done. A payment whose outcome was lost is looked up by its probe, so
whatever happens where, each run completes, and each order is paid exactly once.
"""

from __future__ import annotations

import json
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from runward.engine.probes import FAULT_EXIT_CODE
from tests.e2e.deployment import Deployment, Script
from tests.e2e.programs import Program

TEXT = "Let me pay for it. "
FROM_THE_END = [
    "after_end",
    "before_end",
    "after_outcome",
    "before_outcome",
    "before_projection",
    "after_executed",
    "before_executed",
    "before_effect",
    "after_executing",
    "before_executing",
    "after_suspend",
    "before_suspend",
    "after_request",
    "before_request",
    "after_answer",
    "before_answer",
    "after_model",
    "after_frames",
    "before_frames",
    "before_model",
    "after_claim",
    "before_claim",
]
"""Points of a worker, the late ones of a run first: who is recovered gets on, and nobody becomes a suspect."""
AFTER_AN_EFFECT = ["after_closing", "before_closing", "after_probe", "before_probe", "recovery"]
"""Points that a leg comes to when the one before it died right after its effect."""


def golden(number: int) -> Script:
    call = ["pay", {"order_id": number}]
    return [{"text": TEXT * 3, "delay": 0.01, "calls": [call]}, {"echo": True}]


class Desk:
    """Somebody who approves whatever is asked for."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._over = threading.Event()

    def approve_all(self) -> None:
        with httpx.Client(base_url=self._deployment.url, timeout=30, trust_env=False) as http:
            while not self._over.wait(0.05):
                for request in http.get("/approvals", params={"status": "pending"}).json()["data"]:
                    http.post(f"/approvals/{request['approval_id']}", json={"approved": True})

    def close(self) -> None:
        self._over.set()


@contextmanager
def approving(deployment: Deployment) -> Iterator[None]:
    desk = Desk(deployment)
    with ThreadPoolExecutor(1) as thread:
        approved = thread.submit(desk.approve_all)
        try:
            yield
        finally:
            desk.close()
            approved.result()


def check(deployment: Deployment, ids: list[str]) -> None:
    """Every run completed, told the same as ever, and paid once."""
    for number, run_id in enumerate(ids):
        run = completed(deployment, run_id)
        assert (run["text"], run["task_outcome"]) == (json.dumps({"order_id": number, "price": 12}), "resolved")
        journal = deployment.frames(run_id)
        journal.check()
        assert journal.texts[1] == TEXT * 3
        assert len(deployment.ledger.at(f"pay {number}")) == 1


def completed(deployment: Deployment, run_id: str) -> dict[str, object]:
    while (run := deployment.settled(run_id))["status"] != "completed":
        assert run["status"] == "suspended", run
    return run


@pytest.mark.timeout(240)
def test_R12_killed_at_any_point_every_run_completes_and_nothing_is_done_twice(deployment: Deployment) -> None:
    """R40, too. Workers that die at one point each, one after the other: every second point on each of the databases."""
    deployment.settings = {"lease_ttl_seconds": "1", "max_recoveries": "20"}
    deployment.serve("--no-worker")
    half = slice(int(deployment.on_postgres), None, 2)
    points = FROM_THE_END[half] + [point for late in AFTER_AN_EFFECT[half] for point in ("after_effect", late)]
    ids: list[str] = []
    with approving(deployment):
        for point in points:
            ids.append(deployment.create(golden(len(ids))))
            dying = deployment.spawn("worker", faults=f"{point}:kill")
            assert dying.ended() == -signal.SIGKILL
            assert [(log["point"], log["action"]) for log in dying.said("fault")] == [(point, "kill")]
        deployment.worker()
        check(deployment, ids)


def test_R2a_commits_that_are_refused_and_answers_that_are_lost_cost_nothing_but_time(deployment: Deployment) -> None:
    deployment.settings = {
        "lease_ttl_seconds": "20",
        "faults": "before_commit:raise@15%,after_commit:raise@15%,after_frames:raise@15%,after_claim:raise@15%,before_frames:pause=0.1@2",
    }
    deployment.serve("--no-worker", faults="")
    worker = deployment.worker()
    assert worker.said("faults_on")[0]["level"] == "warning"
    ids = [deployment.create(golden(number)) for number in range(8)]
    with approving(deployment):
        check(deployment, ids)
    assert worker.said("fault")
    for run_id in ids:
        frames = deployment.frames(run_id).frames
        # a claim whose answer was lost may leave an attempt that nobody made
        reset = [(frame["step"], frame["attempt"]) for frame in frames if frame["type"] == "reset-step"]
        said_before = [frame for frame in frames if frame["type"] == "text-delta" and (frame["step"], frame["attempt"]) in reset]
        assert said_before == [], "nothing that was said is taken back"


def test_R3a_a_worker_that_stands_still_before_an_effect_for_longer_than_its_lease_does_not_start_it(deployment: Deployment) -> None:
    deployment.serve("--no-worker")
    stopped = deployment.worker(faults="before_effect:stop@1")
    run_id = deployment.create([{"calls": [["charge", {"order_id": 1}]]}, {"text": "Charged."}])
    stopped.hears("fault")
    deployment.worker()
    (unknown,) = deployment.suspended(run_id)["pending"]["unknown_effects"]
    stopped.signal(signal.SIGCONT)
    stopped.hears("lease_lost")
    assert deployment.ledger.counts() == {}
    deployment.resume(run_id, reconcile=[{"tool_call_id": unknown["tool_call_id"], "decision": "retry"}])
    assert deployment.ended(run_id)["text"] == "Charged."
    assert deployment.ledger.counts() == {"charge 1": 1}


@pytest.mark.parametrize("fault", ["draining:kill", "before_give_back:exit", "after_give_back:kill"])
def test_R39_a_worker_that_dies_while_it_drains_loses_nothing(on_sqlite: Deployment, fault: str) -> None:
    ledger = on_sqlite.ledger
    on_sqlite.settings = {"lease_ttl_seconds": "1"}
    on_sqlite.serve("--no-worker")
    leaving = on_sqlite.worker(faults=fault)
    ledger.hold("lookup 1")
    run_id = on_sqlite.create([{"calls": [["lookup", {"order_id": 1}]]}, {"calls": [["charge", {"order_id": 2}]]}, {"text": "Charged."}])
    ledger.arrived("lookup 1")
    leaving.process.terminate()
    leaving.hears("draining")
    ledger.release()
    assert leaving.ended() == (FAULT_EXIT_CODE if fault.endswith("exit") else -signal.SIGKILL)
    on_sqlite.worker()
    assert on_sqlite.ended(run_id)["text"] == "Charged."
    on_sqlite.frames(run_id).check()
    assert ledger.counts()["charge 2"] == 1


def test_R42_an_api_that_dies_right_after_a_write_has_taken_what_it_was_told(deployment: Deployment) -> None:
    """I-23 and I-35, too: what is stored needs no second call, and a second call changes nothing."""
    deployment.worker()
    key, body = uuid.uuid4().hex, {"agent": "puppet", "input": json.dumps(golden(0))}

    def post(path: str, content: object) -> httpx.Response:
        return deployment.http.post(path, json=content, headers={"Idempotency-Key": key})

    dying = deployment.serve("--no-worker", faults="after_create:kill,after_mail:kill")
    lost(dying, lambda: post("/runs", body))
    dying = deployment.serve("--no-worker", faults="before_create:kill,after_mail:kill")
    (listed,) = deployment.http.get("/runs").json()["data"]
    (request,) = deployment.suspended(listed["run_id"])["pending"]["approvals"]
    verdict = {"approved": True, "decided_by": "ann"}
    lost(dying, lambda: post(f"/approvals/{request['approval_id']}", verdict))
    deployment.serve("--no-worker")
    answer = post("/runs", body)
    assert (answer.status_code, answer.headers["idempotent-replayed"]) == (200, "true")
    check(deployment, [answer.json()["run_id"]])
    assert post(f"/approvals/{request['approval_id']}", verdict).status_code == 200
    assert len(deployment.http.get("/runs").json()["data"]) == 1


def lost(dying: Program, call: Callable[[], object]) -> None:
    """A call that kills its API before the answer."""
    with pytest.raises(httpx.HTTPError):
        call()
    assert dying.ended() == -signal.SIGKILL


def test_faults_that_cannot_be_done_keep_a_process_from_starting(on_sqlite: Deployment) -> None:
    for arguments in (["serve"], ["worker"]):
        done = on_sqlite.run_command(*arguments, faults="before_lunch:kill")
        assert done.returncode == 1 and "there is no point 'before_lunch'" in done.stderr
