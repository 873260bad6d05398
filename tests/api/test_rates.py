"""Rate limits: each tenant has its own bucket, and nobody else pays for who asks too often."""

from __future__ import annotations

import math
from typing import Any

import pytest

from runward.api import rates
from runward.api.rates import Rate, Rates
from runward.core.errors import Throttled
from runward.core.kernel.actor import Scope
from runward.engine.callers import Caller, Permission
from runward.serving import rate_of
from runward.settings import Settings
from tests.api.house import House, house
from tests.api.test_callers import READ, WRITE, key


class Turned:
    """A clock that stands until it is turned."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def caller(tenant: str, *, operator: bool = False) -> Caller:
    return Caller(name="k", scope=Scope(tenant=tenant), permissions=frozenset(Permission), operator=operator)


def taken(bucket: Rates, tenant: str, most: int = 1_000) -> int:
    """How many requests a tenant gets through at once."""
    for count in range(most):
        try:
            bucket.take(caller(tenant))
        except Throttled:
            return count
    return most


@pytest.mark.parametrize(("per_second", "burst"), [(10, 20), (0.1, 1), (3, 7), (1_000, 1), (0.01, 5)])
def test_so_many_at_once_and_then_so_many_a_second(per_second: float, burst: int) -> None:
    clock = Turned()
    bucket = Rates(clock, Rate(per_second=per_second, burst=burst))
    assert taken(bucket, "acme") == burst
    for _ in range(50):
        clock.at += 1 / per_second
        assert taken(bucket, "acme") == 1
    clock.at += 10_000 / per_second
    assert taken(bucket, "acme") == burst, "a bucket holds no more than it can"


def test_who_waits_as_told_comes_through_however_often_it_asked_meanwhile() -> None:
    clock = Turned()
    bucket = Rates(clock, Rate(per_second=0.25, burst=2))
    assert taken(bucket, "acme") == 2
    for _ in range(100):
        with pytest.raises(Throttled) as told:
            bucket.take(caller("acme"))
        assert told.value.retry_after == 4
    clock.at += 1.5
    with pytest.raises(Throttled) as told:
        bucket.take(caller("acme"))
    assert told.value.retry_after == math.ceil(2.5)
    clock.at += told.value.retry_after
    bucket.take(caller("acme"))


def test_a_tenant_has_its_own_bucket_and_an_operator_none() -> None:
    bucket = Rates(Turned(), Rate(per_second=1, burst=3))
    assert taken(bucket, "acme") == 3
    assert taken(bucket, "globex") == 3
    for _ in range(100):
        bucket.take(caller("acme", operator=True))
    assert taken(Rates(Turned(), None), "acme") == 1_000


def test_tenants_that_have_been_still_are_forgotten_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MOST_REMEMBERED", 100)
    clock = Turned()
    bucket = Rates(clock, Rate(per_second=1, burst=2))
    for number in range(100):
        bucket.take(caller(f"t{number}"))
    clock.at += 1
    assert taken(bucket, "acme") == 2
    bucket.take(caller("globex"))
    assert len(bucket._full_at) == 2
    assert taken(bucket, "acme") == 0


@pytest.mark.parametrize(("given", "rate"), [({}, None), ({"rate_limit": 5}, (5, 10)), ({"rate_limit": 0.1}, (0.1, 1))])
def test_it_is_off_unless_it_is_set(given: dict[str, Any], rate: tuple[float, int] | None) -> None:
    made = rate_of(Settings(**given))
    assert (made and (made.per_second, made.burst)) == rate
    made = rate_of(Settings(**given, rate_burst=4))
    assert (made and made.burst) == (rate and 4)


async def limited(house: House, path: str = "/runs", **headers: str) -> bool:
    """Whether a request is refused for coming too soon."""
    answer = await house.http.get(path, headers=headers)
    if answer.status_code != 429:
        assert answer.status_code in (200, 404), answer.text
        return False
    assert (answer.json()["code"], answer.headers["retry-after"]) == ("rate_limited", "10")
    return True


async def test_a_tenant_that_asks_too_often_is_told_when_to_come_again_and_nobody_else_is() -> None:
    async with house(worker=False, rate=Rate(per_second=0.1, burst=4)) as made:
        clock = Turned()
        made.app.state.rates = Rates(clock, made.door.rate)
        acme, ann = await key(made), await key(made, user="ann")
        globex, operator = await key(made, "globex"), await key(made, "acme", operator=True)
        assert [await limited(made, **headers) for headers in (acme, ann, acme, ann, acme, ann)] == [False] * 4 + [True] * 2
        assert [await limited(made, **globex) for _ in range(5)] == [False] * 4 + [True]
        assert [await limited(made, **operator) for _ in range(20)] == [False] * 20
        for _ in range(20):
            assert (await made.http.get("/healthz")).status_code == 200
            assert (await made.http.get("/runs")).status_code == 401
        clock.at += 10
        assert [await limited(made, **acme), await limited(made, **ann)] == [False, True]
        assert made.heard.problems == []


async def test_a_refused_body_is_not_read_and_nothing_is_stored() -> None:
    async with house(worker=False, rate=Rate(per_second=0.1, burst=1)) as made:
        acme = await key(made)
        assert not await limited(made, **acme)
        answer = await made.http.post("/runs", content=b"x" * 2_000_000, headers=acme)
        assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
        assert made.database.actors == {}


async def test_an_event_source_is_asked_to_come_back_because_an_error_would_end_it_for_good() -> None:
    async with house(worker=False, rate=Rate(per_second=0.1, burst=3)) as made:
        acme, reads = await key(made, permissions=WRITE), await key(made, permissions=READ)
        run = await made.http.post("/runs", json={"agent": "support", "input": "hi"}, headers=acme)
        while not await limited(made, **reads):
            pass
        answer = await made.http.get(f"/runs/{run.json()['run_id']}/events", headers=reads)
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
        assert answer.text.startswith("retry: 5000\n")
