"""R2a: a write whose answer was lost is unknown, not failed. It is sent again until its fate is known; until then nothing else happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from runward import ToolContext, tool
from runward.core.errors import Unavailable
from runward.core.kernel.actor import Status
from runward.engine.callers import LOCAL
from tests.engine.rig import DONE, SETTINGS, TTL, Rig, Script, agent, calls


class Payments:
    """A tool that counts its effects."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.under_way = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

        @tool(effect="non_idempotent_write", needs_approval=False)
        async def pay(ctx: ToolContext) -> str:
            self.keys.append(ctx.idempotency_key)
            self.under_way.set()
            await self.open.wait()
            return "paid"

        self.tool = pay
        self.agent = agent(calls("pay"), DONE, tools=[pay])


Fault = Callable[[Script, str, int], None]


def _refused(script: Script, name: str, number: int) -> None:
    script.refuse(name, number)


def _lost(script: Script, name: str, number: int) -> None:
    script.lose(name, number)


def _lost_thrice(script: Script, name: str, number: int) -> None:
    script.lose(name, number, number + 1, number + 2)


faults = pytest.mark.parametrize("fault", [_refused, _lost, _lost_thrice])


@faults
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_R2a_a_commit_is_sent_again_and_counts_once(fault: Fault, number: int) -> None:
    """The answer with the mark, the outcome, and the end: lost before or after they happened, the run is the same."""
    payments = Payments()
    async with Rig(payments.agent) as rig, Rig(payments.agent) as well:
        golden = await well.run()
        fault(rig.faults, "commit", number)
        uid = await rig.run()
        row = rig.row(uid)
        assert row.status is Status.COMPLETED
        assert (row.revision, row.leg, row.last_seq) == (well.row(golden).revision, 1, well.row(golden).last_seq)
        assert rig.types(uid) == well.types(golden)
        assert payments.keys == [f"{golden}/1.1", f"{uid}/1.1"]
        assert "lease_lost" not in rig.first.telemetry.events


@faults
async def test_R2a_frames_are_sent_again_and_counted_once(fault: Fault) -> None:
    slow = agent(replace(DONE, text="one two three", chunk_delay_seconds=0.5))
    async with Rig(slow) as rig, Rig(slow) as well:
        golden = await well.run()
        fault(rig.faults, "append_frames", 2)
        uid = await rig.run()
        assert rig.row(uid).status is Status.COMPLETED
        assert [frame["seq"] for frame in rig.frames(uid)] == list(range(1, len(well.frames(golden)) + 1))
        assert "".join(frame["delta"] for frame in rig.frames(uid, "text-delta")) == "one two three"


async def test_R2a_what_was_sent_again_is_the_very_same_write() -> None:
    """While a write is unknown, what comes up meanwhile waits for the next one: the same write may not carry anything else."""
    payments = Payments()
    async with Rig(payments.agent) as rig:
        rig.faults.lose("commit", 1, 2)
        uid = await rig.begin()
        await rig.until(lambda: rig.faults.counts["commit"] == 2)
        first = rig.rows(uid).frames[:]
        assert await rig.cancel(uid)
        await rig.over(uid)
        assert rig.rows(uid).frames[: len(first)] == first
        assert rig.row(uid).stop_reason == "cancelled"


async def test_R2a_no_effect_starts_before_the_mark_is_known_to_be_durable() -> None:
    payments = Payments()
    async with Rig(payments.agent) as rig:
        rig.faults.lose("commit", 1, 2)
        uid = await rig.begin()
        await rig.until(lambda: "1.1" in rig.rows(uid).receipts)
        assert rig.rows(uid).receipts["1.1"].stage == "executing"
        await rig.until(lambda: rig.faults.counts["commit"] == 2)
        assert payments.keys == []
        await rig.over(uid)
        assert payments.keys == [f"{uid}/1.1"]


async def test_R2a_a_running_tool_goes_on_while_a_write_is_unknown() -> None:
    """A checkpoint's commit gets lost while the tool works; the tool is not touched, and its outcome is written behind it."""
    steps: list[str] = []

    @tool(effect="non_idempotent_write", needs_approval=False)
    async def work(ctx: ToolContext) -> str:
        saving = asyncio.ensure_future(_saved(ctx))
        await asyncio.sleep(0)
        steps.append("worked")
        await saving
        steps.append("saved")
        return "worked"

    async def _saved(ctx: ToolContext) -> None:
        await ctx.save_checkpoint("half")

    async with Rig(agent(calls("work"), DONE, tools=[work])) as rig:
        gate = rig.faults.hold("commit", 2, answered=True)
        uid = await rig.begin()
        await rig.reached(gate)
        assert steps == ["worked"]
        rig.faults.down = True
        gate.open.set()
        await rig.pass_seconds(1)
        assert steps == ["worked"]
        rig.faults.down = False
        await rig.over(uid)
        assert steps == ["worked", "saved"]
        assert rig.view(uid)["status"] == "completed"


