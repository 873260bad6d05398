"""R30, R32: failures of the model call, and text that is taken back; and what the engine asks of an agent's own functions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runward import ModelRequest, ModelSettings, Reply, RunContext, ToolCall, tool
from runward.core.kernel.actor import Status
from runward.core.runs.limits import Limits
from runward.core.usage import Usage
from runward.ports.models import ModelAnswer, ModelCallError, ModelDelta
from tests.engine.rig import DONE, TTL, Rig, agent, calls

OnDelta = Callable[[ModelDelta], Awaitable[None]]


class Model:
    """A client that does what it is told, attempt by attempt, and notes what it was asked."""

    name = "scripted:told"

    def __init__(self, *told: Any) -> None:
        self._told = list(told)
        self.requests: list[ModelRequest] = []

    async def call(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        self.requests.append(request)
        does = self._told.pop(0) if self._told else "done"
        if isinstance(does, BaseException):
            raise does
        if callable(does):
            await does(on_delta)
            does = "done"
        await on_delta(ModelDelta(kind="text", text=does))
        return ModelAnswer(text=does, reasoning="", calls=(), finish="stop", usage=Usage(input_tokens=3), model=self.name)


def failure(kind: str = "server_error", **differing: Any) -> ModelCallError:
    return ModelCallError(kind, "It failed.", **{"transient": True, "billed": False, **differing})


async def broken_off(on_delta: OnDelta) -> None:
    await on_delta(ModelDelta(kind="text", text="half an ans"))
    raise failure("network", billed=True, after_content=True)


# -- failures ----------------------------------------------------------------------------------------------------------------


async def test_R30_a_transient_failure_is_tried_again_by_the_call_itself() -> None:
    """Two more attempts, with backoff; the step keeps its number, the attempts count on."""
    model = Model(failure(), failure())
    async with Rig(agent(model=model)) as rig:
        uid = await rig.run()
        assert (rig.row(uid).status, rig.view(uid)["text"]) == (Status.COMPLETED, "done")
        assert [(request.step, request.attempt) for request in model.requests] == [(1, 1), (1, 2), (1, 3)]
        assert [(frame["step"], frame["attempt"]) for frame in rig.frames(uid, "start-step")] == [(1, 1), (1, 2), (1, 3)]
        assert 0.5 + 1.0 <= rig.clock.monotonic() <= 1.7
        assert rig.view(uid)["usage"]["model_calls"] == 3, "the failed ones stay counted"


async def test_R30_the_providers_wish_for_patience_is_respected() -> None:
    model = Model(failure("rate_limited", retry_after=20.0))
    async with Rig(agent(model=model)) as rig:
        uid = await rig.run()
        assert rig.row(uid).status is Status.COMPLETED
        assert 20 <= rig.clock.monotonic() < 21


@pytest.mark.parametrize(
    ("errors", "transient"),
    [
        ([failure()] * 3, True),
        ([failure("rate_limited", retry_after=61.0)], True),
        ([failure("auth", transient=False)], False),
        ([broken_off], True),
    ],
)
async def test_R30_a_failed_run_says_whether_its_cause_may_pass(errors: list[Any], transient: bool) -> None:
    """Retries used up, too much patience asked for, not transient, broken off after content: no further attempt."""
    model = Model(*errors)
    async with Rig(agent(model=model)) as rig:
        uid = await rig.run()
        view = rig.view(uid)
        assert (view["status"], view["error"]["code"], view["error"]["transient"]) == ("failed", "model_error", transient)
        assert len(model.requests) == len(errors)


async def test_R30_the_text_of_an_unexpected_exception_is_shown_to_nobody() -> None:
    async with Rig(agent(model=Model(RuntimeError("sk-secret")))) as rig:
        uid = await rig.run()
        view = rig.view(uid)
        assert (view["status"], view["error"]["transient"]) == ("failed", False)
        assert "secret" not in str(view) + b"".join(frame.data for frame in rig.rows(uid).frames).decode()
        assert rig.first.telemetry.names == ["model_client_failed"]


async def test_a_client_that_cancels_itself_fails_the_run_and_not_the_leg() -> None:
    """R40: nobody waits for ever for a call that ended without a word."""
    async with Rig(agent(model=Model(asyncio.CancelledError()))) as rig:
        uid = await rig.run()
        assert (rig.row(uid).status, rig.row(uid).leg) == (Status.FAILED, 1)
        assert rig.first.telemetry.names == ["activity_failed"]


async def test_R30_model_retries_is_the_authors() -> None:
    model = Model(*[failure()] * 9)
    async with Rig(agent(model=model, limits=Limits(model_retries=0))) as rig:
        await rig.run()
        assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [("length", "stopped", "length"), ("refusal", "stopped", "refusal"), ("content_filter", "stopped", "content_filter")],
)
async def test_a_turn_that_was_cut_off_dispatches_none_of_its_calls(finish: Any, status: str, reason: str) -> None:
    """R17b, station 1: its text is kept, and its history is paired."""
    ran: list[int] = []

    @tool(effect="read")
    async def look() -> None:
        ran.append(1)

    cut = Reply(text="half", tool_calls=[ToolCall("look")], finish=finish)
    async with Rig(agent(cut, tools=[look])) as rig:
        uid = await rig.run()
        view = rig.view(uid)
        assert (view["status"], view["stop"]["reason"], view["text"], ran) == (status, reason, "half", [])
        assert len(rig.results(uid)) == 1


# -- text that is taken back -------------------------------------------------------------------------------------------------


def folded(frames: list[dict[str, Any]]) -> str:
    """What a subscriber shows that folds the frames in order."""
    text = ""
    for frame in frames:
        if frame["type"] == "reset-step":
            text = ""
        elif frame["type"] == "text-delta":
            text += frame["delta"]
    return text


async def test_R32_text_of_an_attempt_that_failed_is_dropped_before_anything_else_is_said() -> None:
    async with Rig(agent(model=Model(broken_off))) as rig:
        uid = await rig.run()
        assert rig.types(uid) == ["start", "data-agent", "start-step", "text-delta", "reset-step", "finish", "data-agent"]
        assert folded(rig.frames(uid)) == ""


async def test_R32_a_new_leg_drops_the_text_of_the_one_that_died() -> None:
    """In the middle of its deltas: the reservation of the lost attempt stays counted, the call is repeated as the next attempt."""
    slow = Reply(text="one two three", chunk_delay_seconds=1)
    async with Rig(agent(slow)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: "two " in [frame["delta"] for frame in rig.frames(uid, "text-delta")])
        await rig.first.die()
        await rig.start()
        row = await rig.over(uid)
        assert row.status is Status.COMPLETED
        assert folded(rig.frames(uid)) == "one two three"
        types = rig.types(uid)
        assert types.index("reset-step") < types.index("start-step", 3)
        assert [(frame["step"], frame["attempt"]) for frame in rig.frames(uid, "reset-step")] == [(1, 1)]
        assert rig.view(uid)["usage"]["model_calls"] == 2


async def test_R32_the_reservation_made_at_creation_is_the_first_legs_own() -> None:
    async with Rig(agent(DONE)) as rig:
        uid = await rig.run()
        assert rig.frames(uid, "reset-step") == []


async def test_R32_the_recorded_answer_wins_once_it_is_stored() -> None:
    """The provider would answer otherwise when asked again (F-66); its worker dies with the answer on its way, or just stored."""
    for stored in (False, True):
        model = Model("first answer", "second answer")
        async with Rig(agent(model=model)) as rig:
            gate = rig.faults.hold("commit", 1, answered=stored)
            uid = await rig.begin()
            await rig.reached(gate)
            await rig.first.die()
            await rig.start()
            await rig.over(uid)
            answer = "first answer" if stored else "second answer"
            assert (rig.view(uid)["text"], folded(rig.frames(uid))) == (answer, answer)
            assert len(model.requests) == (1 if stored else 2)


async def test_what_the_model_is_asked() -> None:
    """R17b: the whole transcript, what is durable of it, and the settings the author declared."""
    model = Model("done")
    settings = ModelSettings(temperature=0.5, max_output_tokens=7, provider_options={"x": 1})
    bounds = Limits(model_timeout_seconds=11, first_event_timeout_seconds=5, chunk_timeout_seconds=3)

    @tool(effect="read")
    async def look(n: int) -> None:
        """Look it up."""

    async with Rig(agent(model=model, model_settings=settings, limits=bounds, instructions="Be kind.", tools=[look])) as rig:
        await rig.run(text="hello")
        (request,) = model.requests
        assert [(message.seq, message.role, message.text) for message in request.messages] == [(1, "user", "hello")]
        assert (request.instructions, request.tool_choice, request.agent) == ("Be kind.", "auto", "agent")
        assert (request.settings.temperature, request.settings.max_output_tokens) == (0.5, 7)
        assert request.settings.provider_options == {"x": 1}
        assert (request.timeout_seconds, request.first_event_timeout_seconds, request.chunk_timeout_seconds) == (11, 5, 3)
        assert [(tool.name, tool.description) for tool in request.tools] == [("look", "Look it up.")]


async def test_R30_a_models_own_time_outs_are_transient() -> None:
    slow = Reply(text="never", chunk_delay_seconds=30)
    async with Rig(agent(slow, limits=Limits(first_event_timeout_seconds=2, model_retries=0))) as rig:
        uid = await rig.run()
        error = rig.view(uid)["error"]
        assert (error["code"], error["details"]["kind"], error["transient"]) == ("model_error", "timeout", True)
        assert rig.clock.monotonic() == pytest.approx(2, abs=0.2)


# -- functions of the agent ----------------------------------------------------------------------------------------------------


async def test_a_model_chosen_by_a_function_is_chosen_once_and_recorded() -> None:
    """R32: also over a death of the worker in the very first call: the choice is durable before the call starts."""
    chosen: list[str] = []
    model = Model(lambda on_delta: asyncio.Event().wait())

    async def choose(ctx: RunContext) -> str:
        chosen.append(ctx.scope.tenant)
        return model.name

    async with Rig(agent(model=choose, fallback_models=[model])) as rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(model.requests))
        assert rig.view(uid)["model"] == model.name
        await rig.first.die()
        await rig.start()
        await rig.over(uid)
        assert (rig.row(uid).status, chosen) == (Status.COMPLETED, ["default"])
        assert [frame.get("model") for frame in rig.frames(uid, "start-step")] == [None, model.name]


def _raises(ctx: RunContext) -> str:
    raise RuntimeError("sk-secret")


async def _cancels(ctx: RunContext) -> str:
    raise asyncio.CancelledError


def _exits(ctx: RunContext) -> str:
    sys.exit(3)


def _nothing(ctx: RunContext) -> Any:
    return None


@pytest.mark.parametrize("function", [_raises, _cancels, _exits])
@pytest.mark.parametrize("where", ["instructions", "model", "enabled"])
async def test_a_function_of_the_agent_that_fails_fails_the_run_clearly(function: Any, where: str) -> None:
    """R40: whatever it does, the worker goes on, the leg does not wait for ever, and nobody reads the exception's text."""

    @tool(effect="read", enabled=function if where == "enabled" else True)
    async def look() -> None: ...

    differing = {} if where == "enabled" else {where: function}
    async with Rig(agent(DONE, tools=[look], **differing)) as rig:
        uid = await rig.run()
        error = rig.view(uid)["error"]
        assert (rig.row(uid).status, error["code"], error["transient"]) == (Status.FAILED, "internal", False)
        assert where in error["message"] and "secret" not in str(error)
        assert rig.first.telemetry.names == ["agent_function_failed"]
        assert rig.first.worker.free > 0


