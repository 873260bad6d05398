"""One process of the service: what it starts, in which order, and how it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from runward.agents.registry import Registry
from runward.core.errors import DefinitionError, Unavailable
from runward.core.kernel.commit import Claimed
from runward.engine.approvals import Approvals
from runward.engine.budgets import BudgetDesk
from runward.engine.catalog import Catalog, published
from runward.engine.circuits import Circuits
from runward.engine.commands import Commands
from runward.engine.deliveries import Deliveries
from runward.engine.deployment import Deployed
from runward.engine.hold import Hold
from runward.engine.key_uses import KeyUses
from runward.engine.operations import Operations
from runward.engine.oversight import Oversight
from runward.engine.performer import Performer
from runward.engine.queries import Queries
from runward.engine.rebinding import Rebinding
from runward.engine.sealing import Seal
from runward.engine.services import CircuitSettings, Services, UpkeepSettings, WorkerSettings
from runward.engine.tail import Tails
from runward.engine.tokens import Signer, Tokens
from runward.engine.upkeep import Upkeep
from runward.engine.why import Whys
from runward.engine.worker import Worker
from runward.ports.models import ModelClients

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workforce:
    """What a process needs to drive runs. `deployments` by agent name and version, without resources: those come from the lifespans.

    `resources` stands in for what a lifespan would yield; such a lifespan is not entered. `own_thread`: heartbeats have their own thread.
    """

    deployed: Mapping[str, Deployed]
    models: ModelClients
    settings: WorkerSettings
    host: str
    pid: int
    resources: Mapping[Lifespan, Any]
    own_thread: bool = True
    on_stall: Callable[[], None] = lambda: None


class Service:
    """Commands and queries over one store, and a worker if this process has a workforce. `working` is how the workers of this service work,
    for a process that has none; `upkeep` makes its worker keep house, too.

    `start` raises what keeps it from starting: `Unavailable`, `SchemaMismatch`, DefinitionError. `stop` drains; `drain` can be called
    first, to go on answering callers meanwhile. `signer` signs access tokens, which there are none of without; `verdicts_take_tokens`: a
    key alone decides no approval.
    """

    def __init__(
        self,
        *,
        services: Services,
        registry: Registry,
        seal: Seal,
        poll: float,
        poll_with_bus: float,
        workforce: Workforce | None,
        working: WorkerSettings | None = None,
        signer: Signer | None = None,
        verdicts_take_tokens: bool = False,
        upkeep: UpkeepSettings | None = None,
    ) -> None:
        self.services = services
        self.registry = registry
        self.tails = Tails(services, poll=poll, poll_with_bus=poll_with_bus)
        self.catalog = Catalog(services, registry)
        self.commands = Commands(services, self.catalog, seal)
        self.operations = Operations(services, self.commands)
        self.queries = Queries(services, self.tails)
        self.whys = Whys(services, working or (workforce.settings if workforce else WorkerSettings()))
        self.deliveries = Deliveries(services, self.catalog, verdicts_take_tokens=verdicts_take_tokens)
        self.tokens = Tokens(services, signer)
        self.key_uses = KeyUses(services)
        self.approvals = Approvals(services, self.deliveries)
        self.oversight = Oversight(services, self.whys)
        self.rebinding = Rebinding(services, self.catalog)
        self.budgets = BudgetDesk(services)
        self.worker: Worker | None = None
        self.worker_left = asyncio.Event()
        """Set once the worker has drained because an operator asked for it; the rest of the process goes on."""
        self.draining = asyncio.Event()
        self._seal = seal
        circuit = CircuitSettings() if workforce is None else workforce.settings.circuit
        self._circuits = Circuits(circuit, services.clock, services.telemetry)
        self._connected = False
        self._workforce = workforce
        self._upkeep_settings = upkeep
        self._upkeep: Upkeep | None = None
        self._beside: list[asyncio.Task[None]] = []
        self._lifespans = AsyncExitStack()
        self._resources: dict[Lifespan, Any] = {} if workforce is None else dict(workforce.resources)

    async def connect(self) -> None:
        """The first part of `start`, for whoever has to look into the store before work begins. Idempotent."""
        if self._connected:
            return
        services = self.services
        await services.store.open()
        services.time.learn(await services.store.now())
        await services.bus.start()
        await self.tails.start()
        self._connected = True

    async def start(self) -> None:
        """Connects, publishes this process's agents, enters their lifespans, and starts to claim."""
        services = self.services
        await self.connect()
        self._beside.append(asyncio.ensure_future(self.key_uses.keep_telling()))
        if self._workforce is not None:
            self.worker = await self._worker(self._workforce)
            await services.directory.publish_agents(published(self.registry))
            await self.worker.start()
            self._beside.append(asyncio.ensure_future(self._drain_when_asked(self.worker)))
            if self._upkeep_settings is not None:
                ttl = self._workforce.settings.lease_ttl
                self._upkeep = Upkeep(services, self._upkeep_settings, owner=self.worker.owner, lease_ttl=ttl)
                self._beside.append(asyncio.ensure_future(self._upkeep.keep_house()))

    async def drain(self) -> None:
        """Claims nothing more and gives every run back (R39). Callers are still answered."""
        self.draining.set()
        if self.worker is not None:
            await self.worker.drain()

    async def stop(self) -> None:
        """Drains unless that was done, and lets everything go. Idempotent."""
        await self.drain()
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)
        await self._leave_upkeep()
        await self.key_uses.tell()
        await self.tails.stop()
        await self.services.bus.stop()
        await self._lifespans.aclose()
        if self._workforce is not None:
            await self._workforce.models.close()
        await self.services.store.close()

    async def _drain_when_asked(self, worker: Worker) -> None:
        await worker.asked_to_drain.wait()
        self.services.telemetry.event("draining", by="operator")
        await worker.drain()
        self.worker_left.set()

    async def _leave_upkeep(self) -> None:
        """Another process may go on with it at once; if that cannot be said, the lease runs out."""
        if self._upkeep is not None:
            try:
                await self._upkeep.leave()
            except Unavailable as error:
                self.services.telemetry.problem("leave_failed", error)

    async def kill_worker(self) -> None:
        """Ends the worker as a crash would, and starts another one: what the first drove is left to its lease. For tests."""
        if self.worker is None or self._workforce is None:
            raise RuntimeError("This process has no worker.")
        await self.worker.stop()
        self.worker = await self._worker(self._workforce)
        await self.worker.start()

    async def ready(self) -> bool:
        """Whether the store answers and this process takes work."""
        try:
            self.services.time.learn(await self.services.store.now())
        except Unavailable:
            return False
        return not self.draining.is_set()

    async def _worker(self, workforce: Workforce) -> Worker:
        resources = self._resources
        for entry in self.registry.agents:
            lifespan = entry.agent.lifespan
            if lifespan is not None and lifespan not in resources:
                resources[lifespan] = await self._entered(entry.agent.name, lifespan)
        deployments = {
            binding: replace(
                workforce.deployed[entry.binding],
                resources=None if entry.agent.lifespan is None else resources[entry.agent.lifespan],
            )
            for binding, entry in self.registry.bindings.items()
        }
        return Worker(
            services=self.services,
            settings=workforce.settings,
            deployments=deployments,
            tails=self.tails,
            performer=lambda claimed, deployed, hold: self._performer(workforce, claimed, deployed, hold),
            host=workforce.host,
            pid=workforce.pid,
            own_thread=workforce.own_thread,
            on_stall=workforce.on_stall,
        )

    async def _entered(self, agent: str, lifespan: Lifespan) -> Any:
        try:
            return await self._lifespans.enter_async_context(lifespan())
        except Exception as error:
            name = getattr(lifespan, "__name__", str(lifespan))
            raise DefinitionError(f"The lifespan {name} of agent {agent!r} failed: {type(error).__name__}.") from error

    def _performer(self, workforce: Workforce, claimed: Claimed, deployed: Deployed, hold: Hold) -> Performer:
        return Performer(
            claimed.envelope,
            deployed,
            hold=hold,
            services=self.services,
            seal=self._seal,
            cancel_grace=workforce.settings.cancel_grace,
            circuits=self._circuits,
        )
