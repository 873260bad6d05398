"""Hints over Redis: one connection subscribes, another publishes, after the commits that the hints are about.

A channel belongs to a database of ours, by its identity, so that several services may share a Redis; its number of a database does not
matter for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from redis.asyncio.connection import AbstractConnection

from runward.ports.clock import Chance, Clock
from runward.ports.telemetry import Telemetry
from runward.stores.redis.address import COMMAND_SECONDS, FAILURES, Address, address_of, leave, unavailable
from runward.stores.relay import Relay

MAX_PAYLOAD: Final = 16_000
"""The longest payload, in bytes: some hundred hints. Redis would take more, and cuts a reader off that is slow to take it."""

SILENCE_SECONDS: Final = 2.0
"""With the time for the echo, a Redis that has frozen is found out within four seconds."""

Identity = Callable[[], Awaitable[str]]
"""The name that a database has for itself. Raises Unavailable."""


class RedisMedium:
    """`stores.relay.Medium` between the processes of one database."""

    longest = MAX_PAYLOAD
    silence = SILENCE_SECONDS

    def __init__(self, address: Address, identity: Identity) -> None:
        self._address = address
        self._identity = identity
        self._publishing: AbstractConnection | None = None
        self._turn = asyncio.Lock()
        self._channel: str | None = None

    async def send(self, payloads: Sequence[str]) -> None:
        """One round trip, whatever the number of payloads."""
        channel = await self._known_channel()
        async with self._turn:
            if self._publishing is None:
                self._publishing = await self._address.connect()
            try:
                async with asyncio.timeout(COMMAND_SECONDS):
                    await self._publishing.send_packed_command(
                        self._publishing.pack_commands([("PUBLISH", channel, payload) for payload in payloads])
                    )
                    for _ in payloads:
                        await self._publishing.read_response()
            except BaseException as error:
                await self._let_go()
                if isinstance(error, FAILURES):
                    raise unavailable(error) from error
                raise

    @asynccontextmanager
    async def listening(self, hear: Callable[[str], None]) -> AsyncIterator[asyncio.Event]:
        channel = await self._known_channel()
        connection = await self._address.connect()
        lost = asyncio.Event()
        try:
            try:
                async with asyncio.timeout(COMMAND_SECONDS):
                    await connection.send_command("SUBSCRIBE", channel)
                    await connection.read_response()
            except FAILURES as error:
                raise unavailable(error) from error
            reading = asyncio.create_task(_read(connection, hear))
            reading.add_done_callback(lambda _: lost.set())
            try:
                yield lost
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
        finally:
            await leave(connection)

    async def close(self) -> None:
        async with self._turn:
            await self._let_go()

    async def _let_go(self) -> None:
        connection, self._publishing = self._publishing, None
        if connection is not None:
            await leave(connection)

    async def _known_channel(self) -> str:
        if self._channel is None:
            self._channel = f"runward:{await self._identity()}"
        return self._channel


async def _read(connection: AbstractConnection, hear: Callable[[str], None]) -> None:
    """Hears what is published until the connection is lost: how long that may take is the relay's affair."""
    try:
        while True:
            kind, _, payload = await connection.read_response()
            if kind == b"message":
                hear(payload.decode(errors="replace"))
    except FAILURES:
        return


def redis_bus(url: str, *, identity: Identity, clock: Clock, chance: Chance, telemetry: Telemetry) -> Relay:
    """The bus over the Redis of a URL, not started. Raises DefinitionError for a URL that is none."""
    return Relay(RedisMedium(address_of(url), identity), clock=clock, chance=chance, telemetry=telemetry)
