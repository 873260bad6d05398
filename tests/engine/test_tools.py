"""R12, R13, R16, R17, R17a: one path for every call. What a tool does, and what a worker's death leaves of it, has one meaning each."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from runward import File, Reply, Text, ToolCall, ToolContext, ToolError, UnknownOutcome, tool
from runward.core.kernel.actor import Status
from runward.core.runs.limits import Limits
from runward.core.runs.sentences import UNCERTAIN, UNEXPECTED
from tests.engine.rig import DONE, TTL, Rig, agent, calls

REPEATABLE = ("read", "idempotent_write")
OTHERS = ("non_idempotent_write", "unclassified")
EFFECTS = REPEATABLE + OTHERS


class Attempts:
    """A tool of an effect that does what `manner` says, attempt by attempt."""

    def __init__(self, effect: Any, manner: Callable[[ToolContext], Any], **options: Any) -> None:
        self.keys: list[str] = []
        self.at: list[float] = []

        @tool(name="work", effect=effect, needs_approval=False, **options)
        async def work(ctx: ToolContext) -> Any:
            self.keys.append(ctx.idempotency_key)
            self.at.append(self.rig.clock.monotonic())
            value = manner(ctx)
            return await value if asyncio.iscoroutine(value) else value

        self.agent = agent(calls("work"), DONE, tools=[work])

    async def run(self, rig: Rig) -> str:
        self.rig = rig
        return await rig.run()


def receipt(rig: Rig, uid: str, call_id: str = "1.1") -> dict[str, Any]:
    """What the receipt says, with its detail."""
    row = rig.rows(uid).receipts[call_id]
    detail = json.loads(row.detail)
    return {"stage": row.stage, "outcome": row.outcome, "is_error": row.is_error, "attempt": row.attempt, **detail}


def raises(error: BaseException) -> Callable[[ToolContext], Any]:
    def manner(ctx: ToolContext) -> Any:
        raise error

    return manner


# -- what a tool does --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("value", [None, 0, "text", [1, {"a": None}], {"z": 1, "a": 2.5}, ""])
async def test_R16_what_it_returns_is_its_outcome(effect: str, value: Any) -> None:
    work = Attempts(effect, lambda ctx: value)
    async with Rig(work.agent) as rig:
        uid = await work.run(rig)
        assert rig.row(uid).status is Status.COMPLETED
        assert rig.results(uid)[0].get("output") == value and not rig.results(uid)[0]["is_error"]
        said = receipt(rig, uid)
        assert (said["stage"], said["outcome"], said["is_error"], said["effect_certain"]) == ("completed", None, False, True)
        assert json.loads(rig.rows(uid).receipts["1.1"].output or "") == value
        assert work.keys == [f"{uid}/1.1"]


@pytest.mark.parametrize("effect", EFFECTS)
async def test_R16_a_tool_error_means_that_it_did_not_happen(effect: str) -> None:
    """Recorded, read by the model, not retried."""
    work = Attempts(effect, raises(ToolError("There is no order 7.")))
    async with Rig(work.agent) as rig:
        uid = await work.run(rig)
        assert rig.row(uid).status is Status.COMPLETED
        assert rig.results(uid)[0]["output"] == "There is no order 7."
        said = receipt(rig, uid)
        assert (said["stage"], said["outcome"], said["effect_certain"]) == ("failed", "failed", True)
        assert len(work.keys) == 1


@pytest.mark.parametrize("effect", REPEATABLE)
@pytest.mark.parametrize("error", [RuntimeError("secret"), KeyError(7), UnknownOutcome("nobody answered"), SystemExit(3)])
async def test_R16_another_exception_of_what_may_be_repeated_is_tried_again(effect: str, error: BaseException) -> None:
    """Under the same key, three attempts in all, with backoff, counted on the receipt. Its text is shown to nobody."""
    work = Attempts(effect, raises(error))
    async with Rig(work.agent) as rig:
        uid = await work.run(rig)
        assert rig.row(uid).status is Status.COMPLETED
        assert work.keys == [f"{uid}/1.1"] * 3
        waits = [later - earlier for earlier, later in zip(work.at, work.at[1:], strict=False)]
        assert waits == pytest.approx([0.25, 0.5], abs=0.02)
        said = receipt(rig, uid)
        assert (said["outcome"], said["attempt"], said["failures"]) == ("failed", 3, 3)
        assert rig.results(uid)[0]["output"] == UNEXPECTED
        assert "secret" not in b"".join(frame.data for frame in rig.rows(uid).frames).decode()


@pytest.mark.parametrize("effect", REPEATABLE)
async def test_R16_and_the_first_attempt_that_works_is_the_outcome(effect: str) -> None:
    def manner(ctx: ToolContext) -> str:
        if ctx.attempt < 3:
            raise RuntimeError("broken")
        return f"attempt {ctx.attempt}"

    work = Attempts(effect, manner)
    async with Rig(work.agent) as rig:
        uid = await work.run(rig)
        assert rig.results(uid)[0]["output"] == "attempt 3"
        assert [frame["attempt"] for frame in rig.frames(uid, "tool-state") if frame["state"] == "executing"] == [1, 2, 3]


async def test_R16_max_attempts_is_the_authors() -> None:
    work = Attempts("read", raises(RuntimeError("broken")), max_attempts=5)
    async with Rig(work.agent) as rig:
        await work.run(rig)
        assert len(work.keys) == 5


@pytest.mark.parametrize("effect", OTHERS)
@pytest.mark.parametrize("error", [RuntimeError("secret"), SystemExit(3)])
async def test_R16_another_exception_of_what_may_not_be_repeated_fails_uncertain(effect: str, error: BaseException) -> None:
    """The model reads that the effect may have happened and is not to be repeated."""
    work = Attempts(effect, raises(error))
    async with Rig(work.agent) as rig:
        uid = await work.run(rig)
        assert rig.row(uid).status is Status.COMPLETED
        said = receipt(rig, uid)
        assert (said["outcome"], said["effect_certain"], len(work.keys)) == ("failed", False, 1)
        assert rig.results(uid)[0]["output"] == UNCERTAIN


@pytest.mark.parametrize("effect", OTHERS)
async def test_R13_an_outcome_that_the_tool_cannot_tell_is_an_unknown_effect(effect: str) -> None:
    """The run waits for somebody who can find out, and lists it."""
    work = Attempts(effect, raises(UnknownOutcome("nobody answered")))
    async with Rig(work.agent) as rig:
        uid = await work.run(rig)
        view = rig.view(uid)
        assert (view["status"], view["task_outcome"]) == ("suspended", "needs_reconciliation")
        (unknown,) = view["pending"]["unknown_effects"]
        assert (unknown["tool_call_id"], unknown["effect"], unknown["attempt"]) == ("1.1", effect, 1)
        assert (unknown["idempotency_key"], unknown["arguments"]) == (f"{uid}/1.1", {})
        assert unknown["worker"] == rig.first.worker.owner
        said = receipt(rig, uid)
        assert (said["stage"], said["outcome"], said["effect_certain"]) == ("executing", "unknown", False)
        await rig.pass_seconds(10 * TTL)
        assert (rig.row(uid).leg, len(work.keys)) == (1, 1), "nothing settles it by itself"


@pytest.mark.parametrize("effect", EFFECTS)
async def test_R16_a_time_out_is_an_attempt_that_failed_or_an_unknown_effect(effect: str) -> None:
    never = asyncio.Event()
    work = Attempts(effect, lambda ctx: never.wait(), timeout_seconds=3)
    async with Rig(work.agent) as rig:
        uid = await work.run(rig)
        if effect in REPEATABLE:
            assert (rig.row(uid).status, len(work.keys), receipt(rig, uid)["outcome"]) == (Status.COMPLETED, 3, "timed_out")
            assert work.at[1] - work.at[0] == pytest.approx(3 + 0.25, abs=0.2)
        else:
            assert (rig.row(uid).status, len(work.keys), receipt(rig, uid)["outcome"]) == (Status.SUSPENDED, 1, "unknown")


@pytest.mark.parametrize("effect", EFFECTS)
async def test_R16_what_a_tool_says_when_its_time_is_up_still_counts(effect: str) -> None:
    """Only what it returned or raised itself is an outcome: it was told to stop, and says that it was done."""
    never = asyncio.Event()

    async def manner(ctx: ToolContext) -> str:
        try:
            await never.wait()
        except asyncio.CancelledError:
            return "just done"
        return "never"

    work = Attempts(effect, manner, timeout_seconds=3)
    async with Rig(work.agent) as rig:
        uid = await work.run(rig)
        assert (rig.results(uid)[0]["output"], len(work.keys)) == ("just done", 1)


@pytest.mark.parametrize(("effect", "status"), [("read", "completed"), ("unclassified", "suspended")])
async def test_R16_a_tool_that_does_not_stop_holds_nobody_up(effect: str, status: str) -> None:
    """It swallows its cancel and goes on: the run does not wait, and what it says at last is not used."""
    never, ended = asyncio.Event(), asyncio.Event()

    async def manner(ctx: ToolContext) -> str:
        while not never.is_set():
            try:
                await never.wait()
            except asyncio.CancelledError:
                continue
        ended.set()
        return "too late"

    work = Attempts(effect, manner, timeout_seconds=3, max_attempts=1)
    async with Rig(work.agent) as rig:
        uid = await work.run(rig)
        assert rig.view(uid)["status"] == status
        before = rig.row(uid)
        never.set()
        await rig.until(ended.is_set)
        await rig.pass_seconds(1)
        assert rig.row(uid) == before


async def test_R16_a_tool_that_cancels_itself_has_raised() -> None:
    async def manner(ctx: ToolContext) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    work = Attempts("unclassified", manner)
    async with Rig(work.agent) as rig:
        uid = await work.run(rig)
        assert (rig.row(uid).status, receipt(rig, uid)["outcome"]) == (Status.COMPLETED, "failed")


class Unspeakable(Exception):
    """An exception that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [Unspeakable(), ExceptionGroup("several", [ValueError("a"), KeyError("b")])])
