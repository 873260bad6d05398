"""Runs with a concurrency key: a worker drives so many of them at a time, and the next one when a place is free."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from tests.engine.rig import DONE, SETTINGS, TTL, Rig, agent
from tests.engine.test_drain import Mill


async def test_runs_with_one_key_are_driven_one_after_the_other() -> None:
    async with Rig(agent(DONE)) as rig:
        uids = [await rig.begin(concurrency_key="k") for _ in range(5)]
        rows = [await rig.over(uid) for uid in uids]
        assert {row.status.value for row in rows} == {"completed"}
        spans = sorted((row.started_at or 0, row.ended_at or 0) for row in rows)
        assert all(ended <= began for (_, ended), (began, _) in pairwise(spans))


async def test_care_of_a_run_whose_key_is_taken_starts_nothing() -> None:
    mill = Mill()
    async with Rig(mill.agent("look")) as rig:
        await rig.begin(concurrency_key="k")
        await rig.until(lambda: bool(mill.began))
        uid = await rig.begin(concurrency_key="k")
        before = rig.row(uid)
        rig.database.put(replace(before, care_at=rig.database.now()))
        await rig.until(lambda: rig.row(uid).leg > before.leg and rig.row(uid).lease_owner is None)
        await rig.pass_seconds(TTL)
        assert (rig.row(uid).status.value, len(mill.began)) == ("queued", 1)


async def test_with_a_bound_of_two_both_are_driven() -> None:
    mill = Mill()
    async with Rig(mill.agent("look"), settings=replace(SETTINGS, per_key=2)) as rig:
        await rig.begin(concurrency_key="k")
        await rig.begin(concurrency_key="k")
        await rig.until(lambda: len(mill.began) == 2)
