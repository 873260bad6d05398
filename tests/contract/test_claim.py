"""`Store.claim`: who is taken, in which order, by whom, and what becomes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runward.core.kernel.actor import FORMAT, Status
from tests.contract.backends import Backend
from tests.contract.builders import (
    append,
    changes,
    claim_request,
    claimed,
    created,
    face,
    idempotency_key,
    new_actor,
    next_millisecond,
    release,
    released,
    running,
    stored,
    uid_of,
    written,
)

MINUTE = 60_000


def numbers(envelopes: object) -> list[int]:
    """The numbers of the test's actors, in order."""
    assert isinstance(envelopes, list)
    return sorted(int(envelope.uid, 16) for envelope in envelopes)


async def lapsed(backend: Backend, number: int = 1, *, times: int = 1, by: int = 1_000) -> None:
    """An actor whose workers died `times` times: recovered that often less one, and not taken since its lease ran out `by` ms ago."""
    envelope = await running(backend.store, number)
    for death in range(1, times + 1):
        await backend.age(envelope.uid, 30_000 + (by if death == times else 1_000_000))
        if death < times:
            (envelope,) = await claimed(backend.store, envelope.binding)


# -- what a taken actor gets ---------------------------------------------------------------------------------------------


async def test_R3_a_claim_begins_a_leg_and_bumps_the_revision(backend: Backend) -> None:
    await created(backend.store, priority=2, care_at=None)
    before = await stored(backend.reads, uid_of(1))
    claims = await backend.store.claim(claim_request("b1", owner="worker-7", ttl_ms=12_345))
    (taken,) = claims.taken
    assert not taken.recovered
    envelope = taken.envelope
    assert envelope == await stored(backend.reads, uid_of(1))
    assert (envelope.status, envelope.revision, envelope.leg, envelope.recoveries) == (Status.RUNNING, 2, 1, 0)
    assert (envelope.lease_owner, envelope.lease_until) == ("worker-7", claims.now + 12_345)
    assert (envelope.started_at, envelope.ready_at, envelope.drain_leg) == (claims.now, None, None)
    for name in ("state", "last_seq", "rank", "mail_received", "mail_applied", "created_at", "updated_at", "waiting_on", "task_outcome"):
        assert getattr(envelope, name) == getattr(before, name), name


async def test_R36_a_claim_tells_the_stores_time(backend: Backend) -> None:
    before = await backend.store.now()
    claims = await backend.store.claim(claim_request("b1"))
    assert claims.taken == ()
    assert before <= claims.now <= await backend.store.now()


async def test_an_actor_starts_once(backend: Backend) -> None:
    first = await running(backend.store)
    await written(backend.store, release(first, Status.QUEUED, ready_at=1))
    await next_millisecond(backend.store)
    (second,) = await claimed(backend.store, "b1", owner="worker-2")
    assert second.started_at == first.started_at
    assert (second.leg, second.revision) == (2, first.revision + 2)


async def test_R40_a_recovery_is_counted(backend: Backend) -> None:
    await lapsed(backend)
    claims = await backend.store.claim(claim_request("b1", owner="worker-2"))
    (taken,) = claims.taken
    assert taken.recovered
    assert (taken.envelope.recoveries, taken.envelope.leg, taken.envelope.revision) == (1, 2, 3)
    assert (taken.envelope.lease_owner, taken.envelope.lease_until) == ("worker-2", claims.now + 30_000)


async def test_R39_a_drain_ends_with_the_leg_it_was_for(backend: Backend) -> None:
    envelope = await running(backend.store)
    assert await backend.store.ask_drain(envelope.uid) == 1
    await backend.age(envelope.uid, 31_000)
    (again,) = await claimed(backend.store, "b1")
    assert (again.leg, again.drain_leg) == (2, None)


# -- who is taken --------------------------------------------------------------------------------------------------------


async def test_R41_a_worker_takes_only_what_it_can_drive(backend: Backend) -> None:
    for number in (1, 2, 3):
        await created(backend.store, number)
    assert numbers(await claimed(backend.store)) == []
    assert numbers(await claimed(backend.store, "b9")) == []
    assert numbers(await claimed(backend.store, "b1", "b3", "b9")) == [1, 3]
    assert numbers(await claimed(backend.store, "b1", "b2", "b3")) == [2]


async def test_the_kind_of_an_actor_does_not_matter(backend: Backend) -> None:
    await created(backend.store, 1, kind="run")
    await created(backend.store, 2, kind="session")
    assert numbers(await claimed(backend.store, "b1", "b2")) == [1, 2]


async def test_a_held_actor_is_not_taken(backend: Backend) -> None:
    await running(backend.store)
    await backend.store.append_mail(append(1, "k1", care=True))
    assert await claimed(backend.store, "b1", owner="worker-2") == []


