"""R39: a drain ends a leg at the next boundary; a worker that is told to go gives every run back, and takes nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from runward import Reply, ToolContext, tool
from runward.core.kernel.actor import Status
from runward.core.usage import Usage
from runward.ports.models import AskedCall, ModelAnswer, ModelDelta, ModelRequest
from tests.engine.rig import DONE, SETTINGS, Rig, agent, breathe, calls

GRACE = SETTINGS.drain_grace


class Mill:
    """A model and tools that grind while the mill is shut, and count what they began."""

    name = "scripted:mill"

    def __init__(self) -> None:
        self.began: list[str] = []
        self.open = asyncio.Event()

        @tool(effect="read", timeout_seconds=1_000)
        async def look(ctx: ToolContext) -> str:
            return await self._grind(f"look {ctx.attempt}")

        @tool(effect="non_idempotent_write", needs_approval=False, timeout_seconds=1_000)
        async def pay(ctx: ToolContext) -> str:
            return await self._grind(f"pay {ctx.attempt}")

        self.tools = (look, pay)

    async def _grind(self, what: str) -> str:
        self.began.append(what)
        await self.open.wait()
        return what

    async def call(self, request: ModelRequest, on_delta: Callable[[ModelDelta], Awaitable[None]]) -> ModelAnswer:
        await self._grind(f"model {request.step}/{request.attempt}")
        asked = (AskedCall(provider_id="", tool_name="look", arguments="{}"),) if request.step == 1 else ()
        return ModelAnswer(text="", reasoning="", calls=asked, finish="stop", usage=Usage(), model=self.name)

    def agent(self, *tools: str) -> Any:
        return agent(calls(*tools), DONE, tools=self.tools)


async def ask(rig: Rig, uid: str) -> int | None:
    """Asks whoever drives the run to give it back."""
    leg = await rig.passing(rig.first.service.services.store.ask_drain(uid))
    await rig.pass_seconds(SETTINGS.poll_with_bus + 0.1)
    return leg


def draining(rig: Rig) -> asyncio.Task[None]:
    """SIGTERM for the first process."""
    return asyncio.ensure_future(rig.first.worker.drain())


# -- a leg is asked ------------------------------------------------------------------------------------------------------------


async def test_R39_a_drain_finishes_the_step_in_hand_and_gives_the_run_back() -> None:
    """Model call and its tools; nothing that ran runs again."""
    mill = Mill()
    async with Rig(agent(model=mill, tools=mill.tools)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: mill.began == ["model 1/1"])
        assert await ask(rig, uid) == 1
        assert rig.row(uid).leg == 1
        mill.open.set()
        row = await rig.over(uid)
        assert (row.status, row.leg, row.recoveries) == (Status.COMPLETED, 2, 0)
        assert mill.began == ["model 1/1", "look 1", "model 2/1"]
        states = [frame["data"]["status"] for frame in rig.frames(uid, "data-agent")]
        assert states == ["running", "queued", "running", "completed"]


async def test_R39_an_end_comes_first() -> None:
    mill = Mill()
    async with Rig(mill.agent()) as rig:
        gate = rig.faults.hold("commit", 1)
        uid = await rig.begin()
        await rig.reached(gate)
        await rig.passing(rig.first.service.services.store.ask_drain(uid))
        gate.open.set()
        row = await rig.over(uid)
        assert (row.status, row.leg) == (Status.COMPLETED, 1)


async def test_R39_a_cancel_comes_first() -> None:
    mill = Mill()
    async with Rig(mill.agent("look")) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(mill.began))
        rig.bus.mute = True
        await rig.passing(rig.first.service.services.store.ask_drain(uid))
        assert await rig.cancel(uid)
        row = await rig.over(uid)
        assert (row.stop_reason, row.leg) == ("cancelled", 1)


async def test_R39_a_drain_vanishes_with_its_leg() -> None:
    mill = Mill()
    mill.open.set()
    async with Rig(mill.agent("look")) as rig:
        gate = rig.faults.hold("commit", 2)
        uid = await rig.begin()
        await rig.reached(gate)
        assert await rig.passing(rig.first.service.services.store.ask_drain(uid)) == 1
        rig.faults.down = True
        gate.open.set()
        await rig.first.die()
        await rig.start()
        row = await rig.over(uid)
        assert (row.status, row.leg, row.drain_leg) == (Status.COMPLETED, 2, None)


async def test_R39_of_a_run_that_nobody_drives_nothing_is_stored() -> None:
    async with Rig(agent(DONE)) as rig:
        uid = await rig.run()
        before = rig.row(uid)
        assert await ask(rig, uid) is None
        assert rig.row(uid) == before


# -- a worker goes -------------------------------------------------------------------------------------------------------------


async def test_R39_a_worker_that_goes_gives_every_run_back_at_the_next_boundary() -> None:
    mill = Mill()
    async with Rig(mill.agent("look")) as rig:
        uids = [await rig.begin() for _ in range(3)]
        await rig.until(lambda: len(mill.began) == 3)
        going = draining(rig)
        await rig.pass_seconds(1)
        assert not going.done()
        mill.open.set()
        await rig.until(going.done)
        await going
        assert {rig.row(uid).status for uid in uids} == {Status.QUEUED}
        assert {rig.row(uid).lease_owner for uid in uids} == {None}
        assert {rig.row(uid).leg for uid in uids} == {1}, "it does not take again what it just gave back"
        await rig.start()
        for uid in uids:
            assert ((await rig.over(uid)).status, rig.row(uid).recoveries) == (Status.COMPLETED, 0)
        assert mill.began == ["look 1"] * 3


async def test_R39_it_takes_nothing_more() -> None:
    mill = Mill()
    async with Rig(mill.agent("look")) as rig:
        driven = await rig.begin()
        await rig.until(lambda: bool(mill.began))
        going = draining(rig)
        await breathe()
        waiting = await rig.begin()
        await rig.pass_seconds(1)
        assert (rig.row(driven).leg, rig.row(waiting).leg) == (1, 0)
        mill.open.set()
        await rig.until(going.done)
        await going
        assert rig.row(waiting).leg == 0


@pytest.mark.parametrize("answered", [True, False])
async def test_R39_a_claim_under_way_is_given_back_too(answered: bool) -> None:
    """R2a: it takes a run as the worker is told to go; whether its answer comes or not, the run does not wait for the lease to run out."""
    mill = Mill()
    mill.open.set()
    async with Rig(mill.agent("look")) as rig:
        gate = rig.faults.hold("claim", 1, answered=True)
        uid = await rig.begin()
        await rig.reached(gate)
        assert rig.row(uid).leg == 1
        going = draining(rig)
        await rig.pass_seconds(1)
        assert not going.done()
        if answered:
            gate.open.set()
        await rig.until(going.done)
        await going
        assert (rig.row(uid).status, rig.row(uid).lease_owner) == (Status.QUEUED, None)
        assert answered or mill.began == []
        await rig.start()
        row = await rig.over(uid)
        assert (row.status, row.recoveries) == (Status.COMPLETED, 0)


async def test_R39_when_the_grace_ends_a_model_call_is_broken_off_and_repeated_by_the_next_leg() -> None:
    """R32: its text is dropped first."""
    async with Rig(agent(Reply(text="one two three", chunk_delay_seconds=7))) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(rig.frames(uid, "text-delta")))
        going, at = draining(rig), rig.clock.monotonic()
        await rig.until(going.done)
        assert rig.clock.monotonic() - at == pytest.approx(GRACE, abs=0.5)
        assert rig.row(uid).status is Status.QUEUED
        assert "reset-step" in rig.types(uid)
        await rig.start()
        row = await rig.over(uid)
        assert (row.status, row.leg, row.recoveries) == (Status.COMPLETED, 2, 0)
        assert [frame["attempt"] for frame in rig.frames(uid, "start-step")] == [1, 2]
        assert rig.view(uid)["text"] == "one two three"


async def test_R39_when_the_grace_ends_a_call_that_may_be_repeated_is_left_to_the_next_leg() -> None:
    """It does not count as a failure of the tool: it never had its say."""
    mill = Mill()
    async with Rig(mill.agent("look")) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(mill.began))
        going = draining(rig)
        await rig.until(going.done)
        assert (rig.row(uid).status, rig.row(uid).lease_owner) == (Status.QUEUED, None)
        mill.open.set()
        await rig.start()
        row = await rig.over(uid)
        assert (row.status, row.recoveries, mill.began) == (Status.COMPLETED, 0, ["look 1", "look 2"])
        assert rig.results(uid)[0]["output"] == "look 2"
        assert '"failures":0' in rig.rows(uid).receipts["1.1"].detail


async def test_R39_also_one_that_waits_to_be_tried_again() -> None:
    """It is not answered as cancelled: the run goes on elsewhere."""
    attempts: list[int] = []

    @tool(effect="read", max_attempts=10)
    async def stumble(ctx: ToolContext) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 6:
            raise RuntimeError("broken")
        return "up"

    async with Rig(agent(calls("stumble"), DONE, tools=[stumble]), settings=replace(SETTINGS, drain_grace=0.0)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: len(attempts) == 5)
        await rig.pass_seconds(0.5)
        going = draining(rig)
        await rig.until(going.done)
        assert rig.row(uid).status is Status.QUEUED
        await rig.start()
        await rig.over(uid)
        assert rig.row(uid).status is Status.COMPLETED
        assert rig.results(uid)[0]["output"] == "up"


async def test_R39_with_another_call_in_flight_the_lease_is_left_to_run_out_never_released() -> None:
    mill = Mill()
    async with Rig(mill.agent("pay", "look")) as rig:
        uid = await rig.begin()
        await rig.until(lambda: len(mill.began) == 2)
        going, at = draining(rig), rig.clock.monotonic()
        await rig.until(going.done)
        await going
        assert rig.clock.monotonic() - at < GRACE + 5
        assert (rig.row(uid).status, rig.row(uid).leg) == (Status.RUNNING, 1)
        assert rig.row(uid).lease_owner == rig.first.worker.owner
        until = rig.row(uid).lease_until
        mill.open.set()
        await rig.start()
        row = await rig.over(uid)
        assert rig.database.now() > (until or 0)
        assert (row.status, row.leg) == (Status.SUSPENDED, 2)
        assert mill.began == ["pay 1", "look 1", "look 2"]
        assert [effect["tool_name"] for effect in rig.view(uid)["pending"]["unknown_effects"]] == ["pay"]


async def test_R39_a_run_that_waits_for_somebody_anyway_does_so() -> None:
    """The other call's outcome is unknown by the time the grace ends: suspending comes before giving back."""
    from runward import UnknownOutcome

    mill = Mill()

    @tool(effect="non_idempotent_write", needs_approval=False)
    async def lose() -> str:
        await mill.open.wait()
        raise UnknownOutcome("nobody answered")

    async with Rig(agent(calls("lose"), tools=[lose])) as rig:
        uid = await rig.begin()
        await rig.pass_seconds(1)
        going = draining(rig)
        await rig.pass_seconds(1)
        mill.open.set()
        await rig.until(going.done)
        assert rig.row(uid).status is Status.SUSPENDED


