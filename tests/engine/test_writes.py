"""R2, R7 and the commit budget: what a run writes, how often, and that it grows with the change and not with the history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runward import Reply, ToolContext, tool
from runward.core.kernel.actor import Position, Status
from runward.core.kernel.commit import Changes, CommitAnswer, Stale, Written
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.records import MessageRow
from runward.core.runs import codec
from runward.core.runs.limits import Limits
from runward.stores.memory import MemoryStore
from tests.engine.rig import DONE, Rig, agent, breathe, calls

WRITES = ("create", "claim", "commit", "append_frames", "append_mail", "disown", "delete", "ask_drain")


@tool(effect="read")
async def look(n: int = 0) -> str:
    return "seen"


@tool(effect="unclassified", needs_approval=False)
async def work() -> str:
    return "worked"


class Meter(MemoryStore):
    """A store that measures each write of a leg: how many rows, and how many bytes."""

    writes: list[tuple[int, int]]

    async def commit(self, changes: Changes) -> CommitAnswer:
        parts: list[Any] = [*changes.frames, *changes.messages, *changes.receipts]
        self.writes.append((len(parts), sum(map(size, parts)) + len(changes.face.state)))
        return await MemoryStore.commit(self, changes)

    async def append_frames(self, uid: str, follows: Position, frames: Any) -> Written | Stale:
        self.writes.append((len(frames), sum(map(size, frames))))
        return await MemoryStore.append_frames(self, uid, follows, frames)


def size(row: Any) -> int:
    match row:
        case StoredFrame():
            return len(row.data)
        case MessageRow():
            return len(row.content) + len(row.opaque or b"")
        case _:
            return len(str(row))


def metered(rig: Rig) -> Meter:
    """Measures what the rig's first process writes from now on."""
    store: Any = rig.first.service.services.store
    store.__class__ = Meter
    store.writes = []
    meter: Meter = store
    return meter


# -- the budget ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["look", "work"])
async def test_the_commit_budget_of_model_tool_model_done(named: str) -> None:
    """R2, R13: create, claim, answer + executing, outcome + next reservation, final answer + terminal + release: five writes."""
    async with Rig(agent(calls(named), DONE, tools=[look, work])) as rig:
        rig.faults.done.clear()
        uid = await rig.run()
        await breathe()
        claims = [name for name in rig.faults.done if name == "claim"]
        assert [name for name in rig.faults.done if name in WRITES and name != "claim"] == ["create", "commit", "commit", "commit"]
        assert len(claims) <= 2, "the one that took it, and the one that found nothing more"
        row = rig.row(uid)
        assert (row.status, row.revision) == (Status.COMPLETED, 5)


async def test_what_each_of_the_five_writes_holds() -> None:
    """R2: the mark is durable with the answer, the next reservation with the outcome, the release with the end."""
    async with Rig(agent(calls("work"), DONE, tools=[work])) as rig:
        gates = [rig.faults.hold("commit", number, answered=True) for number in (1, 2, 3)]
        uid = await rig.begin()
        await rig.reached(gates[0])
        run = codec.decode(rig.row(uid).state)
        assert (len(rig.rows(uid).messages), rig.rows(uid).receipts["1.1"].stage, run.reservation) == (2, "executing", None)
        gates[0].open.set()
        await rig.reached(gates[1])
        run = codec.decode(rig.row(uid).state)
        assert run.reservation is not None and run.reservation.step == 2
        assert (len(rig.rows(uid).messages), rig.rows(uid).receipts["1.1"].stage, run.turn) == (3, "completed", ())
        gates[1].open.set()
        await rig.reached(gates[2])
        row = rig.row(uid)
        assert (row.status, row.lease_owner, len(rig.rows(uid).messages)) == (Status.COMPLETED, None, 4)
        gates[2].open.set()


@pytest.mark.parametrize("count", [1, 3, 8])
async def test_calls_of_a_turn_that_end_at_once_cost_nothing_more(count: int) -> None:
    """R16."""
    async with Rig(agent(calls(*["look"] * count), DONE, tools=[look])) as rig:
        await rig.run()
        assert (rig.faults.counts["commit"], rig.faults.counts["append_frames"]) == (3, 0)


async def test_reads_of_a_run_are_few() -> None:
    """R7: the transcript is read once, when it is first needed, and carried along."""
    turns = [calls("look")] * 10
    async with Rig(agent(*turns, DONE, tools=[look])) as rig:
        rig.faults.done.clear()
        await rig.run()
        reads = [name for name in rig.faults.done if name in ("messages", "receipts", "mail", "heads", "frames", "get")]
        assert reads == ["messages"]


async def test_what_nobody_waits_for_is_not_asked_of_the_store() -> None:
    """A worker that is not full has nothing more to claim when a run of its own is over, and a created run is not read back."""
    async with Rig(agent(calls("look"), DONE, tools=[look])) as rig:
        rig.faults.done.clear()
        await rig.run()
        asked = [name for name in rig.faults.done if name != "beat"]
        assert asked == ["create", "claim", "messages", "commit", "commit", "commit"]