async def test_an_actor_is_taken_once_it_is_ready(backend: Backend) -> None:
    await created(backend.store, ready_at=await backend.store.now() + 100_000)
    assert await claimed(backend.store, "b1") == []
    await backend.age(uid_of(1), 100_000)
    assert numbers(await claimed(backend.store, "b1")) == [1]


async def test_R8_a_suspended_actor_is_taken_once_its_time_has_come(backend: Backend) -> None:
    await released(backend, 1)
    await released(backend, 2, face={"ready_at": await backend.store.now() + 100_000})
    assert await claimed(backend.store, "b1", "b2") == []
    await backend.age(uid_of(2), 100_000)
    (envelope,) = await claimed(backend.store, "b1", "b2")
    assert (envelope.uid, envelope.status) == (uid_of(2), Status.RUNNING)


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.STOPPED, Status.FAILED])
async def test_an_ended_actor_is_not_taken(backend: Backend, status: Status) -> None:
    await released(backend, 1, status, face={"ready_at": 1})
    assert await claimed(backend.store, "b1") == []


async def test_R40_an_expired_lease_makes_an_actor_claimable_by_those_who_can_drive_it(backend: Backend) -> None:
    await lapsed(backend)
    assert await claimed(backend.store, "b2", owner="worker-2") == []
    assert numbers(await claimed(backend.store, "b1", owner="worker-2")) == [1]
    assert await claimed(backend.store, "b1", owner="worker-3") == []


@pytest.mark.parametrize("condition", ["ready", "lapsed", "exhausted", "care", "ended"])
async def test_R41a_a_format_from_newer_code_is_never_taken(backend: Backend, condition: str) -> None:
    if condition == "ready":
        await created(backend.store)
    elif condition == "ended":
        await released(backend, 1, Status.FAILED, face={"care_at": 1})
    else:
        await lapsed(backend, times=2 if condition == "exhausted" else 1, by=1_000_000)
    if condition == "care":
        await backend.store.append_mail(append(1, "k1", care=True))
    await backend.set_format(uid_of(1), FORMAT + 1)
    assert await claimed(backend.store, "b1", max_recoveries=1) == []
    await backend.set_format(uid_of(1), FORMAT)
    assert numbers(await claimed(backend.store, "b1", max_recoveries=1)) == [1]


# -- in which order ------------------------------------------------------------------------------------------------------


async def test_the_longest_ready_go_first(backend: Backend) -> None:
    now = await backend.store.now()
    for number, ready_at in ((1, now - 10), (2, now - 30), (3, now - 20)):
        await created(backend.store, number, binding="b", ready_at=ready_at)
    assert [numbers(await claimed(backend.store, "b", limit=1)) for _ in range(4)] == [[2], [3], [1], []]


async def test_priority_goes_first_and_ages_by_itself(backend: Backend) -> None:
    now = await backend.store.now()
    for number, priority, ready_at in ((1, 0, now - 10), (2, 1, now - 10), (3, -1, now - 10), (4, 0, now - MINUTE - 20)):
        await created(backend.store, number, binding="b", priority=priority, ready_at=ready_at)
    assert [numbers(await claimed(backend.store, "b", limit=1)) for _ in range(4)] == [[4], [2], [1], [3]]


async def test_ranks_count_across_a_workers_bindings(backend: Backend) -> None:
    now = await backend.store.now()
    for number, ready_at in ((1, now - 20), (2, now - 30), (3, now - 40), (4, now - 10)):
        await created(backend.store, number, binding=f"b{number % 2}", ready_at=ready_at)
    assert [numbers(await claimed(backend.store, "b0", "b1", limit=1)) for _ in range(4)] == [[3], [2], [1], [4]]


async def test_a_claim_takes_no_more_than_its_limit(backend: Backend) -> None:
    for number in range(1, 8):
        await created(backend.store, number, binding=f"b{number % 2}")
    assert [len(await claimed(backend.store, "b0", "b1", limit=3)) for _ in range(4)] == [3, 3, 1, 0]


async def order(backend: Backend, *bindings: str, **differing: Any) -> list[int]:
    """The numbers of what one claim takes, in its order."""
    claims = await backend.store.claim(claim_request(*bindings, owner="worker-2", **differing))
    return [int(taken.envelope.uid, 16) for taken in claims.taken]


