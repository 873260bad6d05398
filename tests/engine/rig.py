"""A rig for tests of the engine: services of several processes on one memory database, in virtual time, with faults by number."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from runward.agents.agent import Agent
from runward.agents.models import Reply, ScriptedModel, ToolCall
from runward.agents.registry import Registry
from runward.agents.tools import AnyTool
from runward.core.errors import Unavailable
from runward.core.kernel.actor import Envelope
from runward.core.messages import Message, TextPart
from runward.core.redaction import SECRETS, Redactor
from runward.core.runs.ledger import Rates
from runward.core.runs.limits import TighterLimits
from runward.engine.callers import LOCAL, Caller
from runward.engine.clock import SystemChance
from runward.engine.commands import NewRun, RunCreated
from runward.engine.deliveries import Delivered, Input
from runward.engine.letters import VerdictIn
from runward.engine.queries import shown
from runward.engine.repeats import Repeatable
from runward.engine.sealing import Seal
from runward.engine.service import Lifespan, Service, Workforce
from runward.engine.services import Services, WorkerSettings
from runward.engine.timing import StoreTime
from runward.engine.worker import Worker
from runward.models.clients import ModelClients
from runward.models.prices import PriceTable
from runward.ports.store import Renewal
from runward.stores.memory import (
    Faults,
    LocalBus,
    MemoryBudgets,
    MemoryDatabase,
    MemoryDirectory,
    MemoryReads,
    MemorySingletons,
    MemoryStore,
)
from runward.stores.memory.database import Rows
from runward.testing import VirtualClock
from runward.wiring import deployed

T = TypeVar("T")

TTL = 9.0
SETTINGS = WorkerSettings(lease_ttl=TTL, poll=0.5, poll_with_bus=2.0, drain_grace=5.0, cancel_grace=2.0, recovery_delay=2.0)
ENDED = frozenset({"completed", "stopped", "failed"})


class Gate:
    """Holds one operation: `reached` once it is there, until `open` is set."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()


@dataclass(slots=True)
class Script(Faults):
    """Faults of one process. Numbers count the operations of one name from the moment they are given, from 1.

    `refuse`: it never happens, for another reason if one is given; `lose`: it happens, and nobody is told; `hold` makes it wait at a gate,
    before it happens or after. `down`: nothing is reached. `done` are the operations that were begun, in order.
    """

    done: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    down: bool = False
    _before: dict[tuple[str, int], Gate | Exception] = field(default_factory=dict)
    _after: dict[tuple[str, int], Gate | Exception] = field(default_factory=dict)

    def refuse(self, name: str, *numbers: int, error: Exception | None = None) -> None:
        self._before.update({(name, self.counts[name] + number): error or unavailable() for number in numbers or (1,)})

    def lose(self, name: str, *numbers: int) -> None:
        self._after.update({(name, self.counts[name] + number): unavailable() for number in numbers or (1,)})

    def hold(self, name: str, number: int = 1, *, answered: bool = False) -> Gate:
        gate = Gate()
        (self._after if answered else self._before)[name, self.counts[name] + number] = gate
        return gate

    async def before(self, name: str) -> None:
        self.counts[name] += 1
        self.done.append(name)
        await self._meets(self._before, (name, self.counts[name]))

    async def after(self, name: str) -> None:
        await self._meets(self._after, (name, self.counts[name]))

    async def _meets(self, planned: dict[tuple[str, int], Gate | Exception], operation: tuple[str, int]) -> None:
        if operation in planned:
            fate = planned.pop(operation)
            if isinstance(fate, Exception):
                raise fate
            fate.reached.set()
            await fate.open.wait()
        if self.down:
            raise unavailable()


@dataclass(slots=True)
class Heard:
    """`ports.telemetry.Telemetry` that keeps what it is told."""

    events: list[str] = field(default_factory=list)
    problems: list[tuple[str, BaseException | None]] = field(default_factory=list)

    def event(self, name: str, **values: Any) -> None:
        self.events.append(name)

    def problem(self, name: str, error: BaseException | None = None, **values: Any) -> None:
        self.problems.append((name, error))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.problems]


class SharedBus(LocalBus):
    """One bus for all processes of a rig: it goes on when one of them stops. `mute` loses every hint."""

    mute = False

    def publish(self, hints: Any) -> None:
        if not self.mute:
            super().publish(hints)

    async def stop(self) -> None:
        """It is the rig's."""


