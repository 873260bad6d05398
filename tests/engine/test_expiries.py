"""Whatever has a limit has a state of its own once that is reached: steps, times of the run, of its models, tools and verifiers.

A test takes each through a run of its own, and says what is left of it: status, reason or error, and what it may have cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from runward.agents.agent import Agent
from runward.agents.builtin import ask_user
from runward.agents.contexts import ToolContext
from runward.agents.models import Reply, ScriptedModel
from runward.agents.output import Output, Verdict
from runward.agents.tools import tool
from runward.core.kernel.actor import Status
from runward.core.runs.limits import Limits
from runward.core.values import replace
from tests.engine.rig import DONE, Rig, agent, calls

pytestmark = pytest.mark.timeout(60)

SLOW = Reply(text="one two three", chunk_delay_seconds=8)


def limited(*replies: Reply, **limits: Any) -> Agent:
    return agent(*replies, tools=[look, stuck, pay], limits=Limits(**limits))


@tool(effect="read")
async def look() -> str:
    """Looks."""
    return "seen"


@tool(effect="read", timeout_seconds=3, max_attempts=1)
async def stuck(ctx: ToolContext) -> None:
    """Never comes back."""
    await asyncio.Event().wait()


@tool(effect="non_idempotent_write", needs_approval=False, timeout_seconds=3)
async def pay(ctx: ToolContext) -> None:
    """Never comes back either."""
    await asyncio.Event().wait()


async def certain(candidate: Any, ctx: Any) -> Verdict:
    """Never comes back either."""
    await asyncio.Event().wait()
    return Verdict.verified()


EXPIRIES: dict[str, tuple[Callable[[], Agent], str, str, float]] = {
    "steps": (lambda: limited(calls("look"), DONE, max_steps=1), "stopped", "max_steps", 0),
    "work, in a model call": (lambda: limited(SLOW, timeout_seconds=5), "stopped", "deadline", 5),
    "work, in a tool": (lambda: limited(calls("pay"), DONE, timeout_seconds=2), "stopped", "deadline", 4),
    "life, in a model call": (lambda: limited(SLOW, expires_seconds=5), "stopped", "deadline", 5),
    "life, waiting for somebody": (
        lambda: agent(calls("ask_user", question="?"), tools=[ask_user], limits=Limits(expires_seconds=90)),
        "stopped",
        "deadline",
        90,
    ),
    "first event": (lambda: limited(SLOW, first_event_timeout_seconds=2, model_retries=0), "failed", "timeout", 2),
    "between pieces": (lambda: limited(SLOW, chunk_timeout_seconds=2, first_event_timeout_seconds=20), "failed", "timeout", 10),
    "a whole model call": (lambda: limited(SLOW, model_timeout_seconds=12), "failed", "timeout", 12),
    "a tool that only reads": (lambda: limited(calls("stuck"), DONE), "completed", "timed_out", 3),
    "a tool that writes": (lambda: limited(calls("pay"), DONE), "suspended", "unknown", 3),
    "a verifier": (
        lambda: agent(Reply(text="{}"), output=Output(schema={"type": "object"}, verify=certain), limits=Limits(model_timeout_seconds=7)),
        "stopped",
        "verification_inconclusive",
        7,
    ),
}


def seconds_between(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def why(rig: Rig, uid: str) -> str:
    """What the run, or else its call, ended with."""
    run = rig.view(uid)
    if run["stop"] is not None:
        return str(run["stop"]["reason"])
    return str(run["error"]["details"]["kind"] if run["error"] is not None else rig.rows(uid).receipts["1.1"].outcome)


@pytest.mark.parametrize("name", EXPIRIES)
async def test_R35a_each_expiry_has_its_state(name: str) -> None:
    """R10, R13, R16, R28, R30: and it is reached when the time is up, not at some other moment."""
    made, status, reason, seconds = EXPIRIES[name]
    async with Rig(made()) as rig:
        uid = await rig.begin()
        ends = (Status.COMPLETED, Status.STOPPED, Status.FAILED, *((Status.SUSPENDED,) if status == "suspended" else ()))
        await rig.until(lambda: rig.row(uid).lease_owner is None and rig.row(uid).status in ends)
        assert (rig.view(uid)["status"], why(rig, uid)) == (status, reason)
        assert rig.clock.monotonic() == pytest.approx(seconds, abs=0.6)
        assert rig.view(uid)["accounting"]["reserved"]["tokens"] == 0


@pytest.mark.parametrize(
    ("limits", "transient", "calls_made"),
    [({"first_event_timeout_seconds": 2}, True, 3), ({"first_event_timeout_seconds": 20, "chunk_timeout_seconds": 2}, True, 1)],
    ids=["first event", "between pieces"],
)
async def test_R30_before_the_first_content_a_time_out_is_tried_again_and_each_attempt_may_have_been_billed(
    limits: dict[str, float], transient: bool, calls_made: int
) -> None:
    async with Rig(limited(SLOW, model_retries=2, **limits)) as rig:
        uid = await rig.run()
        run = rig.view(uid)
        assert run["error"]["transient"] is transient and run["usage"]["model_calls"] == calls_made
        unknown = run["accounting"]["unknown"]["tokens"]
        assert unknown > 4_096 * calls_made and unknown == run["accounting"]["committed"]["tokens"]


@pytest.mark.parametrize("bound", ["timeout_seconds", "expires_seconds"])
async def test_R35a_a_deadline_survives_the_worker(bound: str) -> None:
    """Work is counted over all legs up to the last commit of each; life goes on in between."""
    asked: list[int] = []

    def script(request: Any) -> Reply:
        asked.append(request.attempt)
        return calls("look") if request.step < 3 else replace(SLOW, text="word " * 1_000, chunk_delay_seconds=1)

    @tool(effect="read", name="look")
    async def slow_look() -> str:
        """Looks for four seconds."""
        await rig.clock.sleep(4)
        return "seen"

    bounds: dict[str, Any] = {bound: 30}
    made = agent(model=ScriptedModel(script), tools=[slow_look], limits=Limits(**bounds))
    async with Rig(made, worker=False) as rig:
        uid = await rig.begin()
        doomed = await rig.start()
        await rig.until(lambda: len(asked) == 3)
        await rig.pass_seconds(5)
        await doomed.die()
        await rig.pass_seconds(4)
        await rig.start()
        await rig.over(uid)
        row = rig.row(uid)
        assert (row.status, row.stop_reason, row.leg) == (Status.STOPPED, "deadline", 2)
        if bound == "expires_seconds":
            assert rig.clock.monotonic() == pytest.approx(30, abs=0.6)
        else:
            again = min(frame["at"] for frame in rig.frames(uid, "reset-step"))
            assert 8 + seconds_between(again, rig.frames(uid)[-1]["at"]) == pytest.approx(30, abs=0.6), "8 s were worked, up to a commit"


async def test_R35a_a_deadline_that_passes_while_nobody_works_is_not_worked_past() -> None:
    asked: list[int] = []

    def script(request: Any) -> Reply:
        asked.append(1)
        return replace(SLOW, chunk_delay_seconds=100)

    async with Rig(agent(model=ScriptedModel(script), limits=Limits(expires_seconds=20)), worker=False) as rig:
        uid = await rig.begin()
        doomed = await rig.start()
        await rig.until(lambda: bool(asked))
        await doomed.die()
        await rig.pass_seconds(60)
        await rig.start()
        await rig.over(uid)
        assert rig.view(uid)["stop"]["reason"] == "deadline" and len(asked) == 1
        assert rig.view(uid)["accounting"]["unknown"]["tokens"] > 4_096, "the call that died may have been billed"
