"""An API and a worker that tell each other the news over a Redis, which is killed, frozen, flushed, or refuses them (F-39, F-54, A-09)."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import deployed
from tests.e2e.deployment import Deployment, View
from tests.support.servers import Redis

PASSWORD = "CANARY-OF-A-PASSWORD"
SOON_SECONDS = 2.5
"""Half of the time to the next poll while hints arrive: what happens within it came by a hint."""


@pytest.fixture(params=["sqlite", "postgres"])
def deployment(request: pytest.FixtureRequest, databases: Any, tmp_path: Path, own_redis: Redis) -> Iterator[Deployment]:
    """On a Redis of the test's own; nothing started yet."""
    with databases(request.param, tmp_path) as url, deployed(url, tmp_path) as deployment:
        deployment.settings = {"redis_url": own_redis.url, "lease_ttl_seconds": "30"}
        yield deployment


def start(deployment: Deployment) -> None:
    """An API and a worker, which hear of each other."""
    for program in (deployment.serve("--no-worker"), deployment.worker()):
        program.hears("bus_listens")


def seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def test_R44_news_travel_over_redis(deployment: Deployment) -> None:
    start(deployment)
    deployment.ledger.hold("lookup 1")
    run_id = deployment.create([{"calls": [["lookup", {"order_id": 1}]]}, {"text": "Read."}])
    assert seconds(lambda: deployment.ledger.arrived("lookup 1")) < SOON_SECONDS, "a worker hears of a new run"
    with deployment.following(run_id) as frames:
        assert deployment.cancel(run_id).status_code == 202
        assert seconds(lambda: list(frames)) < SOON_SECONDS, "a worker hears of a cancel, an API of an end"
    assert deployment.run(run_id)["status"] == "stopped"


@pytest.mark.parametrize("fault", ["kill", "pause", "flush"])
def test_I48_without_redis_nothing_is_lost_but_speed(deployment: Deployment, own_redis: Redis, fault: str) -> None:
    """Runs go on, end and begin, a stream has every frame, and a cancel is applied: under the fault, and after it."""
    start(deployment)
    ledger = deployment.ledger
    ledger.hold("lookup 1", "lookup 2")
    going = deployment.create([{"text": "Now.", "calls": [["lookup", {"order_id": 1}]]}, {"text": "Word after word. " * 5, "delay": 0.02}])
    cancelled = deployment.create([{"calls": [["lookup", {"order_id": 2}]]}, {"text": "Too late."}])
    for point in ("lookup 1", "lookup 2"):
        ledger.arrived(point)
    with ThreadPoolExecutor(1) as follower:
        followed = follower.submit(follow, deployment, going)
        fail(own_redis, fault)
        assert deployment.cancel(cancelled).status_code == 202
        ledger.release("lookup 1")
        begun = deployment.create([{"text": "Begun without hints."}])
        assert deployment.ended(begun)["text"] == "Begun without hints."
        assert deployment.ended(going)["text"] == "Word after word. " * 5
        assert deployment.ended(cancelled)["status"] == "stopped"
        assert followed.result() == deployment.frames(going).frames
    ledger.release()
    heal(own_redis, fault)
    if fault != "flush":
        for program in deployment.programs:
            program.hears("bus_listens", 2)
    assert deployment.ended(deployment.create([{"text": "After it."}]), 20)["text"] == "After it."
    for run_id in (going, cancelled, begun):
        deployment.frames(run_id).check()


def follow(deployment: Deployment, run_id: str) -> list[View]:
    with deployment.following(run_id) as frames:
        return list(frames)


def fail(redis: Redis, fault: str) -> None:
    if fault == "flush":
        with socket.create_connection(("127.0.0.1", redis.port)) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            assert connection.recv(64) == b"+OK\r\n"
    else:
        {"kill": redis.kill, "pause": redis.pause}[fault]()


def heal(redis: Redis, fault: str) -> None:
    if fault == "kill":
        redis.start()
    elif fault == "pause":
        redis.resume()


def test_F39_a_wrong_password_costs_speed_and_is_never_shown(deployment: Deployment, own_redis: Redis) -> None:
    url = own_redis.url.replace("//", f"//user:{PASSWORD}@")
    api, worker = deployment.serve("--no-worker", redis_url=url), deployment.worker(redis_url=url)
    assert deployment.ended(deployment.create([{"text": "Hello."}]))["text"] == "Hello."
    for program in (api, worker):
        assert "does not accept the user or the password" in program.hears("bus_polls")["detail"]
        assert len(program.said("bus_polls")) == 1
        assert program.stop() == 0
        assert PASSWORD not in program.text


def test_what_is_no_url_of_a_redis_is_said_without_it(on_sqlite: Deployment) -> None:
    for arguments in (["serve"], ["worker"], ["keys", "list"]):
        done = on_sqlite.run_command(*arguments, redis_url=f"redis://user:{PASSWORD}@host:port/0")
        assert done.returncode == 1 and "RUNWARD_REDIS_URL is not the URL of a Redis" in done.stderr
        assert PASSWORD not in done.stdout + done.stderr


def test_a_key_that_is_made_while_redis_is_frozen_is_made(deployment: Deployment, own_redis: Redis) -> None:
    """The command says so after a moment, and does not hang."""
    own_redis.pause()
    words = ["keys", "create", "--tenant", "default", "--permission", "ops", "--json"]
    assert seconds(lambda: deployment.run_command(*words).check_returncode()) < 20
    own_redis.resume()
