"""The database goes away, its answers get lost, and several processes share one."""

from __future__ import annotations

import json
import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import deployed, migrated
from tests.e2e.deployment import Deployment, Script
from tests.e2e.outside import in_database
from tests.e2e.proxied import proxied
from tests.support.servers import Postgres

LOOKUP: Script = [{"text": "Let me see.", "calls": [["lookup", {"order_id": 7}]]}, {"text": "It has shipped."}]
AWAY_SECONDS = 2.0


@pytest.fixture
def on_own_postgres(own_postgres: Postgres, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment on a server that the test may restart."""
    url = own_postgres.url.format(db="postgres")
    migrated(url, tmp_path)
    with deployed(url, tmp_path) as deployment:
        yield deployment


def test_a_database_that_is_away_for_seconds_makes_nothing_unknown(on_own_postgres: Deployment, own_postgres: Postgres) -> None:
    """Tools end while it is away; their outcomes are written when it is back. Callers are told to come again."""
    deployment, ledger = on_own_postgres, on_own_postgres.ledger
    deployment.serve("--no-worker")
    worker = deployment.worker(lease_ttl_seconds="20")
    ledger.hold("charge 1", "lookup 2", "model slow")
    charging = deployment.create([{"calls": [["charge", {"order_id": 1}]]}, {"text": "Charged."}])
    reading = deployment.create([{"calls": [["lookup", {"order_id": 2}]]}, {"calls": [["charge", {"order_id": 3}]]}, {"text": "Read."}])
    asking = deployment.create([{"point": "slow", "text": "Hello."}])
    talking = deployment.create([{"text": "Word after word. " * 40, "delay": 0.05}])
    for point in ("charge 1", "lookup 2", "model slow"):
        ledger.arrived(point)
    with deployment.following(talking) as frames:
        next(frame for frame in frames if frame["type"] == "text-delta")
    own_postgres.stop()
    ledger.release()
    refused = deployment.http.post("/runs", json={"agent": "puppet", "input": "[]"})
    assert refused.status_code == 503 and refused.json()["code"] == "unavailable" and int(refused.headers["retry-after"]) > 0
    time.sleep(AWAY_SECONDS)
    own_postgres.start()
    assert [deployment.ended(run_id)["text"] for run_id in (charging, reading, asking)] == ["Charged.", "Read.", "Hello."]
    assert deployment.ended(talking)["text"] == "Word after word. " * 40
    assert ledger.counts() == {"charge 1": 1, "lookup 2": 1, "model slow": 1, "charge 3": 1}
    for run_id in (charging, reading, asking, talking):
        journal = deployment.frames(run_id)
        journal.check()
        assert journal.of("reset-step") == []
    assert worker.said("lease_lost") == []


def test_a_database_that_restarts_during_a_recovery_strands_no_run(on_own_postgres: Deployment, own_postgres: Postgres) -> None:
    """A worker dies with twenty runs in hand, and the database goes away while the next one takes them over."""
    deployment, ledger = on_own_postgres, on_own_postgres.ledger
    deployment.serve("--no-worker")
    dying = deployment.worker()
    ledger.hold("lookup 1")
    ids = [deployment.create([{"calls": [["lookup", {"order_id": 1}]]}, {"text": "Read."}]) for _ in range(20)]
    ledger.arrived("lookup 1", 20)
    dying.kill()
    deployment.worker()
    ledger.arrived("lookup 1", 21)
    own_postgres.restart()
    ledger.release()
    assert [deployment.ended(run_id)["text"] for run_id in ids] == ["Read."] * 20
    for run_id in ids:
        deployment.frames(run_id).check()


def test_R42_a_create_whose_answer_was_lost_is_repeated_with_its_key(on_postgres: Deployment) -> None:
    """The database has it, the process never heard of that; and a second time the process dies before it can answer."""
    with proxied(on_postgres.database) as wire:
        for hang in (False, True):
            api = on_postgres.serve("--no-worker", database_url=wire.url)
            key, body = uuid.uuid4().hex, {"agent": "puppet", "input": json.dumps(LOOKUP), "metadata": {"case": str(hang)}}
            wire.swallow(to=key.encode(), hang=hang)
            with ThreadPoolExecutor(1) as caller:
                asked = caller.submit(on_postgres.http.post, "/runs", json=body, headers={"Idempotency-Key": key})
                wire.await_swallowed()
                if hang:
                    api.kill()
                    with pytest.raises(httpx.HTTPError):
                        asked.result()
                    on_postgres.serve("--no-worker", database_url=wire.url)
                else:
                    assert asked.result().status_code in (202, 503)
            answer = on_postgres.http.post("/runs", json=body, headers={"Idempotency-Key": key})
            assert (answer.status_code, answer.headers["idempotent-replayed"]) == (200, "true")
            for program in on_postgres.programs:
                program.kill()
    on_postgres.serve()
    listed = on_postgres.http.get("/runs").json()["data"]
    assert sorted(run["metadata"]["case"] for run in listed) == ["False", "True"]
    assert [on_postgres.ended(run["run_id"])["status"] for run in listed] == ["completed", "completed"]
    assert on_postgres.ledger.counts() == {"lookup 7": 2}


def test_R2a_a_write_whose_answer_was_lost_is_found_to_have_landed(on_postgres: Deployment) -> None:
    """The n-th answer of the database about the n-th run is lost: every run completes, and nothing is done, written or said twice."""
    answered = {"point": "first", "text": "Now.", "calls": [["charge", {"order_id": 1}], ["quote", {"order_id": 2}]]}
    ledger = on_postgres.ledger
    on_postgres.serve("--no-worker")
    with proxied(on_postgres.database) as wire:
        worker = on_postgres.worker(database_url=wire.url, lease_ttl_seconds="20")
        swallowed = 0
        for nth in range(7):
            ledger.hold("model first")
            run_id = on_postgres.create([answered, {"text": "Done."}])
            ledger.arrived("model first", nth + 1)
            wire.swallow(to=run_id.encode(), skip=nth)
            ledger.release()
            run, journal = on_postgres.ended(run_id), on_postgres.frames(run_id)
            assert (run["status"], run["text"]) == ("completed", "Done.")
            journal.check()
            assert len(journal.of("tool-output")) == 2 and journal.of("reset-step") == []
            assert ledger.counts() == dict.fromkeys(("model first", "charge 1", "quote 2", "projection 2"), nth + 1)
            swallowed += wire.has_swallowed
        assert swallowed >= 4
        assert worker.said("lease_lost") == []


def test_R5_an_end_whose_writer_never_knew_of_it_is_announced(on_postgres: Deployment) -> None:
    """The terminal commit is done; its worker hangs without the answer, and dies so. No hint was ever sent."""
    on_postgres.serve("--no-worker")
    with proxied(on_postgres.database) as wire:
        worker = on_postgres.worker(database_url=wire.url)
        wire.swallow(to=b"This is the end.", hang=True)
        run_id = on_postgres.create([{"calls": [["lookup", {"order_id": 7}]]}, {"text": "This is the end."}])
        with on_postgres.following(run_id) as frames:
            wire.await_swallowed()
            worker.kill()
            last = list(frames)[-1]
    assert last["type"] == "data-agent" and last["data"]["final"] is True and last["data"]["text"] == "This is the end."
    assert on_postgres.run(run_id)["status"] == "completed"
    on_postgres.frames(run_id).check()


def test_a_copy_of_a_sqlite_file_at_any_moment_is_a_whole_service(on_sqlite: Deployment, tmp_path: Path) -> None:
    """As after a power cut: the process is stopped wherever it is, and what is on the disk then is served elsewhere."""
    program = on_sqlite.serve()
    talk: Script = [{"text": "Word after word. " * 10, "delay": 0.01, "calls": [["note", {"order_id": 1}]]}, {"text": "Noted."}]
    ids = [on_sqlite.create(talk) for _ in range(10)]
    copies = []
    for number in range(3):
        on_sqlite.ledger.arrived("note 1", 4 * number + 1)
        program.signal(signal.SIGSTOP)
        copies.append(tmp_path / f"copy-{number}")
        copies[-1].mkdir()
        for file in tmp_path.glob("runward.db*"):
            shutil.copy(file, copies[-1])
        program.signal(signal.SIGCONT)
    program.kill()
    for folder in copies:
        with deployed(f"sqlite+aiosqlite:///{folder}/runward.db", folder) as copy:
            copy.serve(lease_ttl_seconds="1")
            for run_id in ids:
                assert copy.ended(run_id)["text"] == "Noted."
                copy.frames(run_id).check()


def test_R41a_a_run_of_a_newer_version_is_left_as_it_is(deployment: Deployment) -> None:
    deployment.serve("--no-worker")
    newer = deployment.create(LOOKUP)
    in_database(deployment.database, "UPDATE actors SET format = 99")
    before = in_database(deployment.database, "SELECT * FROM actors")
    deployment.worker()
    assert deployment.ended(deployment.create([{"text": "Hello."}]))["text"] == "Hello."
    shown = deployment.run(newer)
    assert (shown["status"], shown["agent"]) == ("queued", "puppet")
    assert newer in [run["run_id"] for run in deployment.http.get("/runs").json()["data"]]
    assert [row for row in in_database(deployment.database, "SELECT * FROM actors") if row in before] == before


def test_two_processes_share_a_sqlite_file(on_sqlite: Deployment) -> None:
    """Fifty runs at once, through both; every one ends, and nobody is ever told that the file is locked."""
    on_sqlite.serve()
    other = Deployment(on_sqlite.database, on_sqlite.folder, on_sqlite.ledger)
    on_sqlite.programs.append(other.serve())

    def create(number: int) -> httpx.Response:
        script = [{"text": "Now.", "calls": [["charge", {"order_id": number}]]}, {"text": f"Charged {number}."}]
        door = (on_sqlite, other)[number % 2]
        return door.http.post("/runs", json={"agent": "puppet", "input": json.dumps(script)}, headers={"Prefer": "wait=40"})

    with ThreadPoolExecutor(50) as callers:
        answers = list(callers.map(create, range(50)))
    other.http.close()
    assert {answer.status_code for answer in answers} == {200}
    assert [answer.json()["text"] for answer in answers] == [f"Charged {number}." for number in range(50)]
    assert on_sqlite.ledger.counts() == {f"charge {number}": 1 for number in range(50)}
    assert len({call.pid for number in range(50) for call in on_sqlite.ledger.at(f"charge {number}")}) == 2
    for answer in answers[:10]:
        on_sqlite.frames(answer.json()["run_id"]).check()
