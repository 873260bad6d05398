"""R44, R44a, R4, R5: readers never affect the run nor each other; a stream is the journal, without a gap or a repeat, to its very end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from runward import Reply, ToolContext, tool
from runward.core.errors import Unavailable
from runward.core.kernel.actor import Status
from runward.core.kernel.frames import StoredFrame
from runward.engine.tail import FEW, PAGE, RING_BYTES, RING_FRAMES, RunGone, Tail
from runward.ports.bus import Hint, Topic
from tests.engine.rig import DONE, SETTINGS, Process, Rig, agent, breathe, calls


class Reader:
    """A subscriber of one process: what it heard, and whether its stream is over."""

    def __init__(self, rig: Rig, process: Process, uid: str, after: int = 0) -> None:
        self._rig = rig
        self._process = process
        self._uid = uid
        self.after = after
        self.heard: list[StoredFrame] = []
        self.times: list[float] = []
        self.open = asyncio.Event()
        self.open.set()
        self.task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async with self._process.service.queries.subscribe(self._uid, self.after) as subscription:
            while not self.heard or b'"final":true' not in self.heard[-1].data:
                await self.open.wait()
                frames = await subscription.next()
                durable = self._rig.rows(self._uid).frames
                assert [*frames] == durable[frames[0].seq - 1 : frames[-1].seq], "R4: durable before anybody sees it"
                self.heard.extend(frames)
                self.times += [self._rig.clock.monotonic()] * len(frames)

    def check(self) -> None:
        """R44a: it heard exactly the journal behind its cursor."""
        self.task.result()
        assert self.heard == self._rig.rows(self._uid).frames[self.after :]


def words(count: int, pause: float = 0.1) -> Reply:
    return Reply(text=" ".join(str(number) for number in range(count)), chunk_delay_seconds=pause)


def lines(count: int) -> list[StoredFrame]:
    return [StoredFrame(seq=seq, data=f'{{"seq":{seq}}}'.encode()) for seq in range(1, count + 1)]


def filled(rig: Rig, uid: str, count: int) -> None:
    """The run has said so much more, behind everybody's back."""
    rows = rig.rows(uid)
    first = len(rows.frames) + 1
    rows.frames.extend(StoredFrame(seq=seq, data=b"{}") for seq in range(first, first + count))
    rig.database.put(replace(rows.envelope, last_seq=len(rows.frames)))


# -- many readers --------------------------------------------------------------------------------------------------------------


async def test_R44a_readers_in_every_process_from_every_cursor_hear_the_journal() -> None:
    async with Rig(agent(words(30))) as rig:
        far = await rig.start(worker=False)
        uid = await rig.begin()
        readers: list[Reader] = []
        for process in (rig.first, far):
            readers += [Reader(rig, process, uid, after) for after in (0, 1, 2, 5)]
            await rig.pass_seconds(0.7)
        await rig.until(lambda: all(reader.task.done() for reader in readers))
        for reader in readers:
            reader.check()
        await breathe()
        assert [process.service.tails.watching for process in (rig.first, far)] == [0, 0]


async def test_R44_a_thousand_readers_cost_the_store_what_one_does() -> None:
    async def operations(readers: int) -> tuple[int, int]:
        async with Rig(agent(words(20))) as rig:
            uid = await rig.begin()
            await breathe()
            watching = [Reader(rig, rig.first, uid) for _ in range(readers)]
            await rig.until(lambda: all(reader.task.done() for reader in watching))
            for reader in watching:
                reader.check()
            return rig.faults.counts["append_frames"] + rig.faults.counts["commit"], rig.faults.counts["frames"] // readers

    one, many = await operations(1), await operations(1_000)
    assert one == many
    assert one[1] <= 2, "read once to catch up; what comes then is handed on"


async def test_R44_a_local_reader_hears_as_soon_as_it_is_durable_and_a_far_one_by_hint() -> None:
    async with Rig(agent(words(10, pause=1.0))) as rig:
        far = await rig.start(worker=False)
        uid = await rig.begin()
        readers = [Reader(rig, process, uid) for process in (rig.first, far)]
        await rig.until(lambda: all(reader.task.done() for reader in readers))
        said = [frame["at"] for frame in rig.frames(uid)]
        for reader in readers:
            reader.check()
            assert reader.times[-1] == pytest.approx(10, abs=0.1)
            assert len(set(reader.times)) >= 10, "word by word"
        assert len(said) == len(readers[0].heard)