@pytest.mark.parametrize("function", [_nothing, lambda ctx: "no such provider", lambda ctx: 7])
async def test_a_model_function_that_names_no_model_fails_the_run(function: Any) -> None:
    async with Rig(agent(model=function)) as rig:
        uid = await rig.run()
        assert (rig.row(uid).status, rig.view(uid)["error"]["code"]) == (Status.FAILED, "invalid_definition")


async def test_instructions_are_read_anew_before_each_model_call() -> None:
    asked: list[int] = []

    def instructions(ctx: RunContext) -> str:
        asked.append(ctx.step)
        return f"step {ctx.step}, {len(ctx.messages)} messages"

    model = Model()

    @tool(effect="read")
    async def look() -> str:
        return "seen"

    async with Rig(agent(calls("look"), DONE, tools=[look], instructions=instructions)) as rig:
        await rig.run()
        assert asked == [1, 2]
    async with Rig(agent(model=model, instructions=instructions)) as rig:
        await rig.run()
        assert model.requests[0].instructions == "step 1, 1 messages"


async def test_a_tool_that_is_not_enabled_is_not_offered() -> None:
    model = Model()

    @tool(effect="read", enabled=lambda ctx: ctx.scope.user == "ann")
    async def look() -> None: ...

    @tool(effect="read", enabled=False)
    async def never() -> None: ...

    async with Rig(agent(model=model, tools=[look, never])) as rig:
        await rig.run()
        await rig.run(user="ann")
        assert [[tool.name for tool in request.tools] for request in model.requests] == [[], ["look"]]


async def test_the_clock_of_a_run_stops_for_nobody_but_its_own_work() -> None:
    """R35a: `timeout_seconds` counts the time it is worked on, over all legs; the queue does not count."""
    slow = Reply(text="one two three four", chunk_delay_seconds=2)
    async with Rig(agent(slow)) as rig:
        rig.faults.refuse("claim", *range(1, 100))
        uid = await rig.begin(limits={"timeout_seconds": 5.0})
        await rig.pass_seconds(3 * TTL)
        await rig.start()
        at = rig.clock.monotonic()
        row = await rig.over(uid)
        assert (row.status, row.stop_reason) == (Status.STOPPED, "deadline")
        assert rig.clock.monotonic() - at == pytest.approx(5, abs=0.5)
