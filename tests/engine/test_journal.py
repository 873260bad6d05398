"""R4, R4a: a leg writes through one queue, in order, and numbers its frames itself; text goes out in small groups, and waits in bounded
memory while the database is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from runward.core.kernel.actor import Envelope, Position, Status
from runward.core.kernel.commit import Changes, MailArrived, Written
from runward.core.kernel.frames import Frame, StoredFrame
from runward.core.runs import frames
from runward.engine.hold import Hold, LeaseLost
from runward.engine.journal import FRAME_CHARACTERS, GROUP_SECONDS, MAX_WAITING_BYTES, Journal
from runward.engine.timing import StoreTime
from runward.stores.memory import MemoryDatabase, MemoryStore
from runward.testing import VirtualClock
from tests.contract.builders import append, changes, face, position_of, running
from tests.engine.rig import DONE, TTL, Rig, Script, agent, breathe, calls


class Desk:
    """A journal of one running actor, and what it was told."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.faults = Script()
        self.database = MemoryDatabase(self.clock)
        self.store = MemoryStore(self.database, self.faults)
        self.over = False
        self.heard: list[tuple[float, list[StoredFrame], Written | None]] = []

    async def open(self) -> Desk:
        time = StoreTime(self.clock)
        time.learn(self.database.now())
        self.row = await running(self.store)
        self.hold = Hold(self.clock, TTL, self.clock.monotonic(), lambda: None)
        self.journal = Journal(
            store=self.store,
            clock=self.clock,
            time=time,
            hold=self.hold,
            uid=self.row.uid,
            run_id="run-1",
            leg=self.row.leg,
            position=position_of(self.row),
            listener=self,
        )
        self.faults.done.clear()
        return self

    def wrote(self, frames: Sequence[StoredFrame], written: Written | None) -> None:
        self.heard.append((self.clock.monotonic(), list(frames), written))

    def broke(self) -> None:
        self.over = True

    @property
    def stored(self) -> Envelope:
        return self.database.actors[self.row.uid].envelope

    @property
    def said(self) -> list[dict[str, Any]]:
        return [json.loads(frame.data) for frame in self.database.actors[self.row.uid].frames]

    @property
    def deltas(self) -> list[str]:
        return [frame["delta"] for frame in self.said]

    async def commit(self, *said: Frame, **differing: Any) -> MailArrived | None:
        """Commits, while somebody else lets time pass."""

        def make(follows: Position, frames: tuple[StoredFrame, ...], waited: int) -> Changes:
            assert waited == follows.last_seq + len(frames) - len(said)
            return changes(self.row, **{"follows": follows, "frames": frames, **differing})

        return await self.journal.commit(make, said, self.database.now())

    async def passing(self, work: Any) -> Any:
        task = asyncio.ensure_future(work)
        await self.clock.pass_time(task.done, limit_seconds=600)
        return await task

    async def seconds(self, seconds: float) -> None:
        await self.passing(self.clock.sleep(seconds))


def text(delta: str, attempt: int = 1) -> Frame:
    return frames.text_delta(1, attempt, delta)


def note(number: int) -> Frame:
    return frames.warning("note", str(number))


# -- groups ------------------------------------------------------------------------------------------------------------------


async def test_R4a_an_answer_that_is_whole_at_once_costs_no_transaction_of_its_own() -> None:
    """Its text goes with the commit that stores it."""
    async with Rig(agent(replace(DONE, text="one two three"))) as rig:
        uid = await rig.run()
        assert rig.faults.counts["append_frames"] == 0
        assert [frame["delta"] for frame in rig.frames(uid, "text-delta")] == ["one two three"]


async def test_R4a_a_slow_answer_is_visible_within_30_ms_of_each_word() -> None:
    desk = await Desk().open()
    emitted: list[float] = []
    for number, wait in enumerate([0.5, 0.001, 0.02, 0.04, 0.007, 0.0295, 0.2, 0.01, 0.01, 0.01]):
        await desk.seconds(wait)
        emitted.append(desk.clock.monotonic())
        desk.journal.emit((note(number),))
    await desk.seconds(1)
    durable = {json.loads(frame.data)["message"]: at for at, frames, _ in desk.heard for frame in frames}
    late = [durable[str(number)] - at for number, at in enumerate(emitted)]
    assert max(late) <= GROUP_SECONDS + 1e-9
    assert desk.faults.counts["append_frames"] < len(emitted), "those in short order share a transaction"


