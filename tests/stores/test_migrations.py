"""Migrations: once, whole, however many processes start; and on both databases the tables that the code has."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from runward.core.errors import SchemaMismatch, Unavailable
from runward.stores.sql import migrate
from runward.stores.sql.migrate import migrations_folder
from runward.stores.sql.tables import METADATA, SCHEMA
from tests.contract.builders import created, uid_of
from tests.stores.conftest import direct, opened, stores_of, url_of

NEXT = f"{int(SCHEMA) + 1:04}"

FAILING = f"""
import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{SCHEMA}"


def upgrade() -> None:
    op.create_table("half", sa.Column("id", sa.Integer, primary_key=True))
    op.execute("UPDATE actors SET agent = 'changed'")
    op.execute("SELECT * FROM nowhere")
"""

EVERYTHING = """
    SELECT 'column', table_name, column_name, data_type, is_nullable, collation_name FROM information_schema.columns
    WHERE table_schema = 'public' AND table_name <> 'alembic_version'
    UNION ALL SELECT 'index', tablename, indexname, indexdef, NULL, NULL FROM pg_indexes
    WHERE schemaname = 'public' AND tablename <> 'alembic_version'
    UNION ALL SELECT 'table', relname, array_to_string(reloptions, ','), NULL, NULL, NULL FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'alembic_version'
    UNION ALL SELECT 'check', conrelid::regclass::text, conname, pg_get_constraintdef(oid), NULL, NULL FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND contype = 'c'
"""


@pytest.fixture(params=["sqlite", "postgres"])
def migrated(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return url_of(request.getfixturevalue("file"))
    url: str = request.getfixturevalue("migrated_url")
    return url


def differences(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    return list(compare_metadata(context, METADATA))


# -- the migrations make what the code has -------------------------------------------------------------------------------


def test_the_code_needs_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    assert ScriptDirectory.from_config(config).get_heads() == [SCHEMA]


def tables_of(file: Path) -> list[tuple[str, str]]:
    connection = sqlite3.connect(file)
    try:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE '%alembic%' ORDER BY name").fetchall()
    finally:
        connection.close()
    return [(name, re.sub(r"\s+", " ", sql or "").replace(f'TABLE "{name}"', f"TABLE {name}")) for name, sql in rows]


def test_sqlite_has_the_tables_of_the_code(file: Path, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{file}")
    with engine.connect() as connection:
        assert differences(connection) == []
    engine.dispose()
    fresh = create_engine(f"sqlite:///{tmp_path / 'fresh.db'}")
    METADATA.create_all(fresh)
    fresh.dispose()
    assert tables_of(file) == tables_of(tmp_path / "fresh.db")


async def test_postgres_has_the_tables_of_the_code(migrated_url: str, postgres_url: str) -> None:
    engine = create_async_engine(migrated_url)
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await engine.dispose()
    fresh = create_async_engine(postgres_url)
    async with fresh.begin() as connection:
        await connection.run_sync(METADATA.create_all)
    await fresh.dispose()
    found = []
    for url in (migrated_url, postgres_url):
        made = await direct(url)
        found.append(sorted(map(repr, map(tuple, await made.fetch(EVERYTHING)))))
        await made.close()
    assert found[0] == found[1]


# -- many processes ------------------------------------------------------------------------------------------------------

PROGRAM = "import asyncio, sys; from runward.stores.sql import migrate; asyncio.run(migrate(sys.argv[1]))"


def migrate_at_once(url: str) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", PROGRAM, url], stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        _, complaint = process.communicate(timeout=60)
        assert (process.returncode, complaint) == (0, "")


async def test_four_processes_migrate_a_new_file_at_once(tmp_path: Path) -> None:
    url = url_of(tmp_path / "new.db")
    await asyncio.to_thread(migrate_at_once, url)
    stores = await opened(url)
    await created(stores.store)
    await stores.store.close()


async def test_four_processes_migrate_a_new_database_at_once(postgres_url: str) -> None:
    await asyncio.to_thread(migrate_at_once, postgres_url)
    stores = await opened(postgres_url)
    await created(stores.store)
    await stores.store.close()


SLOW = f"""
import time

import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{SCHEMA}"


def upgrade() -> None:
    time.sleep(0.3)
    op.create_table("once", sa.Column("id", sa.Integer, primary_key=True))
"""


async def test_whoever_comes_while_another_one_migrates_waits_and_sees_what_became_of_it(migrated: str, tmp_path: Path) -> None:
    """To this version's code that is a schema of the future."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrations_folder(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / f"{NEXT}_slow.py").write_text(SLOW)

    def migrate_elsewhere() -> None:
        asyncio.run(migrate(migrated, folder=folder))

    first = asyncio.create_task(asyncio.to_thread(migrate_elsewhere))
    await asyncio.sleep(0.1)
    with pytest.raises(SchemaMismatch, match=NEXT):
        await asyncio.to_thread(migrate_elsewhere)
    await first


# -- what goes wrong -----------------------------------------------------------------------------------------------------


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """This version's migrations, and one more that fails in the middle."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrations_folder(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / f"{NEXT}_failing.py").write_text(FAILING)
    return folder


async def leaves_nothing(url: str, failing: Path) -> None:
    stores = await opened(url)
    await created(stores.store)
    await stores.store.close()
    with pytest.raises(Unavailable):
        await migrate(url, folder=failing)
    stores = await opened(url)
    envelope = await stores.reads.get(uid_of(1))
    assert envelope is not None and envelope.agent == "support"
    await stores.store.close()
    await migrate(url)


async def test_R41a_a_failed_migration_leaves_a_file_as_it_was(file: Path, failing: Path) -> None:
    before = await asyncio.to_thread(tables_of, file)
    await leaves_nothing(url_of(file), failing)
    assert await asyncio.to_thread(tables_of, file) == before


async def test_R41a_a_failed_migration_leaves_a_database_as_it_was(migrated_url: str, failing: Path) -> None:
    await leaves_nothing(migrated_url, failing)
    connection = await direct(migrated_url)
    assert await connection.fetchval("SELECT to_regclass('half')") is None
    await connection.close()


async def set_version(url: str, version: str) -> None:
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.split("///")[1])
        connection.execute("UPDATE alembic_version SET version_num = ?", [version])
        connection.commit()
        connection.close()
    else:
        server = await direct(url)
        await server.execute("UPDATE alembic_version SET version_num = $1", version)
        await server.close()


async def test_R41a_a_newer_schema_is_refused(migrated: str) -> None:
    await set_version(migrated, "0999")
    for refused in (migrate(migrated), stores_of(migrated).store.open()):
        with pytest.raises(SchemaMismatch) as caught:
            await refused
        assert caught.value.code == "schema_too_new"


async def test_an_older_schema_is_refused_until_it_is_migrated(migrated: str) -> None:
    await set_version(migrated, "0000")
    with pytest.raises(SchemaMismatch) as caught:
        await stores_of(migrated).store.open()
    assert caught.value.code == "schema_outdated" and "runward migrate" in caught.value.detail


async def test_a_database_without_tables_is_refused(postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    for url in (postgres_url, url_of(tmp_path / "empty.db"), url_of(tmp_path / "none.db")):
        with pytest.raises(SchemaMismatch) as caught:
            await stores_of(url).store.open()
        assert caught.value.code == "schema_outdated"
    assert not (tmp_path / "none.db").exists()


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    url = "postgresql+asyncpg://nobody:secret@127.0.0.1:9/none"
    for away in (migrate(url), stores_of(url).store.open()):
        with pytest.raises(Unavailable) as caught:
            await away
        assert "secret" not in caught.value.detail
