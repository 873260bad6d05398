"""Fixtures of the door's tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from runward.stores.sql import migrate
from tests.api.desk import Desk, desk
from tests.api.house import House, house
from tests.contract.backends_sql import fill_postgres
from tests.support.databases import Databases

STORES = ("memory", "sqlite", "postgres")


@pytest.fixture
async def open_house() -> AsyncIterator[House]:
    """A service with a worker, and no keys."""
    async with house() as made:
        yield made


@pytest.fixture
async def quiet_house() -> AsyncIterator[House]:
    """A service without a worker: runs stay as they are put."""
    async with house(worker=False) as made:
        yield made


@pytest.fixture
async def open_desk() -> AsyncIterator[Desk]:
    """A service whose runs wait for people and clients, and no keys."""
    async with desk() as made:
        yield made


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str | None]:
    """A migrated database of each kind, as `house` takes it; None is the one in memory."""
    with database(request.param, request, tmp_path) as made:
        yield made


@pytest.fixture
def both_urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Two migrated databases: a SQLite file and one on Postgres."""
    with database("sqlite", request, tmp_path) as file, database("postgres", request, tmp_path) as server:
        assert file is not None and server is not None
        yield file, server


@contextmanager
def database(store: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[str | None]:
    """A migrated database, empty."""
    if store == "memory":
        yield None
    elif store == "sqlite":
        file = f"sqlite+aiosqlite:///{folder / 'runward.db'}"
        with ThreadPoolExecutor(1) as elsewhere:  # there may be a loop running here
            elsewhere.submit(asyncio.run, migrate(file)).result()
        yield file
    else:
        server: Databases = request.getfixturevalue("postgres_server")
        made = server.create(server.template("migrated", fill_postgres))
        yield made
        server.drop(made)
