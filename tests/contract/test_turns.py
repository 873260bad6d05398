"""Whose turn it is in a claim: tenants take turns, and keys and tenants have no more leases than they may."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from runward.core.kernel.actor import Envelope, Scope, Status
from runward.ports.reads import SlotsTaken
from tests.contract.backends import Backend
from tests.contract.builders import claim_request, claimed, created, release, running, stored, uid_of, written

ACME, GLOBEX, INITECH = (Scope(tenant=name) for name in ("acme", "globex", "initech"))
MANY = 120
"""More than a claim reads of a queue in order of rank."""


async def queued(backend: Backend, *numbers: int, **differing: Any) -> None:
    for number in numbers:
        await created(backend.store, number, **{"binding": "b", "ready_at": number, **differing})


async def taken(backend: Backend, limit: int = 100, **differing: Any) -> list[int]:
    """The numbers of those that a claim takes, in the order of it."""
    claims = await backend.store.claim(claim_request("b", limit=limit, **differing))
    return [int(each.envelope.uid, 16) for each in claims.taken]


async def ended(backend: Backend, *numbers: int) -> None:
    for number in numbers:
        await written(backend.store, release(await stored(backend.reads, uid_of(number)), Status.COMPLETED))


# -- tenants -------------------------------------------------------------------------------------------------------------


async def test_a_tenant_with_a_long_queue_does_not_hold_up_one_with_a_single_run(backend: Backend) -> None:
    await queued(backend, *range(1, MANY), scope=ACME)
    await queued(backend, 500, scope=GLOBEX)
    assert await taken(backend, limit=1) == [1]
    assert await taken(backend, limit=1) == [500]
    assert await taken(backend, limit=1) == [2]


async def test_who_has_the_fewest_leases_goes_first(backend: Backend) -> None:
    """Also when it had its turn last."""
    await queued(backend, 1, 2, 3, scope=ACME)
    assert await taken(backend, limit=2) == [1, 2]
    await queued(backend, 500, scope=GLOBEX)
    assert await taken(backend, limit=1) == [500]
    await ended(backend, 500)
    await queued(backend, 501, scope=GLOBEX)
    assert await taken(backend, limit=1) == [501]


async def test_tenants_take_turns_where_runs_are_short(backend: Backend) -> None:
    """Nobody has a lease when the next claim comes: who had its turn last is remembered."""
    await queued(backend, *range(1, MANY), scope=ACME)
    await queued(backend, 500, 501, scope=GLOBEX)
    await queued(backend, 600, scope=INITECH)
    order = []
    for _ in range(6):
        order += await taken(backend, limit=1)
        await ended(backend, order[-1])
    assert order == [1, 500, 600, 2, 501, 3]


async def test_tenants_take_turns_in_one_claim_too(backend: Backend) -> None:
    """Whoever has nothing of a full claim has it of the next: a store may learn of the others one claim late."""
    await queued(backend, *range(1, MANY), scope=ACME)
    await queued(backend, 500, 501, 502, scope=GLOBEX)
    await queued(backend, 600, scope=INITECH)
    first = await taken(backend, limit=4)
    second = await taken(backend, limit=4)
    assert {500, 600} <= {*first, *second}
    third = await taken(backend, limit=4)
    assert {500, 501, 502, 600} <= {*first, *second, *third}
    assert len({*first, *second, *third}) == 12


async def test_within_a_tenant_the_lowest_rank_goes_first(backend: Backend) -> None:
    await queued(backend, 3, 1, 2, scope=ACME)
    await queued(backend, 6, 5, scope=GLOBEX)
    order = [(await taken(backend, limit=1))[0] for _ in range(5)]
    assert [number for number in order if number < 4] == [1, 2, 3]
    assert [number for number in order if number > 4] == [5, 6]
    assert {*order[:2]} == {1, 5}


async def test_whoever_waits_longer_overtakes_a_higher_priority(backend: Backend) -> None:
    """A point of priority is a minute."""
    now = await backend.store.now()
    await queued(backend, 1, ready_at=now - 61_000, priority=0)
    await queued(backend, 2, ready_at=now - 59_000, priority=0)
    await queued(backend, 3, ready_at=now, priority=1)
    assert await taken(backend) == [1, 3, 2]


async def test_a_tenant_is_held_to_its_bound(backend: Backend) -> None:
    await queued(backend, 1, 2, 3, scope=ACME)
    await queued(backend, 4, scope=GLOBEX)
    assert {*await taken(backend, per_tenant=2)} == {1, 2, 4}
    assert await taken(backend, per_tenant=2) == []
    assert await backend.reads.slots_taken("acme", None) == SlotsTaken(of_key=0, of_tenant=2)
    await ended(backend, 1)
    assert await taken(backend, per_tenant=2) == [3]


# -- keys ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_key", [1, 2])
async def test_of_a_key_so_many_are_taken_at_a_time(backend: Backend, per_key: int) -> None:
    await queued(backend, 1, 2, 3, 4, concurrency_key="k")
    await queued(backend, 5, concurrency_key="other")
    await queued(backend, 6, concurrency_key="k", scope=GLOBEX)
    assert {*await taken(backend, per_key=per_key)} == {*range(1, 1 + per_key), 5, 6}
    assert await taken(backend, per_key=per_key) == []
    assert await backend.reads.slots_taken("acme", "k") == SlotsTaken(of_key=per_key, of_tenant=0)
    await ended(backend, 1)
    assert await taken(backend, per_key=per_key) == [1 + per_key]


async def test_a_key_with_a_long_queue_does_not_hold_up_others(backend: Backend) -> None:
    await queued(backend, *range(1, MANY), concurrency_key="k")
    assert await taken(backend, limit=2) == [1]
    await queued(backend, 500)
    await queued(backend, 501, concurrency_key="other")
    assert {*await taken(backend, limit=2)} == {500, 501}


async def test_a_run_that_waits_for_somebody_leaves_its_place_to_others(backend: Backend) -> None:
    await queued(backend, 1, 2, concurrency_key="k")
    assert await taken(backend) == [1]
    await written(backend.store, release(await stored(backend.reads, uid_of(1)), Status.SUSPENDED))
    assert await taken(backend) == [2]


async def test_whoever_lost_its_lease_keeps_its_place(backend: Backend) -> None:
    await queued(backend, 1, 2, concurrency_key="k")
    assert await taken(backend) == [1]
    await backend.age(uid_of(1), 31_000)
    claims = await backend.store.claim(claim_request("b", owner="worker-2", per_tenant=5))
    assert [(each.envelope.uid, each.recovered, each.envelope.key_slot) for each in claims.taken] == [(uid_of(1), True, 1)]


async def test_care_is_not_bounded(backend: Backend) -> None:
    """And takes no place: it runs nobody's code."""
    await queued(backend, 1, concurrency_key="k")
    assert await taken(backend, per_tenant=1) == [1]
    await queued(backend, 2, concurrency_key="k", care_at=1)
    (envelope,) = await claimed(backend.store, "b", per_tenant=1)
    assert (envelope.uid, envelope.key_slot, envelope.tenant_slot) == (uid_of(2), None, None)
    assert not envelope.has_turn(per_tenant=False)
    assert (await stored(backend.reads, uid_of(1))).has_turn(per_tenant=True)


