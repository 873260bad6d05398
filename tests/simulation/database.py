"""The database of a simulated world: every operation may fail, get lost, come late, or take its process along."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeVar

from runward.core.kernel.actor import Envelope
from runward.stores.memory import Faults, MemoryDatabase
from runward.stores.memory.database import Rows
from tests.simulation.loop import sleep
from tests.simulation.processes import Process, unavailable

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")

WRITES = frozenset(
    {"create", "claim", "commit", "append_frames", "append_mail", "ask_drain", "disown", "seize", "delete", "prune", "prune_keys", "renew"}
    | {"budgets.reserve", "budgets.close"}
)
OF_RUNS = WRITES - {"renew"}


class Kind(Enum):
    """What becomes of an operation."""

    DONE = auto()
    REFUSED = auto()
    """It never happens, and the process does not know that."""
    LOST = auto()
    """It happens, and the process does not know that."""
    LATE = auto()
    """The process is told that nothing is known; it happens later."""
    KILLS_BEFORE = auto()
    KILLS_AFTER = auto()
    FREEZES_BEFORE = auto()
    FREEZES_AFTER = auto()


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of an operation, how long it takes to get there and back, and, where it freezes or is late, for how long."""

    kind: Kind = Kind.DONE
    there: float = 0
    back: float = 0
    seconds: float = 0


AT_ONCE = Fate()


class SimulatedDatabase(MemoryDatabase):
    """`MemoryDatabase` whose operations have fates. `watch` sees every row that is written, and by whom."""

    def __init__(self, world: World) -> None:
        super().__init__(world.outside)
        self._world = world
        self._doing: tuple[Process, str] | None = None

    async def turn(self, faults: Faults, name: str, work: Callable[[], T]) -> T:
        process = faults
        assert isinstance(process, Process)
        if process.buried:
            raise unavailable()
        fate = self._world.fate(process, name)
        await sleep(fate.there)
        match fate.kind:
            case Kind.REFUSED:
                raise unavailable()
            case Kind.LATE:
                self._world.loop.call_later(fate.seconds, lambda: self._do(process, name, work), context=contextvars.Context())
                raise unavailable()
            case Kind.KILLS_BEFORE:
                await _nevermore(process)
            case Kind.FREEZES_BEFORE:
                process.freeze(fate.seconds)
                await asyncio.sleep(0)
        answer = self._do(process, name, work)
        match fate.kind:
            case Kind.KILLS_AFTER:
                await _nevermore(process)
            case Kind.FREEZES_AFTER:
                process.freeze(fate.seconds)
        await sleep(fate.back)
        if fate.kind is Kind.LOST:
            raise unavailable()
        return answer

    def _do(self, process: Process, name: str, work: Callable[[], T]) -> T:
        self._doing = (process, name)
        try:
            answer = work()
        except Exception as error:
            self._world.watch.broken("the store refused a write as impossible", f"{name} by {process.name}: {error!r}", error)
            raise
        finally:
            self._doing = None
        if name == "budgets.reserve":
            self._world.watch.spending.reserved()
        self._world.note(process, f"{name} {type(answer).__name__}" if name in WRITES else name)
        return answer

    def add(self, rows: Rows) -> None:
        super().add(rows)
        self._world.watch.created(rows)

    def put(self, envelope: Envelope) -> None:
        rows = self.actors[envelope.uid]
        before = rows.envelope
        super().put(envelope)
        if before is not envelope:
            assert self._doing is not None
            self._world.watch.written(before, rows, *self._doing)

    def remove(self, uid: str) -> None:
        self._world.watch.deleted(self.actors[uid])
        super().remove(uid)


async def _nevermore(process: Process) -> None:
    """The process dies here: what comes next never happens."""
    process.kill()
    await asyncio.get_running_loop().create_future()