async def test_R4a_a_fast_stream_costs_one_transaction_in_30_ms() -> None:
    desk = await Desk().open()
    for _ in range(1_000):
        desk.journal.emit((text("x"),))
        await desk.seconds(0.001)
    await desk.seconds(1)
    assert "".join(desk.deltas) == "x" * 1_000
    assert 25 <= desk.faults.counts["append_frames"] <= 1 + 1_000 / 30 + 1


async def test_R4a_text_of_one_attempt_in_one_group_is_one_frame() -> None:
    desk = await Desk().open()
    desk.journal.emit((text("a"), text("b")))
    desk.journal.emit((text("c"), frames.reasoning_delta(1, 1, "d"), text("e"), text("f", attempt=2)))
    await desk.seconds(1)
    assert [(frame["type"], frame["attempt"], frame["delta"]) for frame in desk.said] == [
        ("text-delta", 1, "abc"),
        ("reasoning-delta", 1, "d"),
        ("text-delta", 1, "e"),
        ("text-delta", 2, "f"),
    ]


async def test_R4a_arguments_of_two_calls_are_never_mixed() -> None:
    desk = await Desk().open()
    desk.journal.emit([frames.tool_input_delta(1, f"1.{index}", "look", piece) for index, piece in ((1, "{"), (1, "}"), (2, "{}"))])
    await desk.seconds(1)
    assert [(frame["tool_call_id"], frame["delta"]) for frame in desk.said] == [("1.1", "{}"), ("1.2", "{}")]


async def test_R4a_of_several_reports_of_progress_in_a_group_the_latest_wins() -> None:
    desk = await Desk().open()
    desk.journal.emit([frames.tool_progress(call, number) for number, call in enumerate(("1.1", "1.2", "1.1", "1.1"))])
    await desk.seconds(1)
    assert [(frame["tool_call_id"], frame["data"]) for frame in desk.said] == [("1.2", 1), ("1.1", 3)]


async def test_R4a_progress_that_never_rests_is_shown_all_the_same() -> None:
    """Each report replaces the one that waits, and its time goes on."""
    desk = await Desk().open()
    for number in range(200):
        desk.journal.emit((frames.tool_progress("1.1", number),))
        await desk.seconds(0.005)
    assert 30 <= len(desk.said) <= 35


async def test_R4a_text_behind_a_commit_has_a_time_of_its_own() -> None:
    """A turn that is whole within moments of the last commit needs no transaction of its own, however soon after another one it comes."""
    desk = await Desk().open()
    for number in range(20):
        desk.journal.emit((text(f"{number}"),))
        await desk.seconds(0.005)
        assert await desk.passing(desk.commit(note(number))) is None
    assert desk.faults.done == ["commit"] * 20


async def test_R4a_what_is_being_written_is_not_changed_any_more() -> None:
    desk = await Desk().open()
    gate = desk.faults.hold("append_frames", answered=True)
    desk.journal.emit((text("a"), frames.tool_progress("1.1", 1)))
    await desk.clock.pass_time(gate.reached.is_set, limit_seconds=1)
    desk.journal.emit((frames.tool_progress("1.1", 2), text("b")))
    gate.open.set()
    await desk.seconds(1)
    assert [frame.get("delta", frame.get("data")) for frame in desk.said] == ["a", 1, 2, "b"]
    assert [frame["seq"] for frame in desk.said] == [1, 2, 3, 4]


# -- order -------------------------------------------------------------------------------------------------------------------


async def test_R4a_a_commit_takes_along_what_waits_and_carries_on_from_it() -> None:
    desk = await Desk().open()
    desk.journal.emit((text("a"),))
    assert await desk.passing(desk.commit(note(1), note(2))) is None
    assert [frame["type"] for frame in desk.said] == ["text-delta", "warning", "warning"]
    assert [frame["seq"] for frame in desk.said] == [1, 2, 3]
    assert desk.faults.done == ["commit"]
    assert desk.journal.position == position_of(desk.stored)
    desk.journal.emit((text("b"),))
    await desk.seconds(1)
    assert (desk.stored.revision, desk.stored.last_seq) == (desk.row.revision + 1, 4)


