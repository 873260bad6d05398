"""The agents of all simulated runs, without and with a typed answer, each in two versions, and their models: they do what chance says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from random import Random
from typing import Any

from runward.agents.agent import Agent
from runward.agents.manifest import Manifest
from runward.agents.models import ModelSettings
from runward.agents.registry import Registered, Registry
from runward.core.runs.limits import Limits
from runward.core.usage import Usage
from runward.engine.deployment import Deployed
from runward.models.kinds import failure
from runward.ports.models import AskedCall, Finish, ModelAnswer, ModelClient, ModelDelta, ModelRequest
from runward.wiring import deployed
from tests.simulation.bills import Bill
from tests.simulation.tools import NAMES, PROBE_MANNERS, TOOL_MANNERS, WatchedTool, arguments, here, tools
from tests.simulation.typed import OUTPUT, PATIENCE, answer_of, pieces, verdict_of

AGENT = "simulated"
TYPED = "typed"
"""The agent whose answers have a type and are verified."""
PRIMARY, FALLBACK = "scripted:simulated", "scripted:fallback"
VERSIONS = ("1", "2")
ANSWER = 60
"""How many tokens the agent wants an answer to have at most."""
WORDS = ("a ", "bit ", "of ", "text ")


class SimulatedModel:
    """`ports.models.ModelClient`: answers as chance says, in pieces, and not always whole."""

    def __init__(self, name: str = PRIMARY) -> None:
        self.name = name

    def call(self, request: ModelRequest, on_delta: Callable[[ModelDelta], Awaitable[None]]) -> Coroutine[Any, Any, ModelAnswer]:
        return self._answer(request, on_delta, here().world.watch.model_starts(here(), self.name, request))

    async def _answer(self, request: ModelRequest, on_delta: Callable[[ModelDelta], Awaitable[None]], bill: Bill) -> ModelAnswer:
        process = here()
        world, run_id, turns = process.world, request.messages[0].text, request.purpose == "turn"
        this = (run_id, request.step, request.attempt) if turns else (run_id, "generate", bill.number)
        manners, chance = world.manners, world.chance_of(*this)
        turn = self._turn(request, chance) if turns else manners.generation(chance)
        if manners.is_down(run_id, self.name, world.chance_of(run_id, "down", self.name)):
            turn = replace(turn, fails="at once")
        usage = Usage()
        if turn.fails not in ("at once", "for good"):
            usage = bill.billed(manners.usage(world.chance_of(*this, "usage"), request.settings.max_output_tokens))
        await process.clock.sleep(turn.delay)
        if turn.fails == "at once":
            raise self._failed(request, "server_error", status=500)
        if turn.fails == "for good":
            raise self._failed(request, "rejected", status=400)
        text = ""
        for word in turn.pieces(request.attempt):
            await on_delta(ModelDelta(kind="text", text=word))
            await process.clock.sleep(turn.pace)
            text += word
        if turn.fails == "midway":
            raise self._failed(request, "network", billed=True, started=bool(text))
        for index, (name, asked) in enumerate(turn.calls, 1):
            await on_delta(ModelDelta(kind="tool_input", text=asked, index=index, tool_name=name))
        return ModelAnswer(
            text=text,
            reasoning="",
            calls=tuple(AskedCall(provider_id="same", tool_name=name, arguments=asked) for name, asked in turn.calls),
            finish=turn.finish,
            usage=Usage() if turn.says_nothing else usage,
            model=self.name,
        )

    @staticmethod
    def _turn(request: ModelRequest, chance: Random) -> Turn:
        manners = here().world.manners
        return (manners.model if request.output_schema is None else manners.answer)(
            request.messages[0].text, request.step, request.attempt, chance
        )

    def _failed(
        self, request: ModelRequest, kind: str, *, billed: bool = False, started: bool = False, status: int | None = None
    ) -> Exception:
        world = here().world
        uid = world.database.public_ids.get(("default", request.messages[0].text), "")
        failed = failure(kind, billed=billed, started=started, status=status)
        if request.purpose == "turn":
            world.watch.typed.fails(uid, request.step, request.attempt, replaceable=failed.transient and not started)
        return failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a model does when it is asked. What it `says` it says literally, instead of some words."""

    delay: float = 0
    words: int = 1
    pace: float = 0
    calls: tuple[tuple[str, str], ...] = ()
    finish: Finish = "stop"
    fails: str = ""
    says: str | None = None
    says_nothing: bool = False
    """Whether it keeps to itself what it bills."""

    def pieces(self, attempt: int) -> Sequence[str]:
        """What is streamed."""
        return [f"{attempt}:{WORDS[number % len(WORDS)]}" for number in range(self.words)] if self.says is None else pieces(self.says)


