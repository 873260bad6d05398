"""The store on SQLite and Postgres: one set of tables, and for each database the operations as it does them best.

    stores = open_sql(url, clock=clock, chance=chance, telemetry=telemetry)
    await stores.store.open()

`migrate(url)` brings a database to this version's schema, and makes the SQLite file if there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runward.ports.budgets import Budgets
from runward.ports.bus import Bus
from runward.ports.clock import Chance, Clock
from runward.ports.directory import Directory
from runward.ports.reads import Reads
from runward.ports.singletons import Singletons
from runward.ports.store import Store
from runward.ports.telemetry import Telemetry
from runward.stores.relay import Relay
from runward.stores.sql import queries
from runward.stores.sql.budgets import SqlBudgets
from runward.stores.sql.database import Database
from runward.stores.sql.directory import SqlDirectory
from runward.stores.sql.migrate import migrate
from runward.stores.sql.postgres.address import address_of
from runward.stores.sql.postgres.bus import PostgresMedium
from runward.stores.sql.postgres.connections import Connections
from runward.stores.sql.postgres.store import PostgresDatabase, PostgresStore
from runward.stores.sql.reads import SqlReads
from runward.stores.sql.singletons import SqlSingletons
from runward.stores.sql.sqlite.bus import FileBus
from runward.stores.sql.sqlite.readers import Readers
from runward.stores.sql.sqlite.store import SqliteDatabase, SqliteStore
from runward.stores.sql.sqlite.writer import Writer
from runward.stores.sql.urls import file_of, parsed

__all__ = ["Pool", "SqlStores", "migrate", "open_sql"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlStores:
    """The doors to one database. `store.open` connects for all of them but the bus, `store.close` lets go."""

    store: Store
    reads: Reads
    directory: Directory
    singletons: Singletons
    budgets: Budgets
    bus: Bus
    database: Database

    async def identity(self) -> str:
        """The name that the database has for itself, for good. Raises Unavailable."""
        ((identity,),) = await self.database.read(queries.identity(self.database.dialect), {})
        return str(identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """How many connections (Postgres) or reading threads (SQLite) a process uses at most, how long an operation waits for one, or for the
    file's lock, and how long a statement may take on Postgres; in seconds."""

    connections: int = 10
    readers: int = 4
    wait_seconds: float = 5
    command_seconds: float = 10


def open_sql(url: str, *, clock: Clock, chance: Chance, telemetry: Telemetry, pool: Pool = Pool()) -> SqlStores:
    """The store that a URL names, not connected yet. Raises DefinitionError for a URL that is none."""
    address = parsed(url)
    if address.get_backend_name() == "sqlite":
        return _on_file(file_of(address), clock, chance, pool)
    connections = Connections(
        address_of(address, command_seconds=pool.command_seconds),
        size=pool.connections,
        wait_seconds=pool.wait_seconds,
        clock=clock,
        chance=chance,
    )
    database = PostgresDatabase(connections)
    bus = Relay(PostgresMedium(connections.address), clock=clock, chance=chance, telemetry=telemetry)
    return _stores(PostgresStore(database), bus, database)


def _on_file(file: Path, clock: Clock, chance: Chance, pool: Pool) -> SqlStores:
    writer = Writer(file, clock=clock, chance=chance, wait_seconds=pool.wait_seconds)
    database = SqliteDatabase(writer, Readers(file, size=pool.readers))
    return _stores(SqliteStore(database), FileBus(writer), database)


def _stores(store: Store, bus: Bus, database: Database) -> SqlStores:
    return SqlStores(
        store=store,
        reads=SqlReads(database),
        directory=SqlDirectory(database),
        singletons=SqlSingletons(database),
        budgets=SqlBudgets(database),
        bus=bus,
        database=database,
    )
