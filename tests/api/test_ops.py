"""The operators' calls over HTTP: who may, what they see, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from runward import Agent, Limits, Reply, ScriptedModel, ToolCall, tool
from runward.core.kernel.actor import Scope
from runward.engine import keys
from runward.engine.callers import Permission
from runward.engine.catalog import published
from tests.api.house import STUCK, SUPPORT, House, house, until
from tests.api.test_control import started

NEWER = replace(SUPPORT, version="2", description="The same, said better.")


@tool(name="never", effect="idempotent_write")
async def never_again() -> str:
    return ""


OTHERWISE = replace(STUCK, version="2", tools=[never_again])
WITHOUT = Agent(name="stuck", version="3", model=ScriptedModel([Reply(text="x")]))
BOUNDED = Agent(
    name="bounded",
    version="1",
    model=ScriptedModel([Reply(tool_calls=[ToolCall("never", {})])]),
    tools=STUCK.tools,
    limits=Limits(max_steps=2, timeout_seconds=600),
)


@pytest.fixture
async def big_house() -> AsyncIterator[House]:
    """A service with a worker, and several versions of its agents; the first of each is run unless another is named."""
    async with house(agents=(OTHERWISE, WITHOUT, STUCK, NEWER, SUPPORT, BOUNDED)) as made:
        yield made


async def key(house: House, *permissions: str, tenant: str = "acme", operator: bool = False) -> dict[str, str]:
    """The headers of a new key."""
    allowed = [Permission(name) for name in permissions]
    _, text = await keys.create(house.service.services, scope=Scope(tenant=tenant), permissions=allowed, operator=operator)
    house.door.services.bus.publish(())
    return {"Authorization": f"Bearer {text}"}


def bindings(house: House, name: str) -> list[str]:
    """The fingerprints of an agent's versions, in the order of the versions."""
    entries = [entry for entry in house.service.registry.agents if entry.agent.name == name]
    return [entry.binding for entry in sorted(entries, key=lambda entry: entry.agent.version)]


async def post(house: House, path: str, body: Any = None, **headers: Any) -> tuple[int, dict[str, Any]]:
    answer = await house.http.post(path, json=body, **headers)
    return answer.status_code, answer.json()


# -- who may ---------------------------------------------------------------------------------------------------------------------

CALLS = [
    ("GET", "/ops/workers", None),
    ("GET", "/ops/leases", None),
    ("GET", "/ops/stale", None),
    ("GET", "/ops/unclaimable", None),
    ("POST", "/ops/workers/w/drain", None),
    ("POST", "/ops/recover", {}),
    ("POST", "/ops/rebind", {"agent": "support", "from": "a", "to": "b"}),
    ("POST", "/ops/runs/r/limits", {"limits": {"max_steps": 9}}),
    ("POST", "/ops/prune", {"keys_before": "2026-01-31T00:00:00Z"}),
]


@pytest.mark.parametrize(("method", "path", "body"), CALLS, ids=[path for _, path, _ in CALLS])
async def test_without_ops_nothing_is_answered(quiet_house: House, method: str, path: str, body: Any) -> None:
    headers = await key(quiet_house, "runs:read", "runs:write", "approvals:decide")
    answer = await quiet_house.http.request(method, path, json=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "not_permitted")


async def test_R43_a_key_with_ops_sees_its_own_tenant_and_an_operator_all(open_house: House) -> None:
    headers = {tenant: await key(open_house, "ops", "runs:write", "runs:read", tenant=tenant) for tenant in ("acme", "globex")}
    operator = await key(open_house, "ops", operator=True)
    theirs = {}
    for tenant, by in headers.items():
        answer = await open_house.http.post("/runs", json={"agent": "stuck", "input": "hi"}, headers=by)
        theirs[tenant] = answer.json()["run_id"]
    await until(lambda: sum(rows.envelope.lease_owner is not None for rows in open_house.database.actors.values()) == 2)

    async def leased(by: dict[str, str], query: str = "") -> list[str]:
        return [run["run_id"] for run in (await open_house.http.get(f"/ops/leases{query}", headers=by)).json()["data"]]

    assert {tenant: await leased(by) for tenant, by in headers.items()} == {tenant: [run_id] for tenant, run_id in theirs.items()}
    assert sorted(await leased(operator)) == sorted(theirs.values())
    assert await leased(operator, "?tenant=globex") == [theirs["globex"]]
    first = (await open_house.http.get("/ops/leases?limit=1", headers=headers["acme"])).json()
    assert first["next_cursor"] is None, "nothing is said of what somebody else has"
    page = (await open_house.http.get("/ops/leases?limit=1", headers=operator)).json()
    rest = (await open_house.http.get(f"/ops/leases?limit=1&cursor={page['next_cursor']}", headers=operator)).json()
    assert len(rest["data"]) == 1 and rest["next_cursor"] is None

    (seen,) = (await open_house.http.get("/ops/workers", headers=headers["acme"])).json()["data"]
    assert seen.keys() == {"worker_id", "live", "draining", "beat_at", "bindings"}
    (seen,) = (await open_house.http.get("/ops/workers", headers=operator)).json()["data"]
    assert (seen["host"], seen["slots"]) == ("test", 32)
    status, refused = await post(open_house, f"/ops/workers/{seen['worker_id']}/drain", headers=headers["acme"])
    assert (status, refused["code"]) == (403, "not_permitted")
    status, refused = await post(open_house, "/ops/prune", {"runs_before": "2030-01-31T00:00:00Z"}, headers=headers["acme"])
    assert (status, refused["code"]) == (403, "not_permitted")
    status, refused = await post(open_house, "/ops/recover", {"run_id": theirs["globex"], "force": True}, headers=headers["acme"])
    assert (status, refused["code"]) == (404, "not_found")


