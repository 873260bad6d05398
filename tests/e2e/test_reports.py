"""Failures that users of other services reported, tried on this one (docs/reliability.md, "What others were told")."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.e2e.deployment import Deployment, Script

REFUND: Script = [
    {"point": "first", "calls": [["refund", {"order_id": 1}]], "again": [{"calls": [["refund", {"order_id": 9}]]}]},
    {"echo": True},
]


def test_A06_A37_what_was_approved_runs_after_a_crash_of_the_only_process_in_a_service_of_many(on_postgres: Deployment) -> None:
    """The model would ask for something else by now: it is not asked again."""
    deployment, ledger = on_postgres, on_postgres.ledger
    alone = deployment.serve(faults="before_executing:kill")
    run_id = deployment.create(REFUND)
    (asked,) = deployment.suspended(run_id)["pending"]["approvals"]
    deployment.resume(run_id, approvals=[{"approval_id": asked["approval_id"], "approved": True}])
    assert alone.ended() == -signal.SIGKILL
    deployment.serve("--no-worker")
    for _ in range(2):
        deployment.worker()
    assert deployment.ended(run_id)["text"] == '"refunded 1"'
    assert ledger.counts() == {"model first": 1, "refund 1": 1}
    journal = deployment.frames(run_id)
    journal.check()
    assert len(journal.of("tool-approval-request")) == 1


def test_A12_whoever_leaves_a_stream_at_the_last_word_takes_nothing_along(deployment: Deployment) -> None:
    deployment.serve()
    text = "Word after word. " * 5
    run_id = deployment.create([{"text": text, "delay": 0.05}])
    said = ""
    with deployment.following(run_id) as frames:
        while said != text:
            frame = next(frames)
            said += frame["delta"] if frame["type"] == "text-delta" else ""
    run = deployment.ended(run_id)
    assert (run["status"], run["text"]) == ("completed", text)
    deployment.frames(run_id).check()
    assert deployment.messages(run_id)[-1]["content"] == [{"type": "text", "text": text}]


def test_A21_verdicts_through_two_processes_run_a_call_once_and_old_ones_revive_nothing(on_postgres: Deployment) -> None:
    deployment = on_postgres
    deployment.serve()
    there = Deployment(deployment.database, deployment.folder, deployment.ledger)
    deployment.programs.append(there.serve())
    run_id = deployment.create(REFUND)
    (asked,) = deployment.suspended(run_id)["pending"]["approvals"]
    path = f"/runs/{run_id}/approvals"

    def decide(number: int) -> httpx.Response:
        door = (deployment, there)[number % 2]
        return door.http.post(path, json={"approvals": [{"approval_id": asked["approval_id"], "approved": number % 4 < 2}]})

    with ThreadPoolExecutor(8) as people:
        answers = list(people.map(decide, range(16)))
    assert {answer.status_code for answer in answers} == {202, 409}
    run = deployment.ended(run_id)
    approved = next(frame for frame in deployment.frames(run_id).frames if frame["type"] == "tool-approval-response")["approved"]
    assert deployment.ledger.counts() == ({"model first": 1, "refund 1": 1} if approved else {"model first": 1})
    late = [decide(number) for number in range(4)]
    assert sorted(answer.status_code for answer in late) == [202, 202, 409, 409]
    assert deployment.run(run_id) == run
    deployment.frames(run_id).check()
    there.http.close()
