"""Keyed leases: one holder at a time, tokens that only grow, and the store's clock."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from runward.ports.singletons import Lease
from tests.contract.backends import Backend
from tests.contract.builders import next_millisecond


async def acquired(backend: Backend, key: str = "upkeep", owner: str = "worker-1", ttl_ms: int = 30_000) -> Lease:
    """A lease that has to be had."""
    lease = await backend.singletons.acquire(key, owner, ttl_ms)
    assert lease is not None
    return lease


async def test_a_key_that_nobody_holds_is_taken_by_the_stores_clock(backend: Backend) -> None:
    before = await backend.store.now()
    lease = await acquired(backend, ttl_ms=12_345)
    assert before + 12_345 <= lease.until <= await backend.store.now() + 12_345
    assert (lease.key, lease.owner) == ("upkeep", "worker-1")


async def test_a_key_that_is_held_is_not_taken(backend: Backend) -> None:
    lease = await acquired(backend)
    assert await backend.singletons.acquire("upkeep", "worker-2", 30_000) is None
    assert (await acquired(backend, "another", "worker-2")).owner == "worker-2"
    assert await backend.singletons.renew(lease, 30_000) is not None


async def test_R2a_a_holder_that_acquires_again_has_the_lease_it_had_extended(backend: Backend) -> None:
    """The answer to its first acquisition may have been lost."""
    lease = await acquired(backend, ttl_ms=10_000)
    again = await acquired(backend, ttl_ms=60_000)
    assert again == replace(lease, until=again.until)
    assert again.until >= lease.until + 50_000
    assert await backend.singletons.release(lease) is True


async def test_R36_a_lease_that_ran_out_is_taken_under_a_larger_token(backend: Backend) -> None:
    first = await acquired(backend)
    await backend.age_others(31_000)
    second = await acquired(backend, owner="worker-2")
    assert second.token > first.token
    assert await backend.singletons.renew(first, 30_000) is None
    assert await backend.singletons.release(first) is False
    await backend.age_others(31_000)
    third = await acquired(backend, owner="worker-2")
    assert third.token > second.token, "what ran out is taken anew, also by who had it"
    assert await backend.singletons.renew(second, 30_000) is None
    assert await backend.singletons.renew(third, 30_000) is not None


async def test_a_renewal_extends_a_lease_from_now(backend: Backend) -> None:
    lease = await acquired(backend)
    await backend.age_others(20_000)
    before = await backend.store.now()
    renewed = await backend.singletons.renew(lease, 50_000)
    assert renewed is not None and before + 50_000 <= renewed.until <= await backend.store.now() + 50_000
    assert renewed == replace(lease, until=renewed.until)
    await backend.age_others(40_000)
    assert await backend.singletons.acquire("upkeep", "worker-2", 1) is None


async def test_R36_a_lease_that_ran_out_and_nobody_took_is_renewed(backend: Backend) -> None:
    lease = await acquired(backend)
    await backend.age_others(100_000)
    assert await backend.singletons.renew(lease, 30_000) is not None
    assert await backend.singletons.acquire("upkeep", "worker-2", 30_000) is None


async def test_a_released_key_is_free_at_once_and_its_tokens_go_on(backend: Backend) -> None:
    """Whatever the clock says: also when it was set back since."""
    tokens = []
    for owner in ("worker-1", "worker-2", "worker-2", "worker-1"):
        lease = await acquired(backend, owner=owner)
        tokens.append(lease.token)
        assert await backend.singletons.release(lease) is True
        assert await backend.singletons.release(lease) is False
        assert await backend.singletons.renew(lease, 30_000) is None
        await backend.age_others(-60_000)
    assert tokens == sorted(set(tokens))


async def test_only_the_very_lease_is_renewed_and_released(backend: Backend) -> None:
    lease = await acquired(backend)
    for other in (replace(lease, key="another"), replace(lease, owner="worker-2"), replace(lease, token=lease.token + 1)):
        assert await backend.singletons.renew(other, 30_000) is None
        assert await backend.singletons.release(other) is False
    assert await backend.singletons.release(replace(lease, until=0)) is True


async def test_keys_that_are_over_are_pruned_and_their_tokens_go_on(backend: Backend) -> None:
    held, released, lapsed = [await acquired(backend, key) for key in ("held", "released", "lapsed")]
    assert await backend.singletons.release(released)
    later = await backend.store.now() + 10**12
    await next_millisecond(backend.store)
    assert await backend.singletons.prune(ended_before=released.until - 60_000) == 0
    assert await backend.singletons.prune(ended_before=later) == 1
    await backend.age_others(100_000)
    assert await backend.singletons.renew(held, 30_000) is not None
    assert await backend.singletons.prune(ended_before=later) == 1
    assert await backend.singletons.renew(lapsed, 30_000) is None
    assert await backend.singletons.renew(held, 30_000) is not None
    for before in (released, lapsed):
        assert (await acquired(backend, before.key, "worker-2")).token > before.token


async def test_tokens_go_on_however_often_a_key_changes_hands_within_a_millisecond(backend: Backend) -> None:
    last = 0
    for _ in range(50):
        lease = await acquired(backend)
        assert lease.token > last
        last = lease.token
        assert await backend.singletons.release(lease)
        await backend.singletons.prune(ended_before=10**15)


async def test_of_many_that_race_one_holds_the_key(backend: Backend) -> None:
    for key in ("a", "b", "c"):
        leases = await asyncio.gather(*(backend.singletons.acquire(key, f"worker-{n}", 30_000) for n in range(8)))
        (lease,) = [lease for lease in leases if lease is not None]
        await backend.age_others(31_000)
        again = await asyncio.gather(*(backend.singletons.acquire(key, f"worker-{n}", 30_000) for n in range(8, 16)))
        (taken,) = [lease for lease in again if lease is not None]
        assert taken.token > lease.token