async def test_R16_an_exception_that_cannot_be_told_hurts_nobody(error: Exception) -> None:
    work = Attempts("read", raises(error), max_attempts=1)
    async with Rig(work.agent) as rig:
        uid = await work.run(rig)
        assert (rig.row(uid).status, receipt(rig, uid)["outcome"]) == (Status.COMPLETED, "failed")


@pytest.mark.parametrize(
    ("value", "outcome"),
    [(float("nan"), "invalid_result"), (object(), "invalid_result"), (b"bytes", "invalid_result"), ("x" * 70_000, "too_large")],
)
@pytest.mark.parametrize("effect", ["read", "unclassified"])
async def test_R16_a_result_that_cannot_be_kept_ran_and_does_not_run_again(value: Any, outcome: str, effect: str) -> None:
    work = Attempts(effect, lambda ctx: value)
    async with Rig(work.agent) as rig:
        uid = await work.run(rig)
        said = receipt(rig, uid)
        assert (rig.row(uid).status, said["stage"], said["outcome"], said["is_error"]) == (Status.COMPLETED, "failed", outcome, True)
        assert (len(work.keys), rig.results(uid)[0]["is_error"]) == (1, True)


async def test_R16_a_result_that_does_not_fit_its_schema_is_invalid() -> None:
    work = Attempts("read", lambda ctx: {"n": "one"}, output_schema={"type": "object", "properties": {"n": {"type": "integer"}}})
    async with Rig(work.agent) as rig:
        uid = await work.run(rig)
        assert (receipt(rig, uid)["outcome"], len(work.keys)) == ("invalid_result", 1)


