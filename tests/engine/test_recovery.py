"""R40, R41, R41a: runs of dead workers are recovered by themselves, poisonous ones with care; a worker takes only what it can serve."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from runward import Agent, Reply, ToolContext, tool
from runward.core.kernel.actor import FORMAT, Status
from runward.core.kernel.mail import Letter, MailKind
from runward.ports.store import Append
from tests.engine.rig import DONE, SETTINGS, TTL, Process, Rig, agent, breathe, calls


class Trap:
    """A tool that never returns, and notes when it began; a worker that runs it can be killed there."""

    def __init__(self, effect: Any = "read") -> None:
        self.began: list[tuple[str, float]] = []
        self.shut = True
        self.passes = 0
        """How many calls return before the trap shuts."""
        self.open = asyncio.Event()

        @tool(effect=effect, needs_approval=False, timeout_seconds=10_000)
        async def step(ctx: ToolContext) -> str:
            self.began.append((ctx.run_id, self.rig.clock.monotonic()))
            if self.passes > 0:
                self.passes -= 1
            elif self.shut:
                await self.open.wait()
            return "stepped"

        self.agent = agent(calls("step"), DONE, tools=[step])

    async def calls(self, rig: Rig, number: int) -> None:
        """Returns once so many calls have begun."""
        await rig.until(lambda: len(self.began) == number)

    async def killed(self, rig: Rig, process: Process) -> None:
        """The process dies with its next call under way."""
        self.rig = rig
        before = len(self.began)
        await rig.until(lambda: len(self.began) > before, limit_seconds=1_000)
        await process.die()


# -- recovering --------------------------------------------------------------------------------------------------------------


async def test_R40_a_run_of_a_dead_worker_goes_on_once_its_lease_has_run_out() -> None:
    trap = Trap()
    async with Rig(trap.agent) as rig:
        uid = await rig.begin()
        await trap.killed(rig, rig.first)
        died, trap.shut = rig.clock.monotonic(), False
        other = await rig.start()
        row = await rig.over(uid)
        assert (row.status, row.leg) == (Status.COMPLETED, 2)
        assert TTL - 1 <= rig.clock.monotonic() - died <= TTL + SETTINGS.poll_with_bus + 1
        assert len(trap.began) == 2
        assert other.telemetry.problems == []


async def test_R40_a_worker_that_lives_keeps_its_runs_however_long_they_take() -> None:
    trap = Trap()
    async with Rig(trap.agent) as rig:
        trap.rig = rig
        await rig.start()
        uid = await rig.begin()
        await rig.pass_seconds(20 * TTL)
        assert (rig.row(uid).leg, len(trap.began)) == (1, 1)


async def test_R40_orphans_and_the_queue_take_turns() -> None:
    """A worker with one slot recovers a run, then drives one that waits, and so on: neither kind waits for all of the other."""
    trap = Trap()
    async with Rig(trap.agent, worker=False) as rig:
        trap.rig = rig
        first = await rig.start()
        orphans = [await rig.begin() for _ in range(4)]
        await trap.calls(rig, 4)
        await first.die()
        await rig.pass_seconds(TTL + 1)
        trap.shut = False
        queued = [await rig.begin() for _ in range(4)]
        await rig.start(settings=replace(SETTINGS, concurrency=1))
        for uid in (*orphans, *queued):
            await rig.over(uid)
        assert [uid in orphans for uid, _ in trap.began[4:]] == [True, False] * 4


async def test_R40_after_too_many_recoveries_the_run_ends_failed() -> None:
    """I-19: it says so, and its history is paired."""
    trap = Trap()
    settings = replace(SETTINGS, max_recoveries=3)
    async with Rig(trap.agent, settings=settings) as rig:
        uid = await rig.begin()
        await trap.killed(rig, rig.first)
        for _ in range(3):
            await trap.killed(rig, await rig.start())
        assert (rig.row(uid).status, rig.row(uid).recoveries) == (Status.RUNNING, 3)
        await rig.start()
        row = await rig.over(uid)
        assert (row.status, row.leg, row.recoveries) == (Status.FAILED, 5, 4)
        error = rig.view(uid)["error"]
        assert (error["code"], error["transient"]) == ("recoveries_exhausted", False)
        assert len(trap.began) == 4
        assert len(rig.results(uid)) == 1


async def test_R40_what_gets_on_between_two_deaths_is_not_poisonous() -> None:
    """The count returns to 0 when the run records a model's answer or a tool's outcome."""
    trap = Trap()
    turns = [calls("step")] * 6
    poison = replace(trap.agent, model=agent(*turns, DONE).model)
    async with Rig(poison, settings=replace(SETTINGS, max_recoveries=1)) as rig:
        uid = await rig.begin()
        await trap.killed(rig, rig.first)
        for number in range(2, 7):
            trap.passes = 1
            process = await rig.start()
            await trap.calls(rig, 2 * number - 1)
            await process.die()
        trap.shut = False
        await rig.start()
        row = await rig.over(uid)
        assert (row.status, row.recoveries, row.leg) == (Status.COMPLETED, 0, 7)


async def test_R40_a_recovery_that_gets_nowhere_keeps_its_count() -> None:
    trap = Trap()
    async with Rig(trap.agent) as rig:
        uid = await rig.begin()
        await trap.killed(rig, rig.first)
        await trap.killed(rig, await rig.start())
        assert rig.row(uid).recoveries == 1
        assert rig.row(uid).revision == 5, "the second leg has committed: it marked the call anew"
        await rig.start()
        await rig.until(lambda: len(trap.began) == 3)
        assert rig.row(uid).recoveries == 2


async def test_R40_suspects_wait_longer_each_time() -> None:
    """The first recovery comes at once; from the second on the delay doubles."""
    trap = Trap()
    async with Rig(trap.agent) as rig:
        await rig.begin()
        await trap.killed(rig, rig.first)
        for _ in range(4):
            await trap.killed(rig, await rig.start())
        times = [at for _, at in trap.began]
        waits = [later - earlier - TTL for earlier, later in pairwise(times)]
        slack = SETTINGS.poll_with_bus + 1
        for wait, least in zip(waits, (0, SETTINGS.recovery_delay, 2 * SETTINGS.recovery_delay, 4 * SETTINGS.recovery_delay), strict=True):
            assert least - 1 <= wait <= least + slack


async def test_R40_a_worker_takes_one_suspect_at_a_time() -> None:
    """A poisonous run must not take its neighbours along: two suspects are never in one worker, and healthy runs are not held up."""
    trap = Trap()
    async with Rig(trap.agent) as rig:
        uids = [await rig.begin() for _ in range(3)]
        trap.rig = rig
        await rig.until(lambda: len(trap.began) == 3)
        await rig.first.die()
        second = await rig.start()
        await rig.until(lambda: len(trap.began) == 6)
        await second.die()
        third = await rig.start()
        rig.processes.insert(0, rig.processes.pop())
        await rig.until(lambda: len(trap.began) == 7)
        await rig.pass_seconds(3 * TTL)
        assert len(trap.began) == 7
        assert [rig.row(uid).recoveries for uid in uids].count(2) == 1
        trap.shut = False
        healthy = await rig.run()
        assert rig.row(healthy).status is Status.COMPLETED
        trap.open.set()
        for uid in uids:
            assert (await rig.over(uid)).status is Status.COMPLETED
        assert third.telemetry.events == []


async def test_R40_a_suspect_that_gets_on_makes_room_for_the_next() -> None:
    trap = Trap()
    async with Rig(replace(trap.agent, model=agent(calls("step"), calls("step"), DONE).model)) as rig:
        uids = [await rig.begin() for _ in range(2)]
        trap.rig = rig
        await rig.until(lambda: len(trap.began) == 2)
        await rig.first.die()
        second = await rig.start()
        await rig.until(lambda: len(trap.began) == 4)
        await second.die()
        await rig.start()
        await rig.until(lambda: len(trap.began) == 5)
        trap.open.set()
        trap.open = asyncio.Event()
        await rig.until(lambda: len(trap.began) >= 7)
        assert [rig.row(uid).recoveries for uid in uids if rig.row(uid).lease_owner].count(2) <= 1
        trap.open.set()


async def test_R40_suspects_that_end_follow_each_other_at_once() -> None:
    """Not one a poll: many orphans that died twice would wait for minutes."""
    trap = Trap()
    async with Rig(trap.agent) as rig:
        uids = [await rig.begin() for _ in range(6)]
        trap.rig = rig
        await rig.until(lambda: len(trap.began) == 6)
        await rig.first.die()
        second = await rig.start()
        await rig.until(lambda: len(trap.began) == 12)
        await second.die()
        await rig.pass_seconds(3 * TTL + 10)  # every one of them is due
        trap.shut = False
        begun = rig.clock.monotonic()
        await rig.start(settings=replace(SETTINGS, poll=60.0, poll_with_bus=60.0))
        for uid in uids:
            await rig.until(lambda uid=uid: rig.row(uid).status is Status.COMPLETED)  # type: ignore[misc]
        assert rig.clock.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("operation", "problem"),
    [
        ("claim", "claim_failed"),
        ("heads", "look_failed"),
        ("beat", "beat_failed"),
        ("renew", "renewal_failed"),
        ("renewals", "renewal_failed"),
    ],
)
async def test_a_bug_in_one_of_a_workers_loops_does_not_end_it(operation: str, problem: str) -> None:
    """R40: a worker that stopped claiming, looking or renewing would look alive and be of no use."""
    trap = Trap()
    async with Rig(trap.agent) as rig:
        trap.rig = rig
        rig.faults.refuse(operation, error=RuntimeError("a bug"))
        uid = await rig.begin()
        await rig.pass_seconds(2 * TTL)
        assert problem in rig.first.telemetry.names
        assert (rig.row(uid).leg, len(trap.began)) == (1, 1)
        trap.open.set()
        assert (await rig.over(uid)).status is Status.COMPLETED
        assert rig.faults.counts[operation] > (operation != "renewals")


# -- R41 ---------------------------------------------------------------------------------------------------------------------


def another(*replies: Reply) -> Agent:
    return agent(*replies or (DONE,), name="another")


async def test_R41_runs_of_a_binding_that_a_worker_does_not_have_are_left_alone() -> None:
    """I-26: neither failed nor touched."""
    async with Rig(agent(DONE)) as rig:
        rig.faults.refuse("claim", *range(1, 10_000))
        uid = await rig.begin()
        before = rig.row(uid)
        stranger = await rig.start(another())
        await rig.pass_seconds(10 * TTL)
        assert rig.row(uid) == before
        assert stranger.faults.counts["commit"] == 0


async def test_R41_also_when_their_worker_died() -> None:
    trap = Trap()
    async with Rig(trap.agent) as rig:
        uid = await rig.begin()
        await trap.killed(rig, rig.first)
        before = rig.row(uid)
        await rig.start(another())
        await rig.pass_seconds(10 * TTL)
        assert rig.row(uid) == before
        trap.shut = False
        await rig.start()
        assert (await rig.over(uid)).status is Status.COMPLETED


async def test_R41_another_version_is_another_binding_unless_it_accepts_the_old_one() -> None:
    old = agent(Reply(error="bad_request"), version="1")
    async with Rig(old) as rig:
        rig.faults.refuse("claim", *range(1, 10_000))
        uid = await rig.begin()
        await rig.start(agent(DONE, version="2"))
        await rig.pass_seconds(TTL)
        assert rig.row(uid).leg == 0
        await rig.start(agent(DONE, version="3", accepts=[rig.row(uid).binding]))
        assert (await rig.over(uid)).status is Status.COMPLETED


async def caretaker_of(rig: Rig) -> Process:
    """A worker of another agent, the only one that lives."""
    await rig.first.die()
    process = await rig.start(another())
    rig.processes.insert(0, rig.processes.pop())
    return process


@pytest.mark.parametrize("state", ["queued", "dead"])
async def test_R41_any_worker_cancels_a_run(state: str) -> None:
    """A caretaker leg: no author code, no model call; a call that was under way is accounted for by its receipt."""
    trap = Trap("non_idempotent_write")
    async with Rig(trap.agent) as rig:
        trap.rig = rig
        if state == "queued":
            rig.faults.refuse("claim", *range(1, 10_000))
        uid = await rig.begin()
        if state == "dead":
            await rig.until(lambda: bool(trap.began))
        await caretaker_of(rig)
        await rig.cancel(uid)
        row = await rig.over(uid)
        assert (row.status, row.stop_reason) == (Status.STOPPED, "cancelled")
        assert len(trap.began) == (state == "dead")
        states = [call["state"] for call in rig.view(uid)["stop"]["details"]["calls"]]
        assert states == ([] if state == "queued" else ["unknown"])
        assert rig.view(uid)["task_outcome"] == ("failed" if state == "queued" else "needs_reconciliation")


@pytest.mark.parametrize("state", ["queued", "suspended", "dead"])
async def test_R41_any_worker_ends_a_run_at_its_deadline(state: str) -> None:
    """R35a: `expires_seconds` bounds its whole life, wherever it stands."""
    trap = Trap("non_idempotent_write")
    async with Rig(trap.agent) as rig:
        trap.rig = rig
        if state == "queued":
            rig.faults.refuse("claim", *range(1, 10_000))
        uid = await rig.begin(limits={"expires_seconds": 100.0})
        if state != "queued":
            await trap.killed(rig, rig.first)
        if state == "suspended":
            last = await rig.start()
            assert (await rig.over(uid)).status is Status.SUSPENDED
            await last.die()
        await caretaker_of(rig)
        await rig.until(lambda: rig.row(uid).status.ended, limit_seconds=200)
        assert rig.row(uid).stop_reason == "deadline"
        assert 100 <= rig.clock.monotonic() <= 100 + TTL + SETTINGS.poll_with_bus
        assert len(trap.began) == (state != "queued")


async def test_R41_any_worker_ends_a_run_whose_recoveries_are_exhausted() -> None:
    trap = Trap()
    async with Rig(trap.agent, settings=replace(SETTINGS, max_recoveries=1)) as rig:
        uid = await rig.begin()
        await trap.killed(rig, rig.first)
        second = await rig.start()
        await trap.killed(rig, second)
        await rig.start(another())
        row = await rig.over(uid)
        assert (row.status, rig.view(uid)["error"]["code"]) == (Status.FAILED, "recoveries_exhausted")


async def test_R41_a_caretaker_that_has_nothing_to_do_gives_the_run_back_to_those_who_can_drive_it() -> None:
    """Care was due for mail that turns out to be nothing; the run's place and state are as before."""
    trap = Trap()
    trap.shut = False
    async with Rig(trap.agent) as rig:
        trap.rig = rig
        rig.faults.refuse("claim", *range(1, 10_000))
        uid = await rig.begin()
        await caretaker_of(rig)
        letter = Append(uid=uid, letters=(Letter(kind=MailKind.STEER, key="k"),), care=True)
        await rig.passing(rig.first.service.services.store.append_mail(letter))
        await rig.until(lambda: rig.row(uid).leg == 1 and rig.row(uid).lease_owner is None)
        assert (rig.row(uid).status, rig.row(uid).care_at) == (Status.QUEUED, None)
        assert trap.began == []
        await rig.pass_seconds(TTL)
        assert rig.row(uid).leg == 1, "care is not due any more"
        await rig.start()
        assert (await rig.over(uid)).status is Status.COMPLETED
        assert [frame["attempt"] for frame in rig.frames(uid, "start-step") if frame["step"] == 1] == [1, 2]


# -- R41a --------------------------------------------------------------------------------------------------------------------


async def test_R41a_a_run_that_a_newer_version_wrote_is_left_as_it_is() -> None:
    async with Rig(agent(DONE)) as rig:
        rig.faults.refuse("claim", *range(1, 3))
        uid = await rig.begin()
        rig.database.put(replace(rig.row(uid), format=FORMAT + 1, state="of another time"))
        before = rig.row(uid)
        await rig.pass_seconds(10 * TTL)
        assert rig.row(uid) == before
        await breathe()
        assert rig.first.telemetry.names.count("claim_failed") == 2


async def test_a_run_whose_stored_state_nobody_can_read_ends_failed() -> None:
    """Taking it again and again would help nobody."""
    async with Rig(agent(DONE), worker=False) as rig:
        uid = await rig.begin()
        rig.rows(uid).envelope = replace(rig.row(uid), state="{not a state")
        process = await rig.start()
        await rig.over(uid)
        error = rig.view(uid)["error"]
        assert (rig.row(uid).status, error["code"], error["transient"]) == (Status.FAILED, "internal", False)
        assert "state_unreadable" in process.telemetry.names
