"""A scenario: who calls, what goes wrong and when, all of it drawn from a seed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random

from tests.simulation.agents import VERSIONS
from tests.simulation.callers import Caller
from tests.simulation.database import OF_RUNS, Fate, Kind
from tests.simulation.loop import sleep
from tests.simulation.processes import TTL, Process
from tests.simulation.spending import drawn, make
from tests.simulation.tools import NAMES
from tests.simulation.world import Outcome, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How bad it gets. Probabilities are per operation; counts are per world. A stranger has no agent of the runs, an
    older process only their first version. People who are diligent answer everything in the end."""

    processes: int
    strangers: bool
    older: bool
    diligent: bool
    runs: int
    seconds: float
    slow: float
    unavailable: float
    lost: float
    late: float
    hints_lost: float
    kills: int
    freezes: int
    stops: int
    cuts: int
    deserts: int
    calm: bool
    """Whether nothing of it goes wrong: operations and hints take their time, and that is all."""

    @classmethod
    def drawn(cls, chance: Random) -> Weather:
        mild = chance.random() < 0.15
        rate = 0.0 if mild else chance.choice((0.0, 0.01, 0.05, 0.15))
        return cls(
            processes=chance.choice((1, 2, 2, 3)),
            strangers=chance.random() < 0.3,
            older=chance.random() < 0.2,
            diligent=chance.random() < 0.8,
            runs=chance.choice((1, 2, 3, 4)),
            seconds=chance.choice((2.0, 5.0, 8.0)),
            slow=0.0 if mild else chance.choice((0.0, 0.1, 0.4)),
            unavailable=rate * chance.random(),
            lost=rate * chance.random(),
            late=rate * chance.random() / 2,
            hints_lost=0.0 if mild else chance.choice((0.0, 0.2, 1.0)),
            kills=0 if mild else chance.choice((0, 1, 1, 2, 3, 6)),
            freezes=0 if mild else chance.choice((0, 0, 1, 2)),
            stops=0 if mild else chance.choice((0, 0, 1)),
            cuts=0 if mild else chance.choice((0, 0, 1)),
            deserts=0 if mild else chance.choice((0, 0, 0, 0, 1)),
            calm=mild,
        )


