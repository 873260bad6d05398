"""Golden runs: short stories with one right ending, lived through with one thing going wrong at one chosen write (H3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from runward.engine.callers import LOCAL
from runward.engine.commands import Repeatable
from tests.simulation.agents import VERSIONS, Manners, Turn
from tests.simulation.callers import Caller, asked_for
from tests.simulation.database import OF_RUNS, Fate, Kind
from tests.simulation.loop import sleep
from tests.simulation.processes import TTL, Process
from tests.simulation.world import Outcome, World

RUN = "golden"
IDLE = 0.002
"""How long an operation takes, so that no two of them share a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story(Manners):
    """`turns` are the model's, by step; `tools` and `models` say which attempts of which call or step go wrong, and how.

    `cancel_after` is in seconds.
    """

    name: str
    turns: Sequence[Turn]
    tools: Mapping[tuple[str, int], str] = field(default_factory=dict)
    models: Mapping[tuple[int, int], str] = field(default_factory=dict)
    cancel_after: float | None = None
    ending: str = "completed"
    effects: int = 0
    """How many effects happen when nothing goes wrong."""

    projection_fails = 0.0

    def tool(self, run_id: str, call_id: str, attempt: int, chance: Random) -> str:
        return self.tools.get((call_id, attempt), "")

    def model(self, run_id: str, step: int, attempt: int, chance: Random) -> Turn:
        turn = self.turns[step - 1]
        fails = self.models.get((step, attempt))
        return turn if fails is None else Turn(words=turn.words, pace=turn.pace, fails=fails)


def asks(*names: str) -> Turn:
    """A turn that asks for tools."""
    return Turn(words=1, calls=tuple((name, f'{{"n": {number}}}') for number, name in enumerate(names)), finish="tool_calls")


TEXT = Turn(words=3, pace=0.02)

STORIES = (
    Story(name="text", turns=(TEXT,)),
    Story(name="read", turns=(asks("look"), TEXT), effects=1),
    Story(name="every-effect", turns=(asks("look", "put", "pay", "run_it"), TEXT), effects=4),
    Story(name="tool-retries", turns=(asks("put"), TEXT), tools={("1.1", 1): "breaks after", ("1.1", 2): "hangs"}, effects=3),
    Story(name="model-retries", turns=(asks("pay"), TEXT), models={(1, 1): "at once", (2, 1): "at once"}, effects=1),
    Story(name="cancel-in-tool", turns=(asks("look", "pay"),), tools={("1.2", 1): "hangs"}, cancel_after=0.3, ending="stopped", effects=2),
    Story(name="cancel-in-model", turns=(Turn(words=50, pace=0.1),), cancel_after=0.4, ending="stopped"),
    Story(name="projection", turns=(asks("ship", "report"), TEXT), effects=2),
    Story(name="told-unknown", turns=(asks("post"), TEXT), tools={("1.1", 1): "cannot tell"}, effects=1),
    Story(name="waits", turns=(asks("pay", "look"), TEXT), tools={("1.1", 1): "cannot tell"}, ending="suspended", effects=2),
    Story(name="checkpoint", turns=(asks("look"), TEXT), tools={("1.1", 1): "saves"}, effects=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A story's end: how the world came out, how often something was written, how the run ended, and how many effects there were."""

    outcome: Outcome
    writes: int
    status: str
    effects: int


@dataclass(slots=True)
class Struck:
    """Fates that strike at some writes, counted from 1, and at no other operation."""

    world: World
    at: Mapping[int, Kind]
    restarts: Callable[[], None]
    writes: int = 0

    def fate(self, process: Process, name: str) -> Fate:
        if name not in OF_RUNS:
            return Fate(Kind.DONE, IDLE)
        self.writes += 1
        kind = self.at.get(self.writes)
        if kind is None:
            return Fate(Kind.DONE, IDLE)
        if kind in (Kind.KILLS_BEFORE, Kind.KILLS_AFTER):
            self.world.loop.call_later(0.05, self.restarts, context=self.world.outside_context())
        return Fate(kind, IDLE, 0, TTL * 1.5 if kind in (Kind.FREEZES_BEFORE, Kind.FREEZES_AFTER) else 0.05)


def tell(story: Story, at: Mapping[int, Kind]) -> Told:
    """Lives through a story in which these writes have these fates."""
    world = World(f"{story.name} {sorted((number, kind.name) for number, kind in at.items())}", manners=story)
    struck = Struck(world, at, lambda: world.begin(world.start("next", *VERSIONS)))
    world.fates = struck.fate
    outcome = world.live(_tell(world, story))
    rows = world.database.actors[world.database.public_ids["default", RUN]]
    return Told(outcome=outcome, writes=struck.writes, status=rows.envelope.status.value, effects=len(world.ledger.effects))


async def _tell(world: World, story: Story) -> None:
    await world.start("first", *VERSIONS)
    caller = Caller(world, RUN, Random(0))
    new = asked_for(RUN)
    key = Repeatable(key=RUN, fingerprint="the same")
    created = await caller.ask_again(lambda service: service.commands.create_run(LOCAL, new, key))
    if story.cancel_after is not None:
        await sleep(story.cancel_after)
        answer = await caller.ask_again(lambda service: service.commands.cancel_run(LOCAL, RUN, None))
        if answer.accepted:
            world.watch.cancelled.add(created.row.uid)
    await world.settle()
    await world.heal()
    await world.settle()
    await world.judge()
    await asyncio.sleep(0)


def well(story: Story) -> Told:
    """The story when nothing goes wrong."""
    return tell(story, {})
