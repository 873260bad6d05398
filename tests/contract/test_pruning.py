"""`Store.prune` and `Store.prune_keys` (R45): what is old goes, whole, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runward.core.kernel.actor import FORMAT, Scope, Status
from runward.core.kernel.commit import Appended, Created, Replayed
from runward.ports.store import KEYS_LIVE_MS
from tests.contract.backends import Backend
from tests.contract.builders import (
    BASE,
    append,
    approval,
    changes,
    claimed,
    created,
    face,
    frames,
    idempotency_key,
    letter,
    message,
    new_actor,
    picture,
    receipt,
    release,
    released,
    running,
    stored,
    uid_of,
    written,
)

LONG_AGO = {"ended_at": BASE + 1, "updated_at": BASE + 1}


async def ended(backend: Backend, number: int, status: Status = Status.STOPPED, *, face: dict[str, Any] | None = None, **new: Any) -> None:
    """An actor that ended long ago, unless its face says another time."""
    await released(backend, number, status, face={**LONG_AGO, **(face or {})}, **new)


async def left(backend: Backend, *numbers: int) -> list[int]:
    """Those of the test's actors that are still there."""
    return [number for number in numbers if await backend.reads.get(uid_of(number)) is not None]


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.STOPPED, Status.FAILED])
async def test_R45_an_ended_actor_goes_whole_and_its_key_stays(backend: Backend, status: Status) -> None:
    key = idempotency_key()
    new = new_actor(1, frames=frames(1, 2), messages=(message(1),))
    assert isinstance(await backend.store.create(new, key), Created)
    (envelope,) = await claimed(backend.store, "b1")
    last = changes(
        envelope,
        face_of=face(envelope, status),
        frames=frames(3),
        receipts=(receipt(),),
        approvals=(approval(),),
        closings=(letter("c1"),),
        mail_seen=0,
        mail_applied=1,
        release=True,
    )
    await written(backend.store, last)
    assert min((await backend.rows()).values()) > 0
    assert await backend.store.prune(ended_before=BASE + 1_000, limit=10) == 1
    assert set((await backend.rows()).items()) == {(name, 0) for name in await backend.rows() if name != "idempotency_keys"} | {
        ("idempotency_keys", 1)
    }
    assert await backend.store.prune(ended_before=BASE + 1_000, limit=10) == 0


async def test_R45_only_what_ended_and_was_last_saved_before_the_time_goes(backend: Backend) -> None:
    await ended(backend, 1, face={"ended_at": BASE + 5, "updated_at": BASE + 5})
    await ended(backend, 2, face={"ended_at": BASE + 5, "updated_at": BASE + 9})
    await ended(backend, 3, face={"ended_at": BASE + 9, "updated_at": BASE + 1})
    assert await backend.store.prune(ended_before=BASE + 5, limit=10) == 0
    assert await backend.store.prune(ended_before=BASE + 6, limit=10) == 1
    assert await left(backend, 1, 2, 3) == [2, 3]
    assert await backend.store.prune(ended_before=BASE + 10, limit=10) == 2


@pytest.mark.parametrize("condition", ["queued", "running", "suspended", "held", "mail", "reopened", "newer format"])
async def test_R45_nothing_else_goes(backend: Backend, condition: str) -> None:
    if condition == "queued":
        await created(backend.store)
    elif condition == "running":
        await running(backend.store)
    elif condition == "suspended":
        await released(backend, 1, face={"updated_at": BASE})
    elif condition == "held":
        await ended(backend, 1, face={"care_at": 1})
        await claimed(backend.store)
    elif condition == "reopened":
        await ended(backend, 1, Status.FAILED)
        assert isinstance(await backend.store.append_mail(append(1, "retry:3", reopens=True)), Appended)
    else:
        await ended(backend, 1)
    if condition == "mail":
        assert isinstance(await backend.store.append_mail(append(1, "k1", may_be_ended=True)), Appended)
    if condition == "newer format":
        await backend.set_format(uid_of(1), FORMAT + 1)
    before = await picture(backend, 1)
    assert await backend.store.prune(ended_before=BASE + 10**9, limit=10) == 0
    assert await picture(backend, 1) == before


async def test_R45_mail_that_was_applied_does_not_keep_an_actor(backend: Backend) -> None:
    await ended(backend, 1)
    await backend.store.append_mail(append(1, "k1", may_be_ended=True, care=True))
    (envelope,) = await claimed(backend.store)
    applied = changes(envelope, face_of=face(envelope, Status.STOPPED, **LONG_AGO), mail_applied=1, mail_seen=1, release=True)
    await written(backend.store, applied)
    assert await backend.store.prune(ended_before=BASE + 1_000, limit=10) == 1
    assert (await backend.rows())["mail"] == 0


async def test_R45_a_child_goes_after_its_parent(backend: Backend) -> None:
    """An actor that once was a child of one that is gone is like any other."""
    parent = await running(backend.store, 1)
    await ended(backend, 2, parent_uid=parent.uid)
    await ended(backend, 3, parent_uid=uid_of(2))
    await ended(backend, 4, parent_uid=uid_of(99))
    assert await backend.store.prune(ended_before=BASE + 1_000, limit=10) == 1
    assert await left(backend, 1, 2, 3, 4) == [1, 2, 3]
    await written(backend.store, release(parent, Status.COMPLETED, **LONG_AGO))
    for expected in ([2, 3], [3], []):
        assert await backend.store.prune(ended_before=BASE + 1_000, limit=10) == 1
        assert await left(backend, 1, 2, 3, 4) == expected
    assert await backend.store.prune(ended_before=BASE + 1_000, limit=10) == 0