class Nemesis:
    """Deals out fates, and strikes processes: at an operation, when it is a run's, or at some moment."""

    def __init__(self, world: World, weather: Weather) -> None:
        self._world = world
        self._weather = weather
        self._chance = world.chance
        self._due: list[Kind] = []
        self._patience = 0

    def fate(self, process: Process, name: str) -> Fate:
        chance, weather = self._chance, self._weather
        there, back = self._delay(), self._delay()
        if process.cut:
            return Fate(Kind.REFUSED, there)
        if self._due and self._is_worth_it(name):
            kind = self._due.pop()
            if kind in (Kind.FREEZES_BEFORE, Kind.FREEZES_AFTER):
                return Fate(kind, there, back, chance.choice((0.1, TTL * 0.8, TTL * 1.2, TTL * 2)))
            self._world.loop.call_later(chance.choice((0.05, 1.0, TTL)), self._starts_anew, context=self._world.outside_context())
            return Fate(kind, there)
        drawn = chance.random()
        for kind, odds in ((Kind.REFUSED, weather.unavailable), (Kind.LOST, weather.lost), (Kind.LATE, weather.late)):
            if drawn < odds:
                return Fate(kind, there, back, chance.choice((0.001, 0.1, 1.0, TTL)))
            drawn -= odds
        return Fate(Kind.DONE, there, back)

    def _is_worth_it(self, name: str) -> bool:
        """Strikes some operations further, at a run's own write rather than at a read or one of the many claims that find nothing."""
        if (name not in OF_RUNS or name == "claim") and self._chance.random() < 0.8:
            return False
        self._patience -= 1
        if self._patience > 0:
            return False
        self._patience = self._chance.randrange(1, 8)
        return True

    async def strike(self) -> None:
        """Sends what goes wrong, spread over the scenario's time."""
        weather = self._weather
        strikes = ["kill"] * weather.kills + ["freeze"] * weather.freezes + ["stop"] * weather.stops + ["cut"] * weather.cuts
        strikes += ["desert"] * weather.deserts
        self._chance.shuffle(strikes)
        for strike in strikes:
            await sleep(self._chance.uniform(0, 1.5 * weather.seconds / len(strikes)))
            if not self._world.troubled:
                return
            self._strike(strike)

    def _strike(self, strike: str) -> None:
        chance = self._chance
        up = [process for process in self._world.processes if process.up and process.started]
        if not up:
            return
        process = chance.choice(up)
        match strike:
            case "kill" if chance.random() < 0.8:
                self._due.append(chance.choice((Kind.KILLS_BEFORE, Kind.KILLS_AFTER)))
            case "kill":
                process.kill()
                self._world.loop.call_later(chance.choice((0.05, 1.0)), self._starts_anew, context=self._world.outside_context())
            case "freeze" if chance.random() < 0.7:
                self._due.append(chance.choice((Kind.FREEZES_BEFORE, Kind.FREEZES_AFTER)))
            case "freeze":
                process.freeze(chance.choice((0.5, TTL * 1.2, TTL * 2)))
            case "stop":
                self._world.begin(process.ended())
                self._starts_anew()
            case "desert":  # for a while only strangers are left, if any
                for each in up:
                    if each.versions:
                        each.kill()
                self._world.loop.call_later(TTL * chance.choice((1, 3)), self._starts_anew, context=self._world.outside_context())
            case "cut":
                process.cut = True
                self._world.loop.call_later(chance.choice((0.3, TTL, TTL * 1.5)), process.reconnect, context=self._world.outside_context())

    def _starts_anew(self) -> None:
        self._world.begin(self._world.start(f"p{len(self._world.processes) + 1}", *VERSIONS))

    def _delay(self) -> float:
        drawn = self._chance.random()
        if drawn < 0.5:
            return 0.0
        if drawn < 0.9:
            return self._chance.choice((0.001, 0.003, 0.009))
        if drawn < 1 - self._weather.slow / 10:
            return self._chance.choice((0.02, 0.04))
        return self._chance.choice((0.2, 1.0, TTL * 1.1))


def simulate(seed: int, *, keep_notes: bool = False) -> Outcome:
    """Lives through the world of a seed."""
    world = World(seed, keep_notes=keep_notes)
    return world.live(_live(world))


async def _live(world: World) -> None:
    weather = Weather.drawn(world.chance)
    nemesis = Nemesis(world, weather)
    world.manners.names = world.chance.sample(NAMES, world.chance.choice((2, 4, 8, len(NAMES))))
    for number in range(weather.processes):
        await world.start(f"p{number + 1}", *VERSIONS)
    if weather.strangers:
        await world.start("stranger")
    if weather.older:
        await world.start("older", VERSIONS[0])
    first = world.processes[0]
    await first.begin(make(first.service, drawn(world.chance_of("budgets"))))
    world.fates, world.hints_lost, world.calm = nemesis.fate, weather.hints_lost, weather.calm
    world.diligent = weather.diligent
    callers = [Caller(world, f"run-{number}", world.chance_of("caller", number)) for number in range(weather.runs)]
    lives = [asyncio.ensure_future(caller.live()) for caller in callers]
    striking = asyncio.ensure_future(nemesis.strike())
    until = world.loop.time() + weather.seconds
    while world.loop.time() < until and not world.watch.violations and not all(life.done() for life in lives):
        await sleep(0.25)
    striking.cancel()
    await world.heal()
    await world.settle(lambda: all(life.done() for life in lives))
    for life in lives:
        if world.watch.violations:
            life.cancel()
        else:
            life.result()
    if not world.diligent and not world.watch.violations:
        await world.rest()
    await world.judge()
