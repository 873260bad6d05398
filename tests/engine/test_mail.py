"""R6, R6a: an accepted input counts, whatever the leg was about to write; all mail is applied, in order, and what has no use says so."""

from __future__ import annotations

import asyncio
import json

import pytest

from runward import ToolContext, UnknownOutcome, tool
from runward.core.kernel.actor import Status
from runward.core.kernel.commit import Appended
from runward.core.kernel.mail import Letter, MailKind
from runward.ports.store import Append
from tests.engine.rig import DONE, Gate, Rig, agent, breathe, calls


class Till:
    """Tools of two effects that count their starts, and wait while the till is closed."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.open = asyncio.Event()
        self.open.set()

        @tool(effect="non_idempotent_write", needs_approval=False)
        async def pay(ctx: ToolContext) -> str:
            return await self._serve("pay")

        @tool(effect="read")
        async def look(ctx: ToolContext) -> str:
            return await self._serve("look")

        @tool(effect="non_idempotent_write", needs_approval=False)
        async def lose(ctx: ToolContext) -> str:
            raise UnknownOutcome("nobody answered")

        self.tools = (pay, look, lose)

    async def _serve(self, what: str) -> str:
        self.began.append(what)
        await self.open.wait()
        return what


async def write(rig: Rig, uid: str, *kinds: MailKind) -> None:
    """Letters of kinds that this version has no use for, keyed by their number."""
    first = len(rig.rows(uid).mail)
    letters = tuple(Letter(kind=kind, key=f"key-{number}") for number, kind in enumerate(kinds, first))
    assert isinstance(await rig.passing(rig.first.service.services.store.append_mail(Append(uid=uid, letters=letters))), Appended)


async def held_commit(rig: Rig, number: int) -> tuple[str, Gate]:
    """A new run whose n-th commit is on its way."""
    gate = rig.faults.hold("commit", number)
    uid = await rig.begin()
    await rig.reached(gate)
    return uid, gate


# -- what a cancel meets ---------------------------------------------------------------------------------------------------


async def test_R6_a_cancel_that_arrives_while_the_end_is_written_ends_the_run_as_cancelled() -> None:
    """R37: the commit writes nothing, the leg applies the mail and decides again: same leg, same lease."""
    async with Rig(agent(DONE)) as rig:
        uid, gate = await held_commit(rig, 1)
        assert await rig.cancel(uid, "enough")
        gate.open.set()
        row = await rig.over(uid)
        assert (row.status, row.stop_reason, row.leg) == (Status.STOPPED, "cancelled", 1)
        assert rig.faults.counts["commit"] == 2
        assert rig.view(uid)["stop"]["details"]["reason"] == "enough"
        assert [frame["status"] for frame in rig.frames(uid, "finish")] == ["stopped"]


async def test_R37_a_cancel_after_the_end_is_refused() -> None:
    async with Rig(agent(DONE)) as rig:
        uid = await rig.run()
        before = rig.row(uid)
        assert not await rig.cancel(uid)
        assert (rig.row(uid), rig.rows(uid).mail) == (before, [])


async def test_R6_a_cancel_that_arrives_while_the_run_suspends_is_not_slept_through() -> None:
    async with Rig(agent(calls("lose"), DONE, tools=Till().tools)) as rig:
        uid, gate = await held_commit(rig, 2)
        assert await rig.cancel(uid)
        gate.open.set()
        await rig.over(uid)
        assert (rig.row(uid).status, rig.row(uid).stop_reason, rig.row(uid).leg) == (Status.STOPPED, "cancelled", 1)


async def test_R6_a_cancel_that_arrives_while_a_writing_call_is_marked_comes_before_its_effect() -> None:
    till = Till()
    async with Rig(agent(calls("pay"), DONE, tools=till.tools)) as rig:
        uid, gate = await held_commit(rig, 1)
        assert await rig.cancel(uid)
        gate.open.set()
        await rig.over(uid)
        assert till.began == []
        assert rig.row(uid).stop_reason == "cancelled"
        assert [receipt.attempt for receipt in rig.rows(uid).receipts.values()] == [0]


async def test_R6_a_read_may_be_marked_all_the_same() -> None:
    """No such check where nothing is lost by it: the cancel is noticed from that commit's own answer."""
    till = Till()
    async with Rig(agent(calls("look"), DONE, tools=till.tools)) as rig:
        uid, gate = await held_commit(rig, 1)
        assert await rig.cancel(uid)
        gate.open.set()
        await rig.over(uid)
        assert rig.faults.counts["commit"] == 2
        assert rig.row(uid).stop_reason == "cancelled"


