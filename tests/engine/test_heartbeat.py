"""I-18, R36: heartbeats keep a worker's leases from a thread of their own, whatever its loop does; a loop that stands still gives up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from runward import Reply, ToolContext, tool
from runward.agents.registry import Registry
from runward.core.kernel.actor import Status
from runward.core.messages import Message, TextPart
from runward.engine.callers import LOCAL
from runward.engine.clock import SystemChance, SystemClock
from runward.engine.commands import NewRun
from runward.engine.heartbeat import Heartbeat, HeartbeatThread
from runward.engine.sealing import Seal
from runward.engine.service import Service, Workforce
from runward.engine.services import Services, WorkerSettings
from runward.engine.timing import StoreTime
from runward.models.clients import ModelClients
from runward.ports.store import Renewal
from runward.stores.memory import LocalBus, MemoryBudgets, MemoryDatabase, MemoryDirectory, MemoryReads, MemorySingletons, MemoryStore
from runward.testing import VirtualClock
from runward.wiring import deployed
from tests.contract.builders import running
from tests.engine.rig import DONE, TTL, Heard, Rig, Script, agent, breathe, calls

STALL = 100.0


class Keeper:
    """`heartbeat.Keeper`: drives what it is told to, and notes what it hears."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.uids: tuple[str, ...] = ()
        self.ticked: float | None = None
        self.heard: list[tuple[Sequence[str], Renewal, float]] = []
        self.kept: list[tuple[str, ...]] = []
        self.gave_up = 0

    def driven(self) -> Sequence[str]:
        return self.uids

    def held(self, uids: Iterable[str], sent_at: float) -> None:
        self.kept.append(tuple(uids))

    def renewed(self, asked: Sequence[str], renewal: Renewal, sent_at: float) -> None:
        self.heard.append((asked, renewal, sent_at))

    def ticked_at(self) -> float:
        return self._clock.monotonic() if self.ticked is None else self.ticked

    def stalled(self) -> None:
        self.gave_up += 1


class Beat:
    """A heartbeat over a memory store, in virtual time."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.faults = Script()
        self.database = MemoryDatabase(self.clock)
        self.store = MemoryStore(self.database, self.faults)
        self.keeper = Keeper(self.clock)
        self.telemetry = Heard()
        self.heartbeat = Heartbeat(
            store=self.store, clock=self.clock, telemetry=self.telemetry, keeper=self.keeper, owner="worker-1", ttl=TTL, stall=STALL
        )
        self.task = asyncio.ensure_future(self.heartbeat.beat_forever())

    async def seconds(self, seconds: float) -> None:
        sleeping = asyncio.ensure_future(self.clock.sleep(seconds))
        await self.clock.pass_time(sleeping.done, limit_seconds=seconds + 1)
        await breathe()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_R36_all_leases_of_a_worker_are_renewed_in_one_statement() -> None:
    beat = Beat()
    beat.keeper.uids = tuple([(await running(beat.store, number)).uid for number in range(1, 4)])
    await beat.seconds(TTL / 3 + 0.1)
    assert beat.faults.counts["renew"] == 1
    ((asked, renewal, sent_at),) = beat.keeper.heard
    assert sorted(renewal.held) == sorted(asked)
    assert sent_at == pytest.approx(TTL / 3)
    assert beat.keeper.kept == [tuple(renewal.held)]
    for uid in asked:
        assert beat.database.actors[uid].envelope.lease_until == renewal.now + TTL * 1_000
    await beat.stop()


async def test_R36_what_is_somebody_elses_is_not_renewed_and_that_is_told() -> None:
    beat = Beat()
    mine, lost = await running(beat.store, 1), await running(beat.store, 2)
    beat.database.put(replace(lost, lease_owner="another"))
    beat.keeper.uids = (mine.uid, lost.uid)
    await beat.seconds(TTL / 3 + 0.1)
    assert set(beat.keeper.heard[0][1].held) == {mine.uid}
    assert beat.database.actors[lost.uid].envelope.lease_until == lost.lease_until
    await beat.stop()


async def test_a_worker_that_drives_nothing_asks_nothing() -> None:
    """R36."""
    beat = Beat()
    await beat.seconds(10 * TTL)
    assert beat.faults.done == []
    await beat.stop()


async def test_R3a_a_renewal_can_be_asked_for_at_once() -> None:
    beat = Beat()
    beat.keeper.uids = ((await running(beat.store)).uid,)
    await breathe()
    beat.heartbeat.renew_soon()
    await breathe()
    assert beat.faults.counts["renew"] == 1
    await beat.stop()


async def test_R36_a_renewal_that_fails_is_repeated_soon() -> None:
    """Well before the lease runs out, however many fail."""
    beat = Beat()
    beat.keeper.uids = ((await running(beat.store)).uid,)
    beat.faults.refuse("renew", *range(1, 6))
    await beat.seconds(TTL / 3 + 0.01)
    assert (beat.keeper.heard, beat.telemetry.names) == ([], ["renewal_failed"])
    await beat.seconds(5 * 0.2 + 0.1)
    assert len(beat.keeper.heard) == 1
    assert beat.telemetry.names == ["renewal_failed"] * 5
    await beat.stop()


async def test_R36_also_when_its_own_connection_cannot_be_opened() -> None:
    beat = Beat()
    beat.keeper.uids = ((await running(beat.store)).uid,)
    beat.faults.refuse("renewals", 1, 2)
    await beat.seconds(TTL / 3 + 1)
    assert (beat.faults.counts["renewals"], len(beat.keeper.heard)) == (3, 1)
    await beat.stop()


async def test_a_loop_that_has_not_ticked_for_too_long_is_given_up() -> None:
    """R36: nothing is renewed any more, so that others take over, and the process is told to go."""
    beat = Beat()
    beat.keeper.uids = ((await running(beat.store)).uid,)
    beat.keeper.ticked = beat.clock.monotonic()
    await beat.seconds(STALL - TTL / 3)
    renewed = beat.faults.counts["renew"]
    assert renewed >= 30 and beat.keeper.gave_up == 0
    await beat.seconds(TTL)
    assert (beat.keeper.gave_up, beat.task.done()) == (1, True)
    before = beat.faults.counts["renew"]
    await beat.seconds(10 * TTL)
    assert beat.faults.counts["renew"] == before


async def test_a_worker_tells_its_process_when_its_loop_stands_still() -> None:
    """R36: through the whole worker."""
    async with Rig(agent(DONE)) as rig:
        worker, told = rig.first.worker, list[int]()
        worker._on_stall = lambda: told.append(1)
        worker.stalled()
        assert told == [1]
        before = worker.ticked_at()
        await rig.pass_seconds(5)
        assert worker.ticked_at() > before


# -- real threads --------------------------------------------------------------------------------------------------------------------


class RealKeeper(Keeper):
    """A keeper on the real clock, whose loop ticks or not."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        super().__init__(VirtualClock())
        self.threads: list[str] = []
        self.beats = threading.Semaphore(0)
        self.over = threading.Event()
        self.told = asyncio.Event()

    def driven(self) -> Sequence[str]:
        self.threads.append(threading.current_thread().name)
        return self.uids

    def held(self, uids: Iterable[str], sent_at: float) -> None:
        super().held(uids, sent_at)
        self.beats.release()

    def renewed(self, asked: Sequence[str], renewal: Renewal, sent_at: float) -> None:
        super().renewed(asked, renewal, sent_at)
        if len(self.heard) >= 5:
            self.told.set()

    def ticked_at(self) -> float:
        return self.clock.monotonic() if self.ticked is None else self.ticked

    def stalled(self) -> None:
        super().stalled()
        self.over.set()


