"""What the store in memory adds to the contract of all stores (tests/contract): turns, faults, its time, and bugs it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from runward.core.errors import InvariantViolated, Unavailable
from runward.core.kernel.actor import Envelope, Scope, Status
from runward.core.kernel.commit import Changes, Stale, Written
from runward.ports.reads import ActorQuery, ApprovalQuery
from runward.ports.singletons import Lease
from runward.stores.memory import Faults, MemoryDatabase, MemoryDirectory, MemoryReads, MemorySingletons, MemoryStore
from tests.contract.builders import (
    append,
    approval,
    changes,
    claim_request,
    face,
    frames,
    idempotency_key,
    letter,
    message,
    new_actor,
    position_of,
    receipt,
    release,
    running,
    uid_of,
    written,
)


class StillClock:
    """Time stands still until it is moved; sleeping is giving others a turn, and is counted."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.turns = 0

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        assert seconds == 0
        self.turns += 1
        await asyncio.sleep(0)


class Scripted(Faults):
    """Does something around one kind of write."""

    def __init__(
        self, name: str, *, before: Callable[[], Awaitable[None]] | None = None, after: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._name = name
        self._before = before
        self._after = after

    async def before(self, name: str) -> None:
        if name == self._name and self._before is not None:
            await self._before()

    async def after(self, name: str) -> None:
        if name == self._name and self._after is not None:
            await self._after()


async def unavailable() -> None:
    raise Unavailable("cut off")


@pytest.fixture
def database() -> MemoryDatabase:
    return MemoryDatabase(StillClock(), epoch_ms=1_000_000)


@pytest.fixture
def store(database: MemoryDatabase) -> MemoryStore:
    return MemoryStore(database)


# -- turns and time ------------------------------------------------------------------------------------------------------


async def test_every_operation_gives_others_a_turn_before_and_after() -> None:
    clock = StillClock()
    database = MemoryDatabase(clock)
    store, reads, directory = MemoryStore(database), MemoryReads(database), MemoryDirectory(database)
    singletons, lease = MemorySingletons(database), Lease(key="k", owner="w", token=1, until=1)
    envelope = await running(store)
    renewals = await store.renewals()
    operations: list[Callable[[], Awaitable[object]]] = [
        store.now,
        store.renewals,
        lambda: store.create(new_actor(2), None),
        lambda: store.claim(claim_request("b1")),
        lambda: store.commit(changes(envelope)),
        lambda: store.append_frames(envelope.uid, position_of(envelope), frames(1)),
        lambda: store.append_mail(append(1, "k1")),
        lambda: store.ask_drain(envelope.uid),
        lambda: store.owned("worker-1"),
        lambda: store.seize(envelope.uid, letter("k2"), lapsed_only=True),
        lambda: store.prune(ended_before=1, limit=1),
        lambda: store.prune_keys(created_before=1, limit=1),
        lambda: store.disown("worker-1", {}),
        lambda: store.delete(envelope.uid),
        lambda: store.heads([envelope.uid]),
        lambda: renewals.renew("worker-1", [envelope.uid], 1),
        lambda: reads.find("run", None, "run-1"),
        lambda: reads.get(envelope.uid),
        lambda: reads.list(ActorQuery(kind="run", scope=None)),
        lambda: reads.frames(envelope.uid, after=0, limit=1),
        lambda: reads.messages(envelope.uid, after=0, limit=None),
        lambda: reads.receipts(envelope.uid),
        lambda: reads.mail(envelope.uid, after=0, limit=None),
        lambda: reads.mail_by_key(envelope.uid, ["k1"]),
        lambda: reads.remembered(idempotency_key()),
        lambda: reads.held(None, lapsed_for_ms=None, after=None, limit=1),
        lambda: reads.unclaimable(None, [], after=None, limit=1),
        lambda: reads.approval(None, "ap_1"),
        lambda: reads.approvals(ApprovalQuery(scope=None)),
        lambda: directory.key_by_hash("h"),
        lambda: directory.keys(None),
        lambda: directory.revoke_key("k"),
        directory.authentication,
        lambda: directory.set_authentication(True),
        lambda: directory.publish_agents([]),
        directory.agents,
        lambda: directory.ask_worker_drain("w"),
        lambda: directory.forget_worker("w"),
        lambda: directory.forget_silent_workers(1),
        directory.workers,
        lambda: singletons.acquire("k", "w", 1),
        lambda: singletons.renew(lease, 1),
        lambda: singletons.release(lease),
        lambda: singletons.prune(ended_before=1),
    ]
    for operation in operations:
        clock.turns = 0
        await operation()
        assert clock.turns == 2


async def test_nothing_happens_before_an_operations_turn_and_all_of_it_in_one(store: MemoryStore, database: MemoryDatabase) -> None:
    envelope = await running(store)
    commit = asyncio.ensure_future(store.commit(changes(envelope, frames=frames(1), messages=(message(1),))))
    rows = database.actors[envelope.uid]
    for _ in range(2):
        assert rows.envelope == envelope
        assert not rows.frames and not rows.messages
        await asyncio.sleep(0)
    assert rows.envelope.revision == envelope.revision + 1
    assert rows.frames and rows.messages
    assert not commit.done()
    await commit


async def test_time_is_the_clocks(store: MemoryStore) -> None:
    clock = StillClock()
    store = MemoryStore(MemoryDatabase(clock, epoch_ms=5_000))
    assert await store.now() == 5_000
    clock.seconds = 1.25
    assert await store.now() == 6_250
    envelope = await running(store)
    assert envelope.lease_until == 36_250
    clock.seconds = 31.251
    assert len((await store.claim(claim_request("b1"))).taken) == 1


async def test_tokens_of_a_key_grow_also_when_they_are_ahead_of_the_clock_and_it_is_pruned() -> None:
    clock = StillClock()
    singletons = MemorySingletons(MemoryDatabase(clock, epoch_ms=5_000))
    tokens = []
    for _ in range(10):
        lease = await singletons.acquire("k", "w", 1)
        assert lease is not None and await singletons.release(lease)
        tokens.append(lease.token)
        clock.seconds += 0.001 * (len(tokens) > 5)
        await singletons.prune(ended_before=10**12)
    assert tokens == sorted(set(tokens))


# -- faults --------------------------------------------------------------------------------------------------------------


async def test_a_write_that_never_happened(store: MemoryStore, database: MemoryDatabase) -> None:
    envelope = await running(store)
    cut_off = MemoryStore(database, Scripted("commit", before=unavailable))
    with pytest.raises(Unavailable):
        await cut_off.commit(changes(envelope))
    assert database.actors[envelope.uid].envelope == envelope
    await written(store, changes(envelope))


async def test_R2a_a_write_whose_answer_was_lost(store: MemoryStore, database: MemoryDatabase) -> None:
    envelope = await running(store)
    cut_off = MemoryStore(database, Scripted("commit", after=unavailable))
    with pytest.raises(Unavailable):
        await cut_off.commit(changes(envelope))
    assert await store.commit(changes(envelope)) == Stale(leg=1, position=changes(envelope).leads_to)


async def test_R3_a_process_that_is_paused_inside_a_write(store: MemoryStore, database: MemoryDatabase) -> None:
    envelope = await running(store)
    goes_on, stopped = asyncio.Event(), asyncio.Event()

    async def pause() -> None:
        stopped.set()
        await goes_on.wait()

    paused = asyncio.ensure_future(MemoryStore(database, Scripted("commit", before=pause)).commit(changes(envelope, frames=frames(1))))
    await stopped.wait()
    assert list(await store.disown("worker-1", {envelope.uid: 1})) == [envelope.uid]
    goes_on.set()
    assert isinstance(await paused, Stale)
    assert database.actors[envelope.uid].frames == []


async def test_faults_reach_reads_and_heartbeats_too(database: MemoryDatabase) -> None:
    with pytest.raises(Unavailable):
        await MemoryReads(database, Scripted("get", before=unavailable)).get(uid_of(1))
    with pytest.raises(Unavailable):
        await MemoryDirectory(database, Scripted("workers", before=unavailable)).workers()
    renewals = await MemoryStore(database, Scripted("renew", after=unavailable)).renewals()
    with pytest.raises(Unavailable):
        await renewals.renew("worker-1", [], 1)


# -- bugs that are refused -----------------------------------------------------------------------------------------------


def contradictions(envelope: Envelope) -> dict[str, Changes]:
    """Commits that no correct leg sends."""
    suspended, stopped = face(envelope, Status.SUSPENDED), face(envelope, Status.STOPPED)
    return {
        "frames with a gap": changes(envelope, frames=frames(2)),
        "frames that repeat": changes(envelope, frames=frames(1) + frames(1)),
        "a waiting actor that is held": changes(envelope, face_of=suspended),
        "a running actor that nobody holds": changes(envelope, release=True),
        "an end without its time": changes(envelope, face_of=replace(stopped, ended_at=None), release=True),
        "a time of an end that is none": changes(envelope, face_of=replace(suspended, ended_at=1), release=True),
        "closings that overlook mail": changes(envelope, closings=(letter(),), mail_applied=1),
        "closings that are not applied": changes(envelope, closings=(letter(),), mail_seen=0, mail_applied=0),
        "closings with one key": changes(envelope, closings=(letter(), letter()), mail_seen=0, mail_applied=2),
        "a receipt twice": changes(envelope, receipts=(receipt(), receipt())),
        "a message twice": changes(envelope, messages=(message(5), message(5))),
        "a message again": changes(envelope, messages=(message(1),)),
        "an approval twice": changes(envelope, approvals=(approval("ap_2"), approval("ap_2"))),
        "an approval again": changes(envelope, approvals=(approval("ap_1"),)),
        "mail that has not come": changes(envelope, mail_applied=3),
        "mail taken back": changes(envelope, mail_applied=0),
        "a child of another tenant": changes(envelope, children=(new_actor(2, scope=Scope(tenant="globex")),)),
        "a child with another actor's public id": changes(envelope, children=(new_actor(2, public_id="run-1"),)),
        "a child's frames with a gap": changes(envelope, children=(new_actor(2, frames=frames(2)),)),
    }


async def test_R49_a_commit_that_breaks_a_promise_is_refused(store: MemoryStore, database: MemoryDatabase) -> None:
    envelope = await running(store, messages=(message(1),))
    await written(store, changes(envelope, approvals=(approval("ap_1"),)))
    await store.append_mail(append(1, "first"))
    await written(store, changes(database.actors[envelope.uid].envelope, mail_applied=1))
    await store.append_mail(append(1, "second"))
    envelope = database.actors[envelope.uid].envelope
    for name, commit in contradictions(envelope).items():
        with pytest.raises(InvariantViolated):
            await store.commit(commit)
        assert database.actors[envelope.uid].envelope == envelope, name
    assert len(database.actors) == 1
    assert isinstance(await store.commit(changes(envelope)), Written)


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.STOPPED, Status.FAILED])
async def test_I_20_an_ended_actor_never_gets_another_status(store: MemoryStore, database: MemoryDatabase, status: Status) -> None:
    envelope = await running(store)
    await written(store, release(envelope, status, care_at=1))
    (cared_for,) = (await store.claim(claim_request())).taken
    for other in set(Status) - {status}:
        with pytest.raises(InvariantViolated):
            await store.commit(changes(cared_for.envelope, face_of=face(envelope, other), release=other is not Status.RUNNING))
    assert database.actors[envelope.uid].envelope == cared_for.envelope


async def test_other_bugs_are_refused(store: MemoryStore) -> None:
    envelope = await running(store)
    with pytest.raises(InvariantViolated):
        await store.append_frames(envelope.uid, position_of(envelope), frames(2))
    with pytest.raises(InvariantViolated):
        await store.append_mail(append(1, "k1", "k1"))
    with pytest.raises(InvariantViolated):
        await store.create(new_actor(1, public_id="other"), None)
    with pytest.raises(InvariantViolated):
        await store.create(new_actor(2, messages=(message(1), message(1))), None)
    assert await store.heads([uid_of(1), uid_of(2)]) == await store.heads([uid_of(1)])
