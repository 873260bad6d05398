"""Hints over Postgres: LISTEN on one connection, NOTIFY on another, after the commits that they are about.

A channel belongs to a database, by the identity in its `service` row. Payloads are `<process> <hint>,<hint>…`, a hint being its topic's
letter and the uid, so that a process knows its own echo: that is how it finds out whether it is heard at all. Behind a transaction-mode
pooler it is not, since nobody can listen through one; then the bus says so, stays unhealthy, and tries again now and then.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import asyncpg

from runward.core.errors import RunwardError, Unavailable
from runward.ports.bus import Hint, Topic
from runward.ports.clock import Chance, Clock
from runward.ports.telemetry import Telemetry
from runward.stores.memory import LocalBus
from runward.stores.sql import queries
from runward.stores.sql.postgres.address import Address, Connection
from runward.stores.sql.postgres.connections import LOST
from runward.stores.sql.statements import POSTGRES

GATHER_SECONDS: Final = 0.005
MAX_PAYLOAD: Final = 7_999
"""The longest payload that Postgres takes, in bytes."""

MAX_GATHERED: Final = 10_000
"""How many hints wait while they cannot be sent; beyond that everybody is told to read everything."""

ECHO_SECONDS: Final = 2.0
"""How long a process waits for its own echo."""

SILENCE_SECONDS: Final = 20.0
"""How long a process hears nothing before it asks for its echo: a connection may be dead without a sign."""

RETRY_SECONDS: Final = (0.2, 5.0)
UNHEARD_SECONDS: Final = 60.0
"""How long until a process that could connect, and was not heard, tries again."""

ANYTHING: Final = Hint(Topic.ANYTHING)
TOPICS: Final = {topic.value: topic for topic in Topic}


class Unheard(Exception):
    """The echo did not come."""


class PostgresBus:
    """`ports.bus.Bus` between the processes of one database."""

    def __init__(self, address: Address, *, clock: Clock, chance: Chance, telemetry: Telemetry) -> None:
        self._address = address
        self._clock = clock
        self._chance = chance
        self._telemetry = telemetry
        self._me = chance.uid()
        self._local = LocalBus()
        self._sender = Sender(address)
        self._lock = threading.Lock()
        self._gathered: dict[Hint, None] = {}
        self._due = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._send_now = asyncio.Event()
        self._echo = asyncio.Event()
        self._heard = False
        self._channel: str | None = None
        self._healthy = False

    @property
    def healthy(self) -> bool:
        return self._healthy

    def publish(self, hints: Iterable[Hint]) -> None:
        hints = tuple(hints)
        self._local.publish(hints)
        with self._lock:
            self._gathered.update(dict.fromkeys(hints))
            if len(self._gathered) > MAX_GATHERED:
                self._gathered = {ANYTHING: None}
            if self._loop is not None and self._gathered and not self._due and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._send_now.set)
                self._due = True

    def subscribe(self, handler: Callable[[Hint], None]) -> Callable[[], None]:
        return self._local.subscribe(handler)

    async def start(self) -> None:
        await self._local.start()
        with self._lock:
            self._loop, self._due = asyncio.get_running_loop(), bool(self._gathered)
        if self._due:
            self._send_now.set()
        self._tasks = [asyncio.create_task(self._send_forever()), asyncio.create_task(self._listen_forever())]

    async def stop(self) -> None:
        with self._lock:
            self._loop = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._gathered:
            await self._send()
        self._healthy = False
        await self._sender.close()
        await self._local.stop()

    # -- sending --------------------------------------------------------------------------------------------------------

    async def _send_forever(self) -> None:
        while True:
            await self._send_now.wait()
            await self._clock.sleep(GATHER_SECONDS)
            self._send_now.clear()
            if not await self._send():
                await self._clock.sleep(RETRY_SECONDS[0])
                self._send_now.set()

    async def _send(self) -> bool:
        """Sends what is gathered, each hint once. What could not be sent is gathered again."""
        with self._lock:
            hints, self._gathered, self._due = self._gathered, {}, False
        try:
            await self._notify(payloads(self._me, hints))
        except RunwardError:
            with self._lock:
                self._gathered, self._due = hints | self._gathered, True
            return False
        return True

    async def _notify(self, texts: Iterable[str]) -> None:
        await self._sender.notify(await self._known_channel(), list(texts))

    async def _known_channel(self) -> str:
        if self._channel is None:
            self._channel = f"runward_{await self._sender.identity()}"
        return self._channel

    # -- listening ------------------------------------------------------------------------------------------------------

    async def _listen_forever(self) -> None:
        wait, longest = RETRY_SECONDS
        problem = ""
        while True:
            try:
                await self._listen()
                reason = "lost"
            except Unheard:
                reason, wait = "unheard", UNHEARD_SECONDS
            except (RunwardError, asyncpg.PostgresError, *LOST):
                reason = "away"
            if self._healthy:
                self._healthy, wait = False, RETRY_SECONDS[0]
            if reason != problem:
                self._telemetry.event("bus_polls", reason=reason)
                problem = reason
            await self._clock.sleep(wait * (0.5 + self._chance.jitter()))
            wait = min(wait * 2, longest)

    async def _listen(self) -> None:
        """Listens until the connection is lost. Raises Unheard when not even this process's own hints arrive."""
        channel = await self._known_channel()
        connection = await self._address.connect()
        lost = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(channel, self._hear)
            await self._ask_for_echo()
            self._local.publish([ANYTHING])
            await self._clock.sleep(0)  # they are told before the bus is healthy, so that nobody hears of a gap it did not see
            self._healthy = True
            self._telemetry.event("bus_listens")
            while await self._hears(lost):
                self._heard = False
        finally:
            await asyncio.shield(_leave(connection))

    async def _hears(self, lost: asyncio.Event) -> bool:
        """Waits for a while; whether the connection still is one."""
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                await lost.wait()
        except TimeoutError:
            if not self._heard:
                try:
                    await self._ask_for_echo()
                except Unheard:
                    return False
            return True
        return False

    async def _ask_for_echo(self) -> None:
        self._echo.clear()
        await self._notify([f"{self._me} "])
        try:
            async with asyncio.timeout(ECHO_SECONDS):
                await self._echo.wait()
        except TimeoutError as error:
            raise Unheard from error

    def _hear(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        process, _, hints = str(payload).partition(" ")
        self._heard = True
        if process == self._me:
            self._echo.set()
        else:
            self._local.publish(Hint(TOPICS[hint[0]], hint[1:]) for hint in hints.split(",") if hint and hint[0] in TOPICS)


class Sender:
    """A connection of its own for NOTIFY, made when it is needed: the bus does not need the store's."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    async def identity(self) -> str:
        """The database's own name for itself. Raises Unavailable."""
        ((identity,),) = await self._run(queries.identity(POSTGRES).text)
        return str(identity)

    async def notify(self, channel: str, texts: list[str]) -> None:
        """One statement, whatever the number of texts. Raises Unavailable."""
        await self._run("SELECT pg_notify($1, text) FROM unnest($2::text[]) AS text", channel, texts)

    async def _run(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        async with self._turn:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._address.connect()
            try:
                return await self._connection.fetch(statement, *arguments)
            except BaseException as error:
                self._connection.terminate()
                self._connection = None
                if isinstance(error, (asyncpg.PostgresError, *LOST)):
                    raise Unavailable("Hints cannot be sent now.") from error
                raise

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await _leave(connection)


async def _leave(connection: Connection) -> None:
    try:
        await connection.close(timeout=1)
    except (asyncpg.PostgresError, *LOST):
        connection.terminate()


def payloads(process: str, hints: Iterable[Hint]) -> Iterator[str]:
    """Hints as few payloads as they fit into."""
    head = f"{process} "
    parts: list[str] = []
    size = len(head)
    for hint in hints:
        part = f"{hint.topic.value}{hint.uid}"
        length = len(part.encode()) + 1
        if parts and size + length > MAX_PAYLOAD:
            yield head + ",".join(parts)
            parts, size = [], len(head)
        parts.append(part)
        size += length
    if parts:
        yield head + ",".join(parts)
