"""R3, R3a, R36: the lease says who is alive, the revision whose write counts, and nothing starts on a lease that is about to run out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from runward import ToolContext, tool
from runward.core.kernel.actor import Status
from runward.core.usage import Usage
from runward.engine.hold import Hold, LeaseLost
from runward.engine.timing import StoreTime
from runward.ports.models import ModelAnswer, ModelDelta, ModelRequest
from runward.testing import VirtualClock
from tests.engine.rig import DONE, SETTINGS, TTL, Rig, agent, breathe, calls

THIRD = TTL / 3


def held(clock: VirtualClock, renewals: list[float] | None = None) -> Hold:
    """A hold taken now, that notes when a renewal is asked for."""
    asked = renewals if renewals is not None else []
    return Hold(clock, TTL, clock.monotonic(), lambda: asked.append(clock.monotonic()))


class Slow:
    """A model and a tool that say when they begin, and end when they are let."""

    name = "scripted:slow"

    def __init__(self) -> None:
        self.began: list[str] = []
        self.cancelled: list[str] = []
        self.open = asyncio.Event()

        @tool(effect="non_idempotent_write", needs_approval=False, timeout_seconds=10_000)
        async def work(ctx: ToolContext) -> str:
            await self._until_open(f"tool {ctx.attempt}")
            return "worked"

        self.tool = work
        self.agent = agent(calls("work"), DONE, tools=[work])

    async def call(self, request: ModelRequest, on_delta: Callable[[ModelDelta], Awaitable[None]]) -> ModelAnswer:
        await self._until_open(f"model {request.step}/{request.attempt}")
        return ModelAnswer(text="done", reasoning="", calls=(), finish="stop", usage=Usage(), model=self.name)

    async def _until_open(self, what: str) -> None:
        self.began.append(what)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled.append(what)
            raise


# -- the hold ----------------------------------------------------------------------------------------------------------------


async def test_R3a_a_hold_counts_from_before_the_last_good_renewal_was_sent() -> None:
    clock = VirtualClock()
    hold = held(clock)
    clock.advance(5)
    assert hold.remaining == TTL - 5
    sent_at = clock.monotonic()
    clock.advance(2)
    hold.extend(sent_at)
    assert hold.remaining == TTL - 2
    hold.extend(sent_at - 1)
    assert hold.remaining == TTL - 2, "an older renewal's answer takes nothing away"


async def test_R3a_with_a_third_left_nothing_is_renewed_first() -> None:
    clock, asked = VirtualClock(), list[float]()
    hold = held(clock, asked)
    clock.advance(TTL - THIRD)
    await hold.fresh()
    assert asked == []


async def test_R3a_with_less_than_a_third_it_is_renewed_first() -> None:
    clock, asked = VirtualClock(), list[float]()
    hold = held(clock, asked)
    clock.advance(TTL - THIRD + 0.001)
    fresh = asyncio.ensure_future(hold.fresh())
    await breathe()
    assert len(asked) == 1
    assert not fresh.done()
    hold.extend(clock.monotonic() - TTL + 1)  # good, and already old
    await breathe()
    assert not fresh.done()
    hold.extend(clock.monotonic())
    await breathe()
    assert fresh.done()


@pytest.mark.parametrize("how", ["answered lost", "runs out"])
async def test_R3a_nothing_starts_when_the_renewal_does_not_come(how: str) -> None:
    clock = VirtualClock()
    hold = held(clock)
    clock.advance(TTL - 1)
    fresh = asyncio.ensure_future(hold.fresh())
    await breathe()
    if how == "answered lost":
        hold.lose()
    else:
        clock.advance(1)
    await breathe()
    with pytest.raises(LeaseLost):
        await fresh


async def test_R3a_a_hold_that_ran_out_stays_lost() -> None:
    """Whoever was told that the lease could be somebody else's has stopped: a late renewal must not let the others go on."""
    clock = VirtualClock()
    hold = held(clock)
    clock.advance(TTL)
    with pytest.raises(LeaseLost):
        hold.check()
    hold.extend(clock.monotonic())
    with pytest.raises(LeaseLost):
        hold.check()


async def test_R36_an_answer_to_something_sent_before_the_lease_was_taken_says_nothing_about_it() -> None:
    clock = VirtualClock()
    clock.advance(10)
    hold = held(clock)
    assert not hold.older_than(9.0)
    assert hold.older_than(10.5)


async def test_R36_store_time_is_the_stores_and_never_ahead() -> None:
    clock = VirtualClock()
    time = StoreTime(clock)
    with pytest.raises(RuntimeError):
        time.now()
    clock.advance(1.0)
    time.learn(1_700_000_000_000)
    clock.advance(0.25)
    assert time.now() == 1_700_000_000_250
    assert time.seconds_until(1_700_000_001_000) == 0.75


