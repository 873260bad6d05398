"""R37, R38: a cancel ends the run wherever it stands; what runs is told, and the end says of each call what is known."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from runward import Reply, ScriptedModel, ToolContext, ToolError, UnknownOutcome, tool
from runward.agents.tools import AnyTool
from runward.core.kernel.actor import Status
from runward.core.runs.limits import Limits
from runward.engine.callers import LOCAL
from tests.engine.rig import DONE, SETTINGS, Rig, agent, calls

EFFECTS = ("read", "idempotent_write", "non_idempotent_write", "unclassified")
GRACE = SETTINGS.cancel_grace


class Hands:
    """Makes tools that hold on until they are cancelled, and then do what their manner says."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.seen: list[float] = []
        self.never = asyncio.Event()

    def tool(self, name: str, effect: Any, manner: str) -> AnyTool:
        async def work(ctx: ToolContext) -> str:
            self.began.append(name)
            if manner == "heeds":
                while not ctx.cancelled:
                    await self._rig.clock.sleep(0.1)
                self.seen.append(self._rig.clock.monotonic())
                return "stopped cleanly"
            try:
                await self.never.wait()
            except asyncio.CancelledError:
                self.seen.append(self._rig.clock.monotonic())
                if manner == "returns":
                    return "done after all"
                if manner == "did not happen":
                    raise ToolError("It did not happen.") from None
                if manner == "cannot tell":
                    raise UnknownOutcome("nobody answered") from None
                raise
            return "never"

        return tool(name=name, effect=effect, needs_approval=False, timeout_seconds=1_000)(work)

    async def cancelled(self, rig: Rig, began: int) -> dict[str, Any]:
        """The view of a run that was cancelled once so many tools had begun."""
        self._rig = rig
        uid = await rig.begin()
        await rig.until(lambda: len(self.began) == began)
        self.at = rig.clock.monotonic()
        await rig.cancel(uid, "enough")
        await rig.over(uid)
        self.uid = uid
        return rig.view(uid)


def states(view: dict[str, Any]) -> dict[str, str]:
    return {call["tool_name"]: call["state"] for call in view["stop"]["details"]["calls"]}


# -- models ------------------------------------------------------------------------------------------------------------------


async def test_R38_a_model_call_is_broken_off_at_once_and_its_text_dropped() -> None:
    """R32: nothing of it is in the transcript, and whoever followed it is told so."""
    async with Rig(agent(Reply(text="one two three four", chunk_delay_seconds=10))) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(rig.frames(uid, "text-delta")))
        at = rig.clock.monotonic()
        await rig.cancel(uid)
        await rig.over(uid)
        assert rig.clock.monotonic() - at < 0.1
        assert rig.row(uid).stop_reason == "cancelled"
        assert rig.types(uid)[-4:] == ["text-delta", "reset-step", "finish", "data-agent"]
        assert [message.role for message in rig.rows(uid).messages.values()] == ["user"]
        assert rig.view(uid)["stop"]["details"]["calls"] == []
        assert rig.view(uid)["usage"]["model_calls"] == 1


async def test_R38_however_often_the_leg_looks_again_meanwhile() -> None:
    """A model that is slow to let go, while more mail keeps the leg awake: it is stopped once, and its end is heard."""
    slow = asyncio.Event()

    async def model(request: Any) -> Reply:
        try:
            await asyncio.Event().wait()
        finally:
            await slow.wait()
        return DONE

    from runward import ScriptedModel

    async with Rig(agent(model=ScriptedModel(model))) as rig:
        uid = await rig.begin()
        await rig.pass_seconds(1)
        await rig.cancel(uid)
        await rig.pass_seconds(1)
        await rig.cancel(uid)
        await rig.pass_seconds(20)
        assert rig.row(uid).status is Status.RUNNING
        slow.set()
        await rig.over(uid)
        assert rig.row(uid).stop_reason == "cancelled"


async def test_R38_a_model_that_waits_to_be_asked_again_is_not_asked() -> None:
    async with Rig(agent(Reply(error="server_error"), limits=Limits(model_retries=5))) as rig:
        uid = await rig.begin()
        await rig.until(lambda: rig.row(uid).revision >= 5)
        at = rig.clock.monotonic()
        asked = rig.view(uid)["usage"]["model_calls"]
        await rig.cancel(uid)
        await rig.over(uid)
        assert rig.clock.monotonic() - at < 0.1
        assert (rig.row(uid).stop_reason, rig.view(uid)["usage"]["model_calls"]) == ("cancelled", asked)


# -- tools -------------------------------------------------------------------------------------------------------------------