async def test_R6_outcomes_need_no_check() -> None:
    """What a tool did is recorded at once, whatever mail is there."""
    till = Till()
    async with Rig(agent(calls("look", "look"), DONE, tools=till.tools)) as rig:
        till.open.clear()
        uid = await rig.begin()
        await rig.until(lambda: len(till.began) == 2)
        gate = rig.faults.hold("commit", 1)
        till.open.set()
        await rig.reached(gate)
        await write(rig, uid, MailKind.STEER)
        gate.open.set()
        await rig.over(uid)
        assert "mail" in rig.faults.done
        assert {receipt.outcome for receipt in rig.rows(uid).receipts.values()} == {None}
        assert rig.row(uid).status is Status.COMPLETED


async def test_R6_frames_between_commits_need_no_check() -> None:
    till = Till()

    @tool(effect="read")
    async def work(ctx: ToolContext) -> str:
        till.began.append("work")
        await till.open.wait()
        await ctx.progress(1)
        await asyncio.sleep(0)
        till.open.clear()
        await till.open.wait()
        return "worked"

    async with Rig(agent(calls("work"), DONE, tools=[work])) as rig:
        till.open.clear()
        uid = await rig.begin()
        await rig.until(lambda: bool(till.began))
        gate = rig.faults.hold("append_frames", 1)
        till.open.set()
        await rig.reached(gate)
        await write(rig, uid, MailKind.STEER)
        gate.open.set()
        await rig.until(lambda: bool(rig.frames(uid, "tool-progress")), limit_seconds=1)


@pytest.mark.parametrize("hinted", [True, False])
async def test_R6_a_leg_hears_of_mail_by_hint_or_at_worst_by_its_poll(hinted: bool) -> None:
    till = Till()
    till.open.clear()
    async with Rig(agent(calls("look"), DONE, tools=till.tools)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(till.began))
        rig.bus.mute = not hinted
        began = rig.clock.monotonic()
        assert await rig.cancel(uid)
        await rig.until(lambda: any(name == "mail" for name in rig.faults.done))
        waited = rig.clock.monotonic() - began
        assert waited < 0.1 if hinted else waited <= 5.1


async def test_R6_a_new_leg_applies_all_mail_before_its_first_action() -> None:
    till = Till()
    till.open.clear()
    async with Rig(agent(calls("pay"), DONE, tools=till.tools)) as rig:
        rig.faults.refuse("claim", *range(1, 100))
        uid = await rig.begin()
        assert await rig.cancel(uid)
        assert rig.row(uid).status is Status.QUEUED
        await rig.start()
        row = await rig.over(uid)
        assert (row.status, row.stop_reason, row.mail_applied) == (Status.STOPPED, "cancelled", 1)
        assert till.began == []
        assert "text-delta" not in rig.types(uid) and rig.view(uid)["usage"]["model_calls"] == 0


async def test_R6_mail_makes_a_waiting_run_ready_and_it_suspends_again_when_that_changes_nothing() -> None:
    """R8: without a model call."""
    async with Rig(agent(calls("lose"), DONE, tools=Till().tools)) as rig:
        uid = await rig.run()
        assert rig.row(uid).status is Status.SUSPENDED
        await write(rig, uid, MailKind.STEER)
        await rig.until(lambda: rig.row(uid).leg == 2)
        row = await rig.over(uid)
        assert (row.status, row.leg, row.mail_applied) == (Status.SUSPENDED, 2, 1)
        assert rig.view(uid)["usage"]["model_calls"] == 1
        assert len(rig.view(uid)["pending"]["unknown_effects"]) == 1


