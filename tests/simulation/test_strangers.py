"""R41: what needs no author's code happens though nobody is left who has it: only strangers, who take care of the runs of others."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from runward.core.kernel.actor import Status
from tests.simulation.agents import VERSIONS
from tests.simulation.callers import Caller
from tests.simulation.golden import RUN, begun, strike
from tests.simulation.loop import sleep
from tests.simulation.stories import TEXT, Story, asks
from tests.simulation.world import World

CARE = 8.0
"""How long it takes until every wait of the stories has expired, and a stranger has seen it, in virtual seconds."""


@pytest.mark.parametrize(
    ("turn", "hands", "status", "closed"),
    [
        (asks("wire"), (), Status.QUEUED, "expired"),
        (asks("launch"), (), Status.STOPPED, "expired"),
        (asks("pick", "durable_wait"), (), Status.QUEUED, None),
        (asks("refund", "fetch"), ("cancel",), Status.STOPPED, "cancelled"),
        (asks("wire"), ("hold", "release"), Status.QUEUED, "expired"),
        (asks("fetch"), ("hold",), Status.SUSPENDED, None),
    ],
)
def test_R41_strangers_close_what_is_due_and_what_is_cancelled(turn: Any, hands: Any, status: Status, closed: str | None) -> None:
    story = Story(name="strangers", turns=(turn, TEXT), ending=status.value)
    world = World(story.name, manners=story)
    found: list[tuple[Status, str | None]] = []
    outcome = world.live(_live(world, hands, found))
    assert not outcome.violations, "\n".join(outcome.violations)
    assert found == [(status, closed)]


async def _live(world: World, hands: tuple[str, ...], found: list[tuple[Status, str | None]]) -> None:
    process = await world.start("first", *VERSIONS)
    caller = await begun(Caller(world, RUN, Random(0)))
    await sleep(1.0)
    await world.start("stranger")
    process.kill()
    for hand in hands:
        await strike(caller, hand)
    await sleep(CARE)
    rows = world.database.actors[caller.uid or ""]
    closings = [closing.status if closing else "pending" for _, closing in rows.approvals.values()]
    found.append((rows.envelope.status, closings[0] if closings else None))
    await world.heal()
    await world.settle()
    await world.judge()
