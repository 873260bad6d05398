"""Budgets that runs share, in real processes: workers that die around them, workers that race for them, and an operator who raises them."""

from __future__ import annotations

import signal

import pytest

from tests.e2e.deployment import Deployment, Script, View

KEY = "team"
AT = f"/budgets/{KEY}"
POINTS = ["before_budget", "after_budget", "before_settle"]
TURNS: Script = [{"calls": [["lookup", {"order_id": 1}]]}, {"text": "Done."}]


def allow(deployment: Deployment, **terms: object) -> None:
    assert deployment.http.put(AT, json=terms).status_code == 200


def budget(deployment: Deployment) -> View:
    shown: View = deployment.http.get(AT).json()
    return shown


def spent_by(deployment: Deployment, ids: list[str]) -> int:
    return sum(deployment.run(run_id)["accounting"]["spent"]["tokens"] for run_id in ids)


@pytest.mark.timeout(120)
def test_R34_workers_that_die_around_a_reservation_leave_it_settled_once(deployment: Deployment) -> None:
    """R33, R40: killed before the budgets are asked, before their answer is known, and before they are told what a call has cost."""
    deployment.settings = {"lease_ttl_seconds": "1", "max_recoveries": "20"}
    deployment.serve("--no-worker")
    allow(deployment, max_total_tokens=10_000_000)
    ids: list[str] = []
    for point in POINTS:
        ids.append(deployment.create(TURNS, budgets=[KEY]))
        dying = deployment.spawn("worker", faults=f"{point}:kill")
        assert dying.ended() == -signal.SIGKILL
        assert [log["point"] for log in dying.said("fault")] == [point]
    deployment.worker()
    for run_id in ids:
        assert deployment.ended(run_id)["status"] == "completed"
    shown = budget(deployment)
    assert shown["reserved"]["tokens"] == 0
    assert shown["spent"]["tokens"] == spent_by(deployment, ids) > 0
    unknown = [deployment.run(run_id)["accounting"]["unknown"]["tokens"] for run_id in ids]
    assert 0 < shown["unknown"]["tokens"] <= sum(unknown), "what was reserved before a death may have been spent, and is counted once"
    for run_id in ids:
        deployment.frames(run_id).check()


@pytest.mark.timeout(120)
def test_R35_runs_that_wait_go_on_by_themselves_when_the_budget_is_raised_and_race_within_it(deployment: Deployment) -> None:
    """Ten runs wait for less than a call; then there is room for about three calls at a time, for two workers; then for all of them."""
    deployment.serve("--no-worker")
    allow(deployment, max_total_tokens=1_000, on_exhausted="suspend")
    for _ in range(2):
        deployment.worker()
    ids = [deployment.create([{"text": "Done."}], budgets=[KEY]) for _ in range(10)]
    for run_id in ids:
        assert deployment.suspended(run_id)["pending"]["budget"]["budget"] == KEY
    assert budget(deployment)["committed"]["tokens"] == 0
    for bound in (14_000, 10_000_000):
        allow(deployment, max_total_tokens=bound, on_exhausted="suspend")
        for run_id in ids:
            assert deployment.settled(run_id)["status"] in ("completed", "suspended")
            assert budget(deployment)["committed"]["tokens"] <= bound
    for run_id in ids:
        while (run := deployment.settled(run_id))["status"] != "completed":
            assert (run["status"], run["pending"]["budget"]["budget"]) == ("suspended", KEY)
    shown = budget(deployment)
    assert (shown["reserved"]["tokens"], shown["unknown"]["tokens"]) == (0, 0)
    assert shown["spent"]["tokens"] == spent_by(deployment, ids) > 0
