"""Where everything that is measured lives: one Postgres for all databases, one folder for all files, and processes that end with it."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import asyncpg

from runward.stores.sql import migrate
from tests.bench.servers import CountingPostgres, Process

Kind = Literal["sqlite", "postgres"]


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """`quick`: fewer repetitions, for a first look."""

    quick: bool
    folder: Path
    postgres: CountingPostgres
    numbers: Iterator[int] = field(default_factory=itertools.count)

    async def database(self, kind: Kind, *, migrated: bool) -> str:
        """The URL of a new database."""
        name = f"bench_{next(self.numbers)}"
        if kind == "sqlite":
            url = f"sqlite+aiosqlite:///{self.folder / name}.db"
        else:
            url = self.postgres.url.format(db=name)
            await self.execute("postgres", f"CREATE DATABASE {name}")
        if migrated:
            await migrate(url)
        return url

    async def connect(self, database: str) -> asyncpg.Connection[Any]:
        """A connection of the benchmark's own, to a database of a name or URL."""
        name = database.rpartition("/")[2]
        return await asyncpg.connect(self.postgres.url.format(db=name).replace("+asyncpg", ""))

    async def analyze(self, url: str) -> None:
        """Tells Postgres what is in a database, as it finds out by itself within a minute or so."""
        if url.startswith("postgresql"):
            await self.execute(url, "ANALYZE")

    async def execute(self, database: str, statement: str) -> None:
        connection = await self.connect(database)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@contextmanager
def house(*, quick: bool) -> Iterator[House]:
    with tempfile.TemporaryDirectory(prefix="runward-bench-") as folder, CountingPostgres() as postgres:
        yield House(quick=quick, folder=Path(folder), postgres=postgres)


@contextmanager
def running(*processes: Process) -> Iterator[None]:
    """Starts processes in order, and ends them."""
    with ExitStack() as stack:
        for process in processes:
            stack.enter_context(process)
        yield
