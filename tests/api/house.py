"""A service in this process with its door: in-process calls without a socket, and a real server for streams."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from runward import Agent, Reply, ScriptedModel, ToolCall, ToolContext, tool
from runward.agents.registry import Registry
from runward.api.app import Door, create_app
from runward.api.connections import Connection
from runward.engine.bearers import Bearers
from runward.engine.clock import SystemChance, SystemClock
from runward.engine.sealing import Seal
from runward.engine.service import Service, Workforce
from runward.engine.services import Services, WorkerSettings
from runward.engine.timing import StoreTime
from runward.engine.tokens import Signer
from runward.models.clients import ModelClients
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
from runward.stores.sql import Pool, open_sql
from runward.wiring import deployed
from tests.api import described


async def until(over: Callable[[], bool], seconds: float = 10) -> None:
    """Returns once something is so that nobody signals. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not over():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Heard:
    """`ports.telemetry.Telemetry` that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.problems: list[tuple[str, BaseException | None]] = []

    def event(self, name: str, **values: Any) -> None:
        self.events.append((name, values))

    def problem(self, name: str, error: BaseException | None = None, **values: Any) -> None:
        self.problems.append((name, error))


@tool(effect="read")
async def lookup_order(order_id: int, ctx: ToolContext) -> dict[str, Any]:
    """Look up an order."""
    return {"order_id": order_id, "status": "shipped"}


@tool(effect="read")
async def never(ctx: ToolContext) -> str:
    """Returns when it is cancelled."""
    await asyncio.Event().wait()
    return ""


SUPPORT = Agent(
    name="support",
    version="1",
    description="Answers questions about orders.",
    model=ScriptedModel(
        [Reply(text="Let me look.", tool_calls=[ToolCall("lookup_order", {"order_id": 7})]), Reply(text="It has shipped.")]
    ),
    tools=[lookup_order],
)
STUCK = Agent(name="stuck", version="1", model=ScriptedModel([Reply(tool_calls=[ToolCall("never", {})])]), tools=[never])


@dataclass(kw_only=True)
class House:
    """A running service, its app, and a client that needs no socket."""

    service: Service
    app: FastAPI
    door: Door
    http: httpx.AsyncClient
    heard: Heard
    faults: Faults
    memory: MemoryDatabase | None

    @property
    def database(self) -> MemoryDatabase:
        """What is stored, where that is in memory."""
        assert self.memory is not None
        return self.memory

    async def created(self, agent: str = "support", **body: Any) -> dict[str, Any]:
        """A new run's view."""
        answer = await self.http.post("/runs", json={"agent": agent, "input": "Where is order 7?", **body})
        assert answer.status_code == 202, answer.text
        run: dict[str, Any] = answer.json()
        return run

    async def completed(self, **body: Any) -> dict[str, Any]:
        """A run's view once it has completed."""
        answer = await self.http.post(
            "/runs", json={"agent": "support", "input": "Where is order 7?", **body}, headers={"Prefer": "wait=20"}
        )
        assert answer.json()["status"] == "completed", answer.text
        run: dict[str, Any] = answer.json()
        return run


@contextlib.asynccontextmanager
async def house(
    *,
    worker: bool = True,
    faults: Faults | None = None,
    agents: Sequence[Agent] = (SUPPORT, STUCK),
    secret_key: str | None = "a secret key for tests",
    verdicts_take_tokens: bool = False,
    url: str | None = None,
    pool: Pool | None = None,
    bearers: Callable[[Services], Bearers | None] = lambda _: None,
    **door: Any,
) -> AsyncIterator[House]:
    """A service on the memory store, or on the migrated database of a URL, with or without a worker."""
    heard, faults = Heard(), faults or Faults()
    memory = MemoryDatabase(SystemClock()) if url is None else None
    services = in_memory(memory, faults, heard) if memory is not None else on_database(str(url), pool or Pool(), heard)
    registry, models = Registry(agents), ModelClients(services.clock)
    workforce = Workforce(
        deployed=deployed(registry, models, max_result_bytes=1_048_576),
        models=models,
        settings=WorkerSettings(poll=0.05, drain_grace=0.2, cancel_grace=0.2),
        host="test",
        pid=1,
        resources={},
        own_thread=False,
    )
    service = Service(
        services=services,
        registry=registry,
        seal=Seal(None),
        poll=0.05,
        poll_with_bus=0.05,
        workforce=workforce if worker else None,
        signer=None if secret_key is None else Signer(secret_key),
        verdicts_take_tokens=verdicts_take_tokens,
    )
    await service.start()
    made = Door(
        commands=service.commands,
        operations=service.operations,
        whys=service.whys,
        oversight=service.oversight,
        rebinding=service.rebinding,
        budgets=service.budgets,
        queries=service.queries,
        deliveries=service.deliveries,
        approvals=service.approvals,
        tokens=service.tokens,
        catalog=service.catalog,
        key_uses=service.key_uses,
        services=services,
        ready=service.ready,
        closing=asyncio.Event(),
        bearers=bearers(services),
        **door,
    )
    app = create_app(made)
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", event_hooks={"response": [described.check]}) as http:
            yield House(service=service, app=app, door=made, http=http, heard=heard, faults=faults, memory=memory)
    finally:
        if made.bearers is not None:
            await made.bearers.close()
        await service.stop()


def in_memory(database: MemoryDatabase, faults: Faults, heard: Heard) -> Services:
    """What a process shares, on a database in memory."""
    clock = SystemClock()
    return Services(
        store=MemoryStore(database, faults),
        reads=MemoryReads(database, faults),
        directory=MemoryDirectory(database, faults),
        singletons=MemorySingletons(database, faults),
        budgets=MemoryBudgets(database, faults),
        bus=LocalBus(),
        clock=clock,
        chance=SystemChance(),
        time=StoreTime(clock),
        telemetry=heard,
    )


def on_database(url: str, pool: Pool, heard: Heard) -> Services:
    """What a process shares, on a SQLite file or a Postgres database."""
    clock, chance = SystemClock(), SystemChance()
    stores = open_sql(url, clock=clock, chance=chance, telemetry=heard, pool=pool)
    return Services(
        store=stores.store,
        reads=stores.reads,
        directory=stores.directory,
        singletons=stores.singletons,
        budgets=stores.budgets,
        bus=stores.bus,
        clock=clock,
        chance=chance,
        time=StoreTime(clock),
        telemetry=heard,
    )


class Server(uvicorn.Server):
    """uvicorn in the test's own loop, without signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def served(house: House) -> AsyncIterator[int]:
    """The port of a real server for the house's app; it stops as `main` stops one."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        house.app,
        http=Connection,
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="error",
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    server = Server(config)
    serving = asyncio.ensure_future(server.serve([listening]))
    try:
        await until(lambda: server.started)
        yield int(listening.getsockname()[1])
    finally:
        house.door.closing.set()
        server.should_exit = True
        await serving
