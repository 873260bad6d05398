"""Every test of this folder that takes `backend` runs on every store; every one that takes `buses` on every bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.contract.backends import Backend, BusPair, MemoryBackend, local_buses
from tests.support.databases import Databases

COPY_TABLES = """
DO $$ DECLARE name text; BEGIN
    CREATE SCHEMA pristine;
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
        EXECUTE format('CREATE TABLE pristine.%1$I AS TABLE public.%1$I', name);
    END LOOP;
END $$
"""
RESTORE_TABLES = """
DO $$ DECLARE name text; BEGIN
    SET LOCAL lock_timeout = '10s';
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'pristine' LOOP
        EXECUTE format('DELETE FROM public.%1$I; INSERT INTO public.%1$I TABLE pristine.%1$I', name);
    END LOOP;
END $$
"""


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """A database as it is after migration."""
    if request.param == "memory":
        made: Backend = MemoryBackend()
    elif request.param == "sqlite":
        from tests.contract.backends_sql import sqlite_backend

        made = await sqlite_backend(tmp_path)
    else:
        from tests.contract.backends_sql import postgres_backend

        url = request.getfixturevalue("contract_database")
        await execute(url, RESTORE_TABLES)
        made = await postgres_backend(url)
    yield made
    await made.close()


@pytest.fixture(scope="session")
def contract_database(postgres_server: Databases) -> Iterator[str]:
    """The URL of the one database for all tests of this process: making one takes longer than most tests."""
    from tests.contract.backends_sql import fill_postgres

    def fill(url: str) -> None:
        fill_postgres(url)
        asyncio.run(execute(url, COPY_TABLES))

    url = postgres_server.create(postgres_server.template("contract", fill))
    yield url
    postgres_server.drop(url)


@pytest.fixture(params=["local", "sqlite", "postgres", "redis"])
async def buses(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BusPair]:
    """Two buses on one medium, started."""
    if request.param == "local":
        pair = await local_buses()
    elif request.param == "sqlite":
        from tests.contract.backends_sql import sqlite_buses

        pair = await sqlite_buses(tmp_path)
    elif request.param == "redis":
        from tests.contract.backends_sql import redis_buses

        pair = await redis_buses(request.getfixturevalue("redis_url"))
    else:
        from tests.contract.backends_sql import postgres_buses

        pair = await postgres_buses(request.getfixturevalue("contract_database"))
    await pair.here.start()
    await pair.there.start()
    yield pair
    await pair.here.stop()
    await pair.there.stop()
    await pair.close()


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