async def test_R39_a_worker_that_went_says_goodbye() -> None:
    async with Rig(agent(DONE)) as rig:
        directory = rig.first.service.services.directory
        assert [worker.id for worker in await rig.passing(directory.workers())] == [rig.first.worker.owner]
        await rig.passing(rig.first.worker.drain())
        assert await rig.passing(directory.workers()) == []


async def test_R39_a_drain_ends_in_time_while_the_database_is_away() -> None:
    mill = Mill()
    async with Rig(mill.agent("look")) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(mill.began))
        rig.faults.down = True
        going, at = draining(rig), rig.clock.monotonic()
        await rig.until(going.done)
        await going
        assert rig.clock.monotonic() - at < GRACE + 5
        assert rig.row(uid).status is Status.RUNNING


async def test_R39_a_process_still_answers_while_it_drains() -> None:
    mill = Mill()
    async with Rig(mill.agent("look")) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(mill.began))
        going = asyncio.ensure_future(rig.first.service.drain())
        await rig.pass_seconds(1)
        assert not await rig.passing(rig.first.service.ready())
        assert await rig.cancel(uid)
        await rig.until(going.done)
        assert rig.row(uid).stop_reason == "cancelled"


async def test_R39_limits_of_the_run_still_hold_while_a_worker_goes() -> None:
    mill = Mill()
    async with Rig(mill.agent("look")) as rig:
        uid = await rig.begin(limits={"timeout_seconds": 4.0})
        await rig.until(lambda: bool(mill.began))
        going = draining(rig)
        await rig.until(going.done)
        assert (rig.row(uid).status, rig.row(uid).stop_reason) == (Status.STOPPED, "deadline")
        assert rig.clock.monotonic() < 4.0 + SETTINGS.cancel_grace + 1
