"""Upkeep: one process at a time forgets, deletes, and disturbs nobody."""

from __future__ import annotations

import asyncio

from runward.core.kernel.actor import Status
from runward.engine.services import UpkeepSettings
from runward.engine.upkeep import KEY, LEASE_MS, MOST_BATCHES, ROUND_SECONDS, Upkeep
from tests.engine.rig import DONE, TTL, Process, Rig, agent
from tests.engine.test_drain import Mill

DAY = 86_400.0


def upkeep(process: Process, owner: str = "one", **settings: float) -> Upkeep:
    return Upkeep(process.service.services, UpkeepSettings(**settings), owner=owner, lease_ttl=TTL)


async def test_one_process_at_a_time_keeps_house_and_another_goes_on_when_it_leaves_or_dies() -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        one, two = upkeep(rig.first), upkeep(rig.first, "two")
        assert await rig.passing(one.round())
        assert not await rig.passing(two.round())
        assert await rig.passing(one.round()), "whoever has it keeps it"
        await rig.passing(one.leave())
        assert await rig.passing(two.round())
        assert not await rig.passing(one.round())
        rig.clock.advance(LEASE_MS / 1000 + 1)
        assert await rig.passing(one.round()), "two is dead"


async def test_R45_runs_and_keys_live_as_long_as_the_settings_say() -> None:
    async with Rig(agent(DONE)) as rig:
        old = await rig.run(key="old")
        rig.clock.advance(3 * DAY)
        young, waiting = await rig.run(key="young"), await rig.begin(start_at=rig.database.now() + 10**9)
        keeping = upkeep(rig.first, run_retention=2 * DAY, idempotency_retention=2 * DAY)
        assert await rig.passing(keeping.round())
        assert old not in rig.database.actors and {young, waiting} <= rig.database.actors.keys()
        assert [key for *_, key in rig.database.keys] == ["young"]
        assert "upkeep" in rig.first.telemetry.events


async def test_R45_without_a_setting_ended_runs_are_kept_for_good() -> None:
    async with Rig(agent(DONE)) as rig:
        uid = await rig.run()
        rig.clock.advance(10_000 * DAY)
        await rig.passing(upkeep(rig.first).round())
        assert rig.row(uid).status is Status.COMPLETED


async def test_workers_that_have_been_silent_for_long_are_forgotten() -> None:
    async with Rig(agent(DONE)) as rig:
        watching = await rig.start(worker=False)
        await rig.first.die()
        await rig.pass_seconds(299)
        await rig.passing(upkeep(watching).round())
        assert len(await rig.passing(watching.service.services.directory.workers())) == 1
        await rig.pass_seconds(10)
        await rig.passing(upkeep(watching).round())
        assert await rig.passing(watching.service.services.directory.workers()) == []


async def test_R45_much_is_deleted_in_batches_with_pauses_and_a_run_goes_on_meanwhile() -> None:
    mill = Mill()
    async with Rig(agent(model=mill, tools=mill.tools)) as rig:
        store = rig.first.service.services.store
        driven = await rig.begin()
        await rig.until(lambda: bool(mill.began))
        deleted: list[float] = []

        async def prune_keys(*, created_before: int, limit: int) -> int:
            deleted.append(rig.clock.monotonic())
            return limit

        store.prune_keys = prune_keys  # type: ignore[method-assign]
        round_ = asyncio.ensure_future(upkeep(rig.first).round())
        mill.open.set()
        assert (await rig.over(driven)).status is Status.COMPLETED
        assert not round_.done()
        assert await rig.passing(round_)
        assert len(deleted) == MOST_BATCHES and len(set(deleted)) == MOST_BATCHES


async def test_a_round_ends_with_its_lease() -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        services, count = rig.first.service.services, 0

        async def prune_keys(*, created_before: int, limit: int) -> int:
            nonlocal count
            count += 1
            rig.clock.advance(LEASE_MS / 1000 + 1)
            assert await services.singletons.acquire(KEY, "another", LEASE_MS) is not None
            return limit

        services.store.prune_keys = prune_keys  # type: ignore[method-assign]
        await rig.passing(upkeep(rig.first).round())
        assert count == 1


async def test_a_round_that_fails_is_told_of_and_comes_again() -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        keeping = asyncio.ensure_future(upkeep(rig.first).keep_house())
        rig.faults.down = True
        await rig.pass_seconds(ROUND_SECONDS + 1)
        assert rig.first.telemetry.names == ["upkeep_failed"]
        rig.faults.down = False
        await rig.pass_seconds(ROUND_SECONDS)
        assert await rig.passing(rig.first.service.services.singletons.acquire(KEY, "two", LEASE_MS)) is None
        keeping.cancel()
