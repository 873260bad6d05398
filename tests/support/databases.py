"""Databases on a Postgres server, made and dropped by tests: empty ones, and copies of a template that is filled once per session."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import asyncpg

T = TypeVar("T")


class Databases:
    """The databases of one test session on one server.

    `url` is the server's address with `{db}` in the database's place; every name begins with `prefix`, which tells sessions on a given
    server apart. Methods block, and may be called with or without a running event loop.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._prefix = prefix
        self._numbers = itertools.count(1)

    def url(self, name: str) -> str:
        """The URL of a database, as `RUNWARD_DATABASE_URL` takes it."""
        return self._url.replace("{db}", name)

    def create(self, template: str | None = None) -> str:
        """Makes a database, empty or a copy of a template (a name that `template` returned), and returns its URL. Takes about 40 ms."""
        name = f"{self._prefix}_{os.getpid()}_{next(self._numbers)}"
        _in_thread(self._statements(f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{template}"' if template else "")))
        return self.url(name)

    def drop(self, url: str) -> None:
        """Drops the database of a URL that `create` returned, and the connections to it; nothing to do when it is gone."""
        _in_thread(self._statements(f'DROP DATABASE IF EXISTS "{url.rsplit("/", 1)[1]}" WITH (FORCE)'))

    def template(self, key: str, fill: Callable[[str], object]) -> str:
        """The name of a template for `create`, filled by the first process of the session that asks for its key; the others wait for it.

        `fill` gets the new database's URL (it migrates it, say), runs in a thread without an event loop, and leaves no connection open.
        """
        name = f"{self._prefix}_{key}"
        _in_thread(self._make_template(name, fill))
        return name

    async def _make_template(self, name: str, fill: Callable[[str], object]) -> None:
        connection = await self._connect()
        try:
            await connection.execute("SELECT pg_advisory_lock(hashtext($1))", name)
            if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name):
                await connection.execute(f'DROP DATABASE IF EXISTS "{name}_unfinished" WITH (FORCE)')
                await connection.execute(f'CREATE DATABASE "{name}_unfinished"')
                await asyncio.to_thread(fill, self.url(f"{name}_unfinished"))
                await connection.execute(f'ALTER DATABASE "{name}_unfinished" RENAME TO "{name}"')
        finally:
            await connection.close()

    def drop_all(self) -> None:
        """Drops every database of this session."""
        names = _in_thread(self._fetch("SELECT datname FROM pg_database WHERE starts_with(datname, $1)", f"{self._prefix}_"))
        _in_thread(self._statements(*(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)' for name in names)))

    async def _connect(self) -> asyncpg.Connection[Any]:
        return await asyncpg.connect(self.url("postgres").replace("+asyncpg", ""))

    async def _statements(self, *statements: str) -> None:
        connection = await self._connect()
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def _fetch(self, query: str, *arguments: object) -> list[str]:
        connection = await self._connect()
        try:
            return [row[0] for row in await connection.fetch(query, *arguments)]
        finally:
            await connection.close()


def _in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end in a thread and loop of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
