"""A world of one seed: a database, processes that come and go, callers, and everything that goes wrong."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from runward.core.kernel.actor import Envelope, Status
from runward.engine.services import WorkerSettings
from runward.ports.bus import Hint
from tests.simulation.agents import VERSIONS, Manners, Models, deployment, registry
from tests.simulation.database import AT_ONCE, Fate, SimulatedDatabase
from tests.simulation.ledger import Ledger
from tests.simulation.loop import SimulatedLoop, Stuck, sleep
from tests.simulation.processes import SETTINGS, Process
from tests.simulation.watch import Watch

BOUND = 120.0
"""How long after the faults stop every run has to have ended, or to wait for somebody, in virtual seconds (I-22)."""

REST = 10.0
SOON_MS = 15_000
"""What waits for a time beyond this waits for a probe to be asked again: nobody waits for that here."""

Fates = Callable[[Process, str], Fate]


def always_well(process: Process, name: str) -> Fate:
    """Nothing goes wrong."""
    return AT_ONCE


class OutsideClock:
    """The clock of the database and of the world outside."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await sleep(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a world. The same seed gives the same `digest`."""

    violations: tuple[str, ...]
    digest: str
    seconds: float
    operations: int
    notes: tuple[str, ...]


class World:
    """`fates` decides about every operation on the database while `troubled`; `hints_lost` and `hints_late` about hints."""

    def __init__(
        self, seed: int | str, *, manners: Manners | None = None, settings: WorkerSettings = SETTINGS, keep_notes: bool = False
    ) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.loop = SimulatedLoop(self.chance)  # type: ignore[abstract] # of a loop it has what is needed here
        self.outside = OutsideClock(self.loop)
        self.manners = manners or Manners()
        self.ledger = Ledger()
        self.watch = Watch(self)
        self.database = SimulatedDatabase(self)
        self.processes: list[Process] = []
        self.troubled = True
        self.calm = False
        """Whether nothing goes wrong from the beginning."""
        self.diligent = False
        """Whether people answer everything once nothing goes wrong any more: then every run ends."""
        self.fates: Fates = always_well
        self.hints_lost = 0.0
        self.operations = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._settings = settings
        self._keep_notes = keep_notes
        self._notes: list[str] = []
        self._digest = hashlib.blake2b(digest_size=16)

    # -- chance ------------------------------------------------------------------------------------------------------------

    def chance_of(self, *what: object) -> Random:
        """Chance that depends on the seed and on these alone, not on what happened before."""
        return Random(f"{self.seed} {what}")

    def fate(self, process: Process, name: str) -> Fate:
        self.operations += 1
        return self.fates(process, name) if self.troubled and process.started else AT_ONCE

    def note(self, process: Process, what: str) -> None:
        line = f"{self.loop.time():.6f} {process.name} {what}"
        self._digest.update(line.encode())
        if self._keep_notes:
            self._notes.append(line)

    def outside_context(self) -> contextvars.Context:
        """The context of what belongs to no process."""
        return contextvars.Context()

    # -- processes -----------------------------------------------------------------------------------------------------------

    async def start(self, name: str, *versions: str) -> Process:
        """A new process, up and running, with these versions of the runs' agent, or with another agent. Nothing goes wrong meanwhile."""
        agents = registry(*versions)
        process = Process(self, name, registry=agents, deployed=deployment(agents), models=Models(), settings=self._settings)
        process.versions = versions
        await process.begin(process.service.start())
        process.started = True
        self.processes.append(process)
        self.note(process, f"started {len(self.processes)}")
        return process

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begins something outside of every process."""
        self._tasks.append(self.loop.create_task(work, context=self.outside_context()))

    def carry(self, hint: Hint) -> None:
        """A hint sets out to every process."""
        for process in self.processes:
            if process.killed:
                continue
            if self.troubled and self.hints_lost and self.chance.random() < self.hints_lost:
                continue
            late = self.chance.choice((0.0, 0.0, 0.001, 0.05)) if self.troubled else 0.0
            for _ in range(2 if self.troubled and self.chance.random() < 0.1 else 1):
                self.loop.call_later(late, _deliver, process, hint, context=process.context.copy())

    # -- the end -------------------------------------------------------------------------------------------------------------

    async def heal(self) -> None:
        """Whatever went wrong stops going wrong: frozen processes go on, and where none is left one starts."""
        self.troubled = False
        for process in self.processes:
            process.cut = False
            process.thaw()
        if not any(process.up and process.versions == VERSIONS for process in self.processes):
            await self.start("healer", *VERSIONS)

    @property
    def settled(self) -> bool:
        """Whether every run has ended, or waits for somebody."""
        return all(self._at_rest(rows.envelope) for rows in self.database.actors.values())

    def _at_rest(self, row: Envelope) -> bool:
        if row.lease_owner is not None or row.mail_received > row.mail_applied:
            return False
        if row.status.ended:
            return True
        soon = self.database.now() + SOON_MS
        return not self.diligent and row.status is Status.SUSPENDED and (row.ready_at is None or row.ready_at > soon)

    async def settle(self, others_done: Callable[[], bool] = lambda: True) -> None:
        """Waits until every run is settled, within the bound."""
        until = self.loop.time() + BOUND
        while not (self.settled and others_done()) and not self.watch.violations:
            if self.loop.time() > until:
                waiting = [str(rows.envelope) for rows in self.database.actors.values() if not rows.envelope.status.ended]
                self.watch.broken("I-22 every run ends or waits visibly", f"after {BOUND} s: {waiting}, callers done: {others_done()}")
                return
            await asyncio.sleep(0)
            await sleep(0.1)

    async def rest(self) -> None:
        """Lets some time pass in which nothing happens to runs that wait for people: nobody takes them for nothing."""
        before = {uid: rows.envelope for uid, rows in self.database.actors.items()}
        await sleep(REST)
        for uid, rows in self.database.actors.items():
            self.watch.check(rows.envelope == before[uid], "I-22 what waits is left alone", f"{before[uid]} and then {rows.envelope}")

    async def judge(self) -> None:
        """Looks at every run's end, and takes the world down."""
        if not self.watch.violations:
            for rows in self.database.actors.values():
                self.watch.over(rows)
            self.watch.spending.judge()
        for process in self.processes:
            await process.bury()
        for complaint in self.loop.complaints:
            self.watch.broken("nothing fails unseen", complaint)

    def live(self, story: Coroutine[Any, Any, None]) -> Outcome:
        """Lives through a story, which has to end with `judge`."""
        try:
            self.loop.run(story)
        except Stuck as stuck:
            self.watch.broken("I-22 every run ends or waits visibly", str(stuck))
            self.loop.run(self.judge())
        return self._outcome()

    def _outcome(self) -> Outcome:
        return Outcome(
            violations=tuple(self.watch.violations),
            digest=self._digest.hexdigest(),
            seconds=self.loop.time(),
            operations=self.operations,
            notes=tuple(self._notes),
        )


def _deliver(process: Process, hint: Hint) -> None:
    process.bus.deliver(hint)
