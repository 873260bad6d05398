"""API keys, published agents, workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from runward.core.kernel.actor import Scope
from runward.ports.directory import ApiKey, PublishedAgent, WorkerRow
from tests.contract.backends import Backend
from tests.contract.builders import BASE, next_millisecond


def api_key(number: int = 1, **differing: Any) -> ApiKey:
    made = ApiKey(
        id=f"key-{number}",
        hash=f"{number:064x}",
        prefix=f"rw_{number}",
        scope=Scope(tenant="acme"),
        operator=False,
        permissions=("runs:read", "runs:write"),
        created_at=BASE + number,
        expires_at=None,
        revoked_at=None,
    )
    return replace(made, **differing)


def agent(name: str = "support", **differing: Any) -> PublishedAgent:
    made = PublishedAgent(name=name, version="1", fingerprint="f1", place=0, manifest='{"b":1, "a":1e22}', published_at=0)
    return replace(made, **differing)


def worker(number: int = 1, **differing: Any) -> WorkerRow:
    made = WorkerRow(
        id=f"worker-{number}", host="h", pid=number, started_at=0, beat_at=0, slots=32, driving=2, draining=False, bindings=("b1", "b2")
    )
    return replace(made, **differing)


# -- API keys ------------------------------------------------------------------------------------------------------------


async def test_a_key_is_found_by_its_hash(backend: Backend) -> None:
    full = api_key(
        2, scope=Scope(tenant="acme", user="u1", namespace="n1"), operator=True, permissions=(), expires_at=BASE + 9, revoked_at=BASE + 8
    )
    for key in (api_key(1), full):
        await backend.directory.add_key(key)
        assert await backend.directory.key_by_hash(key.hash) == key
    assert await backend.directory.key_by_hash(f"{9:064x}") is None
    assert await backend.directory.key_by_hash("") is None


async def test_uses_of_keys_are_noted_by_the_stores_clock_and_of_no_key_none(backend: Backend) -> None:
    for number in (1, 2, 3):
        await backend.directory.add_key(api_key(number))
    before = await backend.store.now()
    await backend.directory.note_key_uses(())
    await backend.directory.note_key_uses({"key-1", "key-3", "nobody", "'; --"})
    used = [await backend.directory.key(f"key-{number}") for number in (1, 2, 3)]
    assert [key and key.last_used_at is not None for key in used] == [True, False, True]
    first = used[0]
    assert first is not None and first == api_key(1, last_used_at=first.last_used_at)
    assert before <= (first.last_used_at or 0) <= await backend.store.now()
    await next_millisecond(backend.store)
    await backend.directory.note_key_uses(["key-1"])
    again, third = await backend.directory.key("key-1"), await backend.directory.key("key-3")
    assert again is not None and (again.last_used_at or 0) > (first.last_used_at or 0)
    assert third == used[2]
    assert await backend.directory.key("nobody") is None


async def test_keys_are_listed_newest_first_and_by_tenant(backend: Backend) -> None:
    keys = {
        1: api_key(1, created_at=20),
        2: api_key(2, created_at=30, scope=Scope(tenant="globex")),
        3: api_key(3, created_at=10, scope=Scope(tenant="acme", user="u1")),
        4: api_key(4, created_at=40),
    }
    assert list(await backend.directory.keys(None)) == []
    for key in keys.values():
        await backend.directory.add_key(key)
    assert list(await backend.directory.keys(None)) == [keys[4], keys[2], keys[1], keys[3]]
    assert list(await backend.directory.keys(Scope(tenant="acme"))) == [keys[4], keys[1], keys[3]]
    assert list(await backend.directory.keys(Scope(tenant="initech"))) == []


async def test_a_key_is_revoked_once_and_for_good(backend: Backend) -> None:
    await backend.directory.add_key(api_key(1))
    await backend.directory.add_key(api_key(2))
    before = await backend.store.now()
    assert await backend.directory.revoke_key("key-1") is True
    revoked = await backend.directory.key_by_hash(api_key(1).hash)
    assert revoked is not None and revoked.revoked_at is not None
    assert before <= revoked.revoked_at <= await backend.store.now()
    assert revoked == api_key(1, revoked_at=revoked.revoked_at)
    assert await backend.directory.revoke_key("key-1") is False
    assert await backend.directory.revoke_key("key-9") is False
    assert list(await backend.directory.keys(None)) == [api_key(2), revoked]


async def test_authentication_is_on_from_the_first_key_on(backend: Backend) -> None:
    assert await backend.directory.authentication() is False
    await backend.directory.add_key(api_key(1))
    assert await backend.directory.authentication() is True
    await backend.directory.revoke_key("key-1")
    assert await backend.directory.authentication() is True


async def test_authentication_is_turned_off_and_on_again(backend: Backend) -> None:
    await backend.directory.add_key(api_key(1))
    await backend.directory.set_authentication(False)
    assert await backend.directory.authentication() is False
    await backend.directory.set_authentication(False)
    assert await backend.directory.authentication() is False
    await backend.directory.set_authentication(True)
    assert await backend.directory.authentication() is True


async def test_authentication_may_be_turned_on_before_there_is_a_key(backend: Backend) -> None:
    await backend.directory.set_authentication(True)
    assert await backend.directory.authentication() is True


# -- agents --------------------------------------------------------------------------------------------------------------


def unstamped(agents: Sequence[PublishedAgent]) -> list[PublishedAgent]:
    return [replace(published, published_at=0) for published in agents]


async def test_agents_are_listed_by_name_and_place(backend: Backend) -> None:
    assert list(await backend.directory.agents()) == []
    sales = agent("sales")
    first, second, tenth = (agent(version=f"{n}", place=n) for n in (1, 2, 10))
    await backend.directory.publish_agents([tenth, second])
    await backend.directory.publish_agents([])
    await backend.directory.publish_agents([sales, first])
    assert unstamped(await backend.directory.agents()) == [sales, first, second, tenth]


async def test_an_agent_published_again_is_refreshed(backend: Backend) -> None:
    await backend.directory.publish_agents([agent(), agent("sales")])
    again = agent(place=7, manifest='{"new":true}')
    other = agent(fingerprint="f2", place=8)
    await backend.directory.publish_agents([other, again])
    assert unstamped(await backend.directory.agents()) == [agent("sales"), again, other]


async def test_many_processes_publish_the_same_agents_at_once(backend: Backend) -> None:
    agents = [agent(f"a{n}") for n in range(6)]
    orders = [agents, agents[::-1], agents[3:] + agents[:3], agents]
    await asyncio.gather(*(backend.directory.publish_agents(order) for order in orders))
    assert unstamped(await backend.directory.agents()) == agents


# -- workers -------------------------------------------------------------------------------------------------------------


async def test_a_worker_is_stamped_by_the_stores_clock(backend: Backend) -> None:
    before = await backend.store.now()
    await backend.directory.beat(worker(1, draining=True, bindings=()))
    after = await backend.store.now()
    (row,) = await backend.directory.workers()
    assert before <= row.started_at == row.beat_at <= after
    assert row == worker(1, draining=True, bindings=(), started_at=row.started_at, beat_at=row.beat_at)


async def test_a_beat_says_how_the_worker_is_now(backend: Backend) -> None:
    await backend.directory.beat(worker(1))
    (first,) = await backend.directory.workers()
    await next_millisecond(backend.store)
    await backend.directory.beat(worker(1, driving=0, slots=1, draining=True, bindings=("b3",)))
    (row,) = await backend.directory.workers()
    assert row == worker(1, driving=0, slots=1, draining=True, bindings=("b3",), started_at=first.started_at, beat_at=row.beat_at)
    assert row.beat_at > first.beat_at


async def test_a_worker_is_asked_to_drain_and_hears_of_it_with_its_beats(backend: Backend) -> None:
    assert await backend.directory.beat(worker(1)) is False
    assert await backend.directory.beat(worker(2)) is False
    assert await backend.directory.ask_worker_drain("worker-1") is True
    assert {row.id: row.asked_to_drain for row in await backend.directory.workers()} == {"worker-1": True, "worker-2": False}
    assert [await backend.directory.beat(worker(number, asked_to_drain=False)) for number in (1, 1, 2)] == [True, True, False]
    assert await backend.directory.ask_worker_drain("worker-1") is True
    assert await backend.directory.beat(worker(2, asked_to_drain=True)) is False
    assert {row.id: row.asked_to_drain for row in await backend.directory.workers()} == {"worker-1": True, "worker-2": False}


async def test_only_a_worker_that_is_there_is_asked_to_drain(backend: Backend) -> None:
    assert await backend.directory.ask_worker_drain("worker-1") is False
    await backend.directory.beat(worker(1))
    await backend.directory.ask_worker_drain("worker-1")
    await backend.directory.forget_worker("worker-1")
    assert await backend.directory.ask_worker_drain("worker-1") is False
    assert await backend.directory.beat(worker(1)) is False


async def test_a_first_beat_asks_nothing_of_its_worker(backend: Backend) -> None:
    assert await backend.directory.beat(worker(1, asked_to_drain=True)) is False
    (row,) = await backend.directory.workers()
    assert row.asked_to_drain is False


async def test_workers_that_fell_silent_are_forgotten(backend: Backend) -> None:
    for number in (1, 2):
        await backend.directory.beat(worker(number))
    await backend.age_others(100_000)
    await backend.directory.beat(worker(2))
    assert await backend.directory.forget_silent_workers(150_000) == 0
    assert await backend.directory.forget_silent_workers(50_000) == 1
    assert [row.id for row in await backend.directory.workers()] == ["worker-2"]
    assert await backend.directory.forget_silent_workers(50_000) == 0


async def test_workers_are_listed_by_their_latest_beat_until_they_leave(backend: Backend) -> None:
    assert list(await backend.directory.workers()) == []
    for number in (1, 2, 3, 1):
        await next_millisecond(backend.store)
        await backend.directory.beat(worker(number))
    assert [row.id for row in await backend.directory.workers()] == ["worker-1", "worker-3", "worker-2"]
    await backend.directory.forget_worker("worker-3")
    await backend.directory.forget_worker("nobody")
    assert [row.id for row in await backend.directory.workers()] == ["worker-1", "worker-2"]


async def test_a_key_is_found_by_its_id_also_when_it_was_revoked(backend: Backend) -> None:
    made = api_key(1)
    await backend.directory.add_key(made)
    assert await backend.directory.key(made.id) == made and await backend.directory.key(api_key(2).id) is None
    assert await backend.directory.revoke_key(made.id)
    found = await backend.directory.key(made.id)
    assert found is not None and found.revoked_at is not None
