"""The crash matrix of docs/semantics.md §12: SIGKILL at a known place, and what the next leg makes of it.

All runs of a module are in their places when their process is killed once (`crashed`), and the tests look at what became of each.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import pytest

from tests.e2e.deployment import Deployment, Script, View
from tests.e2e.ledger import Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A run that a crash meets at these points of the ledger, and whether they are still held when the next leg comes."""

    script: Script
    at: tuple[str, ...] = ()
    agent: str = "puppet"
    still: tuple[str, ...] = ()


MIXED = [["charge", {"order_id": 1}], ["charge", {"order_id": 2}], ["note", {"order_id": 3}], ["charge", {"order_id": 4}]]
SLOWLY = {"text": "This will never be said to its end. " * 60, "delay": 0.05, "again": [{"text": "This is all."}]}

RUNS = {
    "no word yet": Held(script=[{"point": "first", "text": "Hello."}], at=("model first",)),
    "repeatable": Held(
        script=[{"calls": [["lookup", {"order_id": 11}], ["note", {"order_id": 12}]]}, {"echo": True}], at=("lookup 11", "note 12")
    ),
    "charge": Held(script=[{"text": "I will.", "calls": [["charge", {"order_id": 7}]]}, {"text": "x"}], at=("charge 7",)),
    "told": Held(script=[{"calls": [["ship", {"order_id": 8}]]}, {"echo": True}], at=("ship 8",)),
    "mixed": Held(script=[{"calls": MIXED}, {"text": "x"}], at=("charge 2", "note 3"), agent="narrow"),
    "executed": Held(script=[{"calls": [["quote", {"order_id": 21}]]}, {"echo": True}], at=("projection 21",)),
    "before the second call": Held(
        script=[{"calls": [["charge", {"order_id": 31}], ["charge", {"order_id": 32}]]}, {"point": "second", "text": "Both."}],
        at=("model second",),
    ),
    "killed twice": Held(script=[{"calls": [["note", {"order_id": 41}]]}, {"text": "Noted."}], at=("note 41",), still=("note 41",)),
    "slow text": Held(script=[{"point": "slow", **SLOWLY}]),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """A service whose process was killed, and the next one in the middle of a recovery, and that now runs."""

    deployment: Deployment
    ids: dict[str, str]
    waiting: View
    """The run that had ended before the crash, as it was then."""

    def ended(self, name: str) -> View:
        """A run that has ended, whose journal is whole."""
        run = self.deployment.ended(self.ids[name])
        self.deployment.frames(self.ids[name]).check()
        return run

    def arrivals(self, point: str) -> list[Arrival]:
        return self.deployment.ledger.at(point)


@pytest.fixture(scope="module")
def crashed(module_deployment: Deployment) -> Crashed:
    deployment, ledger = module_deployment, module_deployment.ledger
    deployment.start()
    ledger.hold("charge 4", *(point for run in RUNS.values() for point in run.at))
    over = deployment.ended(deployment.create([{"calls": [["lookup", {"order_id": 1}]]}, {"text": "Over."}]))
    ids = {name: deployment.create(run.script, agent=run.agent) for name, run in RUNS.items()}
    for point in [point for run in RUNS.values() for point in run.at]:
        ledger.arrived(point)
    with deployment.following(ids["slow text"]) as frames:
        next(frame for frame in frames if frame["type"] == "text-delta")
        deployment.crash()
    ledger.release(*(point for run in RUNS.values() for point in run.at if point not in run.still), "charge 4")
    deployment.recover()
    ledger.arrived("note 41", 2)
    for name in [name for name, run in RUNS.items() if not run.still]:
        deployment.settled(ids[name])
    deployment.crash()
    ledger.release()
    deployment.recover()
    return Crashed(deployment=deployment, ids=ids, waiting=over)


def pending(run: View) -> list[View]:
    """The unknown effects that a run waits on; nothing else may be pending."""
    unknown: list[View] = run["pending"].pop("unknown_effects")
    assert not any(run["pending"].values()), run["pending"]
    return unknown


def test_R32_a_model_call_that_died_before_its_first_word_is_repeated(crashed: Crashed) -> None:
    run = crashed.ended("no word yet")
    assert (run["status"], run["text"], run["steps"]) == ("completed", "Hello.", 1)
    frames = crashed.deployment.frames(run["run_id"])
    assert frames.texts == {1: "Hello."}
    steps = [(frame["type"], frame["attempt"]) for frame in frames.of("reset-step", "start-step")]
    assert steps == [("start-step", 1), ("reset-step", 1), ("start-step", 2)]
    assert len(crashed.arrivals("model first")) == 2


def test_R32_a_model_call_that_died_in_the_middle_of_its_text_leaves_no_text_behind(crashed: Crashed) -> None:
    run = crashed.ended("slow text")
    assert (run["status"], run["text"]) == ("completed", "This is all.")
    frames = crashed.deployment.frames(run["run_id"])
    assert frames.of("text-delta")[0]["delta"].startswith("This ")
    assert frames.kinds.index("text-delta") < frames.kinds.index("reset-step")
    assert frames.texts == {1: "This is all."}
    said = [message["content"] for message in crashed.deployment.messages(run["run_id"]) if message["role"] == "assistant"]
    assert said == [[{"type": "text", "text": "This is all."}]]


def test_R13_calls_that_can_be_repeated_are_repeated_under_their_key(crashed: Crashed) -> None:
    run = crashed.ended("repeatable")
    assert (run["status"], run["text"]) == ("completed", '"order 11 has shipped" | "noted 12"')
    for point in ("lookup 11", "note 12"):
        first, again = crashed.arrivals(point)
        assert first.key == again.key and first.pid != again.pid


def test_R13_an_effect_that_may_not_be_repeated_waits_for_a_person(crashed: Crashed) -> None:
    deployment, (call,) = crashed.deployment, crashed.arrivals("charge 7")
    run = deployment.suspended(crashed.ids["charge"])
    (unknown,) = pending(run)
    started_at, worker = unknown.pop("started_at"), unknown.pop("worker")
    assert unknown == {
        "tool_call_id": "1.1",
        "step": 1,
        "tool_name": "charge",
        "effect": "non_idempotent_write",
        "arguments": {"order_id": 7},
        "idempotency_key": call.key,
        "attempt": 1,
        "evidence_required": False,
        "evidence_refused": None,
        "probe": None,
    }
    assert run["created_at"] <= started_at <= run["updated_at"] and f"-{call.pid}-" in worker
    assert run["task_outcome"] == "needs_reconciliation"
    assert deployment.cancel(run["run_id"]).status_code == 202
    run = crashed.ended("charge")
    assert run["stop"]["details"]["calls"] == [{"tool_call_id": "1.1", "tool_name": "charge", "state": "unknown"}]
    assert (run["status"], run["task_outcome"]) == ("stopped", "needs_reconciliation")
    assert crashed.arrivals("charge 7") == [call]


def test_R13_a_tool_may_have_the_model_told_instead(crashed: Crashed) -> None:
    run = crashed.ended("told")
    assert run["status"] == "completed" and "unknown" in run["text"] and run["task_outcome"] == "needs_reconciliation"
    (receipt,) = crashed.deployment.receipts(run["run_id"])
    assert (receipt["outcome"], receipt["is_error"]) == ("unknown", True)
    assert len(crashed.arrivals("ship 8")) == 1


def test_R12_each_call_of_a_turn_is_treated_by_its_own_receipt(crashed: Crashed) -> None:
    """R13, too. One finished, one unknown, one that can be repeated, and one that had never begun, because only two run at a time."""
    run = crashed.deployment.suspended(crashed.ids["mixed"])
    assert [unknown["tool_call_id"] for unknown in pending(run)] == ["1.2"]
    assert [len(crashed.arrivals(point)) for point in ("charge 1", "charge 2", "note 3", "charge 4")] == [1, 1, 2, 1]
    assert crashed.arrivals("charge 4")[0].pid == crashed.arrivals("note 3")[1].pid
    receipts = crashed.deployment.receipts(run["run_id"])
    assert [(receipt["tool_call_id"], receipt["stage"], receipt["attempt"]) for receipt in receipts] == [
        ("1.1", "completed", 1),
        ("1.2", "executing", 1),
        ("1.3", "completed", 2),
        ("1.4", "completed", 1),
    ]


def test_R12_an_executed_call_is_projected_from_what_was_stored(crashed: Crashed) -> None:
    run = crashed.ended("executed")
    assert (run["status"], run["text"]) == ("completed", '{"order_id": 21, "price": 12}')
    assert len(crashed.arrivals("quote 21")) == 1 and len(crashed.arrivals("projection 21")) == 2


def test_after_the_last_tool_the_next_leg_goes_straight_to_the_model(crashed: Crashed) -> None:
    run = crashed.ended("before the second call")
    assert (run["status"], run["text"], run["steps"]) == ("completed", "Both.", 2)
    assert [len(crashed.arrivals(point)) for point in ("charge 31", "charge 32", "model second")] == [1, 1, 2]


def test_R40_a_recovery_that_dies_is_recovered(crashed: Crashed) -> None:
    run = crashed.ended("killed twice")
    assert (run["status"], run["text"]) == ("completed", "Noted.")
    calls = crashed.arrivals("note 41")
    assert len(calls) == 3 and len({call.key for call in calls}) == 1 and len({call.pid for call in calls}) == 3


def test_R10_an_ended_run_is_as_it_was(crashed: Crashed) -> None:
    assert crashed.deployment.run(crashed.waiting["run_id"]) == crashed.waiting
    crashed.deployment.frames(crashed.waiting["run_id"]).check()


def test_a_run_created_before_any_worker_exists_runs_from_the_start(deployment: Deployment) -> None:
    api = deployment.serve("--no-worker")
    run_id = deployment.create([{"calls": [["lookup", {"order_id": 7}]]}, {"text": "It has shipped."}])
    api.kill()
    deployment.serve()
    run = deployment.ended(run_id)
    assert (run["status"], run["text"], run["steps"]) == ("completed", "It has shipped.", 2)
    deployment.frames(run_id).check()
    assert deployment.ledger.counts() == {"lookup 7": 1}


def test_R5_an_ending_that_nobody_announced_is_announced_from_the_journal(deployment: Deployment) -> None:
    """The process dies within milliseconds of its run's end; others tell of it."""
    working = deployment.serve()
    run_id = deployment.create([{"calls": [["lookup", {"order_id": 7}]]}, {"text": "It has shipped."}])
    ended = deployment.ended(run_id)
    working.kill()
    deployment.serve("--no-worker")
    assert deployment.run(run_id) == ended
    frames = deployment.frames(run_id)
    frames.check()
    assert frames.frames[-1]["data"]["status"] == "completed" and frames.seqs[-1] == ended["last_seq"]
    last = deployment.frames(run_id, after=ended["last_seq"] - 1)
    assert last.done and last.frames == frames.frames[-1:]
    answer = deployment.http.get(f"/runs/{run_id}/events", headers={"Last-Event-ID": str(ended["last_seq"])})
    assert answer.status_code == 204


def test_an_answer_that_was_not_committed_is_asked_for_again(on_sqlite: Deployment) -> None:
    """Somebody else holds the file's write lock, so that the answer cannot get into it."""
    ledger = on_sqlite.ledger
    on_sqlite.start(lease_ttl_seconds="4")
    ledger.hold("model first")
    asked = {
        "point": "first",
        "announce": "answered",
        "calls": [["charge", {"order_id": 1}]],
        "again": [{"calls": [["charge", {"order_id": 2}]]}],
    }
    run_id = on_sqlite.create([asked, {"text": "Charged."}])
    ledger.arrived("model first")
    other = sqlite3.connect(on_sqlite.folder / "runward.db", isolation_level=None, timeout=10)
    other.execute("BEGIN IMMEDIATE")
    ledger.release()
    ledger.arrived("model answered")
    on_sqlite.crash()
    other.close()
    on_sqlite.recover(lease_ttl_seconds="4")
    assert on_sqlite.ended(run_id)["text"] == "Charged."
    on_sqlite.frames(run_id).check()
    assert ledger.counts() == {"model first": 2, "model answered": 1, "charge 2": 1}
