"""R33 in processes: a worker dies in a model call. What that call may have cost stays counted, and bounds what the run may still use.

All runs of a module are in their places when their process is killed; those that are asked again are then in the same place once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.deployment import Deployment, Script

ANSWER_TOKENS = 4_096
"""What is reserved for an answer whose agent does not say how long it may be."""
ADVICE = 3
"""What its prompt is estimated at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A run whose worker dies at a point of the ledger, as often as it comes there."""

    script: Script
    bound: int
    at: str
    deaths: int = 1


RUNS = {
    "own": Placed(script=[{"point": "own", "text": "Hello."}], bound=20_000, at="model own"),
    "own, bounded": Placed(script=[{"point": "bounded", "text": "Hello."}], bound=8_000, at="model bounded", deaths=2),
    "tool": Placed(script=[{"calls": [["advise", {"order_id": 1}]]}, {"echo": True}], bound=20_000, at="model advise 1"),
    "tool, bounded": Placed(script=[{"calls": [["advise", {"order_id": 2}]]}, {"text": "x"}], bound=6_000, at="model advise 2", deaths=2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """A service whose worker was killed twice, and that now runs. `reserved` is what each run had reserved in the first call."""

    deployment: Deployment
    ids: dict[str, str]
    reserved: dict[str, int]

    def ended(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """A run that has ended, and its accounting."""
        run = self.deployment.ended(self.ids[name])
        self.deployment.frames(run["run_id"]).check()
        return run, accounting(self.deployment, run["run_id"])

    def asked(self, name: str) -> int:
        """How often the model was asked there."""
        return len(self.deployment.ledger.at(RUNS[name].at))


def accounting(deployment: Deployment, run_id: str) -> dict[str, Any]:
    answer = deployment.http.get(f"/runs/{run_id}/accounting")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture(scope="module")
def crashed(module_deployment: Deployment) -> Crashed:
    deployment, ledger = module_deployment, module_deployment.ledger
    deployment.start()
    ledger.hold(*(run.at for run in RUNS.values()))
    ids = {name: deployment.create(run.script, limits={"max_total_tokens": run.bound}) for name, run in RUNS.items()}
    for run in RUNS.values():
        ledger.arrived(run.at)
    reserved = {name: accounting(deployment, run_id)["reserved"]["tokens"] for name, run_id in ids.items()}
    deployment.crash()
    ledger.release(*(run.at for run in RUNS.values() if run.deaths == 1))
    deployment.recover()
    for run in RUNS.values():
        ledger.arrived(run.at, 2)
    for name in [name for name, run in RUNS.items() if run.deaths == 1]:
        deployment.ended(ids[name])
    deployment.crash()
    ledger.release()
    deployment.recover()
    return Crashed(deployment=deployment, ids=ids, reserved=reserved)


def test_R33_a_call_that_died_with_its_worker_may_have_been_billed(crashed: Crashed) -> None:
    run, found = crashed.ended("own")
    assert run["status"] == "completed" and crashed.reserved["own"] > ANSWER_TOKENS and crashed.asked("own") == 2
    assert found["unknown"]["tokens"] == crashed.reserved["own"] and found["reserved"]["tokens"] == 0
    assert found["spent"]["tokens"] == run["usage"]["total_tokens"] and run["usage"]["model_calls"] == 2


def test_R33_what_it_may_have_cost_counts_under_the_bound(crashed: Crashed) -> None:
    """The second attempt may use what the first one left, and dies as well; for a third one there is nothing."""
    run, found = crashed.ended("own, bounded")
    assert (run["status"], run["stop"]["reason"]) == ("stopped", "budget_exceeded") and crashed.asked("own, bounded") == 2
    assert crashed.reserved["own, bounded"] < found["unknown"]["tokens"] == found["committed"]["tokens"] <= 8_000
    assert found["limits"]["max_total_tokens"] == 8_000 and found["spent"]["tokens"] == 0


def test_R33_so_does_a_call_of_a_tool(crashed: Crashed) -> None:
    run, found = crashed.ended("tool")
    assert run["status"] == "completed" and crashed.asked("tool") == 2
    assert run["text"] == f'"{ANSWER_TOKENS} tokens"', "there was enough left for a whole answer"
    assert found["unknown"]["tokens"] == crashed.reserved["tool"] == ANSWER_TOKENS + ADVICE
    assert found["reserved"]["tokens"] == 0 and found["committed"]["tokens"] <= 20_000
    assert run["usage"]["model_calls"] == 4, "two of its own, and both of the tool"


def test_R33_and_it_counts_under_the_bound_of_its_run(crashed: Crashed) -> None:
    run, found = crashed.ended("tool, bounded")
    assert (run["status"], run["stop"]["reason"]) == ("stopped", "budget_exceeded") and crashed.asked("tool, bounded") == 2
    assert crashed.reserved["tool, bounded"] < found["unknown"]["tokens"] and found["committed"]["tokens"] <= 6_000
    frames = crashed.deployment.frames(run["run_id"])
    assert frames.of("usage")[-1]["total_usage"]["total_tokens"] == found["spent"]["tokens"]