async def test_R40_overdue_ones_go_first_and_leave_room_for_ready_ones(backend: Backend) -> None:
    now = await backend.store.now()
    for number in range(1, 7):
        await lapsed(backend, number, by=10_000 - number)
    for number in range(11, 17):
        await created(backend.store, number, ready_at=now - 1_000 + number)
    bindings = [f"b{number}" for number in range(1, 17)]
    assert await order(backend, *bindings, limit=4, overdue=2) == [1, 2, 11, 12]
    assert await order(backend, *bindings, limit=1, overdue=1) == [3]
    assert await order(backend, *bindings, limit=1, overdue=0) == [13]
    assert await order(backend, *bindings, limit=5, overdue=1) == [4, 14, 15, 16, 5]
    assert await order(backend, *bindings, limit=5, overdue=1) == [6]


async def test_overdue_ones_are_taken_when_nothing_is_ready_however_few_were_asked_for(backend: Backend) -> None:
    for number in (1, 2, 3):
        await lapsed(backend, number, by=10_000 - number)
    assert await order(backend, "b1", "b2", "b3", limit=2, overdue=0) == [1, 2]


async def test_a_claim_counts_what_is_ready_and_due_for_care_once(backend: Backend) -> None:
    for number in range(1, 5):
        await created(backend.store, number, binding="b", ready_at=1_000 + number)
    await backend.store.append_mail(append(2, "cancel", care=True))
    assert await order(backend, "b", limit=3, overdue=1) == [2, 1, 3]


async def test_R41_what_has_been_due_longest_goes_first_be_it_a_lease_or_care(backend: Backend) -> None:
    now = await backend.store.now()
    for number, by in ((1, 3_000), (2, 1_000)):
        await lapsed(backend, number, by=by)
    for number, status in ((3, Status.FAILED), (4, Status.SUSPENDED)):
        await released(backend, number, status, face={"care_at": now + 1_000_000})
    await backend.age(uid_of(3), 1_002_000)
    await backend.age(uid_of(4), 1_500_000)
    assert [await order(backend, "b1", "b2", limit=1, overdue=1) for _ in range(5)] == [[4], [1], [3], [2], []]


async def test_R37_a_cancelled_actor_does_not_wait_for_those_before_it_in_the_queue(backend: Backend) -> None:
    for number in (1, 2, 3):
        await created(backend.store, number, binding="b", ready_at=1_000 + number)
    await backend.store.append_mail(append(3, "cancel", care=True))
    claims = await backend.store.claim(claim_request("b", limit=2, overdue=1))
    assert [(int(taken.envelope.uid, 16), taken.recovered) for taken in claims.taken] == [(3, False), (1, False)]
    assert await order(backend, "b", limit=2, overdue=1) == [2]


# -- suspects ------------------------------------------------------------------------------------------------------------


async def test_R40_a_suspect_waits_longer_each_time(backend: Backend) -> None:
    await lapsed(backend, times=2, by=1_900)
    request = claim_request("b1", recovery_delay_ms=2_000)
    for delay in (2_000, 4_000, 8_000):
        assert (await backend.store.claim(request)).taken == ()
        await backend.age(uid_of(1), 200)
        (taken,) = (await backend.store.claim(request)).taken
        assert taken.recovered
        await backend.age(uid_of(1), 30_000 + 2 * delay - 100)


async def test_R40_the_first_recovery_does_not_wait(backend: Backend) -> None:
    await lapsed(backend, by=10)
    assert numbers(await claimed(backend.store, "b1", recovery_delay_ms=1_000_000, suspects=0)) == [1]


async def test_R40_only_so_many_suspects_are_taken_at_once(backend: Backend) -> None:
    for number in (1, 2, 3):
        await lapsed(backend, number, times=2, by=100_000)
    for number in (4, 5):
        await lapsed(backend, number)
    bindings = [f"b{number}" for number in range(1, 6)]
    assert numbers(await claimed(backend.store, *bindings, suspects=0)) == [4, 5]
    assert len(await claimed(backend.store, *bindings, suspects=1)) == 1
    assert len(await claimed(backend.store, *bindings, suspects=100)) == 2


async def test_R40_an_exhausted_actor_is_taken_by_anybody(backend: Backend) -> None:
    await lapsed(backend, times=3, by=10)
    assert await claimed(backend.store, "b2", max_recoveries=3, suspects=0) == []
    (envelope,) = await claimed(backend.store, "b2", max_recoveries=2, suspects=0, recovery_delay_ms=1_000_000)
    assert (envelope.uid, envelope.recoveries) == (uid_of(1), 3)


async def test_R40_an_exhausted_actor_is_left_while_somebody_holds_it(backend: Backend) -> None:
    await lapsed(backend, times=2)
    await claimed(backend.store, "b1", recovery_delay_ms=0)
    assert await claimed(backend.store, "b1", max_recoveries=1) == []


# -- care ----------------------------------------------------------------------------------------------------------------