async def test_R44a_losing_every_hint_costs_a_poll_and_never_a_frame() -> None:
    async with Rig(agent(words(10, pause=1.0))) as rig:
        far = await rig.start(worker=False)
        uid = await rig.begin()
        reader = Reader(rig, far, uid)
        rig.bus.mute = True
        await rig.until(reader.task.done)
        reader.check()
        ended = rig.row(uid).ended_at
        assert ended is not None
        assert reader.times[-1] <= (ended - 1_700_000_000_000) / 1_000 + SETTINGS.poll_with_bus + 0.1


async def test_R44a_duplicate_and_late_hints_are_harmless() -> None:
    async with Rig(agent(words(10))) as rig:
        far = await rig.start(worker=False)
        uid = await rig.begin()
        reader = Reader(rig, far, uid)
        while not reader.task.done():
            rig.bus.publish([Hint(Topic.FRAMES, uid), Hint(Topic.FRAMES, "nobody"), Hint(Topic.ANYTHING)])
            await rig.pass_seconds(0.05)
        reader.check()


# -- slow readers --------------------------------------------------------------------------------------------------------------


async def test_R44_a_slow_reader_slows_nobody_and_costs_a_page() -> None:
    """It stops reading while the run says more than the ring holds; the others go on, and it misses nothing when it comes back."""
    rounds = 10

    @tool(effect="read")
    async def talk(ctx: ToolContext) -> str:
        for _ in range(rounds):
            await ctx.progress("x" * 60_000)
            await rig.clock.sleep(0.05)
        return "said"

    turns = [calls("talk")] * 3
    async with Rig(agent(*turns, DONE, tools=[talk])) as rig:
        uid = await rig.begin()
        quick, slow = Reader(rig, rig.first, uid), Reader(rig, rig.first, uid)
        await rig.until(lambda: bool(slow.heard))
        slow.open.clear()
        await rig.until(quick.task.done)
        quick.check()
        assert sum(len(frame.data) for frame in rig.rows(uid).frames) > RING_BYTES
        heard = len(slow.heard)
        assert heard < len(quick.heard)
        slow.open.set()
        await rig.until(slow.task.done)
        slow.check()


