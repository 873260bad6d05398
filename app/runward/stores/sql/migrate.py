"""Bringing a database to this version's schema: in one transaction, under a lock that other processes wait for.

However many processes start at once, one migrates and the others find nothing left to do. A migration that fails leaves the schema as it
was.
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Final

import asyncpg
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from runward.core.errors import SchemaMismatch, Unavailable
from runward.stores.sql.postgres.address import address_of
from runward.stores.sql.schema import check_version
from runward.stores.sql.sqlite.connection import set_wal
from runward.stores.sql.urls import file_of, parsed

LOCK: Final = 0x52756E77617264
"""The advisory lock of whoever migrates a Postgres database."""

WAIT_SECONDS: Final = 60
"""How long to wait on SQLite for another process that migrates."""


async def migrate(url: str, *, folder: Path | None = None) -> None:
    """Migrates the database of a URL, and makes the SQLite file if there is none. Nothing to do when it is up to date. `folder` holds other
    migrations than this version's.

    Raises Unavailable, DefinitionError for options that are none, or SchemaMismatch when the database is newer than this code; then nothing
    was changed.
    """
    address = parsed(url)
    try:
        if is_sqlite(url):
            await asyncio.to_thread(_migrate_file, file_of(address), folder or migrations_folder())
        else:
            address_of(address, command_seconds=WAIT_SECONDS)
            await _migrate_server(address, folder or migrations_folder())
    except (DBAPIError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Unavailable(f"The database could not be migrated: {error}.") from error


def is_sqlite(url: str) -> bool:
    """Whether a URL names a SQLite file. Raises DefinitionError for a URL that is none."""
    return parsed(url).get_backend_name() == "sqlite"


def migrations_folder() -> Path:
    """Where the migrations are: inside the installed package, or beside `app/` in a clone."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "_migrations"
    return installed if installed.is_dir() else package.parents[1] / "migrations"


async def _migrate_server(url: URL, folder: Path) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine  # it brings the ORM along, which nothing else needs

    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
            await connection.run_sync(_upgrade, folder)
    finally:
        await engine.dispose()


def _migrate_file(file: Path, folder: Path) -> None:
    engine = create_engine(URL.create("sqlite", database=str(file)), poolclass=NullPool, connect_args={"timeout": WAIT_SECONDS})

    @event.listens_for(engine, "connect")
    def _on_connect(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # the driver begins no transaction by itself
        connection.execute("PRAGMA foreign_keys = OFF")  # a table that is rebuilt would take the rows that refer to it along
        set_wal(connection)

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    with engine.begin() as connection:
        _upgrade(connection, folder)
    engine.dispose()


def _upgrade(connection: Connection, folder: Path) -> None:
    """Runs the missing migrations within the connection's transaction."""
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext

    stored = MigrationContext.configure(connection).get_current_revision()
    try:
        check_version(stored)
    except SchemaMismatch as mismatch:
        if mismatch.code == "schema_too_new":
            raise
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