async def test_R41_care_is_anybodys_business_once_it_is_due(backend: Backend) -> None:
    now = await backend.store.now()
    await created(backend.store, 1, ready_at=now + 500_000, care_at=now + 100_000)
    await released(backend, 2, face={"care_at": now + 100_000})
    assert await claimed(backend.store) == []
    for number in (1, 2):
        await backend.age(uid_of(number), 100_000)
    taken = await claimed(backend.store)
    assert numbers(taken) == [1, 2]
    assert {envelope.status for envelope in taken} == {Status.RUNNING}


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.STOPPED, Status.FAILED])
async def test_R41_care_of_an_ended_actor_keeps_its_status(backend: Backend, status: Status) -> None:
    await released(backend, 1, status, face={"care_at": 1})
    (envelope,) = await claimed(backend.store, "b2", owner="worker-2")
    assert (envelope.status, envelope.lease_owner, envelope.leg) == (status, "worker-2", 2)
    await written(backend.store, changes(envelope, face_of=face(envelope, status), release=True))
    assert await claimed(backend.store, "b2") == []
    assert (await stored(backend.reads, uid_of(1))).status is status


async def test_R41_care_that_is_due_is_taken_with_a_lapsed_lease_by_anybody(backend: Backend) -> None:
    await lapsed(backend, times=2, by=10)
    await backend.store.append_mail(append(1, "cancel", care=True))
    (envelope,) = await claimed(backend.store, "b2", suspects=0, recovery_delay_ms=1_000_000)
    assert (envelope.uid, envelope.recoveries) == (uid_of(1), 2)


async def test_I_17_care_is_not_lost_with_the_leg_that_took_it(backend: Backend) -> None:
    await released(backend, 1)
    await backend.store.append_mail(append(1, "cancel", care=True))
    assert numbers(await claimed(backend.store, "b2")) == [1]
    await backend.age(uid_of(1), 31_000)
    assert numbers(await claimed(backend.store, "b3", owner="worker-2")) == [1]


async def test_I_17_a_deadline_that_passes_after_its_worker_died_is_anybodys_business(backend: Backend) -> None:
    await created(backend.store, care_at=await backend.store.now() + 100_000)
    await claimed(backend.store, "b1")
    await backend.age(uid_of(1), 31_000)
    assert await claimed(backend.store, "b2") == []
    await backend.age(uid_of(1), 100_000)
    assert numbers(await claimed(backend.store, "b2")) == [1]


# -- many at once --------------------------------------------------------------------------------------------------------


async def test_I_14_no_two_claims_take_the_same_leg(backend: Backend) -> None:
    stores = [backend.store, await backend.new_store()]
    for number in range(1, 25):
        await created(backend.store, number, binding="b")

    async def worker(number: int) -> list[tuple[str, int]]:
        mine = []
        while taken := await claimed(stores[number % 2], "b", owner=f"worker-{number}", limit=2):
            assert {envelope.lease_owner for envelope in taken} == {f"worker-{number}"}
            mine += [(envelope.uid, envelope.leg) for envelope in taken]
        return mine

    everything = [leg for legs in await asyncio.gather(*map(worker, range(8))) for leg in legs]
    # A claim passes over what others have locked: what is left after the race is taken by the next one.
    everything += [(envelope.uid, envelope.leg) for envelope in await claimed(backend.store, "b")]
    assert sorted(everything) == [(uid_of(number), 1) for number in range(1, 25)]


async def test_I_16_a_lapsed_lease_is_taken_over_once(backend: Backend) -> None:
    stores = [backend.store, await backend.new_store()]
    for number in range(1, 9):
        await lapsed(backend, number)
    bindings = [f"b{number}" for number in range(1, 9)]
    races = await asyncio.gather(*(claimed(stores[n % 2], *bindings, owner=f"worker-{n}", limit=3) for n in range(2, 10)))
    everything = [envelope for taken in races for envelope in taken]
    everything += await claimed(backend.store, *bindings, owner="worker-2")
    assert numbers(everything) == list(range(1, 9))
    assert {(envelope.leg, envelope.recoveries, envelope.revision) for envelope in everything} == {(2, 1, 3)}


async def test_a_claim_answers_beside_a_stream_of_creations(backend: Backend) -> None:
    other = await backend.new_store()

    async def create(number: int) -> None:
        await backend.store.create(new_actor(number, binding="b"), idempotency_key(f"k{number}"))

    async def claim() -> list[int]:
        return [int(envelope.uid, 16) for _ in range(10) for envelope in await claimed(other, "b", limit=3)]

    answers = await asyncio.gather(claim(), claim(), *(create(number) for number in range(1, 21)))
    taken = [number for answer in answers[:2] for number in answer or []]
    taken += numbers(await claimed(backend.store, "b"))
    assert sorted(taken) == list(range(1, 21))