async def test_R2a_a_write_that_is_unknown_for_longer_than_the_lease_ends_the_leg() -> None:
    """Nobody may say what became of it any more: another worker could have the run."""
    payments = Payments()
    async with Rig(payments.agent) as rig:
        gate = rig.faults.hold("commit", 1)
        uid = await rig.begin()
        await rig.reached(gate)
        rig.faults.down = True
        gate.open.set()
        await rig.pass_seconds(TTL + 1)
        assert payments.keys == []
        assert rig.first.telemetry.events.count("lease_lost") == 1
        rig.faults.down = False
        await rig.over(uid)
        assert (rig.row(uid).status, rig.row(uid).leg, payments.keys) == (Status.COMPLETED, 2, [f"{uid}/1.1"])


async def test_R2a_the_answer_stale_ends_the_leg_unless_it_is_exactly_this_write() -> None:
    """The run went on under another leg while a write was unknown: that is no sign that it landed."""
    payments = Payments()
    async with Rig(payments.agent) as rig:
        rig.faults.refuse("commit", 1)
        uid = await rig.begin()
        await rig.until(lambda: rig.faults.counts["commit"] == 1)
        row = rig.row(uid)
        rig.database.put(replace(row, revision=row.revision + 1, lease_owner="another", leg=row.leg + 1))
        await rig.pass_seconds(1)
        assert payments.keys == []
        assert rig.first.telemetry.events == ["lease_lost"]
        assert rig.row(uid).lease_owner == "another"


async def test_R2a_a_position_of_its_own_leg_that_another_write_made_is_no_sign_either() -> None:
    payments = Payments()
    async with Rig(payments.agent) as rig:
        rig.faults.refuse("commit", 1)
        uid = await rig.begin()
        await rig.until(lambda: rig.faults.counts["commit"] == 1)
        row = rig.row(uid)
        rig.database.put(replace(row, revision=row.revision + 1))
        await rig.pass_seconds(1)
        assert payments.keys == []
        assert rig.first.telemetry.events == ["lease_lost"]


# -- claims ----------------------------------------------------------------------------------------------------------------


async def test_R2a_a_claim_without_an_answer_is_settled_by_giving_back_what_it_took() -> None:
    payments = Payments()
    async with Rig(payments.agent) as rig:
        rig.faults.lose("claim", 1)
        uid = await rig.begin()
        await rig.over(uid)
        assert rig.row(uid).status is Status.COMPLETED
        assert (rig.row(uid).leg, rig.row(uid).recoveries) == (2, 0)
        assert rig.clock.monotonic() < TTL / 2, "it does not wait until the lease runs out"
        assert rig.faults.counts["disown"] == 1
        assert payments.keys == [f"{uid}/1.1"]


async def test_R2a_a_claim_that_never_happened_costs_nothing() -> None:
    payments = Payments()
    async with Rig(payments.agent) as rig:
        rig.faults.refuse("claim", 1)
        uid = await rig.run()
        assert (rig.row(uid).status, rig.row(uid).leg) == (Status.COMPLETED, 1)


async def test_R2a_settling_a_claim_leaves_the_runs_that_are_driven_alone() -> None:
    payments = Payments()
    payments.open.clear()
    async with Rig(payments.agent) as rig:
        driven = await rig.begin()
        await rig.until(payments.under_way.is_set)
        rig.faults.lose("claim", 1)
        other = await rig.begin()
        await rig.until(lambda: rig.row(other).leg == 2)
        assert (rig.row(driven).leg, rig.row(driven).status) == (1, Status.RUNNING)
        payments.open.set()
        await rig.over(driven)
        await rig.over(other)
        assert [rig.row(uid).recoveries for uid in (driven, other)] == [0, 0]
        assert sorted(payments.keys) == sorted([f"{driven}/1.1", f"{other}/1.1"])