def test_R44_the_ring_is_bounded_in_frames_and_in_bytes() -> None:
    tail = Tail("uid")
    tail.last = 0
    for frame in lines(RING_FRAMES + 5):
        assert tail.feed([frame])
    assert tail.after(0) is None
    found = tail.after(5)
    assert found is not None and (len(found), found[0].seq) == (RING_FRAMES, 6)
    tail = Tail("uid")
    tail.last = 0
    for seq in range(1, 20):
        assert tail.feed([StoredFrame(seq=seq, data=b"x" * (RING_BYTES // 10))])
    found = tail.after(9)
    assert found is not None and len(found) == 10
    assert tail.after(8) is None


def test_R44a_a_tail_takes_no_frame_twice_and_none_behind_a_gap() -> None:
    tail = Tail("uid")
    one, two, three, four, five = lines(5)
    assert not tail.feed([one]), "it does not know yet where the run stands"
    tail.last = 1
    assert tail.feed([one, two, three]) and tail.last == 3
    assert tail.feed([two, three]) and tail.last == 3
    assert not tail.feed([five]) and tail.last == 3
    assert tail.feed([three, four, five]) and tail.last == 5
    assert tail.after(2) == [three, four, five] and tail.after(5) == [] and tail.after(0) is None


# -- coming late -----------------------------------------------------------------------------------------------------------------


async def test_R44a_a_stream_that_is_opened_late_ends_with_the_end() -> None:
    """However late, wherever, from whatever cursor; and by page where the ring does not reach back."""
    async with Rig(agent(words(5))) as rig:
        far = await rig.start(worker=False)
        uid = await rig.run()
        await rig.pass_seconds(1_000)
        for process in (rig.first, far):
            for after in range(rig.row(uid).last_seq):
                reader = Reader(rig, process, uid, after)
                await rig.until(reader.task.done)
                reader.check()


async def test_R44a_a_long_journal_is_read_a_page_at_a_time() -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        uid = await rig.begin()
        filled(rig, uid, 3 * PAGE)
        async with rig.first.service.queries.subscribe(uid, 0) as subscription:
            sizes = [len(await subscription.next()) for _ in range(4)]
        assert sizes == [PAGE, PAGE, PAGE, 1]


async def test_R44a_a_reader_far_behind_catches_up_while_the_run_goes_on() -> None:
    async with Rig(agent(words(40, pause=0.05))) as rig:
        rig.faults.refuse("claim", *range(1, 3))
        uid = await rig.begin()
        far = await rig.start(worker=False)
        reader = Reader(rig, far, uid)
        await rig.until(reader.task.done)
        reader.check()


async def test_R44a_frames_that_come_while_a_subscription_begins_are_not_missed() -> None:
    """It has asked where the run stands; before the answer is there the run says its last word for a long time."""
    never = asyncio.Event()

    @tool(effect="read", timeout_seconds=1_000)
    async def wait(ctx: ToolContext) -> None:
        await rig.clock.sleep(1)
        await ctx.progress("now")
        await never.wait()

    async with Rig(agent(calls("wait"), tools=[wait])) as rig:
        uid = await rig.begin()
        await rig.pass_seconds(0.9)
        gate = rig.faults.hold("heads", 1, answered=True)
        reader = Reader(rig, rig.first, uid)
        await rig.reached(gate)
        await rig.until(lambda: bool(rig.frames(uid, "tool-progress")))
        gate.open.set()
        at = rig.clock.monotonic()
        await rig.until(lambda: bool(reader.heard) and reader.heard[-1].seq == rig.row(uid).last_seq, limit_seconds=1)
        assert rig.clock.monotonic() - at < 0.1
        reader.task.cancel()


async def test_R44a_hand_over_between_workers_leaves_no_gap() -> None:
    """F-33: the worker dies while readers listen in both processes; numbers go on."""
    async with Rig(agent(words(30, pause=0.2))) as rig:
        far = await rig.start(worker=False)
        uid = await rig.begin()
        readers = [Reader(rig, process, uid) for process in (rig.first, far)]
        await rig.until(lambda: len(readers[1].heard) > 5)
        await rig.first.worker.stop()
        await rig.start()
        await rig.until(lambda: all(reader.task.done() for reader in readers))
        for reader in readers:
            reader.check()
        assert (rig.row(uid).leg, rig.row(uid).status) == (2, Status.COMPLETED)


async def test_R5_the_end_is_announced_once_and_only_when_it_is_durable() -> None:
    async with Rig(agent(DONE)) as rig:
        gate = rig.faults.hold("commit", 1)
        uid = await rig.begin()
        reader = Reader(rig, rig.first, uid)
        await rig.reached(gate)
        await breathe()
        assert not any(b'"finish"' in frame.data for frame in reader.heard)
        gate.open.set()
        await rig.until(reader.task.done)
        reader.check()
        kinds = [json.loads(frame.data)["type"] for frame in reader.heard]
        assert (kinds.count("finish"), kinds[-2:]) == (1, ["finish", "data-agent"])


# -- gone and away -----------------------------------------------------------------------------------------------------------------


async def test_R44a_a_stream_of_a_run_that_is_deleted_says_so() -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        uid = await rig.begin()
        readers = [Reader(rig, rig.first, uid) for _ in range(3)]
        await rig.until(lambda: all(reader.heard for reader in readers))
        rig.database.remove(uid)
        await rig.until(lambda: all(reader.task.done() for reader in readers), limit_seconds=SETTINGS.poll_with_bus + 0.1)
        assert [type(reader.task.exception()) for reader in readers] == [RunGone] * 3
        late = Reader(rig, rig.first, uid)
        await rig.until(late.task.done)
        assert isinstance(late.task.exception(), RunGone)


async def test_R44a_a_subscription_that_begins_during_a_poll_is_not_taken_for_one_of_a_deleted_run() -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        watched, new = await rig.begin(), await rig.begin()
        first = Reader(rig, rig.first, watched)
        await rig.until(lambda: bool(first.heard))
        poll = rig.faults.hold("heads", 1, answered=True)
        await rig.reached(poll)
        second = Reader(rig, rig.first, new)
        await rig.until(lambda: bool(second.heard))
        poll.open.set()
        await rig.pass_seconds(10)
        assert not first.task.done() and not second.task.done()
        first.task.cancel()
        second.task.cancel()


async def test_R44_an_outage_ends_a_stream_with_its_cursor_intact_or_is_waited_out() -> None:
    """A reader that has to read says that the store is away, and comes again; one that listens just hears later."""
    async with Rig(agent(words(30, pause=0.2))) as rig:
        far = await rig.start(worker=False)
        other, uid = await rig.begin(), await rig.begin()
        reader = Reader(rig, far, uid)
        await rig.until(lambda: len(reader.heard) > 3)
        far.faults.down = True
        await rig.pass_seconds(2)
        heard = len(reader.heard)
        with pytest.raises(Unavailable):
            await rig.passing(Reader(rig, far, other).task)
        far.faults.down = False
        await rig.until(reader.task.done)
        reader.check()
        assert len(reader.heard) > heard


@pytest.mark.parametrize("operation", ["heads", "frames"])
async def test_R44a_a_bug_while_a_tail_reads_costs_a_poll(operation: str) -> None:
    async with Rig(agent(words(20, pause=0.5))) as rig:
        far = await rig.start(worker=False)
        uid = await rig.begin()
        reader = Reader(rig, far, uid)
        await rig.until(lambda: len(reader.heard) > 3)
        far.faults.refuse(operation, error=RuntimeError("a bug"))
        rig.bus.mute = operation == "heads"
        await rig.until(reader.task.done)
        reader.check()
        assert far.telemetry.names == ["tail_poll_failed" if operation == "heads" else "tail_read_failed"]


async def test_R44a_after_a_gap_of_the_bus_everything_watched_is_read_again() -> None:
    async with Rig(agent(words(3, pause=0.2))) as rig:
        far = await rig.start(worker=False)
        uid = await rig.begin()
        reader = Reader(rig, far, uid)
        await rig.until(lambda: bool(reader.heard))
        rig.bus.mute = True
        await rig.over(uid)
        assert not reader.task.done()
        at = rig.clock.monotonic()
        rig.bus.mute = False
        rig.bus.publish([Hint(Topic.ANYTHING)])
        await rig.until(reader.task.done)
        reader.check()
        assert rig.clock.monotonic() - at < 0.1


async def test_R44a_of_many_watched_runs_those_alone_are_read_that_have_gone_on() -> None:
    """Also when a hint says no more than that anything may have happened, as SQLite's do between processes."""
    async with Rig(agent(words(3, pause=0.2))) as rig:
        far = await rig.start(worker=False)
        still = [await rig.begin() for _ in range(FEW + 1)]
        for uid in still:
            await rig.over(uid)
        async with AsyncExitStack() as stack:
            for uid in still:
                await stack.enter_async_context(far.service.queries.subscribe(uid, len(rig.rows(uid).frames)))
            uid = await rig.begin()
            reader = Reader(rig, far, uid)
            await rig.until(lambda: bool(reader.heard))
            rig.bus.mute = True
            await rig.over(uid)
            rig.bus.mute = False
            far.faults.counts.clear()
            at = rig.clock.monotonic()
            rig.bus.publish([Hint(Topic.ANYTHING)])
            await rig.until(reader.task.done)
            reader.check()
            assert rig.clock.monotonic() - at < 0.1
            assert (far.faults.counts["heads"], far.faults.counts["frames"]) == (1, 1)


async def test_R44_subscribing_never_affects_the_run() -> None:
    """It comes and goes, and the rows are the same as without."""

    async def lived(readers: int) -> Sequence[Any]:
        async with Rig(agent(words(10))) as rig:
            uid = await rig.begin()
            for _ in range(readers):
                reader = Reader(rig, rig.first, uid)
                await rig.pass_seconds(0.1)
                reader.task.cancel()
            row = await rig.over(uid)
            return row.revision, row.last_seq, rig.types(uid)

    assert await lived(0) == await lived(5)


async def test_R5_a_hint_never_comes_before_what_it_is_about() -> None:
    """R4: whoever hears of frames or an end finds them."""
    async with Rig(agent(words(5))) as rig:
        seen: list[tuple[str, int]] = []
        rig.bus.subscribe(lambda hint: seen.append((hint.topic, rig.row(hint.uid).last_seq)) if hint.topic is Topic.FRAMES else None)
        uid = await rig.run()
        await breathe()
        assert seen and seen[-1] == (Topic.FRAMES, rig.row(uid).last_seq)