async def test_R45_those_that_ended_first_go_first_and_only_so_many(backend: Backend) -> None:
    for number, ended_at in ((1, 30), (2, 10), (3, 20), (4, 10), (5, 40)):
        await ended(backend, number, face={"ended_at": BASE + ended_at, "updated_at": BASE + ended_at})
    assert await backend.store.prune(ended_before=BASE + 35, limit=0) == 0
    assert await backend.store.prune(ended_before=BASE + 35, limit=2) == 2
    assert await left(backend, 1, 2, 3, 4, 5) == [1, 3, 5]
    assert await backend.store.prune(ended_before=BASE + 35, limit=1) == 1
    assert await left(backend, 1, 3, 5) == [1, 5]
    assert await backend.store.prune(ended_before=BASE + 35, limit=10) == 1
    assert await left(backend, 1, 5) == [5]


async def test_R45_a_time_later_than_the_stores_clock_is_cut_back_to_it(backend: Backend) -> None:
    later = await backend.store.now() + 10**9
    await ended(backend, 1, face={"ended_at": BASE + 5, "updated_at": later})
    await ended(backend, 2, face={"ended_at": later, "updated_at": later})
    assert await backend.store.prune(ended_before=later + 1, limit=10) == 0
    assert await left(backend, 1, 2) == [1, 2]


async def test_R45_every_tenant_is_pruned(backend: Backend) -> None:
    for number, tenant in ((1, "acme"), (2, "globex")):
        await ended(backend, number, scope=Scope(tenant=tenant, user="u1"))
    assert await backend.store.prune(ended_before=BASE + 1_000, limit=10) == 2


async def test_R45_what_is_about_to_be_reopened_stays_whole_or_goes_whole(backend: Backend) -> None:
    other = await backend.new_store()
    for number in range(1, 9):
        await ended(backend, number, Status.FAILED)
        prune = backend.store.prune(ended_before=BASE + 1_000, limit=10)
        retry = other.append_mail(append(number, "retry:3", reopens=True))
        answers = await asyncio.gather(*((prune, retry) if number % 2 else (retry, prune)))
        reopened = Appended(seqs=(1,), status=Status.QUEUED) in answers
        assert (1 in answers) is not reopened
        assert bool(await left(backend, number)) is reopened
    assert (await backend.rows())["mail"] == (await backend.rows())["actors"]


async def test_many_prune_at_once(backend: Backend) -> None:
    """What one has locked, another leaves: together they delete each actor once."""
    stores = [backend.store, await backend.new_store()]
    for number in range(1, 13):
        await ended(backend, number, frames=frames(1, 2))
    counts = await asyncio.gather(*(stores[n % 2].prune(ended_before=BASE + 1_000, limit=4) for n in range(6)))
    rest = await backend.store.prune(ended_before=BASE + 1_000, limit=100)
    assert sum(counts) + rest == 12
    assert await backend.rows() == dict.fromkeys(await backend.rows(), 0)


# -- idempotency keys ----------------------------------------------------------------------------------------------------


async def remembered(backend: Backend) -> list[str]:
    """The keys that are known, of a to e."""
    return [key for key in "abcde" if await backend.reads.remembered(idempotency_key(key)) is not None]


async def test_R42_keys_go_oldest_first_and_only_so_many(backend: Backend) -> None:
    for number, key in enumerate("abcd", 1):
        await backend.store.create(new_actor(number), idempotency_key(key))
        await backend.age_others(KEYS_LIVE_MS + 60_000)
    await backend.store.create(new_actor(5), idempotency_key("e"))
    now = await backend.store.now()
    assert await backend.store.prune_keys(created_before=now, limit=0) == 0
    assert await backend.store.prune_keys(created_before=now, limit=2) == 2
    assert await remembered(backend) == ["c", "d", "e"]
    assert await backend.store.prune_keys(created_before=now - KEYS_LIVE_MS - 90_000, limit=10) == 1
    assert await remembered(backend) == ["d", "e"]
    assert await backend.store.prune_keys(created_before=now, limit=10) == 1
    assert await remembered(backend) == ["e"]


async def test_R42_no_key_goes_before_its_time(backend: Backend) -> None:
    await backend.store.create(new_actor(1), idempotency_key("a"))
    later = await backend.store.now() + 10**12
    await backend.age_others(KEYS_LIVE_MS - 60_000)
    assert await backend.store.prune_keys(created_before=later, limit=10) == 0
    assert await backend.reads.remembered(idempotency_key("a")) == Replayed(uid=uid_of(1), public_id="run-1")
    await backend.age_others(120_000)
    assert await backend.store.prune_keys(created_before=later, limit=10) == 1
    assert await remembered(backend) == []


async def test_R42_a_forgotten_key_makes_another_actor(backend: Backend) -> None:
    await backend.store.create(new_actor(1), idempotency_key("a"))
    await backend.age_others(KEYS_LIVE_MS + 60_000)
    assert await backend.store.prune_keys(created_before=await backend.store.now(), limit=10) == 1
    assert await backend.store.create(new_actor(2), idempotency_key("a")) == Created(uid=uid_of(2))
    assert (await stored(backend.reads, uid_of(1))).public_id == "run-1"
