"""Two APIs and two workers over one Postgres: everything is said live, and everything can be asked anywhere."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

import pytest

from tests.e2e.deployment import Deployment, Script
from tests.e2e.programs import Program

SLOWEST_SECONDS = 1.0
"""How late a frame may reach a client of another process; without hints it would be up to the poll of 5 s."""
TALKING: Script = [{"text": "Word after word. " * 10, "delay": 0.1, "calls": [["charge", {"order_id": 1}]]}, {"text": "Charged."}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Two APIs, as callers see them, and two workers."""

    here: Deployment
    there: Deployment
    workers: tuple[Program, Program]


@pytest.fixture
def cluster(on_postgres: Deployment) -> Iterator[Cluster]:
    there = Deployment(on_postgres.database, on_postgres.folder, on_postgres.ledger)
    settings = {"poll_seconds": "5", "lease_ttl_seconds": "30"}
    starting = [on_postgres.spawn("serve", "--no-worker", **settings), there.spawn("serve", "--no-worker", **settings)]
    on_postgres.programs.append(starting[1])
    workers = (on_postgres.spawn("worker", **settings), on_postgres.spawn("worker", **settings))
    for program in (*starting, *workers):
        program.hears("bus_listens")
    for program in starting:
        program.hears("serving")
    yield Cluster(here=on_postgres, there=there, workers=workers)
    there.http.close()


def test_R44_frames_of_a_run_that_is_worked_elsewhere_arrive_live(cluster: Cluster) -> None:
    """From the commit to both clients in much less than a poll, for every frame of the run, the start and the end."""
    run_id = cluster.here.create(TALKING)

    def follow(door: Deployment) -> list[tuple[float, dict[str, str]]]:
        with door.following(run_id) as frames:
            return [(time.time(), frame) for frame in frames]

    with ThreadPoolExecutor(2) as followers:
        seen = list(followers.map(follow, (cluster.here, cluster.there)))
    journal = cluster.there.frames(run_id)
    journal.check()
    for followed in seen:
        assert [frame for _, frame in followed] == journal.frames
        late = [(came - datetime.fromisoformat(frame["at"]).timestamp(), frame["type"]) for came, frame in followed[1:]]
        assert max(late)[0] < SLOWEST_SECONDS, max(late)
    took = (datetime.fromisoformat(journal.frames[1]["at"]) - datetime.fromisoformat(journal.frames[0]["at"])).total_seconds()
    assert took < SLOWEST_SECONDS, "a new run is claimed by hint, not by poll"


def test_R37_a_cancel_through_the_other_api_reaches_the_holder_at_once(cluster: Cluster) -> None:
    """And everybody who waits or follows, anywhere."""
    ledger = cluster.here.ledger
    ledger.hold("lookup 2")
    run_id = cluster.here.create([{"calls": [["lookup", {"order_id": 2}]]}, {"text": "x"}])
    ledger.arrived("lookup 2")
    with ThreadPoolExecutor(1) as waiting, cluster.here.following(run_id) as frames:
        waited = waiting.submit(cluster.here.ended, run_id)
        began = time.monotonic()
        answer = cluster.there.cancel(run_id)
        assert (answer.status_code, answer.json()["outcome"]) == (202, "accepted")
        last = list(frames)[-1]
        run = waited.result()
        assert time.monotonic() - began < 1.0 + SLOWEST_SECONDS, "the cancel's grace, and the way"
    assert last["data"]["stop"] == run["stop"] and run["stop"]["reason"] == "cancelled"
    assert cluster.there.cancel(run_id).json()["outcome"] == "already_ended"


def test_I24_any_process_answers_for_any_run(cluster: Cluster) -> None:
    """Runs are worked by both workers, and read alike through both APIs, whoever made them."""
    doors = (cluster.here, cluster.there)
    cluster.here.ledger.hold(*(f"charge {number}" for number in range(40)))
    script: list[Script] = [[{"calls": [["charge", {"order_id": number}]]}, {"text": f"Charged {number}."}] for number in range(40)]
    ids = [doors[number % 2].create(script[number]) for number in range(40)]
    calls = [cluster.here.ledger.arrived(f"charge {number}") for number in range(40)]
    cluster.here.ledger.release()
    for number, run_id in enumerate(ids):
        assert doors[number % 2].ended(run_id)["text"] == f"Charged {number}."
    assert {call.pid for call in calls} == {worker.pid for worker in cluster.workers}
    for path in ("", "/messages", "/receipts"):
        here, there = (door.http.get(f"/runs/{ids[0]}{path}") for door in doors)
        assert here.json() == there.json()
    assert json.dumps(cluster.here.http.get("/runs").json()) == json.dumps(cluster.there.http.get("/runs").json())
    assert cluster.here.frames(ids[1]) == cluster.there.frames(ids[1])
    assert cluster.there.http.delete(f"/runs/{ids[0]}").status_code == 204
    assert cluster.here.http.get(f"/runs/{ids[0]}").status_code == 404