@dataclass(slots=True, kw_only=True)
class Process:
    """One process of a rig."""

    service: Service
    faults: Script
    telemetry: Heard
    models: ModelClients

    @property
    def worker(self) -> Worker:
        assert self.service.worker is not None
        return self.service.worker

    def loses(self, uid: str) -> None:
        """A renewal of its worker is answered: the run is not yours any more."""
        clock = self.service.services.clock
        self.worker.renewed((uid,), Renewal(held={}, now=self.service.services.time.now()), clock.monotonic() + 0.001)

    async def die(self) -> None:
        """Its worker is gone, as by SIGKILL: nothing more of it reaches the database."""
        self.faults.down = True
        await self.worker.stop()


class Rig:
    """`async with Rig(agent) as rig`: one process with a worker unless `worker` says no; `start` adds more on the same database."""

    def __init__(
        self,
        *agents: Agent,
        settings: WorkerSettings = SETTINGS,
        secret: str | None = None,
        resources: Mapping[Lifespan, Any] | None = None,
        worker: bool = True,
        prices: Mapping[str, Rates] | None = None,
        redactor: Redactor = SECRETS,
    ) -> None:
        self.clock = VirtualClock()
        self.redactor = redactor
        self.prices = PriceTable(prices)
        self.database = MemoryDatabase(self.clock)
        self.bus = SharedBus()
        self.processes: list[Process] = []
        self._agents = agents
        self._settings = settings
        self._secret = secret
        self._resources = resources or {}
        self._worker = worker

    async def __aenter__(self) -> Rig:
        await self.start(worker=self._worker)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self.processes:
            process.faults.down = True
            if process.service.worker is not None:
                await process.service.worker.stop()
            await process.service.tails.stop()
            await process.models.close()
        for process in self.processes:
            assert "leg_failed" not in process.telemetry.names, process.telemetry.problems

    @property
    def first(self) -> Process:
        return self.processes[0]

    @property
    def faults(self) -> Script:
        return self.first.faults

    async def start(self, *agents: Agent, worker: bool = True, settings: WorkerSettings | None = None, own_thread: bool = False) -> Process:
        """One more process, of other agents if they are given."""
        process = self.process(*agents, worker=worker, settings=settings, own_thread=own_thread)
        await process.service.start()
        await breathe()
        return process

    def process(self, *agents: Agent, worker: bool = True, settings: WorkerSettings | None = None, own_thread: bool = False) -> Process:
        """The same, not started yet."""
        faults, telemetry, settings = Script(), Heard(), settings or self._settings
        services = Services(
            store=MemoryStore(self.database, faults),
            reads=MemoryReads(self.database, faults),
            directory=MemoryDirectory(self.database, faults),
            singletons=MemorySingletons(self.database, faults),
            budgets=MemoryBudgets(self.database, faults),
            bus=self.bus,
            clock=self.clock,
            chance=SystemChance(),
            time=StoreTime(self.clock),
            telemetry=telemetry,
            prices=self.prices,
            redactor=self.redactor,
        )
        registry, models = Registry(agents or self._agents), ModelClients(self.clock)
        workforce = Workforce(
            deployed=deployed(registry, models, max_result_bytes=65_536),
            models=models,
            settings=settings,
            host="rig",
            pid=len(self.processes) + 1,
            resources=self._resources,
            own_thread=own_thread,
        )
        service = Service(
            services=services,
            registry=registry,
            seal=Seal(self._secret),
            poll=settings.poll,
            poll_with_bus=settings.poll_with_bus,
            workforce=workforce if worker else None,
            working=settings,
        )
        process = Process(service=service, faults=faults, telemetry=telemetry, models=models)
        self.processes.append(process)
        return process

    # -- runs --------------------------------------------------------------------------------------------------------------

    async def create(
        self,
        agent: str = "agent",
        text: str = "hi",
        *,
        key: str | None = None,
        limits: Mapping[str, Any] | None = None,
        messages: Sequence[Message] = (),
        **request: Any,
    ) -> RunCreated:
        new = NewRun(
            agent=agent,
            messages=messages or (Message(seq=0, role="user", content=(TextPart(text=text),)),),
            limits=TighterLimits(**(limits or {})),
            **request,
        )
        repeatable = None if key is None else Repeatable(key=key, fingerprint=text)
        return await self.passing(self.first.service.commands.create_run(LOCAL, new, repeatable))

    async def begin(self, agent: str = "agent", text: str = "hi", **request: Any) -> str:
        """A new run's uid."""
        return (await self.create(agent, text, **request)).row.uid

    async def run(self, agent: str = "agent", text: str = "hi", **request: Any) -> str:
        """A new run's uid, once the run has ended or waits for somebody."""
        uid = await self.begin(agent, text, **request)
        await self.over(uid)
        return uid

    async def over(self, uid: str) -> Envelope:
        """The run's row, once it has ended or waits for somebody, and is nobody's."""
        await self.until(lambda: self.row(uid).lease_owner is None and self.row(uid).status.value in {*ENDED, "suspended"})
        return self.row(uid)

    async def cancel(self, uid: str, reason: str | None = None) -> bool:
        """Whether the cancel was accepted."""
        return (await self.passing(self.first.service.commands.cancel_run(LOCAL, self.row(uid).public_id, reason))).accepted

    async def deliver(self, uid: str, *, by: Caller = LOCAL, **given: Any) -> Delivered:
        """Sends input to a run: `approvals=[…]`, `answers=[…]` and so on, as `Input` has them."""
        return await self.passing(self.first.service.deliveries.deliver_to(by, self.row(uid), Input(**given)))

    async def verdict(self, uid: str, *approved: bool, **more: Any) -> None:
        """Decides the pending requests, in order, and waits until the run is at rest again."""
        requests = self.view(uid)["pending"]["approvals"]
        verdicts = [
            VerdictIn(approval_id=request["approval_id"], approved=yes, **more) for request, yes in zip(requests, approved, strict=False)
        ]
        await self.deliver(uid, approvals=verdicts)
        await self.over(uid)

    def rows(self, uid: str) -> Rows:
        return self.database.actors[uid]

    def row(self, uid: str) -> Envelope:
        return self.rows(uid).envelope

    def view(self, uid: str) -> dict[str, Any]:
        return shown(self.row(uid)).shown

    def frames(self, uid: str, *types: str) -> list[dict[str, Any]]:
        """What the run has said; only frames of some types, if they are named."""
        said = [json.loads(frame.data) for frame in self.rows(uid).frames]
        return [frame for frame in said if not types or frame["type"] in types]

    def types(self, uid: str) -> list[str]:
        return [frame["type"] for frame in self.frames(uid)]

    def results(self, uid: str) -> list[dict[str, Any]]:
        """What the model was told of each call, in its order."""
        parts = [part for message in self.rows(uid).messages.values() for part in json.loads(message.content)]
        return [part for part in parts if part["type"] == "tool_result"]

    # -- time --------------------------------------------------------------------------------------------------------------

    async def until(self, over: Callable[[], bool], *, limit_seconds: float = 300) -> None:
        """Lets time pass until something is so."""
        await self.clock.pass_time(over, limit_seconds=limit_seconds)

    async def reached(self, gate: Gate) -> None:
        await self.until(gate.reached.is_set)

    async def passing(self, work: Awaitable[T], *, limit_seconds: float = 300) -> T:
        """What `work` gives, time passing meanwhile."""
        task = asyncio.ensure_future(work)
        try:
            await self.until(task.done, limit_seconds=limit_seconds)
        finally:
            task.cancel()
        return await task

    async def pass_seconds(self, seconds: float) -> None:
        """Lets everything happen that happens in so many seconds."""
        await self.passing(self.clock.sleep(seconds), limit_seconds=seconds + 1)


def unavailable() -> Unavailable:
    return Unavailable("The database does not answer.")


async def breathe() -> None:
    """Gives everybody turns, and no time."""
    for _ in range(25):
        await asyncio.sleep(0)


def agent(*replies: Reply, tools: Sequence[AnyTool] = (), name: str = "agent", **differing: Any) -> Agent:
    """An agent whose model gives these replies, turn by turn."""
    return Agent(name=name, tools=tools, **{"model": ScriptedModel(list(replies)), **differing})


def calls(*names: str, **arguments: Any) -> Reply:
    """A reply that asks for tools, all with the same arguments."""
    return Reply(tool_calls=[ToolCall(name, arguments) for name in names])


DONE = Reply(text="done")