async def test_R4a_an_append_moves_last_seq_only() -> None:
    desk = await Desk().open()
    desk.journal.emit((text("a"),))
    await desk.seconds(1)
    assert desk.stored == replace(desk.row, last_seq=1)


async def test_R4a_a_commit_waits_for_the_append_under_way() -> None:
    desk = await Desk().open()
    gate = desk.faults.hold("append_frames", answered=True)
    desk.journal.emit((text("a"),))
    await desk.clock.pass_time(gate.reached.is_set, limit_seconds=1)
    commit = asyncio.ensure_future(desk.commit(note(1)))
    desk.journal.emit((text("b"),))
    await breathe()
    assert desk.faults.counts["commit"] == 0
    gate.open.set()
    await desk.passing(commit)
    assert [frame.get("delta", "note") for frame in desk.said] == ["a", "b", "note"]


async def test_R4a_frames_that_wait_survive_a_commit_that_was_not_written() -> None:
    """MailArrived: nothing of it is written, the frames that waited go with the next one, and what came meanwhile may join them."""
    desk = await Desk().open()
    await desk.store.append_mail(append(1, "k1"))
    desk.journal.emit((text("a"),))
    assert await desk.passing(desk.commit(note(1), mail_seen=0)) == MailArrived(mail_received=1)
    assert (desk.said, desk.heard) == ([], [])
    desk.journal.emit((text("b"),))
    assert await desk.passing(desk.commit(note(2), mail_seen=1)) is None
    assert [frame.get("delta", frame.get("message")) for frame in desk.said] == ["ab", "2"]


async def test_R4_a_listener_hears_of_frames_only_once_they_are_durable() -> None:
    desk = await Desk().open()
    gate = desk.faults.hold("append_frames")
    desk.journal.emit((text("a"),))
    await desk.clock.pass_time(gate.reached.is_set, limit_seconds=1)
    assert desk.heard == []
    gate.open.set()
    await desk.seconds(1)
    assert [(frames, written) for _, frames, written in desk.heard] == [
        (desk.database.actors[desk.row.uid].frames, Written(mail_received=0, drain_leg=None))
    ]


async def test_R2a_a_write_found_to_have_landed_is_heard_of_without_an_answer() -> None:
    desk = await Desk().open()
    desk.faults.lose("append_frames", 1)
    desk.journal.emit((text("a"),))
    await desk.seconds(1)
    assert [written for _, _, written in desk.heard] == [None]
    assert desk.deltas == ["a"]


async def test_R2a_while_one_write_is_unknown_no_other_is_sent() -> None:
    desk = await Desk().open()
    desk.faults.refuse("append_frames", 1, 2, 3)
    desk.journal.emit((text("a"),))
    await desk.clock.pass_time(lambda: desk.faults.counts["append_frames"] == 1, limit_seconds=1)
    commit = asyncio.ensure_future(desk.commit(note(1)))
    await desk.clock.pass_time(lambda: desk.faults.counts["append_frames"] == 4, limit_seconds=5)
    await desk.passing(commit)
    assert desk.faults.done == ["append_frames"] * 4 + ["commit"]


# -- the database is away ------------------------------------------------------------------------------------------------------


async def test_R4a_the_model_goes_on_while_the_database_is_away() -> None:
    """Every word is there afterwards, in few frames; the outage cost the run nothing."""
    words = " ".join(str(number) for number in range(100))
    async with Rig(agent(replace(DONE, text=words, chunk_delay_seconds=0.1))) as rig:
        uid = await rig.begin()
        await rig.pass_seconds(1)
        before = rig.row(uid).last_seq
        rig.faults.down = True
        await rig.pass_seconds(6)
        assert rig.row(uid).last_seq == before
        rig.faults.down = False
        await rig.pass_seconds(0.5)
        caught_up = rig.frames(uid, "text-delta")[before - 3 :]
        assert len(caught_up) <= 7 and any(len(frame["delta"].split()) > 50 for frame in caught_up)
        await rig.over(uid)
        assert "".join(frame["delta"] for frame in rig.frames(uid, "text-delta")) == words
        assert rig.clock.monotonic() < 12, "the model was not held up"