async def test_files_go_to_the_model_beside_the_text() -> None:
    """R12: also after a crash, from the receipt."""

    @tool(effect="read")
    async def draw() -> list[Any]:
        return [Text("a picture"), File(media_type="image/png", data=b"png")]

    async with Rig(agent(calls("draw"), DONE, tools=[draw])) as rig:
        uid = await rig.run()
        assert rig.results(uid)[0]["output"] == "a picture"
        assert rig.results(uid)[0]["files"][0]["media_type"] == "image/png"
        assert rig.frames(uid, "tool-output")[0]["files"][0]["data"] == "cG5n"


# -- threads -----------------------------------------------------------------------------------------------------------------


async def test_def_tools_run_in_threads_with_plain_calls_to_their_context() -> None:
    """R16: progress and checkpoint are done when the call returns."""
    seen: list[str] = []

    @tool(effect="idempotent_write")
    def work(ctx: ToolContext) -> str:
        seen.append(threading.current_thread().name)
        _ = ctx.progress({"half": True})
        _ = ctx.save_checkpoint("half")
        return str(ctx.checkpoint)

    async with Rig(agent(calls("work"), DONE, tools=[work])) as rig:
        uid = await rig.run()
        assert rig.results(uid)[0]["output"] == "half"
        assert seen == ["runward-tool"]
        assert rig.frames(uid, "tool-progress")[0]["data"] == {"half": True}