# -- applying --------------------------------------------------------------------------------------------------------------


async def test_R6a_mail_is_applied_in_order_none_skipped_and_what_has_no_use_says_so() -> None:
    till = Till()
    till.open.clear()
    async with Rig(agent(calls("look"), DONE, tools=till.tools)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(till.began))
        await write(rig, uid, MailKind.STEER, MailKind.APPROVAL)
        await write(rig, uid, MailKind.CLIENT)
        await rig.pass_seconds(1)
        till.open.set()
        await rig.over(uid)
        assert [(mail.seq, mail.ignored) for mail in rig.rows(uid).mail] == [(1, True), (2, True), (3, True)]
        assert all(mail.applied_revision is not None for mail in rig.rows(uid).mail)
        warnings = rig.frames(uid, "warning")
        assert [warning["code"] for warning in warnings] == ["input_ignored"] * 3
        assert [word in warnings[at]["message"] for at, word in enumerate(("steer", "approval", "client"))] == [True] * 3


async def test_R6a_mail_is_stamped_by_the_commit_that_applied_it() -> None:
    till = Till()
    till.open.clear()
    async with Rig(agent(calls("look"), DONE, tools=till.tools)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(till.began))
        await write(rig, uid, MailKind.STEER)
        await rig.until(lambda: rig.row(uid).mail_applied == 1)
        assert rig.rows(uid).mail[0].applied_revision == rig.row(uid).revision
        assert not till.open.is_set(), "it did not wait for the tool"


async def test_R6a_a_second_cancel_has_no_use() -> None:
    """The key of a cancel is taken once per run, so no second one is ever in the inbox."""
    till = Till()
    till.open.clear()
    async with Rig(agent(calls("look"), DONE, tools=till.tools)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(till.began))
        assert [await rig.cancel(uid, reason) for reason in ("first", "second")] == [True, True]
        assert [json.loads(mail.data) for mail in rig.rows(uid).mail] == [{"reason": "first"}]
        await rig.over(uid)
        assert rig.view(uid)["stop"]["details"]["reason"] == "first"


async def test_R6a_an_ending_applies_all_it_has_seen() -> None:
    till = Till()
    till.open.clear()
    async with Rig(agent(calls("look"), tools=till.tools)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(till.began))
        await write(rig, uid, *[MailKind.STEER] * 3)
        await rig.cancel(uid)
        await write(rig, uid, *[MailKind.STEER] * 3)
        await rig.over(uid)
        row = rig.row(uid)
        assert (row.mail_applied, row.mail_received) == (7, 7)
        assert [mail.ignored for mail in rig.rows(uid).mail] == [True, True, True, False, True, True, True]
        assert row.stop_reason == "cancelled"


async def test_R6a_a_full_inbox_takes_nothing_more() -> None:
    from runward.core.kernel.actor import MAX_UNAPPLIED_MAIL
    from runward.core.kernel.commit import InboxFull

    async with Rig(agent(DONE)) as rig:
        rig.faults.refuse("claim", *range(1, 1_000))
        uid = await rig.begin()
        await write(rig, uid, *[MailKind.STEER] * MAX_UNAPPLIED_MAIL)
        more = Append(uid=uid, letters=(Letter(kind=MailKind.STEER, key="one more"),))
        assert await rig.passing(rig.first.service.services.store.append_mail(more)) == InboxFull()
        assert len(rig.rows(uid).mail) == MAX_UNAPPLIED_MAIL


async def test_R6_mail_costs_a_run_that_gets_none_nothing() -> None:
    async with Rig(agent(calls("look"), DONE, tools=Till().tools)) as rig:
        await rig.run()
        await breathe()
        assert "mail" not in rig.faults.done and "heads" not in rig.faults.done
