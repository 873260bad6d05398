"""Fixtures of the end-to-end tests: real processes on both databases.

`deployment` is a `Deployment` on SQLite and on Postgres, nothing started yet; `on_sqlite` and `on_postgres` are the same on one of them,
and `module_deployment` is shared by the tests of a module.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.deployment import Deployment
from tests.e2e.ledger import Ledger
from tests.e2e.programs import clean_environment, command
from tests.support.databases import Databases


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy."""
    file = tmp_path_factory.mktemp("template") / "runward.db"
    migrated(f"sqlite+aiosqlite:///{file}", file.parent)
    return file


@pytest.fixture(scope="session")
def databases(sqlite_template: Path, postgres_server: Databases) -> Callable[[str, Path], AbstractContextManager[str]]:
    """`with databases("postgres", folder) as url`: a fresh, migrated database of a kind."""

    @contextmanager
    def database(kind: str, folder: Path) -> Iterator[str]:
        if kind == "sqlite":
            shutil.copy(sqlite_template, folder / "runward.db")
            yield f"sqlite+aiosqlite:///{folder}/runward.db"
        else:
            url = postgres_server.create(postgres_server.template("e2e", lambda url: migrated(url, folder)))
            yield url
            postgres_server.drop(url)

    return database


def migrated(url: str, folder: Path) -> None:
    """Brings a new database to the newest schema, by the command."""
    done = command(["migrate"], {**clean_environment(), "RUNWARD_DATABASE_URL": url}, folder)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def deployed(database: str, folder: Path) -> Iterator[Deployment]:
    with Ledger() as ledger:
        deployment = Deployment(database, folder, ledger)
        try:
            yield deployment
        finally:
            ledger.release()
            deployment.end()
    assert deployment.bugs() == []


@pytest.fixture(params=["sqlite", "postgres"])
def deployment(request: pytest.FixtureRequest, databases: Any, tmp_path: Path) -> Iterator[Deployment]:
    with databases(request.param, tmp_path) as url, deployed(url, tmp_path) as deployment:
        yield deployment


@pytest.fixture
def on_sqlite(databases: Any, tmp_path: Path) -> Iterator[Deployment]:
    with databases("sqlite", tmp_path) as url, deployed(url, tmp_path) as deployment:
        yield deployment


@pytest.fixture
def on_postgres(databases: Any, tmp_path: Path) -> Iterator[Deployment]:
    with databases("postgres", tmp_path) as url, deployed(url, tmp_path) as deployment:
        yield deployment


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def module_deployment(request: pytest.FixtureRequest, databases: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp(request.param)
    with databases(request.param, folder) as url, deployed(url, folder) as deployment:
        yield deployment