async def test_R16_a_def_tool_that_times_out_is_left_behind() -> None:
    going = threading.Event()

    @tool(effect="read", timeout_seconds=1, max_attempts=1)
    def work() -> str:
        going.wait(30)
        return "too late"

    async with Rig(agent(calls("work"), DONE, tools=[work])) as rig:
        uid = await rig.run()
        assert receipt(rig, uid)["outcome"] == "timed_out"
        going.set()


# -- turns -------------------------------------------------------------------------------------------------------------------


async def test_R16_calls_of_a_turn_run_at_once_and_one_failure_harms_no_other() -> None:
    """I-06: a success, an error, a time-out and an unknown one; each has its own outcome, none is repeated for another's sake."""
    began: list[str] = []
    never = asyncio.Event()

    @tool(effect="read", timeout_seconds=2, max_attempts=1)
    async def hang() -> str:
        began.append("hang")
        await never.wait()
        return ""

    @tool(effect="unclassified", needs_approval=False)
    async def work() -> str:
        began.append("work")
        return "worked"

    @tool(effect="unclassified", needs_approval=False)
    async def fail() -> str:
        began.append("fail")
        raise ToolError("no")

    @tool(effect="unclassified", needs_approval=False, on_unknown="tell_model")
    async def lose() -> str:
        began.append("lose")
        raise UnknownOutcome("?")

    async with Rig(agent(calls("hang", "work", "fail", "lose"), DONE, tools=[hang, work, fail, lose])) as rig:
        uid = await rig.begin()
        await rig.until(lambda: rig.row(uid).revision >= 4)
        await rig.pass_seconds(0.5)
        assert sorted(began) == ["fail", "hang", "lose", "work"]
        stages = [rig.rows(uid).receipts[f"1.{number}"].stage for number in range(1, 5)]
        assert stages == ["executing", "completed", "failed", "failed"], "each outcome is durable when its call ends, not with its batch"
        await rig.over(uid)
        assert [receipt(rig, uid, f"1.{number}")["outcome"] for number in range(1, 5)] == ["timed_out", None, "failed", "unknown"]
        assert [result["tool_call_id"] for result in rig.results(uid)] == ["1.1", "1.2", "1.3", "1.4"]
        assert rig.view(uid)["task_outcome"] == "needs_reconciliation"


