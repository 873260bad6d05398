"""R12, station 7: where author code follows a result, the raw result is durable first, and a failed projection never repeats the effect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from runward import Text, ToolContext, tool
from runward.core.kernel.actor import Status
from runward.engine.tool_calls import UNSHOWN
from tests.engine.rig import DONE, Rig, agent, calls


class Report:
    """A tool that counts its effects, and a projection that counts its tries."""

    def __init__(self, show: Callable[[Any, int], Any], effect: Any = "non_idempotent_write") -> None:
        self.ran = 0
        self.shown: list[Any] = []

        def shown(result: Any) -> Any:
            self.shown.append(result)
            return show(result, len(self.shown))

        @tool(effect=effect, needs_approval=False, to_model_output=shown)
        async def report(ctx: ToolContext) -> dict[str, Any]:
            self.ran += 1
            return {"rows": 3, "secret": "s"}

        self.agent = agent(calls("report"), DONE, tools=[report])


async def test_R12_the_raw_result_is_durable_before_it_is_shown() -> None:
    """`executed` first; the receipt keeps what the tool returned, the model sees what its author made of it."""
    report = Report(lambda result, number: f"{result['rows']} rows")
    async with Rig(report.agent) as rig:
        gate = rig.faults.hold("commit", 2, answered=True)
        uid = await rig.begin()
        await rig.reached(gate)
        row = rig.rows(uid).receipts["1.1"]
        assert (row.stage, row.output, json.loads(row.raw or "")) == ("executed", None, {"rows": 3, "secret": "s"})
        assert report.shown == []
        gate.open.set()
        await rig.over(uid)
        row = rig.rows(uid).receipts["1.1"]
        assert (row.stage, json.loads(row.raw or "")["rows"], json.loads(row.output or "")) == ("completed", 3, "3 rows")
        assert [result["output"] for result in rig.results(uid)] == ["3 rows"]
        assert "secret" not in b"".join(frame.data for frame in rig.rows(uid).frames).decode()
        assert (report.ran, rig.row(uid).status) == (1, Status.COMPLETED)


@pytest.mark.parametrize("effect", ["read", "non_idempotent_write"])
@pytest.mark.parametrize("failures", [1, 2])
async def test_R12_a_projection_that_fails_is_tried_again_and_the_effect_is_not(failures: int, effect: str) -> None:
    def show(result: Any, number: int) -> str:
        if number <= failures:
            raise RuntimeError("broken")
        return f"shown at try {number}"

    report = Report(show, effect)
    async with Rig(report.agent) as rig:
        uid = await rig.run()
        assert (report.ran, len(report.shown)) == (1, failures + 1)
        assert rig.results(uid)[0]["output"] == f"shown at try {failures + 1}"


async def test_R12_one_that_fails_for_good_is_an_error_the_model_reads() -> None:
    def show(result: Any, number: int) -> Any:
        raise RuntimeError("broken")

    report = Report(show)
    async with Rig(report.agent) as rig:
        uid = await rig.run()
        row = rig.rows(uid).receipts["1.1"]
        assert (report.ran, row.stage, row.outcome, row.is_error) == (1, "failed", "invalid_result", True)
        assert json.loads(row.raw or "")["rows"] == 3
        assert rig.results(uid)[0]["output"] == UNSHOWN
        assert rig.row(uid).status is Status.COMPLETED


@pytest.mark.parametrize("value", [float("nan"), object()])
async def test_R12_one_that_cannot_be_kept_is_not_tried_again(value: Any) -> None:
    report = Report(lambda result, number: value)
    async with Rig(report.agent) as rig:
        uid = await rig.run()
        assert (report.ran, len(report.shown), rig.rows(uid).receipts["1.1"].outcome) == (1, 1, "invalid_result")


async def test_R12_after_a_death_the_stored_result_is_shown_and_the_tool_does_not_run() -> None:
    stuck = asyncio.Event()

    async def show(result: Any) -> str:
        if len(shown) == 0:
            shown.append(result)
            await stuck.wait()
        shown.append(result)
        return f"{result['rows']} rows"

    shown: list[Any] = []
    ran: list[int] = []

    @tool(effect="non_idempotent_write", needs_approval=False, to_model_output=show)
    async def report() -> dict[str, int]:
        ran.append(1)
        return {"rows": 3}

    async with Rig(agent(calls("report"), DONE, tools=[report])) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(shown))
        await rig.first.die()
        await rig.start()
        row = await rig.over(uid)
        assert (row.status, len(ran), shown) == (Status.COMPLETED, 1, [{"rows": 3}, {"rows": 3}])
        assert rig.results(uid)[0]["output"] == "3 rows"


async def test_R38_a_run_that_ends_does_not_wait_for_a_projection() -> None:
    """The call is finished, and the end says so; its result was never shown."""
    stuck = asyncio.Event()

    async def show(result: Any) -> str:
        await stuck.wait()
        return "late"

    @tool(effect="non_idempotent_write", needs_approval=False, to_model_output=show)
    async def report() -> int:
        return 3

    async with Rig(agent(calls("report"), tools=[report])) as rig:
        uid = await rig.begin()
        await rig.until(lambda: "1.1" in rig.rows(uid).receipts and rig.rows(uid).receipts["1.1"].stage == "executed")
        at = rig.clock.monotonic()
        await rig.cancel(uid)
        await rig.over(uid)
        assert rig.clock.monotonic() - at < 0.1
        assert rig.view(uid)["stop"]["details"]["calls"] == [{"tool_call_id": "1.1", "tool_name": "report", "state": "finished"}]
        assert json.loads(rig.rows(uid).receipts["1.1"].raw or "") == 3


async def test_R39_a_drain_gives_back_a_call_whose_result_is_not_shown_yet() -> None:
    stuck = asyncio.Event()
    ran: list[int] = []

    async def show(result: Any) -> str:
        await stuck.wait()
        return f"shown {result}"

    @tool(effect="non_idempotent_write", needs_approval=False, to_model_output=show)
    async def report() -> int:
        ran.append(1)
        return 3

    async with Rig(agent(calls("report"), DONE, tools=[report])) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(ran))
        await rig.passing(rig.first.worker.drain())
        assert (rig.row(uid).status, rig.row(uid).lease_owner) == (Status.QUEUED, None)
        stuck.set()
        await rig.start()
        row = await rig.over(uid)
        assert (row.status, row.recoveries, len(ran)) == (Status.COMPLETED, 0, 1)
        assert rig.results(uid)[0]["output"] == "shown 3"


async def test_R12_a_projection_that_the_service_cannot_prepare_ends_the_run_and_leaves_no_leg_waiting() -> None:
    """The context was encrypted, and the next worker lacks the key: clear, and not for ever."""
    stuck = asyncio.Event()

    async def show(result: Any) -> str:
        await stuck.wait()
        return "shown"

    @tool(effect="non_idempotent_write", needs_approval=False, to_model_output=show)
    async def report() -> int:
        return 3

    async with Rig(agent(calls("report"), DONE, tools=[report]), secret="one secret key") as rig:
        uid = await rig.begin(context={"a": 1})
        await rig.until(lambda: "1.1" in rig.rows(uid).receipts and rig.rows(uid).receipts["1.1"].stage == "executed")
        await rig.first.die()
        rig._secret = "another secret key"
        await rig.start()
        row = await rig.over(uid)
        assert (row.status, rig.view(uid)["error"]["code"]) == (Status.FAILED, "internal")


async def test_a_projection_may_return_text_parts() -> None:
    report = Report(lambda result, number: [Text(f"{result['rows']} rows")])
    async with Rig(report.agent) as rig:
        uid = await rig.run()
        assert rig.results(uid)[0]["output"] == "3 rows"
