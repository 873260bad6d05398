"""The SQL stores and buses under test, see `backends.py`."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
from sqlalchemy import Update, bindparam, func, select, update

from runward.engine.clock import SystemChance, SystemClock
from runward.ports.bus import Bus, Hint
from runward.ports.store import Store
from runward.stores.redis import redis_bus
from runward.stores.sql import SqlStores, migrate, open_sql
from runward.stores.sql.journal import unpack
from runward.stores.sql.statements import Statement
from runward.stores.sql.tables import METADATA, actors, budget_reservations, budgets, frames, idempotency_keys, singletons, workers
from tests.contract.backends import TABLES, Backend, BusPair
from tests.support.proxy import Proxy


class Quiet:
    """Telemetry that nobody reads."""

    def event(self, name: str, **values: Any) -> None: ...

    def problem(self, name: str, error: BaseException | None = None, **values: Any) -> None: ...


class SqlBackend(Backend):
    """A migrated database behind a URL. The back doors are statements on the store's own database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._others: list[SqlStores] = []
        self.stores = self._open()
        self.store, self.reads = self.stores.store, self.stores.reads
        self.directory, self.singletons = self.stores.directory, self.stores.singletons
        self.budgets = self.stores.budgets

    def _open(self) -> SqlStores:
        return open_sql(self.url, clock=SystemClock(), chance=SystemChance(), telemetry=Quiet())

    async def new_store(self) -> Store:
        other = self._open()
        await other.store.open()
        self._others.append(other)
        return other.store

    async def age(self, uid: str, ms: int) -> None:
        moved = {name: actors.c[name] - ms for name in ("lease_until", "ready_at", "care_at", "rank")}
        await self._write(update(actors).where(actors.c.uid == bindparam("of")).values(moved), {"of": uid})

    async def age_others(self, ms: int) -> None:
        for column in (idempotency_keys.c.created_at, workers.c.beat_at, singletons.c.until):
            await self._write(update(column.table).values({column.name: column - ms}), {})

    async def age_budgets(self, ms: int) -> None:
        database = self.stores.database
        rows = await database.read(Statement(select(budgets.c.tenant, budgets.c.key, budgets.c.counted), database.dialect), {})
        for tenant, key, counted in rows:
            sums = json.loads(counted)
            sums["buckets"] = [[until and until - ms, *amounts] for until, *amounts in sums["buckets"]]
            moved = {name: budgets.c[name] - ms for name in ("created_at", "changed_at", "used_at")}
            this = update(budgets).where(budgets.c.tenant == bindparam("of"), budgets.c.key == bindparam("which"))
            await self._write(this.values(counted=json.dumps(sums), **moved), {"of": tenant, "which": key})
        made = budget_reservations.c.created_at
        await self._write(update(budget_reservations).values(created_at=made - ms), {})

    async def set_format(self, uid: str, version: int) -> None:
        await self._write(update(actors).where(actors.c.uid == bindparam("of")).values(format=version), {"of": uid})

    async def _write(self, statement: Update, values: Mapping[str, Any]) -> None:
        await self.stores.database.write(Statement(statement, self.stores.database.dialect), values)

    async def rows(self) -> Mapping[str, int]:
        """Frames are counted one by one, as they were written."""
        counts = {}
        for name in TABLES:
            counted = select(func.count()).select_from(METADATA.tables[name])
            ((counts[name],),) = await self.stores.database.read(Statement(counted, self.stores.database.dialect), {})
        stored = select(frames.c.seq, frames.c.format, frames.c.data)
        counts["frames"] = len(unpack(await self.stores.database.read(Statement(stored, self.stores.database.dialect), {}), after=0))
        return counts

    async def close(self) -> None:
        for stores in (*self._others, self.stores):
            await stores.store.close()


async def sqlite_backend(folder: Path) -> Backend:
    """A migrated database in a new file below `folder`."""
    url = f"sqlite+aiosqlite:///{folder / 'runward.db'}"
    await migrate(url)
    return await opened(url)


def fill_postgres(url: str) -> None:
    """Migrates an empty database, blocking, leaving no connection open."""
    asyncio.run(migrate(url))


async def postgres_backend(url: str) -> Backend:
    """On a migrated database."""
    return await opened(url)


async def opened(url: str) -> SqlBackend:
    backend = SqlBackend(url)
    await backend.store.open()
    return backend


class AfterCommit:
    """A bus of a process that commits something before it publishes, as every process does: on a file the commit itself is the news."""

    def __init__(self, bus: Bus, file: Path) -> None:
        self._bus = bus
        self._file = file
        self.subscribe, self.start, self.stop = bus.subscribe, bus.start, bus.stop

    @property
    def healthy(self) -> bool:
        return self._bus.healthy

    def publish(self, hints: Iterable[Hint]) -> None:
        with closing(sqlite3.connect(self._file)) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS news (number)")
            connection.execute("INSERT INTO news VALUES (1)")
        self._bus.publish(hints)


async def sqlite_buses(folder: Path) -> BusPair:
    """Two buses on a new file below `folder`, neither started yet."""
    file = folder / "runward.db"
    url = f"sqlite+aiosqlite:///{file}"
    await migrate(url)
    processes = [open_sql(url, clock=SystemClock(), chance=SystemChance(), telemetry=Quiet()) for _ in range(2)]
    for stores in processes:
        await stores.store.open()

    async def close() -> None:
        for stores in processes:
            await stores.store.close()

    here, there = [AfterCommit(stores.bus, file) for stores in processes]
    return BusPair(here=here, there=there, cut=None, close=close, vague=True)


async def postgres_buses(url: str) -> BusPair:
    """Two buses on one database, neither started yet. `cut` ends the sessions of the second one on the server."""
    here, there = [open_sql(url, clock=SystemClock(), chance=SystemChance(), telemetry=Quiet()) for _ in range(2)]

    async def cut() -> None:
        listens = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'"
        await _at_once(url, listens)

    async def close() -> None:
        for stores in (here, there):
            await stores.store.close()

    return BusPair(here=here.bus, there=there.bus, cut=cut, close=close)


async def redis_buses(url: str) -> BusPair:
    """Two buses of a database of its own on one Redis, neither started yet. `cut` resets the connections of the second one."""
    name, where = SystemChance().uid(), urlsplit(url)
    assert where.hostname and where.port
    proxy = Proxy(where.hostname, where.port)
    await proxy.accept()

    async def identity() -> str:
        return name

    async def cut() -> None:
        assert proxy.cut() > 0

    ways = (url, proxy.url(url))
    here, there = [redis_bus(way, identity=identity, clock=SystemClock(), chance=SystemChance(), telemetry=Quiet()) for way in ways]
    return BusPair(here=here, there=there, cut=cut, close=proxy.refuse)


async def _at_once(url: str, statement: str) -> None:
    """Runs a statement on a connection of its own."""
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