async def test_R16_calls_that_end_together_share_a_commit() -> None:
    @tool(effect="read")
    async def look() -> str:
        return "seen"

    async with Rig(agent(calls(*["look"] * 5), DONE, tools=[look])) as rig:
        await rig.run()
        assert rig.faults.counts["commit"] == 3


async def test_no_more_calls_run_at_once_than_the_limit_allows() -> None:
    """R13: a call that starts later is marked by a commit of its own, and only then."""
    going: set[str] = set()
    most: list[int] = []

    @tool(effect="unclassified", needs_approval=False)
    async def work(ctx: ToolContext) -> str:
        going.add(ctx.tool_call_id)
        most.append(len(going))
        marked = {call for call, row in rig.rows(uid).receipts.items() if row.attempt}
        assert going <= marked and len(marked) <= len(most) + 1
        await rig.clock.sleep(1)
        going.discard(ctx.tool_call_id)
        return "worked"

    async with Rig(agent(calls(*["work"] * 7), DONE, tools=[work], limits=Limits(max_parallel_tools=2))) as rig:
        uid = await rig.begin()
        await rig.over(uid)
        assert (max(most), len(most), rig.row(uid).status) == (2, 7, Status.COMPLETED)


# -- names, ids, arguments -----------------------------------------------------------------------------------------------------


@tool(effect="read")
async def echo(n: int, ctx: ToolContext) -> dict[str, Any]:
    return {"n": n, "call": ctx.tool_call_id, "key": ctx.idempotency_key}


async def test_R17_calls_get_ids_of_our_own_whatever_the_provider_says() -> None:
    """It repeats them within a turn and across turns; every call has its own id, key and receipt."""
    turn = Reply(
        tool_calls=[ToolCall("echo", {"n": 1}, id="same"), ToolCall("echo", {"n": 2}, id="same"), ToolCall("echo", {"n": 3}, id="")]
    )
    async with Rig(agent(turn, turn, DONE, tools=[echo])) as rig:
        uid = await rig.run()
        ids = ["1.1", "1.2", "1.3", "2.1", "2.2", "2.3"]
        assert [result["tool_call_id"] for result in rig.results(uid)] == ids
        assert [result["output"]["key"] for result in rig.results(uid)] == [f"{uid}/{id}" for id in ids]
        assert sorted(rig.rows(uid).receipts) == ids
        assert [receipt(rig, uid, id)["provider_id"] for id in ids] == ["same", "same", ""] * 2


@pytest.mark.parametrize("name", ["Echo", "echo ", "ech", "écho", "", "x" * 10_000])
async def test_R17_names_are_matched_exactly(name: str) -> None:
    async with Rig(agent(Reply(tool_calls=[ToolCall(name, {"n": 1})]), DONE, tools=[echo])) as rig:
        uid = await rig.run()
        assert rig.row(uid).status is Status.COMPLETED
        said = receipt(rig, uid)
        assert (said["outcome"], said["attempt"]) == ("unknown_tool", 0)
        assert "echo" in rig.results(uid)[0]["output"], "it is told which there are"


@pytest.mark.parametrize(
    "arguments",
    ["", "{", "[1]", "1", '"n"', "null", '{"n": NaN}', '{"n": 1e400}', '{"n": "1"}', '{"n": true}', '{"m": 1}', '{"n": 1, "m": 2}'],
)
async def test_R17_arguments_that_do_not_fit_go_back_to_the_model(arguments: str) -> None:
    async with Rig(agent(Reply(tool_calls=[ToolCall("echo", arguments)]), DONE, tools=[echo])) as rig:
        uid = await rig.run()
        said = receipt(rig, uid)
        assert (rig.row(uid).status, said["outcome"], said["attempt"]) == (Status.COMPLETED, "invalid_arguments", 0)
        assert rig.types(uid).count("tool-call") == 1


