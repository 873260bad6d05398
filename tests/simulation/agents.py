"""The agent that simulated runs are of: tools of every effect, and a model, that do whatever chance says; and what they really did.

What a call does depends on the seed, the run, the call and its attempt, never on when or where it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

from runward.agents.agent import Agent
from runward.agents.contexts import ToolContext
from runward.agents.registry import Registry
from runward.agents.tools import tool
from runward.core.errors import ToolError, UnknownOutcome
from runward.core.runs.calls import ToolTraits
from runward.core.usage import Usage
from runward.engine.deployment import Deployed
from runward.models.kinds import failure
from runward.ports import tools as port
from runward.ports.models import AskedCall, Finish, ModelAnswer, ModelClient, ModelDelta, ModelRequest
from runward.wiring import deployed
from tests.simulation.loop import PROCESS
from tests.simulation.processes import Process

AGENT = "simulated"
TOOL_TIMEOUT = 2.0
TOOL_MANNERS = ("refuses", "breaks before", "breaks after", "cannot tell", "hangs", "resists", "unfit", "saves", "saves", "saves")
WORDS = ("a ", "bit ", "of ", "text ")


def here() -> Process:
    """The process that runs this code."""
    process = PROCESS.get()
    assert isinstance(process, Process)
    return process


# -- tools ---------------------------------------------------------------------------------------------------------------


async def act(ctx: ToolContext[Any, Any], n: int) -> dict[str, Any]:
    """What every tool does: it waits, has its effect, waits, and ends in one of many ways."""
    process = here()
    chance = process.world.chance_of(ctx.idempotency_key, ctx.attempt)
    manner = process.world.manners.tool(ctx.run_id, ctx.tool_call_id, ctx.attempt, chance)
    if manner == "kills":
        process.kill()
        await process.gone.get_loop().create_future()
    if manner == "refuses":
        raise ToolError("It did not happen.")
    if manner == "breaks before":
        raise RuntimeError("broken")
    await process.clock.sleep(chance.choice((0, 0, 0.001, 0.02, 0.3)))
    if manner == "saves":
        await ctx.progress({"n": n})
        text = f"checkpoint of attempt {ctx.attempt}"
        process.world.ledger.saves[ctx.idempotency_key].append(text)
        await ctx.save_checkpoint(text)
        process.world.ledger.saved[ctx.idempotency_key] = text
    token = process.world.ledger.happens(ctx.idempotency_key, ctx.attempt)
    try:
        await process.clock.sleep(chance.choice((0, 0, 0.002, 0.05, 0.4, 1.0)))
        if manner == "hangs":
            await process.clock.sleep(1_000)
    except asyncio.CancelledError:
        if manner == "resists":
            await process.clock.sleep(chance.choice((0.05, 0.5)))
            return {"token": token}
        raise
    if manner == "breaks after":
        raise RuntimeError("broken")
    if manner == "cannot tell":
        raise UnknownOutcome("nobody answered")
    if manner == "unfit":
        return {"token": float("nan")}
    return {"token": token}


@tool(effect="read", timeout_seconds=TOOL_TIMEOUT)
async def look(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


@tool(effect="idempotent_write", timeout_seconds=TOOL_TIMEOUT)
async def put(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


@tool(effect="non_idempotent_write", needs_approval=False, timeout_seconds=TOOL_TIMEOUT)
async def pay(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


@tool(effect="non_idempotent_write", needs_approval=False, timeout_seconds=TOOL_TIMEOUT, on_unknown="tell_model")
async def post(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


@tool(needs_approval=False, timeout_seconds=TOOL_TIMEOUT)
async def run_it(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


async def shown(result: dict[str, Any]) -> dict[str, Any]:
    """A projection that fails now and then; the effect is not repeated for it."""
    process = here()
    if process.world.chance.random() < process.world.manners.projection_fails:
        raise RuntimeError("broken")
    await process.clock.sleep(0.001)
    return {"token": result["token"], "shown": True}


@tool(effect="non_idempotent_write", needs_approval=False, timeout_seconds=TOOL_TIMEOUT, to_model_output=shown)
async def ship(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


@tool(effect="read", timeout_seconds=TOOL_TIMEOUT, to_model_output=shown)
async def report(n: int, ctx: ToolContext) -> dict[str, Any]:
    return await act(ctx, n)


TOOLS = (look, put, pay, post, run_it, ship, report)


@dataclass(frozen=True, slots=True)
class WatchedTool:
    """A tool whose every start is reported to the watch, in the very step that lets it start."""

    tool: port.Tool

    @property
    def traits(self) -> ToolTraits:
        return self.tool.traits

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        return self.tool.refusal(arguments)

    def invoke(self, arguments: Mapping[str, Any], context: Any) -> Coroutine[Any, Any, port.Returned]:
        here().world.watch.tool_starts(here(), self.traits, arguments, context)
        return self.tool.invoke(arguments, context)

    async def project(self, raw: Any, context: Any) -> port.Returned:
        return await self.tool.project(raw, context)

    async def probe(self, idempotency_key: str, arguments: Mapping[str, Any], context: Any) -> port.ProbeAnswer:
        return await self.tool.probe(idempotency_key, arguments, context)

    async def evidence_holds(self, evidence: Mapping[str, Any], context: Any) -> bool:
        return await self.tool.evidence_holds(evidence, context)


# -- the model -----------------------------------------------------------------------------------------------------------


class SimulatedModel:
    """`ports.models.ModelClient`: answers as chance says, in pieces, and not always whole."""

    name = "scripted:simulated"

    def call(self, request: ModelRequest, on_delta: Callable[[ModelDelta], Awaitable[None]]) -> Coroutine[Any, Any, ModelAnswer]:
        here().world.watch.model_starts(here(), request)
        return self._answer(request, on_delta)

    async def _answer(self, request: ModelRequest, on_delta: Callable[[ModelDelta], Awaitable[None]]) -> ModelAnswer:
        process = here()
        run_id = request.messages[0].text
        chance = process.world.chance_of(run_id, request.step, request.attempt)
        turn = process.world.manners.model(run_id, request.step, request.attempt, chance)
        await process.clock.sleep(turn.delay)
        if turn.fails == "at once":
            raise failure("server_error", billed=False, started=False, status=500)
        if turn.fails == "for good":
            raise failure("rejected", billed=False, started=False, status=400)
        text = ""
        for number in range(turn.words):
            word = f"{request.attempt}:{WORDS[number % len(WORDS)]}"
            await on_delta(ModelDelta(kind="text", text=word))
            await process.clock.sleep(turn.pace)
            text += word
        if turn.fails == "midway":
            raise failure("network", billed=True, started=turn.words > 0)
        for index, (name, arguments) in enumerate(turn.calls, 1):
            await on_delta(ModelDelta(kind="tool_input", text=arguments, index=index, tool_name=name))
        return ModelAnswer(
            text=text,
            reasoning="",
            calls=tuple(AskedCall(provider_id="same", tool_name=name, arguments=arguments) for name, arguments in turn.calls),
            finish=turn.finish,
            usage=Usage(input_tokens=3, output_tokens=2),
            model=self.name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a model does when it is asked."""

    delay: float = 0
    words: int = 1
    pace: float = 0
    calls: tuple[tuple[str, str], ...] = ()
    finish: Finish = "stop"
    fails: str = ""


