"""Named fault points: what a setting may say, when a point acts, and what a write's point does to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from runward.core.errors import DefinitionError, Unavailable
from runward.core.kernel.actor import Status
from runward.core.kernel.records import Stage
from runward.engine.probed_store import kinds_of, probed
from runward.engine.probes import PLACES, WRITES, Action, FaultPoints, Rule, points, rules_of
from runward.stores.memory import MemoryDatabase, MemoryStore
from runward.testing import VirtualClock
from tests.contract.builders import approval, changes, letter, message, new_actor, receipt, release, running
from tests.engine.rig import Heard


class Dice:
    """`ports.clock.Chance` that throws what it is told."""

    def __init__(self, *throws: float) -> None:
        self._throws = list(throws)

    def uid(self) -> str:
        raise AssertionError("no ids are made here")

    def secret(self) -> str:
        raise AssertionError("no secrets are made here")

    def jitter(self) -> float:
        return self._throws.pop(0)


class Room:
    """Fault points in virtual time, which end nothing but tell of it."""

    def __init__(self, text: str, *throws: float) -> None:
        self.clock, self.heard, self.ended = VirtualClock(), Heard(), list[Action]()
        self.faults = FaultPoints(rules_of(text), clock=self.clock, chance=Dice(*throws), telemetry=self.heard, end=self.ended.append)

    async def passes(self, *names: str) -> list[Action]:
        """What ends the process when it comes to points one after the other."""
        for name in names:
            await self.faults.reach(name)
        return self.ended


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("before_effect:kill", [Rule(point="before_effect", action=Action.KILL)]),
        ("after_commit:pause=0.5@3", [Rule(point="after_commit", action=Action.PAUSE, seconds=0.5, nth=3)]),
        ("before_end:raise@2.5%", [Rule(point="before_end", action=Action.RAISE, chance=0.025)]),
        (
            " draining:exit , recovery:stop@1",
            [Rule(point="draining", action=Action.EXIT), Rule(point="recovery", action=Action.STOP, nth=1)],
        ),
    ],
)
def test_rules_are_read(text: str, rules: Sequence[Rule]) -> None:
    assert rules_of(text) == rules


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kill", "it is not point:action"),
        ("before_effect:kill,", "'' cannot be done"),
        ("before_effect:kill@0", "it is not point:action"),
        ("before_effect:kill@two", "it is not point:action"),
        ("before_lunch:kill", "there is no point 'before_lunch'"),
        ("before_effect:explode", "there is no action 'explode'"),
        ("before_effect:pause", "names its seconds"),
        ("before_effect:kill=5", "names its seconds"),
        ("before_effect:raise", "only a write can raise"),
        ("before_end:raise@101%", "at most 100%"),
    ],
)
def test_what_is_no_rule_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(DefinitionError, match=r"RUNWARD_FAULTS: .+ cannot be done") as refused:
        rules_of(text)
    assert why in refused.value.detail


def test_every_write_has_two_points() -> None:
    assert len(points()) == 2 * len(WRITES) + len(PLACES)


async def test_it_is_said_loudly_that_faults_are_on_and_what_they_do() -> None:
    room = Room("before_effect:kill")
    assert room.heard.names == ["faults_on"]
    await room.faults.reach("before_effect")
    assert room.heard.names == ["faults_on", "fault"]


async def test_a_rule_acts_at_its_passage_alone() -> None:
    room = Room("before_effect:kill@2")
    assert await room.passes("before_effect", "after_effect") == []
    assert await room.passes("before_effect") == [Action.KILL]
    assert await room.passes("before_effect") == [Action.KILL]


async def test_a_rule_without_a_number_acts_every_time_and_one_with_a_chance_by_it() -> None:
    assert await Room("before_model:exit").passes("before_model", "before_model") == [Action.EXIT, Action.EXIT]
    assert await Room("before_model:stop@10%", 0.1, 0.09).passes("before_model", "before_model") == [Action.STOP]


async def test_a_pause_waits_for_so_long() -> None:
    room = Room("before_effect:pause=5")
    waiting = asyncio.ensure_future(room.faults.reach("before_effect"))
    await room.clock.pass_time(waiting.done, limit_seconds=60)
    assert room.clock.monotonic() == 5


def store_with(text: str) -> tuple[Any, MemoryDatabase]:
    room = Room(text)
    database = MemoryDatabase(room.clock)
    return probed(MemoryStore(database), room.faults), database


async def test_R2a_a_write_that_is_refused_does_not_happen_and_one_whose_answer_is_lost_does() -> None:
    for text, there in (("before_create:raise", False), ("after_create:raise", True)):
        store, database = store_with(text)
        new = new_actor()
        with pytest.raises(Unavailable):
            await store.create(new, None)
        assert (new.uid in database.actors) is there
        assert isinstance(await store.now(), int), "what is no write is the store's own"


async def test_a_commit_is_of_every_kind_that_it_is() -> None:
    row = await running(MemoryStore(MemoryDatabase(VirtualClock())))
    assert kinds_of(changes(row)) == ("commit",)
    receipts = (receipt(stage=Stage.EXECUTING), receipt("1.2", stage=Stage.FAILED), receipt("1.3", stage=Stage.EXECUTED))
    assert kinds_of(changes(row, receipts=receipts)) == ("commit", "executing", "executed", "outcome")
    assert kinds_of(changes(row, approvals=(approval(),), closings=(letter(),))) == ("commit", "request", "closing")
    assert kinds_of(changes(row, messages=(message(1), message(2, role="assistant")))) == ("commit", "answer")
    assert [kinds_of(release(row, status))[1:] for status in (Status.SUSPENDED, Status.QUEUED, Status.COMPLETED)] == [
        ("suspend",),
        ("give_back",),
        ("end",),
    ]
