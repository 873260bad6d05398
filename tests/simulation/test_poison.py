"""I-19: a run that kills its worker every time ends failed, with a reason; the others go on."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

import pytest

from runward.core.runs import codec
from runward.engine.callers import LOCAL
from runward.engine.service import Service
from tests.simulation.agents import VERSIONS, Manners, Turn
from tests.simulation.callers import Caller, asked_for
from tests.simulation.loop import sleep
from tests.simulation.processes import SETTINGS
from tests.simulation.stories import TEXT, asks
from tests.simulation.world import World

HEALTHY = 6


class Poison(Manners):
    """The run called poison kills whatever process drives it; the others do a little work."""

    projection_fails = 0.0

    def tool(self, run_id: str, call_id: str, attempt: int, chance: Random) -> str:
        return "kills" if run_id == "poison" else ""

    def model(self, run_id: str, step: int, attempt: int, chance: Random) -> Turn:
        return asks("put", "look") if step <= 3 else TEXT

    def is_down(self, run_id: str, model: str, chance: Random) -> bool:
        return False


@pytest.mark.parametrize("seed", range(10))
def test_R40_a_poisonous_run_ends_and_takes_nobody_along(seed: int) -> None:
    world = World(seed, manners=Poison())
    outcome = world.live(_live(world))
    assert not outcome.violations, "\n".join(outcome.violations)


async def _live(world: World) -> None:
    for number in range(2):
        await world.start(f"p{number}", *VERSIONS)
    names = [f"run-{number}" for number in range(HEALTHY)]
    names.insert(world.chance.randrange(HEALTHY), "poison")
    for name in names:
        await Caller(world, name, Random(0)).ask(partial(_created, name))
    world.begin(_restart(world))
    await world.settle()
    deaths = sum(process.killed for process in world.processes)
    await world.judge()
    runs = {rows.envelope.public_id: rows.envelope for rows in world.database.actors.values()}
    ended = codec.decode(runs["poison"].state).ended
    assert ended is not None and ended.failure is not None and ended.failure.code == "recoveries_exhausted"
    assert [runs[name].status.value for name in names if name != "poison"] == ["completed"] * HEALTHY
    assert deaths == SETTINGS.max_recoveries + 1


async def _created(name: str, service: Service) -> None:
    await service.commands.create_run(LOCAL, asked_for(name))


async def _restart(world: World) -> None:
    """Whatever dies is started anew, as by a supervisor."""
    while True:
        await sleep(0.2)
        if sum(process.runs for process in world.processes) < 2:
            await world.start(f"p{len(world.processes)}", *VERSIONS)
        await asyncio.sleep(0)
