"""Budgets over HTTP: who may, what is stored, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from runward.core.budgets import Close
from runward.core.kernel.actor import Scope
from runward.core.runs.ledger import Amount, picos_of
from runward.engine import keys
from runward.engine.callers import Permission
from runward.ports.budgets import Admitted, Reserving
from tests.api.house import House
from tests.api.test_ops import key, post

AT = "/budgets/user:42"


async def put(house: House, body: Any, path: str = AT, **more: Any) -> tuple[int, dict[str, Any]]:
    answer = await house.http.put(path, json=body, **more)
    return answer.status_code, answer.json()


async def spent(house: House, id: str, amount: Amount, tenant: str = "default") -> None:
    budgets = house.service.services.budgets
    asked = Reserving(id=id, tenant=tenant, keys=("user:42",), amount=amount, holder="nobody")
    assert isinstance(await budgets.reserve(asked), Admitted)
    await budgets.close(tenant, id, Close.SETTLED, amount)


# -- who may -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH"])
async def test_without_ops_nothing_is_answered(quiet_house: House, method: str) -> None:
    headers = await key(quiet_house, "runs:read", "runs:write")
    answer = await quiet_house.http.request(method, AT, json=None if method == "GET" else {"warn_at": 5}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "not_permitted")


async def test_R43_a_budget_of_another_tenant_is_not_there(quiet_house: House) -> None:
    acme, other = [await key(quiet_house, "ops", tenant=tenant) for tenant in ("acme", "other")]
    assert (await put(quiet_house, {"max_total_tokens": 5}, headers=acme))[0] == 200
    for method, body in (("GET", None), ("PATCH", {"max_total_tokens": 6})):
        answer = await quiet_house.http.request(method, AT, json=body, headers=other)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert (await put(quiet_house, {"max_total_tokens": 7}, headers=other))[1]["max_total_tokens"] == 7
    assert (await quiet_house.http.get(AT, headers=acme)).json()["max_total_tokens"] == 5
    assert (await quiet_house.http.get(f"{AT}?tenant=other", headers=acme)).status_code == 403
    operator = await key(quiet_house, "ops", operator=True)
    assert (await quiet_house.http.get(f"{AT}?tenant=other", headers=operator)).json()["max_total_tokens"] == 7


async def test_a_key_that_is_confined_to_a_part_of_the_tenant_has_no_say_in_its_budgets(quiet_house: House) -> None:
    services = quiet_house.service.services
    _, text = await keys.create(services, scope=Scope(tenant="acme", user="42"), permissions=[Permission.OPS], operator=False)
    services.bus.publish(())
    code, problem = await put(quiet_house, {"max_total_tokens": 5}, headers={"Authorization": f"Bearer {text}"})
    assert (code, problem["code"]) == (403, "not_permitted")


# -- what is stored ------------------------------------------------------------------------------------------------------


async def test_R34_a_budget_is_set_changed_and_shown_with_what_counts(quiet_house: House) -> None:
    assert (await quiet_house.http.get(AT)).status_code == 404
    code, made = await put(quiet_house, {"max_total_tokens": 1000, "max_cost_usd": "2.50", "warn_at": 80, "on_exhausted": "suspend"})
    nothing = {"tokens": 0, "usd": "0"}
    terms = {"max_total_tokens": 1000, "max_cost_usd": "2.5", "window_seconds": None, "warn_at": 80, "on_exhausted": "suspend"}
    counts = {"spent": nothing, "reserved": nothing, "unknown": nothing, "committed": nothing, "remaining": {"tokens": 1000, "usd": "2.5"}}
    assert (code, made) == (200, made | terms | counts | {"key": "user:42", "resets_at": None})
    assert made["changed_by"]["by"] == "local"
    await spent(quiet_house, "a", Amount(tokens=100, picos=picos_of("0.000001")))
    answer = await quiet_house.http.patch(AT, json={"max_cost_usd": None, "warn_at": 50})
    changed = answer.json()
    assert changed == changed | terms | {"max_cost_usd": None, "warn_at": 50, "remaining": {"tokens": 900, "usd": None}}
    assert changed["spent"] == {"tokens": 100, "usd": "0.000001"}
    assert (await quiet_house.http.get(AT)).json() == changed
    code, again = await put(quiet_house, {"window_seconds": 3600})
    assert again == again | dict.fromkeys(("max_total_tokens", "max_cost_usd", "warn_at")) | {"on_exhausted": "stop", "spent": nothing}
    await spent(quiet_house, "b", Amount(tokens=1))
    assert (await quiet_house.http.get(AT)).json()["resets_at"] is not None


async def test_the_key_may_be_escaped_as_many_programs_do(quiet_house: House) -> None:
    assert (await put(quiet_house, {}, "/budgets/user%3A42"))[1]["key"] == "user:42"
    assert (await quiet_house.http.get(AT)).status_code == 200


# -- what is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/budgets/a%2Fb", "/budgets/%00", "/budgets/.a", "/budgets/a b", f"/budgets/{'a' * 129}", "/budgets/ä"])
async def test_R48_what_cannot_be_a_key_is_not_there(quiet_house: House, path: str) -> None:
    code, problem = await put(quiet_house, {}, path)
    assert (code, problem["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "body",
    [
        {"max_total_tokens": -1},
        {"max_total_tokens": 10**15 + 1},
        {"max_total_tokens": "5"},
        {"max_total_tokens": 5.0},
        {"max_cost_usd": 5},
        {"max_cost_usd": "-1"},
        {"max_cost_usd": "1e3"},
        {"max_cost_usd": "NaN"},
        {"max_cost_usd": "1000000.01"},
        {"max_cost_usd": "0.0000000000001"},
        {"max_cost_usd": "1\n"},
        {"max_cost_usd": "٣"},
        {"window_seconds": 0},
        {"window_seconds": 31_536_001},
        {"window_seconds": 1.5},
        {"warn_at": 0},
        {"warn_at": 101},
        {"on_exhausted": "explode"},
        {"on_exhausted": None},
        {"max_tokens": 5},
        [],
    ],
)
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_R46_what_is_no_budget_is_refused_and_nothing_is_stored(quiet_house: House, method: str, body: Any) -> None:
    await put(quiet_house, {"max_total_tokens": 7})
    answer = await quiet_house.http.request(method, AT, json=body)
    assert answer.status_code == 422 and answer.json()["code"] in ("invalid_value", "unknown_field")
    assert (await quiet_house.http.get(AT)).json()["max_total_tokens"] == 7


async def test_a_change_that_changes_nothing_is_refused_and_the_largest_is_not(quiet_house: House) -> None:
    largest = {"max_total_tokens": 10**15, "max_cost_usd": "1000000.000000000000", "window_seconds": 31_536_000, "warn_at": 100}
    assert (await put(quiet_house, largest))[1]["max_cost_usd"] == "1000000"
    assert (await quiet_house.http.patch(AT, json={})).status_code == 422
    assert (await quiet_house.http.patch("/budgets/nobody", json={"warn_at": 5})).status_code == 404


# -- pruning -------------------------------------------------------------------------------------------------------------


async def test_R45_budgets_that_nobody_uses_are_pruned_by_operators(quiet_house: House) -> None:
    await put(quiet_house, {"max_total_tokens": 7})
    await spent(quiet_house, "a", Amount(tokens=1))
    assert (await post(quiet_house, "/ops/prune", {"limit": 5}))[0] == 422
    none = {"runs": 0, "keys": 0, "budgets": 0, "reservations": 0}
    assert await post(quiet_house, "/ops/prune", {"budgets_before": "2020-01-01T00:00:00Z"}) == (200, none)
    done = await post(quiet_house, "/ops/prune", {"budgets_before": "2999-01-01T00:00:00Z"})
    assert done == (200, none | {"budgets": 1, "reservations": 1})
    assert (await quiet_house.http.get(AT)).status_code == 404
