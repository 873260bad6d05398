"""Hints over Postgres: LISTEN on one connection, NOTIFY on another, after the commits that they are about.

A channel belongs to a database, by the identity in its `service` row. Behind a transaction-mode pooler nobody can listen, without a sign;
the relay finds out by its echo, says so, and tries again now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from runward.core.errors import Unavailable
from runward.stores.sql import queries
from runward.stores.sql.postgres.address import Address, Connection
from runward.stores.sql.postgres.connections import LOST
from runward.stores.sql.statements import POSTGRES

MAX_PAYLOAD: Final = 7_999
"""The longest payload that Postgres takes, in bytes."""

SILENCE_SECONDS: Final = 20.0


class PostgresMedium:
    """`stores.relay.Medium` between the processes of one database."""

    longest = MAX_PAYLOAD
    silence = SILENCE_SECONDS

    def __init__(self, address: Address) -> None:
        self._address = address
        self._sending: Connection | None = None
        self._turn = asyncio.Lock()
        self._channel: str | None = None

    async def send(self, payloads: Sequence[str]) -> None:
        """One statement, whatever the number of payloads."""
        await self._run("SELECT pg_notify($1, text) FROM unnest($2::text[]) AS text", await self._known_channel(), list(payloads))

    @asynccontextmanager
    async def listening(self, hear: Callable[[str], None]) -> AsyncIterator[asyncio.Event]:
        channel = await self._known_channel()
        connection = await self._address.connect()
        lost = asyncio.Event()

        def heard(_connection: Any, _pid: int, _channel: str, payload: object) -> None:
            hear(str(payload))

        try:
            connection.add_termination_listener(lambda _: lost.set())
            try:
                await connection.add_listener(channel, heard)
            except (asyncpg.PostgresError, *LOST) as error:
                raise Unavailable("Hints cannot be listened to now.") from error
            yield lost
        finally:
            await asyncio.shield(_leave(connection))

    async def close(self) -> None:
        async with self._turn:
            connection, self._sending = self._sending, None
            if connection is not None:
                await _leave(connection)

    async def _known_channel(self) -> str:
        if self._channel is None:
            ((identity,),) = await self._run(queries.identity(POSTGRES).text)
            self._channel = f"runward_{identity}"
        return self._channel

    async def _run(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """On a connection of its own, made when it is needed: the bus does not need the store's. Raises Unavailable."""
        async with self._turn:
            if self._sending is None or self._sending.is_closed():
                self._sending = await self._address.connect()
            try:
                return await self._sending.fetch(statement, *arguments)
            except BaseException as error:
                self._sending.terminate()
                self._sending = None
                if isinstance(error, (asyncpg.PostgresError, *LOST)):
                    raise Unavailable("Hints cannot be sent now.") from error
                raise


async def _leave(connection: Connection) -> None:
    try:
        await connection.close(timeout=1)
    except (asyncpg.PostgresError, *LOST):
        connection.terminate()
