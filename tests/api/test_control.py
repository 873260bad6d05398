"""Drains, holds and bulk cancels over HTTP."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from runward import Agent, Reply, ScriptedModel
from tests.api.house import House, house, until

ROOT = Path(__file__).resolve().parents[2]


async def started(house: House) -> str:
    """The id of a run whose tool never returns."""
    run = await house.created("stuck")
    uid = next(uid for uid, rows in house.database.actors.items() if rows.envelope.public_id == run["run_id"])
    await until(lambda: any(b'"executing"' in frame.data for frame in house.database.actors[uid].frames))
    return str(run["run_id"])


async def cancelled(house: House, body: Any) -> dict[str, Any]:
    answer = await house.http.post("/runs/cancel", json=body)
    assert answer.status_code == 202, answer.text
    said: dict[str, Any] = answer.json()
    return said


# -- drain -----------------------------------------------------------------------------------------------------------------------


async def test_R39_a_drain_is_accepted_while_somebody_drives_the_run(open_house: House) -> None:
    run_id = await started(open_house)
    for _ in range(2):
        answer = await open_house.http.post(f"/runs/{run_id}/drain")
        assert (answer.status_code, answer.json()["outcome"], answer.json()["run"]["status"]) == (202, "accepted", "running")


async def test_R39_of_a_run_that_nobody_drives_a_drain_stores_nothing(quiet_house: House) -> None:
    run = await quiet_house.created()
    before = (await quiet_house.http.get(f"/runs/{run['run_id']}")).json()
    answer = await quiet_house.http.post(f"/runs/{run['run_id']}/drain", json={"hold": False})
    assert (answer.status_code, answer.json()["outcome"]) == (200, "not_running")
    assert answer.json()["run"] == before


async def test_R39_a_hold_parks_a_run_and_is_the_same_when_it_is_sent_again(open_house: House) -> None:
    run = await open_house.created(start_at="2036-01-31T12:00:00Z")
    for _ in range(2):
        answer = await open_house.http.post(f"/runs/{run['run_id']}/drain", json={"hold": True, "reason": "closed"})
        assert (answer.status_code, answer.json()["outcome"]) == (202, "accepted")
    held = (await open_house.http.get(f"/runs/{run['run_id']}", params={"wait": 20})).json()
    assert held["status"] == "suspended"
    assert {**held["pending"]["hold"], "since": None} == {"since": None, "by": "local", "reason": "closed"}


async def test_R39_an_ended_run_is_not_parked(open_house: House) -> None:
    run = await open_house.completed()
    answer = await open_house.http.post(f"/runs/{run['run_id']}/drain", json={"hold": True})
    assert (answer.status_code, answer.json()["code"]) == (409, "run_ended")
    answer = await open_house.http.post(f"/runs/{run['run_id']}/drain")
    assert (answer.status_code, answer.json()["outcome"]) == (200, "not_running")


@pytest.mark.parametrize("body", [{"hold": 1}, {"hold": "true"}, {"hold": None}, {"held": True}, {"hold": True, "reason": "x" * 4_097}])
async def test_R46_a_drain_is_read_strictly(quiet_house: House, body: Any) -> None:
    run = await quiet_house.created()
    answer = await quiet_house.http.post(f"/runs/{run['run_id']}/drain", json=body)
    assert answer.status_code == 422
    assert (await quiet_house.http.post("/runs/nobody/drain", json={"hold": True})).status_code == 404


# -- why -------------------------------------------------------------------------------------------------------------------------


async def test_why_a_run_is_not_moving_is_answered_to_those_who_may_see_it(quiet_house: House) -> None:
    run = await quiet_house.created()
    answer = await quiet_house.http.get(f"/runs/{run['run_id']}/why")
    assert answer.status_code == 200
    assert [reason["code"] for reason in answer.json()["reasons"]] == ["no_worker_at_all"]
    assert (await quiet_house.http.get("/runs/nobody/why")).status_code == 404


def test_every_reason_is_documented() -> None:
    said = {
        word.value.value
        for name in ("why", "reasons")
        for node in ast.walk(ast.parse((ROOT / "app" / "runward" / "engine" / f"{name}.py").read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Reason"
        for word in node.keywords
        if word.arg == "code" and isinstance(word.value, ast.Constant)
    }
    table = (ROOT / "docs" / "api.md").read_text().split("## Why a run is not moving")[1].split("\n## ")[0]
    assert {code for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for code in re.findall(r"`(\w+)`", row)} == said


# -- bulk cancel -----------------------------------------------------------------------------------------------------------------


async def test_R37_a_filter_cancels_what_it_matches_and_nothing_else(open_house: House) -> None:
    meant = [(await open_house.created("stuck", metadata={"shop": "a"}))["run_id"] for _ in range(3)]
    other = (await open_house.created("stuck", metadata={"shop": "b"}))["run_id"]
    said = await cancelled(open_house, {"filter": {"agent": "stuck", "metadata": {"shop": "a"}}, "reason": "closed"})
    assert said == {"matched": 3, "accepted": 3, "already_ended": 0, "failed": [], "next_cursor": None}
    for run_id in meant:
        run = (await open_house.http.get(f"/runs/{run_id}", params={"wait": 20})).json()
        assert (run["stop"]["reason"], run["stop"]["details"]["reason"]) == ("cancelled", "closed")
    assert (await open_house.http.get(f"/runs/{other}")).json()["cancel_requested_at"] is None
    again = await cancelled(open_house, {"filter": {"agent": "stuck", "metadata": {"shop": "a"}}})
    assert again == {"matched": 3, "accepted": 0, "already_ended": 3, "failed": [], "next_cursor": None}


async def test_R43_pages_of_a_filter_miss_nothing_and_repeat_nothing(quiet_house: House) -> None:
    for _ in range(5):
        await quiet_house.created()
    body: dict[str, Any] = {"filter": {"status": ["queued"]}, "limit": 2}
    first = await cancelled(quiet_house, body)
    await quiet_house.created()
    second = await cancelled(quiet_house, {**body, "cursor": first["next_cursor"]})
    third = await cancelled(quiet_house, {**body, "cursor": second["next_cursor"]})
    assert [page["accepted"] for page in (first, second, third)] == [2, 2, 1]
    assert third["next_cursor"] is None
    waiting = (await quiet_house.http.get("/runs", params={"cancel_requested": "false"})).json()["data"]
    assert len(waiting) == 1, "the one that was made meanwhile"
    stolen = await quiet_house.http.post("/runs/cancel", json={"filter": {"agent": "stuck"}, "cursor": first["next_cursor"]})
    assert (stolen.status_code, stolen.json()["code"]) == (400, "invalid_cursor")


async def test_a_dry_run_counts_and_stores_nothing(open_house: House) -> None:
    done, waiting = await open_house.completed(), await open_house.created("stuck")
    ids = [done["run_id"], waiting["run_id"]]
    said = await cancelled(open_house, {"run_ids": ids, "dry_run": True})
    assert said == {"matched": 2, "accepted": 0, "already_ended": 1, "failed": [], "next_cursor": None}
    assert (await open_house.http.get(f"/runs/{waiting['run_id']}")).json()["cancel_requested_at"] is None
    assert (await cancelled(open_house, {"run_ids": [*ids, *ids, "nobody"]}))["accepted"] == 1


async def test_R10_a_failed_run_has_ended_whether_it_is_counted_or_cancelled() -> None:
    failing = Agent(name="failing", model=ScriptedModel([Reply(error="bad_request")]))
    async with house(agents=(failing,)) as made:
        run = await made.created("failing")
        assert (await made.http.get(f"/runs/{run['run_id']}", params={"wait": 20})).json()["status"] == "failed"
        for dry_run in (True, False):
            said = await cancelled(made, {"filter": {"agent": "failing"}, "dry_run": dry_run})
            assert (said["matched"], said["accepted"], said["already_ended"], said["failed"]) == (1, 0, 1, [])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"filter": {}},
        {"filter": {"status": []}},
        {"filter": {"metadata": {}}},
        {"run_ids": []},
        {"run_ids": [f"run-{number}" for number in range(1_001)]},
        {"run_ids": ["a"], "filter": {"agent": "support"}},
        {"run_ids": ["a"], "cursor": "x"},
        {"filter": {"agent": "support", "order": "created_at"}},
        {"filter": {"status": ["sleeping"]}},
        {"filter": {"cancel_requested": "true"}},
        {"filter": {"agent": "support"}, "limit": 1_001},
        {"filter": {"agent": "support"}, "limit": 0},
    ],
    ids=range(13),
)
async def test_what_does_not_say_which_runs_are_meant_is_refused(quiet_house: House, body: Any) -> None:
    run = await quiet_house.created()
    answer = await quiet_house.http.post("/runs/cancel", json=body)
    assert answer.status_code == 422, answer.text
    assert (await quiet_house.http.get(f"/runs/{run['run_id']}")).json()["cancel_requested_at"] is None