async def test_R38_a_tool_sees_the_cancel_and_has_its_grace() -> None:
    hands = Hands()
    async with Rig(agent(calls("heed"), tools=[hands.tool("heed", "non_idempotent_write", "heeds")])) as rig:
        view = await hands.cancelled(rig, 1)
        assert hands.seen[0] - hands.at < 0.2
        assert states(view) == {"heed": "finished"}
        assert rig.results(hands.uid)[0]["output"] == "stopped cleanly"
        assert rig.rows(hands.uid).receipts["1.1"].outcome is None


async def test_R38_a_grace_later_its_task_is_cancelled() -> None:
    hands = Hands()
    async with Rig(agent(calls("hold"), tools=[hands.tool("hold", "read", "gives up")])) as rig:
        view = await hands.cancelled(rig, 1)
        assert hands.seen[0] - hands.at == pytest.approx(GRACE, abs=0.1)
        assert states(view) == {"hold": "cancelled"}
        receipt = rig.rows(hands.uid).receipts["1.1"]
        assert (receipt.outcome, receipt.is_error, receipt.stage) == ("cancelled", True, "failed")


@pytest.mark.parametrize(
    ("manner", "effect", "state"),
    [
        *(("gives up", effect, "cancelled" if effect in EFFECTS[:2] else "unknown") for effect in EFFECTS),
        *(("returns", effect, "finished") for effect in EFFECTS),
        *(("did not happen", effect, "finished") for effect in EFFECTS),
        ("cannot tell", "non_idempotent_write", "unknown"),
    ],
)
async def test_R38_the_end_says_of_each_call_what_is_known(manner: str, effect: str, state: str) -> None:
    """What the tool itself says while it is stopped still counts."""
    hands = Hands()
    async with Rig(agent(calls("work"), tools=[hands.tool("work", effect, manner)])) as rig:
        view = await hands.cancelled(rig, 1)
        assert (view["status"], view["stop"]["reason"], states(view)) == ("stopped", "cancelled", {"work": state})
        assert view["task_outcome"] == ("needs_reconciliation" if state == "unknown" else "failed")
        assert len(view["pending"]["unknown_effects"]) == (state == "unknown")
        assert len(rig.results(hands.uid)) == 1, "R17b: the history pairs it"


async def test_R38_every_call_of_the_turn_is_listed() -> None:
    """R17b: finished, stopped, unknown and never started, each with exactly one result in the history."""
    hands = Hands()

    @tool(effect="read")
    async def quick() -> str:
        hands.began.append("quick")
        return "quick"

    tools = [quick, hands.tool("hold", "read", "gives up"), hands.tool("pay", "non_idempotent_write", "gives up")]
    limits = Limits(max_parallel_tools=2)
    async with Rig(agent(calls("quick", "hold", "pay", "quick", "pay"), tools=tools, limits=limits)) as rig:
        view = await hands.cancelled(rig, 3)
        assert [(call["tool_call_id"], call["state"]) for call in view["stop"]["details"]["calls"]] == [
            ("1.1", "finished"),
            ("1.2", "cancelled"),
            ("1.3", "unknown"),
            ("1.4", "not_started"),
            ("1.5", "not_started"),
        ]
        assert [result["tool_call_id"] for result in rig.results(hands.uid)] == ["1.1", "1.2", "1.3", "1.4", "1.5"]
        assert hands.began == ["quick", "hold", "pay"]
        assert sorted(rig.rows(hands.uid).receipts) == ["1.1", "1.2", "1.3", "1.4", "1.5"]


async def test_R38_a_tool_that_waits_to_be_tried_again_is_not() -> None:
    attempts: list[int] = []

    @tool(effect="read", max_attempts=10)
    async def break_down(ctx: ToolContext) -> str:
        attempts.append(ctx.attempt)
        raise RuntimeError("broken")

    async with Rig(agent(calls("break_down"), tools=[break_down])) as rig:
        uid = await rig.begin()
        await rig.until(lambda: len(attempts) == 4)
        await rig.pass_seconds(0.5)
        at = rig.clock.monotonic()
        await rig.cancel(uid)
        await rig.over(uid)
        assert rig.clock.monotonic() - at < 0.1
        assert attempts == [1, 2, 3, 4]
        assert states(rig.view(uid)) == {"break_down": "cancelled"}