async def test_R2a_a_settling_without_an_answer_is_repeated_before_the_next_claim() -> None:
    payments = Payments()
    async with Rig(payments.agent) as rig:
        rig.faults.lose("claim", 1)
        rig.faults.refuse("disown", 1)
        rig.faults.lose("disown", 2)
        uid = await rig.run()
        assert rig.row(uid).status is Status.COMPLETED
        settling = [name for name in rig.faults.done if name in ("claim", "owned", "disown")]
        assert settling[settling.index("owned") :][:6] == ["owned", "disown", "owned", "disown", "owned", "claim"]


async def test_R2a_a_run_whose_lease_was_lost_is_not_given_back_by_settling() -> None:
    """Its effect may still be going on: only its lease running out, which counts as a recovery, lets somebody else have it."""
    payments = Payments()
    payments.open.clear()
    async with Rig(payments.agent) as rig:
        uid = await rig.begin()
        await rig.until(payments.under_way.is_set)
        rig.first.loses(uid)
        await rig.until(lambda: "lease_lost" in rig.first.telemetry.events)
        rig.faults.lose("claim", 1)
        await rig.begin()
        await rig.until(lambda: rig.faults.counts["disown"] == 1)
        assert rig.faults.counts["owned"] == 1
        assert (rig.row(uid).status, rig.row(uid).leg) == (Status.RUNNING, 1)
        await rig.over(uid)
        assert (rig.row(uid).leg, rig.row(uid).recoveries) == (2, 1)
        assert rig.row(uid).status is Status.SUSPENDED


async def test_R2a_a_release_that_landed_unheard_does_not_mix_up_the_next_leg_with_the_last() -> None:
    """The run is given back, nobody is told, and the same worker takes it again while the old leg still asks what became of its write.

    The old leg asks no more, and the new one is driven, and its lease kept, like any other.
    """
    payments = Payments()
    payments.open.clear()
    slow = replace(DONE, text="one two three", chunk_delay_seconds=TTL)
    async with Rig(agent(calls("pay"), slow, tools=[payments.tool]), settings=replace(SETTINGS, poll_with_bus=0.05)) as rig:
        uid = await rig.begin()
        await rig.until(payments.under_way.is_set)
        assert await rig.passing(rig.first.service.services.store.ask_drain(uid)) == 1
        await rig.pass_seconds(0.1)
        rig.faults.lose("commit", 1)
        payments.open.set()
        await rig.until(lambda: rig.row(uid).leg == 2)
        await rig.pass_seconds(0.1)
        written = rig.faults.counts["commit"]
        await rig.pass_seconds(0.4)
        assert rig.faults.counts["commit"] == written
        assert rig.first.worker.driven() == (uid,) and rig.first.worker.free == SETTINGS.concurrency - 1
        await rig.over(uid)
        assert (rig.row(uid).status, rig.row(uid).leg, rig.row(uid).recoveries) == (Status.COMPLETED, 2, 0)
        await rig.pass_seconds(0.1)
        assert rig.first.worker.driven() == () and rig.first.worker.free == SETTINGS.concurrency
        assert payments.keys == [f"{uid}/1.1"]


# -- callers ---------------------------------------------------------------------------------------------------------------


@faults
async def test_R2a_a_creation_asked_for_again_with_its_key_is_the_same_run(fault: Fault) -> None:
    async with Rig(agent(DONE)) as rig:
        fault(rig.faults, "create", 1)
        created = None
        while created is None:
            with contextlib.suppress(Unavailable):
                created = await rig.create(key="k")
        assert len(rig.database.actors) == 1
        await rig.over(created.row.uid)
        assert (await rig.create(key="k")).row.uid == created.row.uid


async def test_R2a_an_answer_is_withheld_while_a_creation_is_unknown() -> None:
    async with Rig(agent(DONE)) as rig:
        rig.faults.lose("create", 1)
        with pytest.raises(Unavailable):
            await rig.create(key="k")
        assert (await rig.create(key="k")).replayed


@faults
async def test_R2a_a_cancel_asked_for_again_counts_once(fault: Fault) -> None:
    payments = Payments()
    payments.open.clear()
    async with Rig(payments.agent) as rig:
        uid = await rig.begin()
        await rig.until(payments.under_way.is_set)
        fault(rig.faults, "append_mail", 1)
        with pytest.raises(Unavailable):
            await rig.passing(rig.first.service.commands.cancel_run(LOCAL, uid, "enough"))
        accepted = False
        while not accepted:
            with contextlib.suppress(Unavailable):
                accepted = await rig.cancel(uid)
        assert [mail.kind for mail in rig.rows(uid).mail] == ["cancel"]
        await rig.over(uid)
        assert rig.row(uid).stop_reason == "cancelled"
