"""What waits for people, clients and time outlives every process: the rest of the crash matrix of docs/semantics.md §12.

All runs are in their places when their worker is killed (`crashed`), input comes while nobody works, and the next worker is killed in
the middle of what it made of that. The tests look at what became of each run.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import deployed, migrated
from tests.e2e.deployment import Deployment, Script, View
from tests.e2e.proxied import proxied
from tests.e2e.test_takeovers import pause
from tests.support.servers import Postgres, Redis


def one(name: str, **arguments: Any) -> Script:
    """A run that calls one tool, and says what that answered."""
    return [{"calls": [[name, arguments]]}, {"echo": True}]


RUNS: dict[str, Script] = {
    "approval": one("refund", order_id=1),
    "approved": one("refund", order_id=2),
    "client": one("pick"),
    "question": one("ask_user", question="Which?", choices=["red", "blue"]),
    "timer": one("durable_wait", seconds=3),
    "probed": one("pay", order_id=3),
    "expiring": one("peek", order_id=4),
    "held": one("refund", order_id=5),
    "mixed": [{"calls": [["refund", {"order_id": 6}], ["pick", {}], ["lookup", {"order_id": 7}]]}, {"echo": True}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """A service whose workers were killed twice, and the third one that now runs."""

    deployment: Deployment
    ids: dict[str, str]

    def ended(self, name: str) -> View:
        """A run that has ended, whose journal is whole."""
        run = self.deployment.over(self.ids[name])
        self.deployment.frames(self.ids[name]).check()
        return run

    def receipts(self, name: str) -> list[View]:
        return self.deployment.receipts(self.ids[name])

    def count(self, point: str) -> int:
        return len(self.deployment.ledger.at(point))


@pytest.fixture(scope="module", params=["sqlite", "postgres and redis"])
def desk(request: pytest.FixtureRequest, databases: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """An API without a worker."""
    folder = tmp_path_factory.mktemp("desk")
    kind, _, redis = request.param.partition(" and ")
    with databases(kind, folder) as url, deployed(url, folder) as deployment:
        deployment.settings = {"lease_ttl_seconds": "1"}
        if redis:
            deployment.settings["redis_url"] = request.getfixturevalue("redis_url")
        deployment.serve("--no-worker")
        yield deployment


@pytest.fixture(scope="module")
def crashed(desk: Deployment) -> Crashed:
    ledger = desk.ledger
    ledger.hold("refund 2", "pay 3", "probe 3")
    worker = desk.worker()
    ids = {name: desk.create(script) for name, script in RUNS.items()}
    for run_id in ids.values():
        desk.suspended(run_id)
    assert desk.http.post(f"/runs/{ids['held']}/drain", json={"hold": True, "reason": "lunch"}).status_code == 202
    approve(desk, ids["approved"], ids["probed"])
    for point in ("refund 2", "pay 3"):
        ledger.arrived(point)
    worker.kill()
    approve(desk, ids["approval"], ids["held"])
    desk.resume(ids["client"], tool_results=[{"tool_call_id": "1.1", "output": {"path": "a.txt"}}])
    desk.resume(
        ids["question"], answers=[{"question_id": desk.run(ids["question"])["pending"]["questions"][0]["question_id"], "answer": "red"}]
    )
    mixed = verdicts(desk, ids["mixed"])
    desk.resume(ids["mixed"], approvals=mixed, tool_results=[{"tool_call_id": "1.2", "output": {"path": "b.txt"}}])
    worker = desk.worker()
    ledger.arrived("probe 3")
    assert unknown(desk, ids["approved"]) == ["1.1"]
    desk.resume(ids["approved"], reconcile=[{"tool_call_id": "1.1", "decision": "retry"}])
    ledger.arrived("refund 2", 2)
    worker.kill()
    ledger.release()
    desk.worker()
    return Crashed(deployment=desk, ids=ids)


def verdicts(deployment: Deployment, run_id: str) -> list[View]:
    """A yes to everything that a run asks."""
    return [{"approval_id": asked["approval_id"], "approved": True} for asked in deployment.run(run_id)["pending"]["approvals"]]


def approve(deployment: Deployment, *run_ids: str) -> None:
    for run_id in run_ids:
        deployment.resume(run_id, approvals=verdicts(deployment, run_id))


def unknown(deployment: Deployment, run_id: str) -> list[str]:
    """The unknown effects of a run that waits for somebody to settle them, and for nothing else."""
    pending = deployment.suspended(run_id)["pending"]
    effects: list[View] = pending.pop("unknown_effects")
    assert not any(pending.values()), pending
    return [effect["tool_call_id"] for effect in effects]


def test_R12_after_a_verdict_was_recorded_the_call_runs_once_and_nobody_is_asked_again(crashed: Crashed) -> None:
    """I-27 and I-35, too: the verdict came while no worker was up, and needed no second request."""
    assert crashed.ended("approval")["text"] == '"refunded 1"'
    assert crashed.count("refund 1") == 1
    (receipt,) = crashed.receipts("approval")
    assert receipt["approval"]["approved"] is True
    assert len(crashed.deployment.frames(crashed.ids["approval"]).of("tool-approval-request")) == 1


def test_R24_a_client_result_that_came_while_nobody_worked_is_applied_once(crashed: Crashed) -> None:
    assert json.loads(crashed.ended("client")["text"]) == {"path": "a.txt"}
    assert len(crashed.deployment.frames(crashed.ids["client"]).of("tool-output")) == 1


def test_R26_an_answer_that_came_while_nobody_worked_is_applied_once(crashed: Crashed) -> None:
    assert crashed.ended("question")["text"] == '"red"'


def test_R26_a_timer_that_is_due_while_nobody_works_ends_on_its_own(crashed: Crashed) -> None:
    assert json.loads(crashed.ended("timer")["text"]) == {"waited_seconds": 3}


def test_R20_a_request_that_expires_while_nobody_works_is_denied(crashed: Crashed) -> None:
    run = crashed.ended("expiring")
    assert run["task_outcome"] == "denied" and crashed.count("peek 4") == 0


def test_R25_a_mixed_turn_is_answered_once_in_the_models_order(crashed: Crashed) -> None:
    texts = crashed.ended("mixed")["text"].split(" | ")
    assert [json.loads(text) for text in texts] == ["refunded 6", {"path": "b.txt"}, "order 7 has shipped"]
    assert [crashed.count(point) for point in ("refund 6", "lookup 7")] == [1, 1]


def test_R13_a_probe_that_died_is_asked_again_and_settles_the_effect(crashed: Crashed) -> None:
    run = crashed.ended("probed")
    assert (run["text"], run["task_outcome"]) == ('{"order_id": 3, "price": 12}', "resolved")
    assert (crashed.count("pay 3"), crashed.count("probe 3")) == (1, 2)


def test_R15_a_retry_that_died_is_unknown_again_and_can_be_settled_again(crashed: Crashed) -> None:
    """R22, too: the verdict that the call had counts for its retry."""
    deployment, run_id = crashed.deployment, crashed.ids["approved"]
    assert unknown(deployment, run_id) == ["1.1"]
    first, again = deployment.ledger.at("refund 2")
    assert first.key == again.key and first.pid != again.pid
    deployment.resume(run_id, reconcile=[{"tool_call_id": "1.1", "decision": "result", "output": "found"}])
    assert crashed.ended("approved")["text"] == '"found"'
    assert crashed.count("refund 2") == 2
    assert len(deployment.frames(run_id).of("tool-approval-request")) == 1


def test_R39_a_run_on_hold_stays_parked_with_what_it_was_sent(crashed: Crashed) -> None:
    deployment, run_id = crashed.deployment, crashed.ids["held"]
    pending = deployment.suspended(run_id)["pending"]
    assert pending["hold"]["reason"] == "lunch" and pending["approvals"] == [] and crashed.count("refund 5") == 0
    deployment.resume(run_id, release_hold=True)
    assert crashed.ended("held")["text"] == '"refunded 5"'
    assert crashed.count("refund 5") == 1


def test_R3_a_paused_worker_wakes_after_others_have_settled_what_it_did(deployment: Deployment) -> None:
    """Two workers: an approved call and a probe are under way in one that stands still, and verdicts come meanwhile."""
    ledger = deployment.ledger
    deployment.serve("--no-worker")
    paused = deployment.worker()
    ledger.hold("refund 1", "pay 2")
    ids = [
        deployment.create(one("refund", order_id=1)),
        deployment.create(one("pay", order_id=2)),
        deployment.create(one("refund", order_id=3)),
    ]
    for run_id in ids:
        deployment.suspended(run_id)
    approve(deployment, *ids[:2])
    for point in ("refund 1", "pay 2"):
        ledger.arrived(point)
    pause(paused, deployment)
    approve(deployment, ids[2])
    deployment.worker()
    assert unknown(deployment, ids[0]) == ["1.1"]
    deployment.resume(ids[0], reconcile=[{"tool_call_id": "1.1", "decision": "result", "output": "found"}])
    views = [deployment.ended(run_id) for run_id in ids]
    assert [view["text"] for view in views] == ['"found"', '{"order_id": 2, "price": 12}', '"refunded 3"']
    ledger.release()
    paused.signal(signal.SIGCONT)
    paused.hears("lease_lost", 2)
    assert [deployment.run(run_id) for run_id in ids] == views
    assert ledger.counts() == {"refund 1": 1, "pay 2": 1, "probe 2": 1, "projection 2": 1, "refund 3": 1}
    for run_id in ids:
        deployment.frames(run_id).check()


def test_R2a_a_commit_whose_answer_was_lost_asks_and_pays_once(on_postgres: Deployment) -> None:
    """The n-th answer of the database about the n-th run is lost, before and behind a verdict."""
    on_postgres.serve("--no-worker")
    with proxied(on_postgres.database) as wire:
        on_postgres.worker(database_url=wire.url, lease_ttl_seconds="20")
        swallowed = 0
        for nth in range(8):
            on_postgres.ledger.hold(f"pay {nth}")
            run_id = on_postgres.create([{"text": "Now.", "calls": [["pay", {"order_id": nth}]]}, {"text": "Paid."}])
            if nth % 2:
                wire.swallow(to=run_id.encode(), skip=nth // 2)
            on_postgres.suspended(run_id)
            if not nth % 2:
                wire.swallow(to=run_id.encode(), skip=nth // 2)
            approve(on_postgres, run_id)
            on_postgres.ledger.arrived(f"pay {nth}")
            on_postgres.ledger.release()
            assert on_postgres.ended(run_id)["text"] == "Paid."
            journal = on_postgres.frames(run_id)
            journal.check()
            assert [len(journal.of(kind)) for kind in ("tool-approval-request", "tool-approval-response", "tool-output")] == [1, 1, 1]
            assert len(on_postgres.ledger.at(f"pay {nth}")) == 1
            swallowed += wire.has_swallowed
        assert swallowed >= 5


def test_I35_a_verdict_whose_answer_was_lost_is_recorded_and_may_be_sent_again(on_postgres: Deployment) -> None:
    on_postgres.worker()
    with proxied(on_postgres.database) as wire:
        on_postgres.serve("--no-worker", database_url=wire.url)
        run_id = on_postgres.create(one("refund", order_id=1))
        (verdict,) = verdicts(on_postgres, on_postgres.suspended(run_id)["run_id"])
        path, body = f"/runs/{run_id}/approvals", {"approvals": [verdict]}
        wire.swallow(to=f"approval:{verdict['approval_id']}".encode(), skip=1)  # the first one asks whether it is known
        with ThreadPoolExecutor(1) as caller:
            asked = caller.submit(on_postgres.http.post, path, json=body)
            wire.await_swallowed()
            assert asked.result().status_code in (202, 503)
        assert on_postgres.ended(run_id)["text"] == '"refunded 1"'
        again, other = (on_postgres.http.post(path, json={"approvals": [given]}) for given in (verdict, verdict | {"approved": False}))
    assert again.status_code == 202 and again.json()["items"][0]["result"] == "duplicate"
    assert (other.status_code, other.json()["code"]) == (409, "already_answered")
    assert on_postgres.ledger.counts() == {"refund 1": 1}


def restart(server: Postgres | Redis) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("away", [restart, Redis.pause], ids=["both restart", "redis freezes"])
def test_I48_people_are_heard_whatever_happens_to_database_and_redis(
    own_postgres: Postgres, own_redis: Redis, tmp_path: Path, away: Callable[[Any], None]
) -> None:
    url = own_postgres.url.format(db="postgres")
    migrated(url, tmp_path)
    with deployed(url, tmp_path) as deployment:
        deployment.settings = {"redis_url": own_redis.url, "lease_ttl_seconds": "20"}
        deployment.ledger.hold("refund 1")
        for program in (deployment.serve("--no-worker"), deployment.worker()):
            program.hears("bus_listens")
        under_way, waiting = (deployment.create(one("refund", order_id=number)) for number in (1, 2))
        for run_id in (under_way, waiting):
            deployment.suspended(run_id)
        approve(deployment, under_way)
        deployment.ledger.arrived("refund 1")
        away(own_redis)
        if away is restart:
            away(own_postgres)
        deployment.ledger.release()
        assert deployment.ended(under_way)["text"] == '"refunded 1"'
        approve(deployment, waiting)
        assert deployment.ended(waiting)["text"] == '"refunded 2"'
        assert deployment.ledger.counts() == {"refund 1": 1, "refund 2": 1}
        own_redis.resume()