class Manners:
    """How tools, probes and models behave. Tests of one story bring their own.

    `names` are the tools that models ask for: where they are few, what concerns them meets more often.
    """

    projection_fails = 0.15
    names: Sequence[str] = NAMES

    def tool(self, run_id: str, call_id: str, attempt: int, chance: Random) -> str:
        return "" if chance.random() < 0.6 else chance.choice(TOOL_MANNERS)

    def probe(self, run_id: str, call_id: str, attempt: int, chance: Random) -> str:
        """How a probe answers; it never lies, as its author has promised."""
        return "" if chance.random() < 0.5 else chance.choice(PROBE_MANNERS)

    def model(self, run_id: str, step: int, attempt: int, chance: Random) -> Turn:
        if chance.random() < 0.12:
            fails = chance.choice(("at once", "at once", "midway", "midway", "for good"))
            return Turn(delay=chance.choice((0, 0.1)), words=chance.randrange(4), pace=0.02, fails=fails)
        turn = Turn(
            says_nothing=chance.random() < 0.05,
            delay=chance.choice((0, 0, 0.01, 0.5)),
            words=chance.choice((0, 1, 5)),
            pace=chance.choice((0, 0.004, 0.05)),
        )
        if chance.random() < 0.1 + 0.15 * step:
            return replace(turn, finish="stop" if chance.random() < 0.95 else chance.choice(("length", "refusal", "content_filter")))
        calls = tuple(_asked(self.names, chance) for _ in range(chance.choice((1, 1, 2, 3))))
        return replace(turn, calls=calls, finish="tool_calls" if chance.random() < 0.97 else "length")

    def answer(self, run_id: str, step: int, attempt: int, chance: Random) -> Turn:
        """A typed answer, or something in its place; now and then a call that may not be made."""
        turn = replace(Manners.model(self, run_id, 1, attempt, chance), calls=(), finish="stop", says=answer_of(chance))
        strange = chance.random()
        if strange < 0.05:
            return replace(turn, calls=(_asked(self.names, chance),), finish="tool_calls")
        return replace(turn, finish="length" if strange < 0.1 else "refusal" if strange < 0.12 else "stop")

    def is_down(self, run_id: str, model: str, chance: Random) -> bool:
        """Whether a model fails each time that this run asks it."""
        return chance.random() < (0.1 if model == FALLBACK else 0.25)

    def judges(self, run_id: str, number: int, chance: Random) -> str:
        return verdict_of(chance)

    def generation(self, chance: Random) -> Turn:
        """What a model does when the agent's own code asks it."""
        fails = chance.choice(("", "", "", "", "at once", "midway"))
        return Turn(delay=chance.choice((0, 0.01, 0.5)), words=1, pace=0.01, fails=fails, says_nothing=chance.random() < 0.1)

    def usage(self, chance: Random, allowed: int | None) -> Usage:
        """What a provider bills for a call whose answer may have so many tokens: now and then more than that."""
        beyond = chance.choice((0, 0, 0, 0, 0, 500))
        return Usage(input_tokens=chance.randrange(1, 80) + beyond, output_tokens=chance.randrange(1, (allowed or ANSWER) + 1))


def _asked(names: Sequence[str], chance: Random) -> tuple[str, str]:
    wrong, name = chance.random(), chance.choice(names)
    if wrong < 0.03:
        return "nothing_like_it", "{}"
    if wrong < 0.06:
        return name, '{"n": "one"}'
    return name, arguments(name, chance)


# -- the deployment --------------------------------------------------------------------------------------------------------


class Models:
    """`ports.models.ModelClients`: every model is a client already."""

    def client(self, model: Any) -> ModelClient:
        client: ModelClient = model
        return client

    async def close(self) -> None:
        """Nothing to let go."""


class OnceToldManifest(Manifest):
    """A manifest that is put into JSON once: thousands of processes publish it."""

    def to_json(self) -> dict[str, Any]:
        return _told(self.fingerprint, super().to_json)


_TOLD: dict[str, dict[str, Any]] = {}


def _told(fingerprint: str, tell: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    if fingerprint not in _TOLD:
        _TOLD[fingerprint] = tell()
    return _TOLD[fingerprint]


class SimulatedRegistry(Registry):
    """The agents of a simulated process, with manifests that cost nothing."""

    @cached_property
    def agents(self) -> tuple[Registered, ...]:
        return tuple(
            replace(entry, manifest=OnceToldManifest(**{each.name: getattr(entry.manifest, each.name) for each in fields(entry.manifest)}))
            for entry in super().agents
        )


@cache
def registry(*versions: str) -> Registry:
    """The agents of a simulated process, made once: they have no state. Whoever lacks a version only takes care of its runs."""
    model, fallbacks = SimulatedModel(), [SimulatedModel(FALLBACK)]
    limits = Limits(max_parallel_tools=2, model_timeout_seconds=PATIENCE, max_output_attempts=3, max_verify_attempts=4)
    return SimulatedRegistry(
        [
            Agent(
                name=name,
                version=version,
                model=model,
                fallback_models=fallbacks,
                model_settings=ModelSettings(max_output_tokens=ANSWER),
                instructions="Go on.",
                tools=tools(version),
                output=output,
                limits=limits,
            )
            for name, output in ((AGENT, None), (TYPED, OUTPUT))
            for version in versions
        ]
        or [Agent(name="strange", model=model)]
    )


@cache
def bindings(name: str = AGENT) -> tuple[str, ...]:
    """The bindings of an agent's versions."""
    return tuple(entry.binding for entry in registry(*VERSIONS).agents if entry.agent.name == name)


@cache
def deployment(registry: Registry) -> Mapping[str, Deployed]:
    """They, ready to run, with every tool watched."""
    found = deployed(registry, Models(), max_result_bytes=1_048_576)
    return {binding: replace(each, tools=_watched(each)) for binding, each in found.items()}


def _watched(agent: Deployed) -> Mapping[str, WatchedTool]:
    approvals = {tool.name: tool.approval for tool in agent.agent.tools}
    return {name: WatchedTool(body, approvals[name]) for name, body in agent.tools.items()}