async def test_a_key_comes_back_as_it_was(backend: Backend) -> None:
    envelope = await running(backend.store, concurrency_key="Straße/7 🙂")
    assert (envelope.concurrency_key, envelope.key_slot, envelope.tenant_slot) == ("Straße/7 🙂", 1, None)
    assert (await running(backend.store, 2)).concurrency_key is None


async def test_bounds_hold_however_many_claim_at_once(backend: Backend) -> None:
    """Nobody waits for nobody, either: a claim that would have taken what another one did looks again."""
    stores = [backend.store, await backend.new_store()]
    for number in range(1, 61):
        scope, key = (ACME, GLOBEX)[number % 2], ("x", "y", "z", None)[number % 4]
        await queued(backend, number, scope=scope, concurrency_key=key)
    held: dict[str, Envelope] = {}
    done: list[str] = []

    def check() -> None:
        keys = Counter((each.scope.tenant, each.concurrency_key) for each in held.values() if each.concurrency_key)
        tenants = Counter(each.scope.tenant for each in held.values())
        assert max(keys.values(), default=0) <= 2 and max(tenants.values(), default=0) <= 5, (keys, tenants)

    async def worker(number: int) -> None:
        idle = 0
        while len(done) < 60 and idle < 200:
            mine = await claimed(stores[number % 2], "b", owner=f"worker-{number}", limit=3, per_key=2, per_tenant=5)
            idle = 0 if mine else idle + 1
            held.update({each.uid: each for each in mine})
            check()
            for each in mine:
                del held[each.uid]
                await written(stores[number % 2], release(each, Status.COMPLETED))
                done.append(each.uid)

    await asyncio.gather(*map(worker, range(6)))
    assert sorted(done) == [uid_of(number) for number in range(1, 61)]