class Manners:
    """How tools and models behave. Tests of one story bring their own."""

    projection_fails = 0.15

    def tool(self, run_id: str, call_id: str, attempt: int, chance: Random) -> str:
        return "" if chance.random() < 0.6 else chance.choice(TOOL_MANNERS)

    def model(self, run_id: str, step: int, attempt: int, chance: Random) -> Turn:
        if chance.random() < 0.12:
            fails = chance.choice(("at once", "at once", "at once", "midway", "for good"))
            return Turn(delay=chance.choice((0, 0.1)), words=chance.randrange(4), pace=0.02, fails=fails)
        turn = Turn(delay=chance.choice((0, 0, 0.01, 0.5)), words=chance.choice((0, 1, 5)), pace=chance.choice((0, 0.004, 0.05)))
        if chance.random() < 0.1 + 0.15 * step:
            return replace(turn, finish="stop" if chance.random() < 0.95 else chance.choice(("length", "refusal", "content_filter")))
        calls = tuple(_asked(chance) for _ in range(chance.choice((1, 1, 2, 3))))
        return replace(turn, calls=calls, finish="tool_calls" if chance.random() < 0.97 else "length")


def _asked(chance: Random) -> tuple[str, str]:
    wrong = chance.random()
    if wrong < 0.03:
        return "nothing_like_it", "{}"
    if wrong < 0.06:
        return chance.choice(TOOLS).name, '{"n": "one"}'
    return chance.choice(TOOLS).name, f'{{"n": {chance.randrange(9)}}}'


# -- the deployment --------------------------------------------------------------------------------------------------------


class Models:
    """`ports.models.ModelClients`: every model is a client already."""

    def client(self, model: Any) -> ModelClient:
        client: ModelClient = model
        return client

    async def close(self) -> None:
        """Nothing to let go."""


@cache
def registry() -> Registry:
    """The agents of every simulated process, made once: they have no state."""
    return Registry([Agent(name=AGENT, model=SimulatedModel(), instructions="Go on.", tools=TOOLS)])


@cache
def strange_registry() -> Registry:
    """The agents of a process that lacks the others' code: it can only take care of their runs."""
    return Registry([Agent(name="strange", model=SimulatedModel())])


@cache
def deployment(registry: Registry) -> Mapping[str, Deployed]:
    """They, ready to run, with every tool watched."""
    found = deployed(registry, Models(), max_result_bytes=1_048_576)
    return {binding: replace(each, tools={name: WatchedTool(body) for name, body in each.tools.items()}) for binding, each in found.items()}
