"""`Reads.held` and `Reads.unclaimable`: what operators look at when runs do not move, of every tenant or of one."""

from __future__ import annotations

from collections.abc import Sequence

from runward.core.kernel.actor import FORMAT, Envelope, Scope, Status
from runward.ports.reads import Place
from tests.contract.backends import Backend
from tests.contract.builders import append, claim_request, claimed, created, next_millisecond, released, running, stored, uid_of


def numbers(envelopes: Sequence[Envelope]) -> list[int]:
    return [int(envelope.uid, 16) for envelope in envelopes]


# -- held ----------------------------------------------------------------------------------------------------------------


async def held(backend: Backend, *, lapsed_for_ms: int | None = None, after: Place | None = None, limit: int = 100) -> list[int]:
    return numbers(await backend.reads.held(None, lapsed_for_ms=lapsed_for_ms, after=after, limit=limit))


async def test_actors_under_a_lease_are_listed_by_when_it_runs_out(backend: Backend) -> None:
    await created(backend.store, 1)
    await released(backend, 2)
    for number, ttl_ms in ((3, 50_000), (4, 30_000), (5, 40_000)):
        await created(backend.store, number, scope=Scope(tenant=f"t{number}", user="u1"))
        await backend.store.claim(claim_request(f"b{number}", ttl_ms=ttl_ms, owner=f"worker-{number}"))
    await released(backend, 6, Status.FAILED, face={"care_at": 1})
    await claimed(backend.store)
    assert await held(backend) == [4, 6, 5, 3]
    (first,) = await backend.reads.held(None, lapsed_for_ms=None, after=None, limit=1)
    assert first == await stored(backend.reads, first.uid)


async def test_pages_of_leases_neither_repeat_nor_miss_those_that_stay(backend: Backend) -> None:
    for number in range(1, 6):
        await created(backend.store, number, binding="b")
    await claimed(backend.store, "b")
    page = await backend.reads.held(None, lapsed_for_ms=None, after=None, limit=2)
    walked = numbers(page)
    while page:
        last = page[-1]
        assert last.lease_until is not None
        page = await backend.reads.held(None, lapsed_for_ms=None, after=Place(at=last.lease_until, uid=last.uid), limit=2)
        walked += numbers(page)
    assert walked == [1, 2, 3, 4, 5]


async def test_leases_that_ran_out_long_ago_are_listed_by_the_stores_clock(backend: Backend) -> None:
    for number, ago in ((1, 10_000), (2, 1_000), (3, -5_000)):
        envelope = await running(backend.store, number)
        await backend.age(envelope.uid, 30_000 + ago)
    await next_millisecond(backend.store)
    assert await held(backend) == [1, 2, 3]
    assert await held(backend, lapsed_for_ms=0) == [1, 2]
    assert await held(backend, lapsed_for_ms=5_000) == [1]
    assert await held(backend, lapsed_for_ms=100_000) == []
    assert await held(backend, lapsed_for_ms=0, limit=1) == [1]


# -- unclaimable ---------------------------------------------------------------------------------------------------------


async def unclaimable(backend: Backend, *bindings: str, after: Place | None = None, limit: int = 100) -> list[int]:
    return numbers(await backend.reads.unclaimable(None, bindings, after=after, limit=limit))


async def test_R41_runs_that_no_worker_can_serve_are_listed(backend: Backend) -> None:
    later = await backend.store.now() + 100_000
    await created(backend.store, 1, scope=Scope(tenant="globex"))
    await created(backend.store, 2, ready_at=later)
    await running(backend.store, 3)
    await released(backend, 4)
    await released(backend, 5, face={"ready_at": 1})
    await released(backend, 6, face={"ready_at": later})
    await released(backend, 7, Status.COMPLETED)
    await released(backend, 8, Status.QUEUED, face={"ready_at": 1})
    assert await unclaimable(backend) == [1, 2, 5, 8]
    assert await unclaimable(backend, "b1", "b8") == [2, 5]
    assert await unclaimable(backend, *(f"b{number}" for number in range(1, 9))) == []
    await backend.store.append_mail(append(4, "k1"))
    assert await unclaimable(backend, "b1") == [2, 4, 5, 8]
    (first,) = await backend.reads.unclaimable(None, (), after=None, limit=1)
    assert first == await stored(backend.reads, uid_of(1))


async def test_R41a_a_newer_format_is_unclaimable_whatever_its_binding(backend: Backend) -> None:
    for number in (1, 2):
        await created(backend.store, number)
    await backend.set_format(uid_of(2), FORMAT + 1)
    assert await unclaimable(backend, "b1", "b2") == [2]
    (found,) = await backend.reads.unclaimable(None, ["b1", "b2"], after=None, limit=10)
    assert (found.format, found.status) == (FORMAT + 1, Status.QUEUED)


async def test_unclaimable_actors_are_listed_page_by_page(backend: Backend) -> None:
    for number, created_at in ((1, 30), (2, 10), (3, 20), (4, 10)):
        await created(backend.store, number, created_at=created_at)
    assert await unclaimable(backend, "b9") == [2, 4, 3, 1]
    assert await unclaimable(backend, "b9", limit=3) == [2, 4, 3]
    assert await unclaimable(backend, "b9", after=Place(at=10, uid=uid_of(2))) == [4, 3, 1]
    assert await unclaimable(backend, "b9", after=Place(at=20, uid=uid_of(3))) == [1]


# -- scopes --------------------------------------------------------------------------------------------------------------

SCOPES = [Scope(tenant="acme", user="ann", namespace="eu"), Scope(tenant="acme", user="bob"), Scope(tenant="globex", user="ann")]
SEEN = [
    (None, [1, 2, 3]),
    (Scope(tenant="acme"), [1, 2]),
    (Scope(tenant="globex"), [3]),
    (Scope(tenant="acme", user="ann"), [1]),
    (Scope(tenant="acme", namespace="eu"), [1]),
    (Scope(tenant="acme", user="ann", namespace="us"), []),
    (Scope(tenant="nobody"), []),
]


async def test_R43_these_lists_show_what_their_scope_may_see(backend: Backend) -> None:
    for number, scope in enumerate(SCOPES, 1):
        await created(backend.store, number, scope=scope, binding="b")
    for seer, numbered in SEEN:
        assert numbers(await backend.reads.unclaimable(seer, (), after=None, limit=10)) == numbered
    await claimed(backend.store, "b")
    for seer, numbered in SEEN:
        assert numbers(await backend.reads.held(seer, lapsed_for_ms=None, after=None, limit=10)) == numbered
