"""R30: a model that keeps failing is left alone by the whole process, and tried again by one call."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from runward import Agent, Limits, Reply, ScriptedModel
from runward.core.kernel.actor import Status
from runward.engine.callers import LOCAL
from runward.engine.circuits import Circuit, Circuits
from runward.engine.services import CircuitSettings
from runward.ports.models import ModelCallError
from runward.testing import VirtualClock
from tests.engine.rig import SETTINGS, Heard, Rig, agent, breathe
from tests.engine.test_models import Model, failure

CIRCUIT = CircuitSettings(failures=3, window_seconds=10, open_seconds=5)


class Line:
    """A circuit, its clock and what it said."""

    def __init__(self, settings: CircuitSettings = CIRCUIT) -> None:
        self.clock = VirtualClock()
        self.heard = Heard()
        self.circuit = Circuit("test:model", settings, self.clock, self.heard)

    async def fail(self, times: int = 1, *, every: float = 0, **differing: Any) -> None:
        for _ in range(times):
            passage = await self.circuit.admitted(waits=False)
            passage.failed(failure(**differing), waits=False)
            passage.over()
            self.clock.advance(every)

    async def answer(self) -> None:
        passage = await self.circuit.admitted(waits=False)
        passage.begins()
        passage.answered()
        passage.over()

    async def refused(self, *, waits: bool = False) -> float:
        with pytest.raises(ModelCallError) as caught:
            await self.circuit.admitted(waits=waits)
        error = caught.value
        assert (error.kind, error.transient, error.billed, error.after_content) == ("circuit_open", True, False, False)
        assert error.retry_after is not None
        return error.retry_after


async def test_R30_so_many_failures_open_the_circuit_and_it_says_for_how_long() -> None:
    line = Line()
    await line.fail(3, every=1)
    assert await line.refused() == 4
    line.clock.advance(2)
    assert await line.refused(waits=True) == 2
    assert line.heard.events == ["model_circuit_opened"]


async def test_R30_an_answer_in_between_or_enough_time_keeps_it_closed() -> None:
    line = Line()
    await line.fail(2)
    await line.answer()
    await line.fail(2)
    line.clock.advance(11)
    await line.fail(2)
    await line.answer()
    assert line.heard.events == []


async def test_R30_what_will_not_pass_says_nothing_of_the_model() -> None:
    line = Line()
    await line.fail(9, kind="rejected", transient=False)
    await line.answer()


async def test_R30_zero_turns_it_off() -> None:
    line = Line(replace(CIRCUIT, failures=0))
    await line.fail(50)
    await line.answer()


async def test_R30_one_call_tries_it_and_its_first_word_closes_the_circuit() -> None:
    line = Line()
    await line.fail(3)
    line.clock.advance(5)
    probe = await line.circuit.admitted(waits=True)
    assert await line.refused() == 0
    waiting = [asyncio.ensure_future(line.circuit.admitted(waits=True)) for _ in range(5)]
    await breathe()
    assert not any(each.done() for each in waiting)
    probe.begins()
    await asyncio.gather(*waiting)
    await line.answer()
    assert line.heard.events == ["model_circuit_opened", "model_circuit_closed"]
    await line.fail(2)
    await line.answer()


async def test_R30_a_probe_that_fails_opens_it_anew_for_everybody() -> None:
    line = Line()
    await line.fail(3)
    line.clock.advance(5)
    probe = await line.circuit.admitted(waits=True)
    waiting = asyncio.ensure_future(line.circuit.admitted(waits=True))
    await breathe()
    probe.failed(failure("timeout"), waits=True)
    probe.over()
    with pytest.raises(ModelCallError) as caught:
        await waiting
    assert caught.value.retry_after == 5 and await line.refused() == 5


@pytest.mark.parametrize("lasting", [True, False])
async def test_R30_a_probe_that_ends_without_a_word_makes_room_for_the_next(lasting: bool) -> None:
    """It was cancelled, or refused for what it asked."""
    line = Line()
    await line.fail(3)
    line.clock.advance(5)
    probe = await line.circuit.admitted(waits=True)
    first, second = (asyncio.ensure_future(line.circuit.admitted(waits=True)) for _ in range(2))
    await breathe()
    if lasting:
        probe.failed(failure("rejected", transient=False), waits=True)
    probe.over()
    probe.over()
    await breathe()
    assert (first.done(), second.done()) == (True, False), "one probe at a time"
    first.result().over()
    assert (await second) is not None


async def test_R30_calls_from_before_neither_prolong_nor_end_the_probe_by_failing() -> None:
    line = Line()
    early = [await line.circuit.admitted(waits=True) for _ in range(6)]
    for passage in early[:4]:
        passage.failed(failure(), waits=True)
        passage.over()
    assert await line.refused() == 5
    line.clock.advance(5)
    probe = await line.circuit.admitted(waits=True)
    early[4].failed(failure(), waits=True)
    early[4].over()
    assert await line.refused() == 0, "the probe is under way"
    early[5].answered()
    await line.answer()
    probe.failed(failure(), waits=True)
    await line.answer()


async def test_R30_who_comes_shortly_before_the_probe_waits_for_it() -> None:
    """A retry that was planned for that moment must not be lost to a clock that lags by a few milliseconds."""
    line = Line()
    await line.fail(3)
    line.clock.advance(4.5)
    waiting = asyncio.ensure_future(line.circuit.admitted(waits=True))
    await breathe()
    assert not waiting.done() and await line.refused() == 0.5
    line.clock.advance(0.5)
    await breathe()
    assert waiting.done()


def test_R30_a_circuit_is_one_models() -> None:
    circuits = Circuits(CIRCUIT, VirtualClock(), Heard())
    one, other = Model(), Model()
    assert circuits.of(one) is circuits.of(one) is not circuits.of(other)


# -- in runs -----------------------------------------------------------------------------------------------------------------

FIVE = replace(SETTINGS, circuit=CIRCUIT)


def others(model: Any, **differing: Any) -> list[Agent]:
    return [agent(model=model, name=name, **differing) for name in ("one", "two")]


async def test_R30_a_run_waits_for_the_circuit_and_is_the_probe() -> None:
    """The refused call was not made: it is not in the usage, and it is one attempt."""
    model = Model(*[failure()] * 3)
    async with Rig(*others(model), settings=FIVE) as rig:
        first = await rig.run("one", limits={"max_steps": 1})
        assert (rig.view(first)["error"]["transient"], len(model.requests)) == (True, 3)
        second = await rig.begin("two")
        await rig.until(lambda: len(rig.frames(second, "reset-step")) == 1)
        assert len(model.requests) == 3
        why = await rig.first.service.whys.why(LOCAL, rig.row(second).public_id)
        (backoff,) = [reason for reason in why["reasons"] if reason["code"] == "model_backoff"]
        assert "its circuit is open" in backoff["detail"]
        assert (await rig.over(second)).status is Status.COMPLETED
        assert [(each.step, each.attempt) for each in model.requests[3:]] == [(1, 2)]
        assert rig.view(second)["usage"]["model_calls"] == 1
        assert rig.first.telemetry.events.count("model_circuit_closed") == 1


async def test_R31_an_open_circuit_fails_over_at_once() -> None:
    model, backup = Model(*[failure()] * 9), ScriptedModel(lambda request: Reply(text="backup"))
    async with Rig(*others(model, fallback_models=[backup]), settings=FIVE) as rig:
        await rig.run("one")
        began = rig.clock.monotonic()
        uid = await rig.run("two")
        view = rig.view(uid)
        assert (view["text"], view["failovers"][0]["code"], len(model.requests)) == ("backup", "circuit_open", 3)
        assert rig.clock.monotonic() - began < 0.4 and view["usage"]["model_calls"] == 1


async def test_R30_no_attempt_is_spent_on_a_circuit_that_is_known_to_be_open() -> None:
    """Whose failure opens it waits as long; each of the attempts that are left is a probe."""
    model = Model(*[failure()] * 99)
    async with Rig(*others(model), settings=FIVE) as rig:
        await rig.run("one")
        uid = await rig.run("two")
        error = rig.view(uid)["error"]
        assert (error["transient"], error["details"]["kind"], len(model.requests)) == (True, "server_error", 5)
        assert rig.first.telemetry.events.count("model_circuit_opened") == 3


async def test_R37_a_cancel_ends_the_wait_for_a_probe_and_the_backoff_at_once() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def hangs(on_delta: Any) -> None:
        asked.set()
        await go.wait()

    model = Model(*[failure()] * 3, hangs)
    async with Rig(*others(model), settings=FIVE) as rig:
        await rig.run("one")
        probing, waiting = await rig.begin("two"), await rig.begin("one")
        await rig.until(asked.is_set)
        await rig.until(lambda: len(rig.frames(waiting, "reset-step")) == len(rig.frames(probing, "reset-step")) == 1)
        await rig.pass_seconds(6)
        began = rig.clock.monotonic()
        assert await rig.cancel(waiting)
        assert (await rig.over(waiting)).stop_reason == "cancelled" and rig.clock.monotonic() - began < 3
        assert rig.view(waiting)["usage"]["model_calls"] == 0
        go.set()
        assert (await rig.over(probing)).status is Status.COMPLETED


async def test_R37_a_cancel_interrupts_the_backoff_at_once() -> None:
    model = Model(failure("rate_limited", retry_after=50.0))
    async with Rig(agent(model=model, limits=Limits(model_retries=1))) as rig:
        uid = await rig.begin()
        await rig.until(lambda: len(rig.frames(uid, "start-step")) == 2)
        began = rig.clock.monotonic()
        await rig.cancel(uid)
        assert (await rig.over(uid)).stop_reason == "cancelled"
        assert rig.clock.monotonic() - began < 3 and rig.view(uid)["usage"]["model_calls"] == 1