def heartbeat(keeper: RealKeeper, store: MemoryStore, *, stall: float = STALL) -> HeartbeatThread:
    return HeartbeatThread(
        Heartbeat(store=store, clock=SystemClock(), telemetry=Heard(), keeper=keeper, owner="worker-1", ttl=0.06, stall=stall)
    )


async def test_R36_a_thread_keeps_the_leases_while_the_loop_is_blocked() -> None:
    """I-18: the loop hears of it afterwards."""
    database = MemoryDatabase(SystemClock())
    store, keeper = MemoryStore(database), RealKeeper()
    keeper.uids = ((await running(store)).uid,)
    thread = heartbeat(keeper, store)
    thread.start()
    for _ in range(5):
        assert keeper.beats.acquire(timeout=10), "the loop stands still here, and heartbeats go on"
    assert (len(keeper.kept) >= 5, keeper.heard) == (True, [])
    await keeper.told.wait()
    assert set(keeper.threads) == {"heartbeat"}
    await thread.stop()
    assert "heartbeat" not in [thread.name for thread in threading.enumerate()]


async def test_R36_a_blocked_loop_is_given_up_from_the_thread() -> None:
    database = MemoryDatabase(SystemClock())
    keeper = RealKeeper()
    keeper.ticked = keeper.clock.monotonic()
    thread = heartbeat(keeper, MemoryStore(database), stall=0.05)
    thread.start()
    assert keeper.over.wait(timeout=10), "the loop stands still here"
    await thread.stop()
    assert keeper.gave_up == 1


async def test_a_worker_with_a_heartbeat_thread_in_real_time() -> None:
    """R36: once through everything, on real clocks: a run many times longer than its lease, whose loop is blocked for longer than that."""
    blocked = threading.Event()

    @tool(effect="non_idempotent_write", needs_approval=False)
    async def block(ctx: ToolContext) -> str:
        blocked.wait(0.5)  # on the loop
        blocked.set()
        return "unblocked"

    slow = Reply(text="one two three four five", chunk_delay_seconds=0.05)
    found = agent(calls("block"), slow, tools=[block])
    clock = SystemClock()
    database, telemetry = MemoryDatabase(clock), Heard()
    services = Services(
        store=MemoryStore(database),
        reads=MemoryReads(database),
        directory=MemoryDirectory(database),
        singletons=MemorySingletons(database),
        budgets=MemoryBudgets(database),
        bus=LocalBus(),
        clock=clock,
        chance=SystemChance(),
        time=StoreTime(clock),
        telemetry=telemetry,
    )
    registry, models = Registry([found]), ModelClients(clock)
    workforce = Workforce(
        deployed=deployed(registry, models, max_result_bytes=1_000),
        models=models,
        settings=WorkerSettings(lease_ttl=0.2, poll=0.05, poll_with_bus=0.05),
        host="rig",
        pid=1,
        resources={},
    )
    service = Service(services=services, registry=registry, seal=Seal(None), poll=0.05, poll_with_bus=0.05, workforce=workforce)
    await service.start()
    new = NewRun(agent="agent", messages=(Message(seq=0, role="user", content=(TextPart(text="hi"),)),))
    created = await service.commands.create_run(LOCAL, new)
    view = await service.queries.wait(created.row.uid, 20, "suspended")
    assert (view.status, view.shown["text"]) == (Status.COMPLETED, "one two three four five")
    row = database.actors[created.row.uid].envelope
    assert (row.leg, row.recoveries, blocked.is_set()) == (1, 0, True)
    await service.stop()
    await service.stop()
    assert telemetry.names == []