async def test_R38_a_thread_is_left_behind() -> None:
    """A `def` tool cannot be cancelled: the run ends without it, and what it says later is not used."""
    going, ended = threading.Event(), threading.Event()

    @tool(effect="non_idempotent_write", needs_approval=False, timeout_seconds=1_000)
    def work() -> str:
        going.wait(30)
        ended.set()
        return "too late"

    async with Rig(agent(calls("work"), tools=[work]), settings=replace(SETTINGS, cancel_grace=0.1)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: "1.1" in rig.rows(uid).receipts)
        await rig.cancel(uid)
        await rig.over(uid)
        assert states(rig.view(uid)) == {"work": "unknown"}
        before = rig.row(uid)
        going.set()
        await asyncio.to_thread(ended.wait, 30)
        await rig.pass_seconds(1)
        assert rig.row(uid) == before


# -- waits -------------------------------------------------------------------------------------------------------------------


async def test_R37_a_waiting_run_is_cancelled_by_any_worker() -> None:
    """R41: also by one that lacks its agent."""
    hands = Hands()

    @tool(effect="non_idempotent_write", needs_approval=False)
    async def lose() -> str:
        raise UnknownOutcome("nobody answered")

    async with Rig(agent(calls("lose"), tools=[lose])) as rig:
        uid = await rig.run()
        await rig.first.die()
        caretaker = await rig.start(agent(DONE, name="another"))
        rig.processes.insert(0, rig.processes.pop())
        assert await rig.cancel(uid)
        await rig.over(uid)
        view = rig.view(uid)
        assert (view["status"], states(view)) == ("stopped", {"lose": "unknown"})
        assert view["task_outcome"] == "needs_reconciliation"
        assert rig.row(uid).leg == 2 and caretaker.telemetry.events == []
        assert not hands.began


async def test_R37_a_cancel_shows_from_the_moment_it_is_accepted() -> None:
    async with Rig(agent(DONE)) as rig:
        rig.faults.refuse("claim", *range(1, 100))
        uid = await rig.begin()
        assert rig.view(uid)["cancel_requested_at"] is None
        await rig.cancel(uid)
        assert rig.view(uid)["cancel_requested_at"] is not None and rig.view(uid)["status"] == "queued"


@pytest.mark.parametrize("heard", [True, False])
async def test_R37_a_cancel_holds_through_the_death_of_the_worker_that_was_to_apply_it(heard: bool) -> None:
    """It dies before it hears of the cancel, or while it writes the end."""
    hands = Hands()
    async with Rig(agent(calls("hold"), tools=[hands.tool("hold", "read", "gives up")])) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(hands.began))
        rig.bus.mute = not heard
        gate = rig.faults.hold("commit", 1)
        assert await rig.cancel(uid)
        if heard:
            await rig.reached(gate)
        await rig.first.die()
        await rig.start()
        row = await rig.over(uid)
        assert (row.status, row.stop_reason, row.leg) == (Status.STOPPED, "cancelled", 2)
        assert states(rig.view(uid)) == {"hold": "cancelled"}
        assert hands.began == ["hold"]


async def test_R37_a_cancel_outranks_the_deadline_and_a_failure() -> None:
    async with Rig(agent(Reply(error="bad_request"))) as rig:
        gate = rig.faults.hold("commit", 1)
        uid = await rig.begin(limits={"expires_seconds": 5.0})
        await rig.reached(gate)
        await rig.pass_seconds(6)
        assert await rig.cancel(uid)
        gate.open.set()
        await rig.over(uid)
        assert (rig.row(uid).status, rig.row(uid).stop_reason) == (Status.STOPPED, "cancelled")
        assert rig.view(uid)["error"] is None


async def test_R37_a_cancel_that_met_the_end_of_a_run_is_sent_again_when_somebody_has_it_tried_again_meanwhile() -> None:
    """R10: else the answer would be that the run has ended, beside a run that goes on."""
    reached, down = asyncio.Event(), [True]

    @tool(effect="read")
    async def wait() -> None:
        reached.set()
        await asyncio.Event().wait()

    def says(request: Any) -> Reply:
        return Reply(error="server_error") if down[0] else calls("wait")

    async with Rig(agent(model=ScriptedModel(says), tools=[wait])) as rig:
        uid = await rig.run()
        assert rig.row(uid).status is Status.FAILED
        down[0] = False
        gate = rig.faults.hold("append_mail", answered=True)
        cancelling = asyncio.ensure_future(rig.first.service.commands.cancel_run(LOCAL, rig.row(uid).public_id, None))
        await rig.reached(gate)
        await rig.deliver(uid, retry_failed=True)
        await rig.until(reached.is_set)
        gate.open.set()
        answer = await rig.passing(cancelling)
        await rig.over(uid)
        assert answer.accepted
        assert (rig.row(uid).status, rig.row(uid).stop_reason) == (Status.STOPPED, "cancelled")