# -- R7 ------------------------------------------------------------------------------------------------------------------------


async def test_R7_a_write_costs_what_changed_and_not_what_happened_before() -> None:
    """Forty steps of the same size: the last ones write as many rows and bytes as the first."""
    turns = [replace(calls("look", n=number), text="x" * 100) for number in range(40)]
    async with Rig(agent(*turns, DONE, tools=[look], limits=Limits(max_steps=50))) as rig:
        meter = metered(rig)
        uid = await rig.run()
        assert rig.row(uid).status is Status.COMPLETED
        early, late = meter.writes[4:24], meter.writes[-21:-1]
        assert max(rows for rows, _ in late) <= max(rows for rows, _ in early)
        assert max(size for _, size in late) <= 1.05 * max(size for _, size in early)
        assert len(rig.row(uid).state) < 2_000


async def test_R7_also_with_a_large_input_and_large_results() -> None:
    @tool(effect="read")
    async def fetch() -> str:
        return "x" * 50_000

    async with Rig(agent(calls("fetch"), calls("look"), DONE, tools=[fetch, look])) as rig:
        meter = metered(rig)
        uid = await rig.run(text="x" * 100_000)
        outcome = max(size for _, size in meter.writes)
        assert outcome < 4 * 50_000, "a result is in its receipt, its frame and its message, once each"
        assert all(size < 10_000 for _, size in meter.writes[2:]), "and in nothing that is written later"
        assert len(rig.row(uid).state) < 2_000


async def test_R7_messages_and_receipts_are_rows_that_are_never_rewritten() -> None:
    async with Rig(agent(calls("look"), calls("look"), DONE, tools=[look])) as rig:
        gate = rig.faults.hold("commit", 3)
        uid = await rig.begin()
        await rig.reached(gate)
        messages, receipt = dict(rig.rows(uid).messages), rig.rows(uid).receipts["1.1"]
        gate.open.set()
        await rig.over(uid)
        assert all(rig.rows(uid).messages[seq] is message for seq, message in messages.items())
        assert rig.rows(uid).receipts["1.1"] is receipt


# -- R2 and the face --------------------------------------------------------------------------------------------------------------


async def test_R2_revisions_move_one_by_one() -> None:
    async with Rig(agent(calls("look"), calls("look"), DONE, tools=[look])) as rig:
        seen: list[tuple[int, int]] = []
        put = rig.database.put

        def watched(envelope: Any) -> None:
            seen.append((envelope.revision, envelope.leg))
            put(envelope)

        rig.database.put = watched  # type: ignore[method-assign]
        await rig.run()
        revisions = [revision for revision, _ in seen]
        assert sorted(set(revisions)) == list(range(1, 8)) and revisions == sorted(revisions)


async def test_R9_every_status_shows_what_belongs_to_it() -> None:
    """R11: and what became of the task is told apart."""

    async def stuck(ctx: ToolContext) -> None:
        from runward import UnknownOutcome

        raise UnknownOutcome("?")

    lose = tool(name="lose", effect="unclassified", needs_approval=False)(stuck)
    for reply, shown in (
        (DONE, {"status": "completed", "text": "done", "stop": None, "error": None, "task_outcome": "resolved"}),
        (Reply(text="half", finish="length"), {"status": "stopped", "text": "half", "error": None, "task_outcome": "failed"}),
        (Reply(error="bad_request"), {"status": "failed", "stop": None, "task_outcome": "failed"}),
        (calls("lose"), {"status": "suspended", "stop": None, "error": None, "task_outcome": "needs_reconciliation"}),
    ):
        async with Rig(agent(reply, tools=[lose])) as rig:
            view = rig.view(await rig.run())
            assert {name: view[name] for name in shown} == shown
            assert (view["ended_at"] is not None) is (view["status"] != "suspended")


async def test_R10_steps_are_bounded() -> None:
    async with Rig(agent(*[calls("look")] * 9, tools=[look], limits=Limits(max_steps=3))) as rig:
        uid = await rig.run()
        view = rig.view(uid)
        assert (view["status"], view["stop"]["reason"], view["steps"]) == ("stopped", "max_steps", 3)
        assert len(rig.results(uid)) == 3, "R17b"


@pytest.mark.parametrize("limit", ["timeout_seconds", "expires_seconds"])
async def test_R35a_a_bound_in_time_ends_a_run_that_is_worked_on(limit: str) -> None:
    slow = Reply(text="one two three", chunk_delay_seconds=2)
    async with Rig(agent(slow)) as rig:
        uid = await rig.run(limits={limit: 3.0})
        assert (rig.row(uid).status, rig.row(uid).stop_reason) == (Status.STOPPED, "deadline")
        assert rig.clock.monotonic() == pytest.approx(3, abs=0.1)