async def test_R4a_no_frame_grows_without_bound_while_it_waits() -> None:
    desk = await Desk().open()
    desk.faults.down = True
    for _ in range(100):
        desk.journal.emit((text("x" * 1_000),))
    desk.faults.down = False
    await desk.seconds(1)
    assert "".join(desk.deltas) == "x" * 100_000
    assert max(map(len, desk.deltas)) < FRAME_CHARACTERS + 1_000


async def test_R4a_memory_is_bounded_by_slowing_the_stream_down() -> None:
    """Beyond the bound there is no room until the database is back; then there is, and nothing was dropped."""
    desk = await Desk().open()
    desk.faults.down = True
    sent = 0

    async def stream() -> None:
        nonlocal sent
        while sent < 2 * MAX_WAITING_BYTES:
            desk.journal.emit((text("x" * 65_536),))
            sent += 65_536
            await desk.journal.room()

    streaming = asyncio.ensure_future(stream())
    await desk.seconds(1)
    assert MAX_WAITING_BYTES < sent <= MAX_WAITING_BYTES + 65_536
    desk.faults.down = False
    await desk.passing(streaming)
    await desk.seconds(1)
    assert sum(map(len, desk.deltas)) == sent


async def test_R4a_a_lease_that_runs_out_meanwhile_ends_the_journal_and_frees_whoever_waits_for_room() -> None:
    desk = await Desk().open()
    desk.faults.down = True
    desk.journal.emit((text("x" * (MAX_WAITING_BYTES + 1)),))
    waiting = asyncio.ensure_future(desk.journal.room())
    await desk.seconds(TTL + 1)
    assert desk.over and isinstance(desk.journal.failure, LeaseLost)
    await desk.passing(waiting)
    with pytest.raises(LeaseLost):
        await desk.passing(desk.commit(note(1)))
    desk.faults.down = False
    await desk.seconds(1)
    assert desk.said == []


async def test_R3_a_position_that_moved_ends_the_journal() -> None:
    desk = await Desk().open()
    desk.database.put(replace(desk.stored, revision=9, leg=2))
    desk.journal.emit((text("a"),))
    await desk.seconds(1)
    assert isinstance(desk.journal.failure, LeaseLost)
    assert desk.said == []


async def test_R2_a_commit_and_its_frames_are_one_write() -> None:
    desk = await Desk().open()
    desk.faults.refuse("commit", *range(1, 10_000))
    desk.journal.emit((text("a"),))
    commit = asyncio.ensure_future(desk.commit(note(1), face_of=face(desk.row, Status.RUNNING, state='{"changed":1}')))
    await desk.seconds(1)
    assert (desk.said, desk.stored) == ([], desk.row)
    with pytest.raises(LeaseLost):
        await desk.passing(commit)
    assert (desk.said, desk.stored) == ([], desk.row)


async def test_R4a_progress_reports_of_a_tool_join_the_groups() -> None:
    """Through the whole engine: a tool that reports a thousand times in a moment says one thing."""
    from runward import ToolContext, tool

    @tool(effect="read")
    async def work(ctx: ToolContext) -> str:
        for number in range(1_000):
            await ctx.progress({"rows": number})
        return "worked"

    async with Rig(agent(calls("work"), DONE, tools=[work])) as rig:
        uid = await rig.run()
        assert [frame["data"] for frame in rig.frames(uid, "tool-progress")] == [{"rows": 999}]
        assert rig.faults.counts["append_frames"] == 0


async def test_a_write_that_the_store_refuses_as_a_bug_is_not_sent_again() -> None:
    """R49: a commit fails where it was asked for, and frames between commits end the journal, so that the leg ends."""
    desk = await Desk().open()
    with pytest.raises(ValueError, match="NUL"):
        await desk.commit(face_of=face(desk.row, Status.RUNNING, state="\0"))
    assert desk.faults.done == ["commit"]
    bug = ValueError("no such frame")
    desk.faults.refuse("append_frames", error=bug)
    desk.journal.emit((text("a"),))
    await desk.seconds(1)
    assert desk.over and desk.journal.failure is bug
    with pytest.raises(ValueError, match="no such frame"):
        await desk.commit(note(1))
    assert desk.faults.done == ["commit", "append_frames"]
