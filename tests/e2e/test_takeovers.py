"""Workers that are paused, cut off, stuck or poisoned: others take over, and whoever wakes late changes nothing."""

from __future__ import annotations

import signal
import sqlite3
import time

from tests.e2e.deployment import Deployment, Script
from tests.e2e.programs import Program
from tests.e2e.proxied import proxied

LOOKUP_THEN_CHARGE: Script = [{"calls": [["lookup", {"order_id": 1}]]}, {"calls": [["charge", {"order_id": 2}]]}, {"text": "Charged."}]
CHARGE: Script = [{"calls": [["charge", {"order_id": 3}]]}, {"calls": [["charge", {"order_id": 4}]]}, {"text": "x"}]


def pause(program: Program, deployment: Deployment) -> None:
    """SIGSTOP, but not inside a write: on SQLite a stopped process that holds the file's only write lock stops everybody (R3)."""
    while True:
        program.signal(signal.SIGSTOP)
        if deployment.on_postgres or _can_be_written(deployment):
            return
        program.signal(signal.SIGCONT)


def _can_be_written(deployment: Deployment) -> bool:
    file = sqlite3.connect(deployment.folder / "runward.db", isolation_level=None, timeout=1)
    try:
        file.execute("BEGIN IMMEDIATE")
        file.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    else:
        return True
    finally:
        file.close()


def test_R3_a_paused_worker_that_wakes_after_a_takeover_changes_nothing(deployment: Deployment) -> None:
    ledger = deployment.ledger
    deployment.serve("--no-worker")
    paused = deployment.worker()
    ledger.hold("lookup 1", "charge 3")
    going_on, waiting = deployment.create(LOOKUP_THEN_CHARGE), deployment.create(CHARGE)
    ledger.arrived("lookup 1")
    ledger.arrived("charge 3")
    pause(paused, deployment)
    other = deployment.worker()
    ledger.arrived("lookup 1", 2)
    ledger.release()
    views = [deployment.ended(going_on), deployment.suspended(waiting)]
    journal = deployment.frames(going_on)
    paused.signal(signal.SIGCONT)
    paused.hears("lease_lost", 2)
    assert [deployment.run(going_on), deployment.run(waiting)] == views
    assert deployment.frames(going_on) == journal
    journal.check()
    assert [unknown["tool_call_id"] for unknown in views[1]["pending"]["unknown_effects"]] == ["1.1"]
    assert ledger.counts() == {"lookup 1": 2, "charge 2": 1, "charge 3": 1} and ledger.at("charge 2")[0].pid == other.pid
    other.kill()
    deployment.ended(deployment.create([{"text": "It works again."}]))


def test_R3a_a_worker_that_is_cut_off_from_its_database_stops_before_the_next_effect(on_postgres: Deployment) -> None:
    ledger = on_postgres.ledger
    on_postgres.serve("--no-worker")
    with proxied(on_postgres.database) as wire:
        cut_off = on_postgres.worker(database_url=wire.url)
        ledger.hold("lookup 1", "charge 3")
        going_on, waiting = on_postgres.create(LOOKUP_THEN_CHARGE), on_postgres.create(CHARGE)
        ledger.arrived("lookup 1")
        ledger.arrived("charge 3")
        wire.freeze()
        other = on_postgres.worker()
        ledger.arrived("lookup 1", 2)
        cut_off.hears("lease_lost", 2)
        ledger.release()
        views = [on_postgres.ended(going_on), on_postgres.suspended(waiting)]
        wire.thaw()
        assert cut_off.stop() == 0
    assert [on_postgres.run(going_on), on_postgres.run(waiting)] == views
    on_postgres.frames(going_on).check()
    assert ledger.counts() == {"lookup 1": 2, "charge 2": 1, "charge 3": 1} and ledger.at("charge 2")[0].pid == other.pid


def test_R36_a_blocked_event_loop_keeps_its_leases(deployment: Deployment) -> None:
    """For several times their length, also those of its neighbours, wherever they are; nobody takes over, and nothing becomes unknown."""
    ledger, neighbours = deployment.ledger, range(101, 121)
    deployment.serve("--no-worker")
    blocked = deployment.worker()
    meeting = [deployment.create([{"calls": [["meet", {"order_id": number}]]}, {"text": "Met."}]) for number in neighbours]
    for number in neighbours:
        ledger.arrived(f"meet {number}")
    call = {"order_id": 5, "seconds": 5, "meets": [*neighbours]}
    blocking = deployment.create([{"calls": [["block", call]]}, {"text": "Awake."}])
    ledger.arrived("block 5")
    deployment.worker()
    ledger.arrived("unblocked 5")
    assert [deployment.ended(run_id)["text"] for run_id in (*meeting, blocking)] == ["Met."] * len(neighbours) + ["Awake."]
    deployment.frames(blocking).check()
    assert blocked.said("lease_lost") == []
    assert set(ledger.counts().values()) == {1}


def test_a_worker_whose_event_loop_stands_still_for_too_long_gives_up(deployment: Deployment) -> None:
    """It says where every thread is, exits with an error, and another one goes on."""
    deployment.serve("--no-worker")
    stuck = deployment.worker(loop_stall_seconds="3")
    run_id = deployment.create([{"calls": [["block", {"order_id": 5, "seconds": 300}]]}, {"text": "Awake."}])
    deployment.ledger.arrived("block 5")
    deployment.worker()
    assert stuck.ended() == 70
    (log,) = stuck.said("loop_stalled")
    assert log["level"] == "warning" and any(place.endswith(" block") for place in log["threads"]["MainThread"])
    assert deployment.ended(run_id)["text"] == "Awake."
    assert deployment.ledger.counts() == {"block 5": 2}
    deployment.frames(run_id).check()


def test_R40_a_run_that_kills_every_worker_is_given_up_and_its_neighbours_complete(deployment: Deployment) -> None:
    settings = {"max_recoveries": "2", "lease_ttl_seconds": "1"}
    deployment.serve("--no-worker", **settings)
    ledger = deployment.ledger
    neighbour = deployment.create([{"point": "neighbour", "calls": [["note", {"order_id": 1}]]}, {"text": "Noted."}])
    poison = deployment.create([{"calls": [["poison", {"order_id": 6}]]}, {"text": "x"}])
    deaths = 0
    worker = deployment.spawn("worker", **settings)
    while (run := deployment.run(poison))["status"] != "failed":
        if not worker.alive:
            assert worker.ended() == 66
            deaths += 1
            worker = deployment.spawn("worker", **settings)
        time.sleep(0.05)
    assert (run["error"]["code"], run["error"]["transient"]) == ("recoveries_exhausted", False)
    assert deaths == len(ledger.at("poison 6")) == 3 and len({call.key for call in ledger.at("poison 6")}) == 1
    assert deployment.ended(neighbour)["text"] == "Noted."
    assert len({call.key for call in ledger.at("note 1")}) == 1
    deployment.frames(poison).check()
    deployment.frames(neighbour).check()