async def test_R17a_arguments_are_canonical_once_and_run_as_they_are_stored() -> None:
    ran: list[Any] = []

    @tool(effect="read")
    async def keep(value: Any) -> None:
        ran.append(value)

    written = '{ "value" : {"b": 1, "a": [1.0, -0.0, 9007199254740993, "\\u0041é"]} }'
    async with Rig(agent(Reply(tool_calls=[ToolCall("keep", written)]), DONE, tools=[keep])) as rig:
        uid = await rig.run()
        stored = rig.rows(uid).receipts["1.1"].arguments
        assert stored == '{"value":{"a":[1.0,-0.0,9007199254740993,"Aé"],"b":1}}'
        assert ran == [json.loads(stored)["value"]]
        assert rig.frames(uid, "tool-call")[0]["arguments"] == json.loads(written)


async def test_R17_a_call_of_a_tool_that_the_model_was_not_offered_is_unknown() -> None:
    hidden = tool(effect="read", name="hidden", enabled=False)(echo.function)
    async with Rig(agent(Reply(tool_calls=[ToolCall("hidden", {"n": 1})]), DONE, tools=[hidden, echo])) as rig:
        uid = await rig.run()
        assert receipt(rig, uid)["outcome"] == "unknown_tool"


# -- after a death -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("on_unknown", ["reconcile", "tell_model"])
async def test_R13_a_call_found_half_done_runs_again_only_when_its_effect_allows_it(effect: str, on_unknown: str) -> None:
    never = asyncio.Event()
    work = Attempts(effect, lambda ctx: never.wait() if ctx.attempt == 1 else "again", on_unknown=on_unknown)
    async with Rig(work.agent) as rig:
        work.rig = rig
        uid = await rig.begin()
        await rig.until(lambda: bool(work.keys))
        await rig.first.die()
        await rig.start()
        row = await rig.over(uid)
        if effect in REPEATABLE:
            assert (row.status, work.keys) == (Status.COMPLETED, [f"{uid}/1.1"] * 2)
            assert rig.results(uid)[0]["output"] == "again"
        elif on_unknown == "reconcile":
            assert (row.status, work.keys) == (Status.SUSPENDED, [f"{uid}/1.1"])
            assert len(rig.view(uid)["pending"]["unknown_effects"]) == 1
        else:
            assert (row.status, work.keys) == (Status.COMPLETED, [f"{uid}/1.1"])
            assert (receipt(rig, uid)["outcome"], rig.results(uid)[0]["is_error"]) == ("unknown", True)
            assert rig.row(uid).task_outcome == "needs_reconciliation"


async def test_R12_a_call_with_a_recorded_outcome_never_runs_again() -> None:
    """One sibling is done, one is under way, one waits for room: the first is answered from its receipt, the last one simply starts."""
    began: list[str] = []
    never = asyncio.Event()

    @tool(effect="non_idempotent_write", needs_approval=False)
    async def pay(n: int, ctx: ToolContext) -> str:
        began.append(f"{ctx.tool_call_id} attempt {ctx.attempt}")
        if n == 2 and ctx.attempt == 1:
            await never.wait()
        return f"paid {n}"

    @tool(effect="read")
    async def look(n: int, ctx: ToolContext) -> str:
        began.append(f"{ctx.tool_call_id} attempt {ctx.attempt}")
        if ctx.attempt == 1:
            await never.wait()
        return f"seen {n}"

    turn = Reply(tool_calls=[ToolCall("pay", {"n": 1}), ToolCall("look", {"n": 2}), ToolCall("pay", {"n": 3})])
    async with Rig(agent(turn, DONE, tools=[pay, look], limits=Limits(max_parallel_tools=1))) as rig:
        uid = await rig.begin()
        await rig.until(lambda: len(began) == 2)
        await rig.first.die()
        await rig.start()
        row = await rig.over(uid)
        assert row.status is Status.COMPLETED
        assert began == ["1.1 attempt 1", "1.2 attempt 1", "1.2 attempt 2", "1.3 attempt 1"]
        assert [result["output"] for result in rig.results(uid)] == ["paid 1", "seen 2", "paid 3"]