# -- starting ----------------------------------------------------------------------------------------------------------------


async def on_a_short_lease(rig: Rig, uid: str) -> None:
    """Lets the run's lease become short: for a while no renewal comes through."""
    rig.faults.refuse("renew", *range(1, 1_000))
    await rig.pass_seconds(TTL - THIRD + 1)
    assert rig.row(uid).leg == 1


async def test_R3a_a_tool_is_not_started_with_less_than_a_third_of_the_lease() -> None:
    """Its mark is durable; the effect waits for a renewal, and when none comes it never starts."""
    slow = Slow()
    async with Rig(slow.agent) as rig:
        gate = rig.faults.hold("commit", 1, answered=True)
        uid = await rig.begin()
        await rig.reached(gate)
        await on_a_short_lease(rig, uid)
        gate.open.set()
        await rig.pass_seconds(1)
        assert (slow.began, rig.rows(uid).receipts["1.1"].stage) == ([], "executing")
        await rig.until(lambda: "lease_lost" in rig.first.telemetry.events)
        assert slow.began == []


async def test_R3a_it_starts_once_the_renewal_is_there() -> None:
    slow = Slow()
    async with Rig(slow.agent) as rig:
        gate = rig.faults.hold("commit", 1, answered=True)
        uid = await rig.begin()
        await rig.reached(gate)
        await on_a_short_lease(rig, uid)
        assert rig.faults.counts["renew"] > 0
        renewal = rig.faults.hold("renew", 1)
        gate.open.set()
        await rig.reached(renewal)
        assert slow.began == []
        renewal.open.set()
        await rig.until(lambda: bool(slow.began), limit_seconds=1)
        assert slow.began == ["tool 1"]


async def test_R3a_a_model_call_is_not_started_either() -> None:
    slow = Slow()
    async with Rig(agent(model=slow)) as rig:
        gate = rig.faults.hold("messages", 1)
        uid = await rig.begin()
        await rig.reached(gate)
        await on_a_short_lease(rig, uid)
        gate.open.set()
        await rig.pass_seconds(1)
        assert slow.began == []
        await rig.until(lambda: "lease_lost" in rig.first.telemetry.events)
        assert slow.began == []


# -- losing ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["tool", "model"])
async def test_R3a_a_renewal_answered_lost_aborts_the_leg_at_once(what: str) -> None:
    slow = Slow()
    async with Rig(slow.agent if what == "tool" else agent(model=slow)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(slow.began))
        before, last_seq = rig.clock.monotonic(), rig.row(uid).last_seq
        rig.database.put(replace(rig.row(uid), lease_owner="another", leg=2, revision=rig.row(uid).revision + 1))
        await rig.until(lambda: bool(slow.cancelled), limit_seconds=THIRD + 1)
        assert rig.clock.monotonic() - before <= THIRD
        await breathe()
        assert rig.first.telemetry.events == ["lease_lost"]
        assert rig.row(uid).last_seq == last_seq
        assert rig.first.worker.driven() == ()


async def test_R3a_also_while_a_write_is_under_way() -> None:
    slow = Slow()

    @tool(effect="read")
    async def quick() -> str:
        return "quick"

    async with Rig(agent(calls("quick", "work"), DONE, tools=[quick, slow.tool])) as rig:
        outcome_of_quick = rig.faults.hold("commit", 2)
        uid = await rig.begin()
        await rig.reached(outcome_of_quick)
        assert slow.began == ["tool 1"]
        rig.first.loses(uid)
        await breathe()
        assert slow.cancelled == ["tool 1"]
        outcome_of_quick.open.set()
        await rig.until(lambda: "lease_lost" in rig.first.telemetry.events)


async def test_R3_a_paused_worker_that_wakes_writes_nothing() -> None:
    """The run went on elsewhere and is over; what the first worker still had in hand changes neither state nor journal."""
    slow = Slow()
    async with Rig(slow.agent) as rig:
        gate = rig.faults.hold("commit", 2)
        uid = await rig.begin()
        await rig.until(lambda: bool(slow.began))
        slow.open.set()
        await rig.reached(gate)
        rig.faults.down = True
        other = await rig.start()
        row = await rig.over(uid)
        assert (row.status, row.leg) == (Status.SUSPENDED, 2)
        rig.faults.down = False
        gate.open.set()
        await rig.pass_seconds(2 * TTL)
        assert rig.row(uid) == row
        assert slow.began == ["tool 1"]
        assert "lease_lost" in rig.first.telemetry.events
        assert other.telemetry.events == []


