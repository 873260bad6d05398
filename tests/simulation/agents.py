"""The agent of all simulated runs, in two versions, and its model: they do whatever chance says."""

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

AGENT = "simulated"
VERSIONS = ("1", "2")
ANSWER = 60
"""How many tokens the agent wants an answer to have at most."""
WORDS = ("a ", "bit ", "of ", "text ")


class SimulatedModel:
    """`ports.models.ModelClient`: answers as chance says, in pieces, and not always whole."""

    name = "scripted:simulated"

    def call(self, request: ModelRequest, on_delta: Callable[[ModelDelta], Awaitable[None]]) -> Coroutine[Any, Any, ModelAnswer]:
        return self._answer(request, on_delta, here().world.watch.model_starts(here(), request))

    async def _answer(self, request: ModelRequest, on_delta: Callable[[ModelDelta], Awaitable[None]], bill: Bill) -> ModelAnswer:
        process = here()
        world, run_id = process.world, request.messages[0].text
        this = (run_id, request.step, request.attempt) if request.purpose == "turn" else (run_id, "generate", bill.number)
        manners, chance = world.manners, world.chance_of(*this)
        turns = request.purpose == "turn"
        turn = manners.model(run_id, request.step, request.attempt, chance) if turns else manners.generation(chance)
        usage = Usage()
        if turn.fails not in ("at once", "for good"):
            usage = bill.billed(manners.usage(world.chance_of(*this, "usage"), request.settings.max_output_tokens))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a model does when it is asked."""

    delay: float = 0
    words: int = 1
    pace: float = 0
    calls: tuple[tuple[str, str], ...] = ()
    finish: Finish = "stop"
    fails: str = ""
    says_nothing: bool = False
    """Whether it keeps to itself what it bills."""


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
    model, limits = SimulatedModel(), Limits(max_parallel_tools=2)
    return SimulatedRegistry(
        [
            Agent(
                name=AGENT,
                version=version,
                model=model,
                model_settings=ModelSettings(max_output_tokens=ANSWER),
                instructions="Go on.",
                tools=tools(version),
                limits=limits,
            )
            for version in versions
        ]
        or [Agent(name="strange", model=model)]
    )


@cache
def bindings() -> tuple[str, ...]:
    """The bindings of the agent's versions."""
    return tuple(entry.binding for entry in registry(*VERSIONS).agents)


@cache
def deployment(registry: Registry) -> Mapping[str, Deployed]:
    """They, ready to run, with every tool watched."""
    found = deployed(registry, Models(), max_result_bytes=1_048_576)
    return {binding: replace(each, tools=_watched(each)) for binding, each in found.items()}


def _watched(agent: Deployed) -> Mapping[str, WatchedTool]:
    approvals = {tool.name: tool.approval for tool in agent.agent.tools}
    return {name: WatchedTool(body, approvals[name]) for name, body in agent.tools.items()}
