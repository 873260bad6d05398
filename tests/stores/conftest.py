"""Stores to be hurt: a SQLite file, and a Postgres of the test's own behind a proxy that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from runward.engine.clock import SystemChance, SystemClock
from runward.stores.sql import Pool, SqlStores, migrate, open_sql
from tests.contract.backends_sql import fill_postgres
from tests.support.databases import Databases
from tests.support.proxy import Proxy
from tests.support.servers import Postgres

QUICK = Pool(connections=4, wait_seconds=2, command_seconds=2)
"""Bounds that let a test wait for them."""


class Told:
    """Telemetry that remembers: name and values of each event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, **values: Any) -> None:
        self.events.append((name, values))

    def problem(self, name: str, error: BaseException | None = None, **values: Any) -> None:
        self.events.append((name, values))


def stores_of(url: str, pool: Pool = QUICK, telemetry: Told | None = None) -> SqlStores:
    """The doors to a database, not opened."""
    return open_sql(url, clock=SystemClock(), chance=SystemChance(), telemetry=telemetry or Told(), pool=pool)


async def opened(url: str, pool: Pool = QUICK) -> SqlStores:
    stores = stores_of(url, pool)
    await stores.store.open()
    return stores


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A migrated SQLite file."""
    path = tmp_path / "runward.db"
    with ThreadPoolExecutor(1) as elsewhere:  # there may be a loop running here
        elsewhere.submit(asyncio.run, migrate(url_of(path))).result()
    return path


def url_of(file: Path) -> str:
    return f"sqlite+aiosqlite:///{file}"


@pytest.fixture
async def on_file(file: Path) -> AsyncIterator[SqlStores]:
    """The stores on the file, opened."""
    stores = await opened(url_of(file))
    yield stores
    await stores.store.close()


@pytest.fixture
def migrated_url(postgres_server: Databases) -> Iterator[str]:
    """The URL of a fresh, migrated database on the session's Postgres."""
    url = postgres_server.create(postgres_server.template("migrated", fill_postgres))
    yield url
    postgres_server.drop(url)


@pytest.fixture
async def proxied(migrated_url: str) -> AsyncIterator[tuple[SqlStores, Proxy, str]]:
    """Opened stores behind a proxy, the proxy, and the URL around it."""
    port = int(migrated_url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])
    async with Proxy("127.0.0.1", port) as proxy:
        stores = await opened(proxy.url(migrated_url))
        yield stores, proxy, migrated_url
        proxy.thaw()
        await stores.store.close()


@pytest.fixture
async def on_own_postgres(own_postgres: Postgres) -> AsyncIterator[tuple[SqlStores, Postgres, str]]:
    """Opened stores on a server of the test's own, the server, and the URL."""
    url = own_postgres.url.format(db="postgres")
    await asyncio.to_thread(fill_postgres, url)
    stores = await opened(url)
    yield stores, own_postgres, url
    if not own_postgres.running:
        await asyncio.to_thread(own_postgres.start)
    await stores.store.close()


async def direct(url: str) -> asyncpg.Connection[asyncpg.Record]:
    """A connection around the stores."""
    connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(url.replace("+asyncpg", ""))
    return connection


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Returns once a condition that nobody signals holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