# -- workers and leases ----------------------------------------------------------------------------------------------------------


async def test_R39_a_worker_that_is_drained_leaves_and_its_process_goes_on(open_house: House) -> None:
    (worker,) = (await open_house.http.get("/ops/workers")).json()["data"]
    assert (worker["live"], worker["draining"]) == (True, False)
    assert (await post(open_house, f"/ops/workers/{worker['worker_id']}/drain"))[0] == 202
    assert (await open_house.http.get("/ops/workers")).json()["data"][0]["draining"]
    open_house.service.worker.asked_to_drain.set()  # type: ignore[union-attr]
    await open_house.service.worker_left.wait()
    assert (await open_house.http.get("/ops/workers")).json()["data"] == []
    assert (await open_house.http.get("/readyz")).status_code == 200
    assert (await post(open_house, f"/ops/workers/{worker['worker_id']}/drain"))[0] == 404
    run = await open_house.created()
    assert (await open_house.http.get(f"/runs/{run['run_id']}/why")).json()["reasons"][0]["code"] == "no_worker_at_all"


async def test_R41_what_nobody_can_take_is_listed(big_house: House, quiet_house: House) -> None:
    run = await quiet_house.created()
    (listed,) = (await quiet_house.http.get("/ops/unclaimable")).json()["data"]
    assert (listed["run_id"], listed["code"], listed["agent_version"]) == (run["run_id"], "no_worker_with_binding", "1")
    await started(big_house)
    assert (await big_house.http.get("/ops/unclaimable")).json()["data"] == []
    assert (await big_house.http.get("/ops/stale")).json()["data"] == []
    for query in ("stale_seconds=-1", "stale_seconds=1.5", "limit=0", "cursor=x", "worker=1"):
        assert (await big_house.http.get(f"/ops/stale?{query}")).status_code in (400, 422), query


async def test_R40_one_run_is_taken_by_force_and_that_is_recorded(open_house: House) -> None:
    run_id = await started(open_house)
    assert await post(open_house, "/ops/recover", {}) == (200, {"recovered": 0, "failed": []})
    refused = {"recovered": 0, "failed": [{"run_id": run_id, "code": "lease_held"}]}
    assert await post(open_house, "/ops/recover", {"run_id": run_id}) == (200, refused)
    assert await post(open_house, "/ops/recover", {"run_id": run_id, "force": True}) == (200, {"recovered": 1, "failed": []})
    (mail,) = (await open_house.http.get(f"/runs/{run_id}/inbox")).json()["data"]
    assert (mail["kind"], mail["principal"]["by"]) == ("takeover", "local")
    done = await open_house.completed()
    refused = {"recovered": 0, "failed": [{"run_id": done["run_id"], "code": "not_running"}]}
    assert await post(open_house, "/ops/recover", {"run_id": done["run_id"], "force": True}) == (200, refused)
    for body in ({"force": True}, {"limit": 0}, {"limit": 1_001}, {"run_id": "x y"}):
        assert (await post(open_house, "/ops/recover", body))[0] == 422


# -- rebind ----------------------------------------------------------------------------------------------------------------------


async def test_R41_a_run_is_bound_to_other_code_of_its_agent(big_house: House) -> None:
    old, new = bindings(big_house, "support")
    run = await big_house.created("support", agent_version="1", start_at="2036-01-31T12:00:00Z")
    body = {"run_id": run["run_id"], "from": old, "to": new, "reason": "said better"}
    assert await post(big_house, "/ops/rebind", body) == (202, {"rebound": 1, "failed": [], "next_cursor": None})
    (uid,) = big_house.database.actors
    await until(lambda: big_house.database.actors[uid].envelope.binding == new)
    await until(lambda: big_house.database.actors[uid].envelope.lease_owner is None)
    assert big_house.database.actors[uid].envelope.status.value == "queued", "it still waits for its time"
    (mail,) = (await big_house.http.get(f"/runs/{run['run_id']}/inbox")).json()["data"]
    assert (mail["kind"], mail["data"]["to"], mail["principal"]["by"]) == ("rebind", new, "local")
    assert await post(big_house, "/ops/rebind", body) == (202, {"rebound": 1, "failed": [], "next_cursor": None}), "sent again, it is done"
    assert len((await big_house.http.get(f"/runs/{run['run_id']}/inbox")).json()["data"]) == 1
    status, refused = await post(big_house, "/ops/rebind", {**body, "from": "0" * 32, "to": old})
    assert (status, refused["code"], refused["recorded"]) == (409, "binding_mismatch", {"binding": new})


