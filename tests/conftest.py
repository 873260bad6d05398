"""Fixtures of all tests: real servers.

| fixture | scope | what it is |
| --- | --- | --- |
| `postgres_server` | session | `Databases` of the one Postgres of all xdist processes: `create(template)`, `template(key, fill)` |
| `postgres_url` | test | the URL of a fresh, empty database on it, dropped afterwards |
| `redis_url` | session | the URL of the session's Valkey; shared by all, and pub/sub reaches every database of it |
| `own_postgres`, `own_redis` | test | a server of the test's own, running, to kill, pause and restart |
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.databases import Databases
from tests.support.servers import Postgres, Redis
from tests.support.shared import SharedServers

settings.register_profile("suite", derandomize=True)
"""The same cases on every machine and every day: who changed nothing has broken nothing."""
settings.register_profile("explore", derandomize=False, print_blob=True)
"""Other cases every time: `make explore`."""

SERVERS = pytest.StashKey[SharedServers]()


def pytest_configure(config: pytest.Config) -> None:
    """Begins the session's servers, or joins those of the controller; nothing starts before a test asks."""
    told: dict[str, Any] = getattr(config, "workerinput", {})
    config.stash[SERVERS] = SharedServers(Path(told["servers"]) if told else None)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells an xdist process where the session's servers are found."""
    node.workerinput["servers"] = str(node.config.stash[SERVERS].folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends the servers with the session, also after Ctrl-C."""
    if not hasattr(config, "workerinput"):
        config.stash[SERVERS].close()


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> Databases:
    """The databases of the session's Postgres."""
    return pytestconfig.stash[SERVERS].postgres()


@pytest.fixture
def postgres_url(postgres_server: Databases) -> Iterator[str]:
    """The URL of a fresh, empty database, as `RUNWARD_DATABASE_URL` takes it."""
    url = postgres_server.create()
    yield url
    postgres_server.drop(url)


@pytest.fixture(scope="session")
def redis_url(pytestconfig: pytest.Config) -> str:
    """The URL of the session's Redis, as `RUNWARD_REDIS_URL` takes it."""
    return pytestconfig.stash[SERVERS].redis()


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A Postgres that the test may kill, pause and restart."""
    with Postgres() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[Redis]:
    """A Redis that the test may kill, pause and restart."""
    with Redis() as server:
        yield server