async def test_R12_after_the_last_outcome_a_new_leg_goes_straight_to_the_model() -> None:
    work = Attempts("non_idempotent_write", lambda ctx: "worked")
    async with Rig(work.agent) as rig:
        work.rig = rig
        gate = rig.faults.hold("commit", 2, answered=True)
        uid = await rig.begin()
        await rig.reached(gate)
        await rig.first.die()
        await rig.start()
        row = await rig.over(uid)
        assert (row.status, row.leg, len(work.keys)) == (Status.COMPLETED, 2, 1)
        assert rig.types(uid).count("tool-call") == 1


async def test_R13_a_call_that_was_never_marked_simply_starts() -> None:
    """The worker died with the mark on its way: no effect happened."""
    work = Attempts("non_idempotent_write", lambda ctx: "worked")
    async with Rig(work.agent) as rig:
        work.rig = rig
        gate = rig.faults.hold("commit", 1)
        uid = await rig.begin()
        await rig.reached(gate)
        await rig.first.die()
        await rig.start()
        row = await rig.over(uid)
        assert (row.status, len(work.keys)) == (Status.COMPLETED, 1)


async def test_R13_an_outcome_that_was_not_recorded_did_not_happen_for_us() -> None:
    """It ran, and the worker died with the outcome on its way."""
    work = Attempts("non_idempotent_write", lambda ctx: "worked")
    async with Rig(work.agent) as rig:
        work.rig = rig
        gate = rig.faults.hold("commit", 2)
        uid = await rig.begin()
        await rig.reached(gate)
        await rig.first.die()
        await rig.start()
        row = await rig.over(uid)
        assert (row.status, len(work.keys)) == (Status.SUSPENDED, 1)


async def test_a_checkpoint_is_durable_when_it_returns_and_the_next_attempt_reads_it() -> None:
    """R13: after a death of the worker, and after a failure of the tool."""
    read: list[str | None] = []
    never = asyncio.Event()

    async def manner(ctx: ToolContext) -> str:
        read.append(ctx.checkpoint)
        await ctx.save_checkpoint(f"page {ctx.attempt}")
        if ctx.attempt == 1:
            raise RuntimeError("broken")
        if ctx.attempt == 2:
            await never.wait()
        return "done"

    work = Attempts("read", manner)
    async with Rig(work.agent) as rig:
        work.rig = rig
        uid = await rig.begin()
        await rig.until(lambda: len(read) == 2)
        await rig.until(lambda: receipt(rig, uid).get("checkpoint") == "page 2")
        await rig.first.die()
        await rig.start()
        await rig.over(uid)
        assert read == [None, "page 1", "page 2"]


async def test_a_call_that_is_over_hosts_nothing_any_more() -> None:
    """R16: a tool that left something running behind cannot speak for its call any longer."""
    left: list[Any] = []

    async def manner(ctx: ToolContext) -> str:
        left.append(ctx)
        return "done"

    work = Attempts("read", manner)
    async with Rig(work.agent) as rig:
        await work.run(rig)
        for late in (left[0].progress(1), left[0].save_checkpoint("late")):
            with pytest.raises(RuntimeError, match="over"):
                await late


@pytest.mark.parametrize("value", ["x" * 65_537, {"x": "é" * 40_000}])
async def test_progress_and_checkpoints_are_bounded(value: Any) -> None:
    """R48: 64 KiB each; the tool gets a ValueError and may go on."""

    async def manner(ctx: ToolContext) -> list[str]:
        refused = []
        for name, ask in (("progress", ctx.progress(value)), ("checkpoint", ctx.save_checkpoint(str(value)))):
            try:
                await ask
            except ValueError:
                refused.append(name)
        return refused

    work = Attempts("read", manner)
    async with Rig(work.agent) as rig:
        uid = await work.run(rig)
        assert rig.results(uid)[0]["output"] == ["progress", "checkpoint"]
        assert rig.frames(uid, "tool-progress") == []
