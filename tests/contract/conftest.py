"""Every test of this folder that takes `backend` runs on every store; every one that takes `buses` on every bus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.contract.backends import Backend, BusPair, MemoryBackend, local_buses
from tests.support.databases import Databases


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """An empty database."""
    if request.param == "memory":
        made: Backend = MemoryBackend()
    elif request.param == "sqlite":
        from tests.contract.backends_sql import sqlite_backend

        made = await sqlite_backend(tmp_path)
    else:
        from tests.contract.backends_sql import postgres_backend

        made = await postgres_backend(request.getfixturevalue("migrated_postgres_url"))
    yield made
    await made.close()


@pytest.fixture
def migrated_postgres_url(postgres_server: Databases) -> Iterator[str]:
    """The URL of a fresh database with the schema in it."""
    from tests.contract.backends_sql import fill_postgres

    url = postgres_server.create(postgres_server.template("migrated", fill_postgres))
    yield url
    postgres_server.drop(url)


@pytest.fixture(params=["local", "postgres"])
async def buses(request: pytest.FixtureRequest) -> AsyncIterator[BusPair]:
    """Two buses on one medium, started."""
    if request.param == "local":
        pair = await local_buses()
    else:
        from tests.contract.backends_sql import postgres_buses

        pair = await postgres_buses(request.getfixturevalue("migrated_postgres_url"))
    await pair.here.start()
    await pair.there.start()
    yield pair
    await pair.here.stop()
    await pair.there.stop()
    await pair.close()
