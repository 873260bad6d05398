"""Renewals, drain, owned, disown, delete, heads: who holds an actor, and how it is let go."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from runward.core.kernel.actor import Position, Status
from runward.core.kernel.commit import Appended, Created, Stale, Written
from runward.ports.store import Head, Renewal
from tests.contract.backends import Backend
from tests.contract.builders import (
    append,
    approval,
    changes,
    claim_request,
    claimed,
    created,
    face,
    frames,
    idempotency_key,
    letter,
    message,
    new_actor,
    picture,
    position_of,
    receipt,
    release,
    released,
    running,
    stored,
    to,
    uid_of,
    written,
)

# -- renewals ------------------------------------------------------------------------------------------------------------


async def renewed(backend: Backend, owner: str, *numbers: int, ttl_ms: int = 30_000) -> Renewal:
    """The answer to a heartbeat over a door opened for it."""
    renewals = await backend.store.renewals()
    try:
        return await renewals.renew(owner, [uid_of(number) for number in numbers], ttl_ms)
    finally:
        await renewals.close()


async def test_R36_a_renewal_extends_the_lease_from_now_by_the_stores_clock(backend: Backend) -> None:
    envelope = await running(backend.store)
    await backend.age(envelope.uid, 20_000)
    aged = await stored(backend.reads, envelope.uid)
    before = await backend.store.now()
    renewal = await renewed(backend, "worker-1", 1, ttl_ms=50_000)
    assert before <= renewal.now <= await backend.store.now()
    assert await stored(backend.reads, envelope.uid) == replace(aged, lease_until=renewal.now + 50_000)
    await backend.age(envelope.uid, 40_000)
    assert await claimed(backend.store, "b1", owner="worker-2") == []


async def test_R39_a_renewal_answers_with_heads(backend: Backend) -> None:
    envelope = await running(backend.store)
    await backend.store.append_frames(envelope.uid, position_of(envelope), frames(1, 2))
    await backend.store.append_mail(append(1, "k1", "k2"))
    assert await backend.store.ask_drain(envelope.uid) == 1
    head = Head(
        uid=envelope.uid,
        status=Status.RUNNING,
        position=Position(revision=envelope.revision, last_seq=2),
        leg=1,
        lease_owner="worker-1",
        mail_received=2,
        drain_leg=1,
    )
    assert (await renewed(backend, "worker-1", 1)).held == {envelope.uid: head}


async def test_R36_a_lapsed_lease_that_nobody_took_is_renewed(backend: Backend) -> None:
    envelope = await running(backend.store)
    await backend.age(envelope.uid, 100_000)
    assert list((await renewed(backend, "worker-1", 1)).held) == [envelope.uid]
    assert await claimed(backend.store, "b1", owner="worker-2") == []


async def test_R3_only_what_the_owner_holds_is_renewed(backend: Backend) -> None:
    mine = await running(backend.store, 1)
    await running(backend.store, 2, owner="worker-2")
    await released(backend, 3)
    await running(backend.store, 4)
    await backend.age(uid_of(4), 31_000)
    await claimed(backend.store, "b4", owner="worker-3")
    unasked = await running(backend.store, 5)
    before = [await stored(backend.reads, uid_of(number)) for number in (2, 3, 4)]
    assert set((await renewed(backend, "worker-1", 4, 9, 3, 1, 2)).held) == {mine.uid}
    assert [await stored(backend.reads, uid_of(number)) for number in (2, 3, 4)] == before
    assert await stored(backend.reads, uid_of(5)) == unasked


async def test_a_renewal_of_nothing(backend: Backend) -> None:
    renewal = await renewed(backend, "worker-1")
    assert renewal.held == {}
    assert abs(renewal.now - await backend.store.now()) < 10_000


async def test_a_leg_that_cares_for_an_ended_actor_renews_its_lease(backend: Backend) -> None:
    await released(backend, 1, Status.FAILED, face={"care_at": 1})
    await claimed(backend.store)
    renewal = await renewed(backend, "worker-1", 1)
    assert renewal.held[uid_of(1)].status is Status.FAILED


async def test_I_18_renewals_live_in_a_thread_and_loop_of_their_own(backend: Backend) -> None:
    await running(backend.store)

    def heartbeat() -> Renewal:
        return asyncio.run(renewed(backend, "worker-1", 1, ttl_ms=77_000))

    renewal = await asyncio.to_thread(heartbeat)
    assert list(renewal.held) == [uid_of(1)]
    assert (await stored(backend.reads, uid_of(1))).lease_until == renewal.now + 77_000


async def test_renewals_do_not_deadlock_with_commits_claims_and_mail(backend: Backend) -> None:
    """Two workers hold 20 actors that write to each other while both renew all of theirs, in opposite orders."""
    stores = [backend.store, await backend.new_store()]
    held = [await running(backend.store, number, owner=f"worker-{number % 2}") for number in range(1, 21)]

    async def beat(worker: int) -> None:
        renewals = await stores[worker].renewals()
        uids = [envelope.uid for envelope in held]
        for n in range(15):
            renewal = await renewals.renew(f"worker-{worker}", uids[:: 1 if n % 2 else -1], 30_000)
            assert set(renewal.held) == {envelope.uid for envelope in held if envelope.lease_owner == f"worker-{worker}"}
        await renewals.close()

    async def drive(me: int) -> None:
        envelope = held[me]
        for n in range(4):
            others = tuple(to(number, f"{me}.{n}") for number in range(20, 0, -5))
            await written(stores[me % 2], changes(envelope, mail_to=others))
            envelope = replace(envelope, revision=envelope.revision + 1)

    async def claim(worker: int) -> None:
        for _ in range(15):
            assert await claimed(stores[worker], *(f"b{number}" for number in range(1, 21)), owner="worker-9") == []

    async def post(number: int) -> None:
        for n in range(5):
            assert isinstance(await stores[n % 2].append_mail(append(number, f"post-{n}", care=True)), Appended)

    await asyncio.gather(beat(0), beat(1), claim(0), claim(1), *map(drive, range(20)), *map(post, (5, 10, 20)))


# -- drain ---------------------------------------------------------------------------------------------------------------


async def test_R39_a_running_leg_is_asked_to_drain(backend: Backend) -> None:
    envelope = await running(backend.store)
    assert await backend.store.ask_drain(envelope.uid) == 1
    assert await backend.store.ask_drain(envelope.uid) == 1
    assert await stored(backend.reads, envelope.uid) == replace(envelope, drain_leg=1)


@pytest.mark.parametrize("condition", ["gone", "queued", "suspended", "completed", "failed", "cared for after the end"])
async def test_R39_a_drain_of_what_nobody_drives_stores_nothing(backend: Backend, condition: str) -> None:
    if condition == "queued":
        await created(backend.store)
    elif condition == "cared for after the end":
        await released(backend, 1, Status.FAILED, face={"care_at": 1})
        await claimed(backend.store)
    elif condition != "gone":
        await released(backend, 1, Status(condition))
    before = await picture(backend, 1)
    assert await backend.store.ask_drain(uid_of(1)) is None
    assert await picture(backend, 1) == before


# -- disown --------------------------------------------------------------------------------------------------------------


async def test_R2a_a_claim_whose_answer_was_lost_is_given_back(backend: Backend) -> None:
    lost = await running(backend.store, 1)
    driven = await running(backend.store, 2)
    others = await running(backend.store, 3, owner="worker-2")
    waiting = await released(backend, 4)
    assert await backend.store.ask_drain(lost.uid) == 1
    before = await backend.store.now()
    assert await backend.store.owned("worker-1") == {lost.uid: 1, driven.uid: 1}
    assert list(await backend.store.disown("worker-1", {lost.uid: 1, uid_of(9): 1})) == [lost.uid]
    after = await stored(backend.reads, lost.uid)
    assert (after.status, after.revision, after.leg) == (Status.QUEUED, lost.revision + 1, lost.leg)
    assert (after.lease_owner, after.lease_until, after.drain_leg) == (None, None, None)
    assert after.ready_at is not None and before <= after.ready_at <= await backend.store.now()
    for envelope in (driven, others, waiting):
        assert await stored(backend.reads, envelope.uid) == envelope
    assert await backend.store.commit(changes(lost)) == Stale(leg=1, position=position_of(after))
    (again,) = await claimed(backend.store, "b1", owner="worker-2")
    assert (again.leg, again.recoveries) == (2, 0)


async def test_R2a_everything_a_process_holds_may_be_given_back(backend: Backend) -> None:
    for number in (3, 1, 2):
        await running(backend.store, number)
    legs = await backend.store.owned("worker-1")
    assert list(await backend.store.disown("nobody", legs)) == []
    assert list(await backend.store.disown("worker-1", {})) == []
    assert sorted(await backend.store.disown("worker-1", legs)) == [uid_of(1), uid_of(2), uid_of(3)]
    assert list(await backend.store.disown("worker-1", legs)) == []
    assert await backend.store.owned("worker-1") == {}


async def test_R2a_a_lapsed_lease_that_nobody_took_is_still_its_owners(backend: Backend) -> None:
    envelope = await running(backend.store)
    await backend.age(envelope.uid, 100_000)
    assert await backend.store.owned("worker-1") == {envelope.uid: 1}
    assert list(await backend.store.disown("worker-1", {envelope.uid: 1})) == [envelope.uid]
    assert (await stored(backend.reads, envelope.uid)).recoveries == 0


async def test_R2a_what_was_taken_since_is_not_given_back_however_late(backend: Backend) -> None:
    """The owner may have taken the same actor again while its word was under way, and drive it."""
    first = await running(backend.store)
    legs = await backend.store.owned("worker-1")
    await written(backend.store, release(first, Status.QUEUED, ready_at=1))
    (again,) = await claimed(backend.store, "b1")
    before = await picture(backend, 1)
    assert list(await backend.store.disown("worker-1", legs)) == []
    assert await picture(backend, 1) == before
    await written(backend.store, changes(again))


async def test_R2a_an_actor_given_back_is_ready_now_whenever_it_was_to_be(backend: Backend) -> None:
    later = await backend.store.now() + 10**12
    await created(backend.store, ready_at=later, care_at=1)
    assert len(await claimed(backend.store)) == 1
    assert list(await backend.store.disown("worker-1", {uid_of(1): 1})) == [uid_of(1)]
    after = await stored(backend.reads, uid_of(1))
    assert after.ready_at is not None and after.rank == after.ready_at
    assert [envelope.uid for envelope in await claimed(backend.store, "b1", owner="worker-2")] == [uid_of(1)]


async def test_R41_care_is_not_lost_with_a_claim_that_was_lost(backend: Backend) -> None:
    await released(backend, 1)
    await released(backend, 2, Status.STOPPED, face={"care_at": 1})
    await backend.store.append_mail(append(1, "cancel", care=True))
    assert len(await claimed(backend.store)) == 2
    assert sorted(await backend.store.disown("worker-1", await backend.store.owned("worker-1"))) == [uid_of(1), uid_of(2)]
    assert (await stored(backend.reads, uid_of(2))).status is Status.STOPPED
    taken = await claimed(backend.store, owner="worker-2")
    assert [(envelope.uid, envelope.status) for envelope in taken] == [(uid_of(1), Status.RUNNING), (uid_of(2), Status.STOPPED)]


# -- delete --------------------------------------------------------------------------------------------------------------


async def full_actor(backend: Backend, number: int) -> None:
    """An ended actor with a row in every table."""
    new = new_actor(number, frames=frames(1, 2), messages=(message(1),))
    assert isinstance(await backend.store.create(new, idempotency_key(f"k{number}")), Created)
    (envelope,) = await claimed(backend.store, f"b{number}")
    last = changes(
        envelope,
        face_of=face(envelope, Status.COMPLETED),
        frames=frames(3),
        receipts=(receipt(),),
        approvals=(approval(f"ap_{number}"),),
        closings=(letter("c1"),),
        mail_seen=0,
        mail_applied=1,
        release=True,
    )
    await written(backend.store, last)


async def test_I_59_an_ended_actor_is_deleted_whole(backend: Backend) -> None:
    await full_actor(backend, 2)
    rows, other = await backend.rows(), await picture(backend, 2)
    await full_actor(backend, 1)
    assert await backend.store.delete(uid_of(1)) is True
    assert await backend.rows() == {**rows, "idempotency_keys": 2}
    assert (await picture(backend, 2))[1:] == other[1:]
    assert (await picture(backend, 1))[1:] == [None, [], [], [], [], []]
    assert await backend.store.delete(uid_of(1)) is False


@pytest.mark.parametrize("status", [Status.QUEUED, Status.SUSPENDED, Status.RUNNING])
async def test_R45_an_actor_that_has_not_ended_is_not_deleted(backend: Backend, status: Status) -> None:
    envelope = await running(backend.store)
    if status is not Status.RUNNING:
        await written(backend.store, release(envelope, status))
    before = await picture(backend, 1)
    assert await backend.store.delete(uid_of(1)) is False
    assert await picture(backend, 1) == before


async def test_an_ended_actor_that_somebody_holds_is_not_deleted(backend: Backend) -> None:
    await released(backend, 1, Status.FAILED, face={"care_at": 1})
    (envelope,) = await claimed(backend.store)
    before = await picture(backend, 1)
    assert await backend.store.delete(uid_of(1)) is False
    assert await picture(backend, 1) == before
    await written(backend.store, release(envelope, Status.FAILED))
    assert await backend.store.delete(uid_of(1)) is True


async def test_a_reopening_and_a_deletion_have_one_winner(backend: Backend) -> None:
    """R45: never one that is about to be reopened."""
    other = await backend.new_store()
    for number in range(1, 9):
        await released(backend, number, Status.FAILED)
        retry = append(number, "retry:3", reopens=True)
        if number % 2:
            deleted, answer = await asyncio.gather(backend.store.delete(uid_of(number)), other.append_mail(retry))
        else:
            answer, deleted = await asyncio.gather(other.append_mail(retry), backend.store.delete(uid_of(number)))
        assert deleted is not isinstance(answer, Appended)
        assert (await backend.reads.get(uid_of(number)) is None) is deleted
    assert (await backend.rows())["mail"] == len(await backend.store.heads([uid_of(number) for number in range(1, 9)]))


# -- heads ---------------------------------------------------------------------------------------------------------------


async def test_heads_say_where_actors_stand(backend: Backend) -> None:
    held = await running(backend.store, 1)
    await released(backend, 2, Status.FAILED)
    await created(backend.store, 3, frames=frames(1, 4))
    await backend.store.append_mail(append(1, "k1"))
    await backend.store.ask_drain(held.uid)
    uids = [uid_of(number) for number in (3, 1, 9, 2)]
    answer = await backend.store.heads(uids)
    expected = {}
    for number in (1, 2, 3):
        envelope = await stored(backend.reads, uid_of(number))
        expected[envelope.uid] = Head(
            uid=envelope.uid,
            status=envelope.status,
            position=position_of(envelope),
            leg=envelope.leg,
            lease_owner=envelope.lease_owner,
            mail_received=envelope.mail_received,
            drain_leg=envelope.drain_leg,
        )
    assert answer == expected
    assert answer[held.uid].drain_leg == 1
    assert await backend.store.heads([]) == {}


# -- the store itself ----------------------------------------------------------------------------------------------------


async def test_the_stores_clock_is_one_for_all_processes_and_goes_on(backend: Backend) -> None:
    other = await backend.new_store()
    times = [await store.now() for _ in range(5) for store in (backend.store, other)]
    assert times == sorted(times)
    assert times[0] > 1_600_000_000_000


async def test_every_process_sees_what_another_has_written(backend: Backend) -> None:
    other = await backend.new_store()
    envelope = await running(backend.store)
    assert (await other.heads([envelope.uid]))[envelope.uid].lease_owner == "worker-1"
    assert isinstance(await other.commit(changes(envelope, frames=frames(1))), Written)
    assert (await backend.store.heads([envelope.uid]))[envelope.uid].position == Position(revision=envelope.revision + 1, last_seq=1)
    assert (await other.claim(claim_request("b1", owner="worker-2"))).taken == ()


async def test_closing_a_store_twice_is_fine(backend: Backend) -> None:
    other = await backend.new_store()
    await created(other, 1)
    await other.close()
    await other.close()
    assert (await stored(backend.reads, uid_of(1))).uid == uid_of(1)