async def test_R3_frames_of_a_lost_lease_are_refused() -> None:
    """And that is how the leg hears of it, at once: what runs is stopped."""
    slow = Slow()

    @tool(effect="read", timeout_seconds=1_000)
    async def report(ctx: ToolContext) -> str:
        await ctx.progress("first")
        await slow.open.wait()
        await ctx.progress("second")
        slow.open.clear()
        await slow._until_open("report")
        return "reported"

    async with Rig(agent(calls("report"), DONE, tools=[report])) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(rig.frames(uid, "tool-progress")))
        rig.database.put(replace(rig.row(uid), lease_owner="another", leg=2, revision=rig.row(uid).revision + 1))
        frames = rig.frames(uid)
        slow.open.set()
        await rig.until(lambda: "lease_lost" in rig.first.telemetry.events, limit_seconds=1)
        assert (rig.frames(uid), slow.cancelled) == (frames, ["report"])


async def test_R3_the_worker_that_takes_a_lapsed_run_is_another_leg_even_of_the_same_worker() -> None:
    slow = Slow()
    async with Rig(slow.agent) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(slow.began))
        owner = rig.row(uid).lease_owner
        rig.faults.down = True
        await rig.pass_seconds(TTL + 2)
        assert slow.cancelled == ["tool 1"]
        rig.faults.down = False
        row = await rig.over(uid)
        assert (row.leg, row.recoveries) == (2, 1)
        assert owner == rig.first.worker.owner
        assert rig.view(uid)["pending"]["unknown_effects"][0]["tool_call_id"] == "1.1"


# -- renewing ----------------------------------------------------------------------------------------------------------------


async def test_R36_a_lease_is_renewed_every_third_of_it() -> None:
    slow = Slow()
    async with Rig(slow.agent) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(slow.began))
        await rig.pass_seconds(10 * TTL)
        assert 29 <= rig.faults.counts["renew"] <= 31
        assert (rig.row(uid).leg, rig.row(uid).recoveries, slow.cancelled) == (1, 0, [])


async def test_R36_a_renewal_that_throws_counts_as_lost_only_once_the_lease_could_have_run_out() -> None:
    slow = Slow()
    async with Rig(slow.agent) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(slow.began))
        rig.faults.down = True
        await rig.pass_seconds(TTL - THIRD - 1)
        assert slow.cancelled == []
        rig.faults.down = False
        await rig.pass_seconds(3 * TTL)
        assert (slow.cancelled, rig.row(uid).leg) == ([], 1)
        rig.faults.down = True
        await rig.pass_seconds(TTL + 3)
        assert slow.cancelled == ["tool 1"]


async def test_R36_a_lapsed_lease_that_nobody_took_can_be_renewed() -> None:
    """The store's lease ran out while this worker's own count had not: its renewal comes first, and nothing is lost."""
    slow = Slow()
    async with Rig(slow.agent) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(slow.began))
        rig.database.put(replace(rig.row(uid), lease_until=rig.database.now() - 1))
        rig.faults.refuse("claim", *range(1, 100))
        await rig.pass_seconds(TTL)
        assert (rig.row(uid).leg, slow.cancelled) == (1, [])
        assert (rig.row(uid).lease_until or 0) > rig.database.now()


async def test_R36_the_stores_clock_decides_and_not_a_workers() -> None:
    """Two workers whose clocks began at other moments: neither takes what the other one holds."""
    slow = Slow()
    async with Rig(slow.agent) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(slow.began))
        ahead = rig.process()
        ahead.service.services.time.learn(rig.database.now() + 10 * round(TTL) * 1_000)
        await rig.passing(ahead.service.start())
        await rig.pass_seconds(3 * TTL)
        assert (rig.row(uid).leg, rig.row(uid).lease_owner) == (1, rig.first.worker.owner)


async def test_R36_news_from_before_a_leg_began_does_not_end_it() -> None:
    """A poll asked where the run stands, the run was given back and taken again, and only then the answer comes."""
    slow = Slow()
    async with Rig(slow.agent, settings=replace(SETTINGS, poll_with_bus=1.0)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(slow.began))
        look = rig.faults.hold("heads", 1, answered=True)
        await rig.reached(look)
        await rig.passing(rig.first.service.services.store.ask_drain(uid))
        await rig.until(lambda: rig.faults.counts["renew"] == 1)
        slow.open.set()
        await rig.until(lambda: rig.row(uid).leg == 2)
        look.open.set()
        row = await rig.over(uid)
        assert (row.status, row.leg) == (Status.COMPLETED, 2)
        assert "lease_lost" not in rig.first.telemetry.events


async def test_R36_owners_are_unique_per_process_start() -> None:
    """Two workers of one host and one process number are told apart (A-05)."""
    async with Rig(agent(DONE)) as rig:
        again = rig.process()
        owners: list[Any] = [rig.first.worker.owner]
        await rig.passing(again.service.start())
        owners.append(again.worker.owner.replace("-2-", "-1-"))
        assert owners[0] != owners[1]
        assert [owner.rsplit("-", 1)[0] for owner in owners] == ["rig-1", "rig-1"]
