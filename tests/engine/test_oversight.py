"""Operators across runs: taking runs from workers that hang, binding them to other code, raising their limits, draining workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runward import Agent, Limits, tool
from runward.core.errors import Conflict, Invalid, NotFound, NotPermitted
from runward.core.kernel.actor import Scope, Status
from runward.engine.callers import LOCAL, Caller, Permission
from runward.engine.operations import Failed
from runward.engine.oversight import Recovered
from runward.engine.rebinding import Rebind, Rebound
from tests.engine.rig import DONE, SETTINGS, TTL, Process, Rig, agent, breathe, calls
from tests.engine.test_drain import Mill

TENANT = Caller(name="acme", scope=Scope(tenant="acme"), permissions=frozenset(Permission))


async def frozen(rig: Rig, mill: Mill) -> tuple[str, Process]:
    """A run whose worker, the first, hangs in a tool and hears nothing; and another process."""
    uid = await rig.begin()
    await rig.until(lambda: bool(mill.began))
    rig.bus.mute = True
    other = await rig.start()
    return uid, other


async def recovered(rig: Rig, other: Process, uid: str, *, force: bool) -> Recovered:
    return await rig.passing(other.service.oversight.recover_run(LOCAL, rig.row(uid).public_id, force=force))


# -- takeovers -------------------------------------------------------------------------------------------------------------------


async def test_R40_a_run_is_taken_by_force_from_a_worker_that_hangs() -> None:
    """What the worker does from then on changes nothing, however late it wakes (R3)."""
    mill = Mill()
    async with Rig(mill.agent("look")) as rig:
        uid, other = await frozen(rig, mill)
        gate = rig.faults.hold("commit", 1)
        owner = rig.first.worker.owner
        mill.open.set()
        await rig.reached(gate)
        assert await recovered(rig, other, uid, force=True) == Recovered(recovered=1, failed=[])
        row = await rig.over(uid)
        assert (row.status, row.leg, row.recoveries) == (Status.COMPLETED, 2, 0)
        said = rig.frames(uid)
        gate.open.set()
        await rig.pass_seconds(TTL)
        assert (rig.row(uid), rig.frames(uid)) == (row, said)
        assert mill.began == ["look 1", "look 2"]
        (mail,) = (await rig.passing(other.service.queries.inbox(LOCAL, row.public_id, after=0, limit=10))).data
        assert (mail["kind"], mail["data"], mail["principal"], mail["state"]) == ("takeover", {"worker": owner}, {"by": "local"}, "applied")


async def test_R13_a_call_that_may_not_be_repeated_is_unknown_to_whoever_takes_the_run() -> None:
    mill = Mill()
    async with Rig(mill.agent("pay")) as rig:
        uid, other = await frozen(rig, mill)
        await recovered(rig, other, uid, force=True)
        assert (await rig.over(uid)).status is Status.SUSPENDED
        assert [effect["tool_call_id"] for effect in rig.view(uid)["pending"]["unknown_effects"]] == ["1.1"]
        mill.open.set()
        await rig.pass_seconds(TTL)
        assert (rig.row(uid).status, mill.began) == (Status.SUSPENDED, ["pay 1"])


async def test_R40_without_force_only_a_lease_that_ran_out_is_taken() -> None:
    mill = Mill()
    async with Rig(mill.agent("look"), settings=replace(SETTINGS, recovery_delay=600.0)) as rig:
        uid, other = await frozen(rig, mill)
        public = rig.row(uid).public_id
        assert await recovered(rig, other, uid, force=False) == Recovered(recovered=0, failed=[Failed(run_id=public, code="lease_held")])
        await rig.first.die()
        await other.die()
        await rig.pass_seconds(TTL + 1)
        watching = await rig.start(worker=False)
        oversight = watching.service.oversight
        assert await rig.passing(oversight.recover(TENANT, 10)) == Recovered(recovered=0, failed=[]), "it is not theirs"
        assert await rig.passing(oversight.recover(LOCAL, 10)) == Recovered(recovered=1, failed=[])
        assert await rig.passing(oversight.recover(LOCAL, 10)) == Recovered(recovered=0, failed=[])
        assert (rig.row(uid).status, rig.row(uid).recoveries) == (Status.QUEUED, 1)
        mill.open.set()
        await rig.start()
        assert (await rig.over(uid)).status is Status.COMPLETED


async def test_R40_a_suspect_does_not_wait_once_an_operator_has_recovered_it() -> None:
    mill = Mill()
    async with Rig(mill.agent("look"), settings=replace(SETTINGS, recovery_delay=600.0)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(mill.began))
        await rig.first.die()
        second = await rig.start()
        await rig.until(lambda: rig.row(uid).recoveries == 1)
        await second.die()
        third = await rig.start()
        await rig.pass_seconds(3 * TTL)
        assert rig.row(uid).leg == 2, "it waits"
        mill.open.set()
        assert (await rig.passing(third.service.oversight.recover(LOCAL, 10))).recovered == 1
        assert (await rig.over(uid)).status is Status.COMPLETED


# -- workers ---------------------------------------------------------------------------------------------------------------------


async def test_R39_a_worker_that_an_operator_drains_gives_its_runs_to_others() -> None:
    mill = Mill()
    async with Rig(agent(model=mill, tools=mill.tools)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: mill.began == ["model 1/1"])
        other = await rig.start()
        owner = rig.first.worker.owner
        await rig.passing(other.service.oversight.drain_worker(LOCAL, owner))
        await rig.until(rig.first.worker.asked_to_drain.is_set)
        mill.open.set()
        await rig.until(rig.first.service.worker_left.is_set)
        row = await rig.over(uid)
        assert (row.status, row.leg, row.recoveries) == (Status.COMPLETED, 2, 0)
        assert mill.began == ["model 1/1", "look 1", "model 2/1"]
        assert [worker["worker_id"] for worker in await rig.passing(other.service.oversight.workers(LOCAL))] == [other.worker.owner]
        assert await rig.passing(rig.first.service.ready()), "its process goes on"
        with pytest.raises(NotFound):
            await rig.passing(other.service.oversight.drain_worker(LOCAL, owner))
        with pytest.raises(NotPermitted):
            await rig.passing(other.service.oversight.drain_worker(TENANT, other.worker.owner))


async def test_R39_a_worker_that_is_drained_twice_leaves_once() -> None:
    """By an operator and by a signal: the second waits for the first."""
    mill = Mill()
    async with Rig(mill.agent("look")) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(mill.began))
        await rig.passing(rig.first.service.oversight.drain_worker(LOCAL, rig.first.worker.owner))
        await rig.until(lambda: "draining" in rig.first.telemetry.events)
        mill.open.set()
        await rig.passing(rig.first.service.drain())
        await breathe()
        assert rig.first.service.worker_left.is_set()
        assert (rig.row(uid).status, rig.row(uid).lease_owner) == (Status.QUEUED, None)
        assert mill.began == ["look 1"]


# -- rebind ----------------------------------------------------------------------------------------------------------------------


def binding(process: Process, name: str = "agent") -> str:
    (entry,) = [entry for entry in process.service.registry.agents if entry.agent.name == name]
    return entry.binding


async def rebound(rig: Rig, process: Process, uid: str, target: str, source: str | None = None) -> Rebound:
    rebind = Rebind(source=source or rig.row(uid).binding, target=target, reason=None)
    return await rig.passing(process.service.rebinding.rebind_run(LOCAL, rig.row(uid).public_id, rebind))


async def test_R41_a_run_goes_on_with_other_code_from_where_it_was() -> None:
    mill = Mill()
    first = mill.agent("look")
    async with Rig(first) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(mill.began))
        await rig.first.die()
        mill.open.set()
        newer = await rig.start(replace(first, version="2"))
        await rig.pass_seconds(3 * TTL)
        assert (rig.row(uid).status, rig.row(uid).leg) == (Status.RUNNING, 1), "nobody has its code"
        with pytest.raises(Invalid):
            await rebound(rig, newer, uid, "unheard-of")
        await rebound(rig, newer, uid, binding(newer))
        row = await rig.over(uid)
        assert (row.status, row.binding) == (Status.COMPLETED, binding(newer))
        assert mill.began == ["look 1", "look 2"]


async def test_R41_a_run_that_is_driven_changes_over_at_the_next_boundary() -> None:
    mill = Mill()
    older = agent(model=mill, tools=mill.tools)
    async with Rig(older) as rig:
        uid = await rig.begin()
        await rig.until(lambda: mill.began == ["model 1/1"])
        newer = await rig.start(replace(older, version="2"))
        await rebound(rig, newer, uid, binding(newer))
        await rebound(rig, newer, uid, binding(newer))
        mill.open.set()
        row = await rig.over(uid)
        assert (row.status, row.leg, row.binding) == (Status.COMPLETED, 2, binding(newer))
        assert mill.began == ["model 1/1", "look 1", "model 2/1"]
        assert rig.frames(uid, "warning") == []


async def test_R41_what_an_unknown_effect_needs_has_to_be_there_too() -> None:
    mill = Mill()

    @tool(name="pay", effect="idempotent_write")
    async def otherwise() -> str:
        return ""

    first = mill.agent("pay")
    async with Rig(first) as rig:
        uid, other = await frozen(rig, mill)
        await recovered(rig, other, uid, force=True)
        await rig.over(uid)
        third = await rig.start(replace(first, version="2", tools=[otherwise]))
        before = rig.row(uid)
        with pytest.raises(Conflict) as refused:
            await rebound(rig, third, uid, binding(third))
        assert "'pay' of call 1.1 had the effect non_idempotent_write" in refused.value.problems[0].detail
        with pytest.raises(Conflict) as refused:
            await rebound(rig, third, uid, binding(third), source="something-else")
        assert refused.value.recorded == {"binding": before.binding}
        assert rig.row(uid) == before


async def test_R41_of_an_agents_runs_those_that_cannot_are_named_and_the_others_bound() -> None:
    @tool(effect="non_idempotent_write")
    async def pay() -> str:
        return "paid"

    older = agent(calls("pay"), DONE, tools=[pay])
    async with Rig(older) as rig:
        waiting = await rig.run()
        await rig.first.die()
        rig.faults.down = False
        fresh = await rig.begin()
        newer = await rig.start(replace(older, version="2", tools=[]))
        rebind = Rebind(source=rig.row(fresh).binding, target=binding(newer), reason="no tools")
        done = await rig.passing(newer.service.rebinding.rebind_agent(LOCAL, "agent", rebind, cursor=None, limit=10))
        assert done == Rebound(rebound=1, failed=[Failed(run_id=rig.row(waiting).public_id, code="binding_mismatch")])
        assert await rig.passing(newer.service.rebinding.rebind_agent(TENANT, "agent", rebind, cursor=None, limit=10)) == Rebound(
            rebound=0, failed=[]
        )


# -- limits ----------------------------------------------------------------------------------------------------------------------


async def raised(rig: Rig, uid: str, **limits: Any) -> None:
    await rig.passing(rig.first.service.rebinding.raise_limits(LOCAL, rig.row(uid).public_id, limits, None))


async def test_R35_a_run_whose_limits_are_raised_goes_on_by_itself() -> None:
    mill = Mill()
    bounded: Agent = agent(model=mill, tools=mill.tools, limits=Limits(max_steps=1))
    async with Rig(bounded) as rig:
        uid = await rig.begin()
        await rig.until(lambda: mill.began == ["model 1/1"])
        await raised(rig, uid, max_steps=2)
        mill.open.set()
        assert (await rig.over(uid)).status is Status.COMPLETED


async def test_R35_raises_that_cross_end_at_the_highest() -> None:
    bounded: Agent = agent(DONE, limits=Limits(max_steps=1))
    async with Rig(bounded, worker=False) as rig:
        uid = await rig.begin()
        await raised(rig, uid, max_steps=9)
        await raised(rig, uid, max_steps=5)
        await rig.start()
        await rig.over(uid)
        assert '"max_steps":9' in rig.row(uid).state


async def test_R35_a_run_that_is_to_start_later_does_not_start_earlier_for_its_raised_limits() -> None:
    mill = Mill()
    bounded: Agent = agent(model=mill, tools=mill.tools, limits=Limits(max_steps=1))
    async with Rig(bounded) as rig:
        at = rig.database.now() + 100_000
        uid = await rig.begin(start_at=at)
        await raised(rig, uid, max_steps=2)
        await rig.until(lambda: rig.row(uid).leg == 1 and rig.row(uid).lease_owner is None)
        await rig.pass_seconds(30)
        assert (rig.row(uid).status, rig.row(uid).ready_at, mill.began) == (Status.QUEUED, at, [])
        mill.open.set()
        assert (await rig.over(uid)).status is Status.COMPLETED
        assert rig.database.now() >= at


async def test_R35_a_raise_revives_nothing_that_has_ended() -> None:
    bounded: Agent = agent(calls("look"), tools=Mill().tools[:1], limits=Limits(max_steps=1, expires_seconds=5))
    async with Rig(bounded) as rig:
        uid = await rig.run()
        before = rig.row(uid)
        assert before.stop_reason == "deadline"
        with pytest.raises(Conflict) as refused:
            await raised(rig, uid, max_steps=9)
        assert refused.value.code == "run_ended"
        assert rig.row(uid) == before
