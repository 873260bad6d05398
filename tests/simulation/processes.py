"""Simulated processes: each a whole service with a worker, a clock and a bus of its own, over the one database of its world."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from runward.agents.registry import Registry
from runward.core.errors import Unavailable
from runward.engine.deployment import Deployed
from runward.engine.sealing import Seal
from runward.engine.service import Service, Workforce
from runward.engine.services import CircuitSettings, Services, WorkerSettings
from runward.engine.timing import StoreTime
from runward.models.prices import PriceTable
from runward.ports.bus import Hint
from runward.ports.models import ModelClients
from runward.stores.memory import Faults, MemoryBudgets, MemoryDirectory, MemoryReads, MemorySingletons, MemoryStore
from tests.simulation.bills import PRICES
from tests.simulation.loop import PROCESS, Step, sleep

if TYPE_CHECKING:
    from tests.simulation.world import World

TTL = 3.0
SETTINGS = WorkerSettings(
    concurrency=3,
    lease_ttl=TTL,
    poll=0.5,
    poll_with_bus=2.0,
    drain_grace=1.0,
    cancel_grace=0.5,
    max_recoveries=5,
    recovery_delay=0.25,
    loop_stall=1_000.0,
    circuit=CircuitSettings(failures=4, window_seconds=6.0, open_seconds=2.0),
)


class Process(Faults):
    """One process. `kill` is SIGKILL: nothing of it runs any more. `freeze` is SIGSTOP: its steps wait until `thaw`.

    `cut` says that it does not reach the database.
    """

    def __init__(
        self,
        world: World,
        name: str,
        *,
        registry: Registry,
        deployed: Mapping[str, Deployed],
        models: ModelClients,
        settings: WorkerSettings,
    ) -> None:
        self.world = world
        self.name = name
        self.started = False
        self.versions: tuple[str, ...] = ()
        self.runs = True
        self.killed = False
        self.buried = False
        self.draining = False
        self.cut = False
        self.frozen_at = -1.0
        self.thawed_at = -1.0
        self.gone: asyncio.Future[None] = world.loop.create_future()
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)
        self.clock = ProcessClock(self, world.chance.uniform(0, 100_000))
        self._kept: list[Step] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self.bus = SimulatedBus(self)
        services = Services(
            store=MemoryStore(world.database, self),
            reads=MemoryReads(world.database, self),
            directory=MemoryDirectory(world.database, self),
            singletons=MemorySingletons(world.database, self),
            budgets=MemoryBudgets(world.database, self),
            bus=self.bus,
            clock=self.clock,
            chance=SimulatedChance(world.chance.getrandbits(32)),
            time=StoreTime(self.clock),
            telemetry=SimulatedTelemetry(self),
            prices=PriceTable(PRICES),
        )
        workforce = Workforce(deployed=deployed, models=models, settings=settings, host=name, pid=1, resources={}, own_thread=False)
        self.service = Service(
            services=services,
            registry=registry,
            seal=Seal(None),
            poll=settings.poll,
            poll_with_bus=settings.poll_with_bus,
            workforce=workforce,
        )

    @property
    def owner(self) -> str:
        """Its worker, as leases name it."""
        assert self.service.worker is not None
        return self.service.worker.owner

    @property
    def up(self) -> bool:
        """Whether callers can reach it."""
        return self.runs and not self.draining

    def begin(self, work: Any) -> asyncio.Task[Any]:
        """Begins a coroutine inside this process."""
        return self.world.loop.create_task(work, context=self.context.copy())

    # -- what happens to it --------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        self.runs, self.killed = False, True
        self.world.note(self, "killed")
        if not self.gone.done():
            self.gone.set_result(None)

    def freeze(self, seconds: float) -> None:
        """Stops it, and lets it go on so much later."""
        if not self.killed:
            self.runs, self.frozen_at = False, self.world.loop.time()
            self.world.note(self, "frozen")
            self.world.loop.call_later(seconds, self.thaw, context=contextvars.Context())

    def thaw(self) -> None:
        if not self.killed and not self.runs:
            self.runs, self.thawed_at = True, self.world.loop.time()
            self.world.note(self, "thawed")
            kept, self._kept = self._kept, []
            self.world.loop.resume(kept)

    def reconnect(self) -> None:
        """It reaches the database again."""
        self.cut = False

    async def ended(self) -> None:
        """SIGTERM: it gives its runs back, then ends."""
        self.draining = True
        self.world.note(self, "stops")
        await self.begin(self._stop())

    async def _stop(self) -> None:
        await self.service.stop()
        self.kill()

    async def bury(self) -> None:
        """Ends what is left of it, once nobody looks any more: it reaches nothing, so nothing comes of it."""
        self.runs, self.killed, self.buried = True, True, True
        self.world.loop.resume(self._kept)
        for _ in range(100):
            self._tasks = [task for task in self._tasks if not task.done()]
            for task in self._tasks:
                task.cancel()
            await asyncio.sleep(0)
            if not self._tasks:
                return
        raise AssertionError(f"tasks of {self.name} do not end: {self._tasks}")

    # -- loop.Steps ------------------------------------------------------------------------------------------------------------

    def keep(self, step: Step) -> None:
        self._kept.append(step)

    def began(self, task: asyncio.Task[Any]) -> None:
        self._tasks.append(task)


class ProcessClock:
    """The clock of one process: it began at another moment than the others'."""

    def __init__(self, process: Process, began: float) -> None:
        self._process = process
        self._loop = process.world.loop
        self._began = began

    def monotonic(self) -> float:
        return self._began + self._loop.time()

    async def sleep(self, seconds: float) -> None:
        if self._process.buried:
            raise asyncio.CancelledError
        await sleep(seconds)


class SimulatedChance:
    """`ports.clock.Chance` that repeats itself."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._made = 0

    def uid(self) -> str:
        self._made += 1
        return f"{self._made:08x}{self._random.getrandbits(96):024x}"

    def secret(self) -> str:
        return f"{self._random.getrandbits(256):064x}"

    def jitter(self) -> float:
        return self._random.random()


class SimulatedBus:
    """`ports.bus.Bus`: hints travel to every process, late, twice, or not at all."""

    healthy = True

    def __init__(self, process: Process) -> None:
        self._process = process
        self._handlers: list[Callable[[Hint], None]] = []

    def publish(self, hints: Iterable[Hint]) -> None:
        for hint in hints:
            self._process.world.carry(hint)

    def subscribe(self, handler: Callable[[Hint], None]) -> Callable[[], None]:
        self._handlers.append(handler)
        return lambda: self._handlers.remove(handler)

    async def start(self) -> None:
        """Nothing to connect to."""

    async def stop(self) -> None:
        """Nothing to let go."""

    def deliver(self, hint: Hint) -> None:
        for handler in tuple(self._handlers):
            handler(hint)


class SimulatedTelemetry:
    """`ports.telemetry.Telemetry`: what would be a bug of the service breaks a promise here."""

    BUGS = frozenset(
        {"leg_failed", "activity_failed", "model_client_failed", "tool_call_impossible", "model_call_impossible", "agent_function_failed"}
    )

    def __init__(self, process: Process) -> None:
        self._process = process

    def event(self, name: str, **values: Any) -> None:
        self._process.world.note(self._process, name)

    def problem(self, name: str, error: BaseException | None = None, **values: Any) -> None:
        self._process.world.note(self._process, name)
        if name in self.BUGS and values.get("function") != "verifier" and not self._process.buried:
            self._process.world.watch.broken("the service failed", f"{name} in {self._process.name}: {error!r}", error)


def unavailable() -> Unavailable:
    return Unavailable("The database does not answer.")