async def test_R41_what_differs_is_refused_by_its_name_and_nothing_is_written(big_house: House) -> None:
    run_id = await started(big_house)
    old, otherwise, without = bindings(big_house, "stuck")
    uid = next(iter(big_house.database.actors))
    before = big_house.database.actors[uid].envelope
    for to, said in ((otherwise, "effect"), (without, "not there")):
        status, refused = await post(big_house, "/ops/rebind", {"run_id": run_id, "from": old, "to": to})
        assert (status, refused["code"]) == (409, "binding_mismatch")
        assert any("never" in error["detail"] and said in error["detail"] for error in refused["errors"])
    status, refused = await post(big_house, "/ops/rebind", {"run_id": run_id, "from": old, "to": bindings(big_house, "support")[0]})
    assert (status, refused["code"]) == (409, "binding_mismatch")
    status, refused = await post(big_house, "/ops/rebind", {"run_id": run_id, "from": old, "to": "unheard-of"})
    assert (status, refused["errors"][0]["pointer"]) == (422, "/to")
    assert big_house.database.actors[uid].envelope.mail_received == before.mail_received == 0


async def test_R41_all_runs_of_an_agent_are_bound_anew_page_by_page() -> None:
    async with house(worker=False, agents=(NEWER, SUPPORT)) as made:
        await made.service.services.directory.publish_agents(published(made.service.registry))
        old, new = bindings(made, "support")
        for _ in range(3):
            await made.created("support", agent_version="1")
        await made.created("support", agent_version="2")
        body = {"agent": "support", "from": old, "to": new, "limit": 2}
        status, first = await post(made, "/ops/rebind", body)
        _, second = await post(made, "/ops/rebind", {**body, "cursor": first["next_cursor"]})
        assert (status, first["rebound"] + second["rebound"], second["next_cursor"]) == (202, 3, None)
        for wrong in ({**body, "run_id": "x"}, {"from": old, "to": new}, {**body, "to": old}, {**body, "by": "me"}):
            assert (await post(made, "/ops/rebind", wrong))[0] == 422


# -- limits ----------------------------------------------------------------------------------------------------------------------


async def test_R35_limits_are_raised_and_nothing_else(big_house: House) -> None:
    run = await big_house.created("bounded")
    path = f"/ops/runs/{run['run_id']}/limits"
    assert (await post(big_house, path, {"limits": {"max_steps": 5, "timeout_seconds": 600}, "reason": "long"}))[0] == 202
    (mail,) = (await big_house.http.get(f"/runs/{run['run_id']}/inbox")).json()["data"]
    assert (mail["kind"], mail["data"]) == ("limits", {"limits": {"max_steps": 5}, "reason": "long"})
    refused = [
        {"limits": {"max_steps": 1}},
        {"limits": {"expires_seconds": 60}},
        {"limits": {"max_steps": 9, "timeout_seconds": 1}},
        {"limits": {}},
        {"limits": {"max_total_tokens": 9}},
        {"limits": {"max_steps": "9"}},
        {},
    ]
    for body in refused:
        status, problem = await post(big_house, path, body)
        assert status == 422, body
        assert problem["code"] in ("invalid_value", "unknown_field")
    assert len((await big_house.http.get(f"/runs/{run['run_id']}/inbox")).json()["data"]) == 1


async def test_R35_a_raise_revives_nothing(open_house: House) -> None:
    done = await open_house.completed()
    status, refused = await post(open_house, f"/ops/runs/{done['run_id']}/limits", {"limits": {"max_steps": 100}})
    assert (status, refused["code"]) == (409, "run_ended")


# -- prune -----------------------------------------------------------------------------------------------------------------------


async def test_R45_ended_runs_are_deleted_and_what_goes_on_stays(open_house: House) -> None:
    done = [await open_house.completed() for _ in range(3)]
    stuck = await started(open_house)
    none = {"runs": 0, "keys": 0, "budgets": 0, "reservations": 0}
    assert await post(open_house, "/ops/prune", {"runs_before": "2000-01-31T00:00:00Z"}) == (200, none)
    everything = {"runs_before": "2100-01-31T00:00:00Z", "keys_before": "2100-01-31T00:00:00Z"}
    assert await post(open_house, "/ops/prune", {**everything, "limit": 2}) == (200, none | {"runs": 2})
    assert await post(open_house, "/ops/prune", everything) == (200, none | {"runs": 1})
    for run in done:
        assert (await open_house.http.get(f"/runs/{run['run_id']}")).status_code == 404
    assert (await open_house.http.get(f"/runs/{stuck}")).json()["status"] == "running"
    for body in ({}, {"limit": 5}, {"runs_before": "yesterday"}, {"runs_before": None}, {"budgets_before": "yesterday"}):
        assert (await post(open_house, "/ops/prune", body))[0] == 422
