"""R39: a hold parks a run, whatever it is doing, until it is released."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runward import Reply, ScriptedModel, ToolContext, tool
from runward.core.errors import Conflict, NotFound
from runward.core.kernel.actor import Scope, Status
from runward.engine.callers import LOCAL, Caller, Permission
from runward.engine.deliveries import Input
from runward.engine.letters import VerdictIn
from runward.engine.operations import DrainAnswer
from tests.engine.rig import DONE, Rig, agent, calls
from tests.engine.test_drain import Mill


async def hold(rig: Rig, uid: str, reason: str | None = None) -> DrainAnswer:
    return await rig.passing(rig.first.service.operations.hold_run(LOCAL, rig.row(uid).public_id, reason))


async def drain(rig: Rig, uid: str) -> bool:
    return (await rig.passing(rig.first.service.operations.drain_run(LOCAL, rig.row(uid).public_id))).accepted


async def release(rig: Rig, uid: str) -> str:
    """What became of the release."""
    given = Input(release_hold=True)
    delivered = await rig.passing(rig.first.service.deliveries.deliver(LOCAL, rig.row(uid).public_id, given))
    return delivered.items[0]["result"]


async def inbox(rig: Rig, uid: str) -> list[dict[str, Any]]:
    page = await rig.passing(rig.first.service.queries.inbox(LOCAL, rig.row(uid).public_id, after=0, limit=100))
    return [*page.data]


async def parked(rig: Rig, uid: str) -> None:
    await rig.until(lambda: rig.row(uid).status is Status.SUSPENDED and rig.view(uid)["pending"]["hold"] is not None)
    assert rig.row(uid).lease_owner is None


# -- in every state --------------------------------------------------------------------------------------------------------------


async def test_R39_a_run_that_was_never_started_is_parked_before_its_first_model_call() -> None:
    mill = Mill()
    async with Rig(agent(model=mill, tools=mill.tools), worker=False) as rig:
        uid = await rig.begin()
        assert (await hold(rig, uid, "closed")).accepted
        await rig.start()
        await parked(rig, uid)
        assert mill.began == []
        assert rig.view(uid)["pending"]["hold"]["by"] == "local"
        assert rig.view(uid)["pending"]["hold"]["reason"] == "closed"
        await rig.pass_seconds(60)
        assert (rig.row(uid).status, mill.began) == (Status.SUSPENDED, [])
        mill.open.set()
        assert await release(rig, uid) == "accepted"
        assert (await rig.over(uid)).status is Status.COMPLETED
        assert rig.view(uid)["pending"]["hold"] is None


async def test_R39_R41_one_that_nobody_has_the_code_of_is_parked_too() -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        uid = await rig.begin()
        await hold(rig, uid)
        await rig.start(agent(DONE, name="other"))
        await parked(rig, uid)


async def test_R39_during_a_model_call_the_answer_is_kept_and_nothing_follows_it() -> None:
    mill = Mill()
    async with Rig(agent(model=mill, tools=mill.tools)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: mill.began == ["model 1/1"])
        await hold(rig, uid)
        mill.open.set()
        await parked(rig, uid)
        assert mill.began == ["model 1/1"], "the tool of its answer waits for the release"
        await release(rig, uid)
        await rig.over(uid)
        assert mill.began == ["model 1/1", "look 1", "model 2/1"]


async def test_R39_a_running_tool_ends_and_is_not_run_again() -> None:
    mill = Mill()
    async with Rig(mill.agent("pay")) as rig:
        uid = await rig.begin()
        await rig.until(lambda: mill.began == ["pay 1"])
        await hold(rig, uid)
        await rig.pass_seconds(30)
        assert rig.row(uid).status is Status.RUNNING
        mill.open.set()
        await parked(rig, uid)
        await release(rig, uid)
        row = await rig.over(uid)
        assert (row.status, mill.began) == (Status.COMPLETED, ["pay 1"])


async def test_R39_a_run_that_waits_for_somebody_does_not_go_on_with_what_they_say() -> None:
    done: list[str] = []

    @tool(effect="non_idempotent_write")
    async def pay(ctx: ToolContext) -> str:
        done.append("pay")
        return "paid"

    async with Rig(agent(calls("pay"), DONE, tools=[pay])) as rig:
        uid = await rig.run()
        await hold(rig, uid)
        await parked(rig, uid)
        (request,) = rig.view(uid)["pending"]["approvals"]
        verdict = Input(approvals=(VerdictIn(approval_id=request["approval_id"], approved=True),))
        await rig.passing(rig.first.service.deliveries.deliver(LOCAL, rig.row(uid).public_id, verdict))
        await rig.pass_seconds(30)
        assert (rig.row(uid).status, done) == (Status.SUSPENDED, [])
        await release(rig, uid)
        assert (await rig.over(uid)).status is Status.COMPLETED
        assert done == ["pay"]


async def test_R39_a_hold_outlives_the_worker_that_should_have_applied_it() -> None:
    mill = Mill()
    async with Rig(mill.agent("look")) as rig:
        uid = await rig.begin()
        await rig.until(lambda: mill.began == ["look 1"])
        rig.faults.down = True
        other = await rig.start(worker=False)
        await rig.passing(other.service.operations.hold_run(LOCAL, rig.row(uid).public_id, None))
        await rig.first.die()
        mill.open.set()
        await rig.start()
        await parked(rig, uid)
        assert (rig.row(uid).leg, mill.began) == (2, ["look 1"]), "the call that was lost is not begun again while it is parked"


async def test_R39_a_held_run_ends_by_cancel_and_by_its_deadline() -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        cancelled, expired = await rig.begin(), await rig.begin(limits={"expires_seconds": 30.0})
        for uid in (cancelled, expired):
            await hold(rig, uid)
        await rig.start()
        for uid in (cancelled, expired):
            await parked(rig, uid)
        assert await rig.cancel(cancelled)
        await rig.until(lambda: rig.row(cancelled).status.ended)
        assert rig.row(cancelled).stop_reason == "cancelled"
        await rig.until(lambda: rig.row(expired).status.ended)
        assert rig.row(expired).stop_reason == "deadline"


# -- again -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
async def test_R39_a_hold_that_is_asked_for_twice_is_one(applied: bool) -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        uid = await rig.begin()
        await hold(rig, uid, "first")
        if applied:
            await rig.start()
            await parked(rig, uid)
        before = rig.row(uid).mail_received
        assert (await hold(rig, uid, "second")).accepted
        assert rig.row(uid).mail_received == before == 1


async def test_R19a_many_that_hold_and_release_at_once_agree() -> None:
    """Whoever loses a race looks again; in the end the run stands as the last who was heard wanted."""
    async with Rig(agent(DONE), worker=False) as rig:
        uid = await rig.begin()
        await asyncio.gather(*(hold(rig, uid) for _ in range(5)))
        assert rig.row(uid).mail_received == 1
        assert await release(rig, uid) == "accepted"
        assert await release(rig, uid) == "ignored"
        await hold(rig, uid)
        await rig.start()
        await parked(rig, uid)
        assert rig.row(uid).mail_received == 3
        await release(rig, uid)
        assert (await rig.over(uid)).status is Status.COMPLETED


async def test_R10_a_run_that_failed_while_it_was_to_be_parked_can_be_parked_after_a_retry() -> None:
    """The end of a run releases its hold: the next one has a key of its own."""
    replies = [Reply(text="one two", error="disconnect_mid_stream", chunk_delay_seconds=5), Reply(text="three four", chunk_delay_seconds=5)]
    async with Rig(agent(model=ScriptedModel(lambda _: replies.pop(0)))) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(rig.frames(uid, "text-delta")))
        await hold(rig, uid)
        row = await rig.over(uid)
        assert (row.status, rig.view(uid)["pending"]["hold"]) == (Status.FAILED, None)
        await rig.passing(rig.first.service.deliveries.deliver(LOCAL, row.public_id, Input(retry_failed=True)))
        await hold(rig, uid)
        assert [mail["state"] for mail in await inbox(rig, uid)] == ["applied", "applied", "pending"]
        row = await rig.over(uid)
        assert (row.status, rig.view(uid)["pending"]["hold"]) == (Status.COMPLETED, None), "an end comes first"


async def test_R39_an_ended_run_cannot_be_parked() -> None:
    async with Rig(agent(DONE)) as rig:
        uid = await rig.run()
        before = rig.row(uid)
        with pytest.raises(Conflict) as refused:
            await hold(rig, uid)
        assert refused.value.code == "run_ended"
        assert rig.row(uid) == before


# -- drains ----------------------------------------------------------------------------------------------------------------------


async def test_R39_a_drain_that_is_asked_for_twice_is_one() -> None:
    mill = Mill()
    async with Rig(agent(model=mill, tools=mill.tools)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: mill.began == ["model 1/1"])
        assert [await drain(rig, uid), await drain(rig, uid)] == [True, True]
        mill.open.set()
        row = await rig.over(uid)
        assert (row.status, row.leg) == (Status.COMPLETED, 2)
        assert mill.began == ["model 1/1", "look 1", "model 2/1"]


async def test_R39_a_run_that_nobody_drives_is_not_drained() -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        uid = await rig.begin()
        before = rig.row(uid)
        assert not await drain(rig, uid)
        assert rig.row(uid) == before


async def test_R43_somebody_elses_run_is_not_there() -> None:
    stranger = Caller(name="stranger", scope=Scope(tenant="other"), permissions=frozenset(Permission))
    async with Rig(agent(DONE), worker=False) as rig:
        uid = await rig.begin()
        operations = rig.first.service.operations
        with pytest.raises(NotFound):
            await rig.passing(operations.hold_run(stranger, rig.row(uid).public_id, None))
        with pytest.raises(NotFound):
            await rig.passing(operations.drain_run(stranger, rig.row(uid).public_id))
        assert rig.row(uid).mail_received == 0
