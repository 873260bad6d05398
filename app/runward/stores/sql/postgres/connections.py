"""The connections that operations run on: a bounded few, kept open while they are busy, and never held across anything but a statement."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import asyncpg

from runward.core.errors import Unavailable
from runward.ports.clock import Chance, Clock
from runward.stores.sql.database import Steps
from runward.stores.sql.postgres.address import Address, Connection
from runward.stores.sql.statements import Statement

T = TypeVar("T")

ATTEMPTS: Final = 10
"""How often a statement is sent that met a deadlock or a serialization failure; each time it had no effect."""

AWAY: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.LockNotAvailableError,
)
"""Errors of a server that cannot serve now. What they interrupted may have happened."""

LOST: Final = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""Errors of a connection. What they interrupted may have happened."""

AGAIN: Final = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)


class Connections:
    """At most `size` connections of this process. `fetch` runs one statement, in a transaction of its own, `transact` several in one.

    A statement waits `wait_seconds` for a connection. One that was not used for `idle_seconds` is closed, but for the last.
    """

    def __init__(self, address: Address, *, size: int, wait_seconds: float, clock: Clock, chance: Chance, idle_seconds: float = 30) -> None:
        self.address = address
        self._size = size
        self._wait_seconds = wait_seconds
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._chance = chance
        self._free: list[tuple[Connection, float]] = []
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._open = 0
        self._closed = asyncio.Event()
        self._closing = True
        self._leaving: set[asyncio.Task[None]] = set()
        self._shrinking: asyncio.TimerHandle | None = None

    async def fetch(self, statement: Statement, values: Mapping[str, Any]) -> list[asyncpg.Record]:
        """Runs one statement and returns its rows.

        Raises Unavailable when no connection can be had, or the answer was lost: then nothing is known about what the statement did.
        """
        arguments = statement.arguments(values)
        return await self._on_one(lambda connection: connection.fetch(statement.text, *arguments))

    async def transact(self, steps: Callable[[], Steps[T]]) -> T:
        """Runs an operation of several statements in one transaction; from the start again when it met a deadlock."""

        async def work(connection: Connection) -> T:
            async with connection.transaction(isolation="read_committed"):
                running = steps()
                try:
                    statement, values = next(running)
                    while True:
                        rows: Sequence[Any] = await connection.fetch(statement.text, *statement.arguments(values))
                        statement, values = running.send(rows)
                except StopIteration as end:
                    answer: T = end.value
                    return answer

        return await self._on_one(work)

    async def _on_one(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Does something on one connection, once, or again when it met a conflict and had no effect."""
        conflict: Exception | None = None
        for _ in range(ATTEMPTS):
            connection = await self._take()
            try:
                answer = await work(connection)
            except AGAIN as error:
                self._give(connection)
                conflict = error
                await self._clock.sleep(self._chance.jitter() * 0.02)
            except asyncpg.DataError:
                self._give(connection)
                raise
            except AWAY as error:
                self._drop(connection)
                raise Unavailable(f"Postgres cannot do this now: {error}.") from error
            except LOST as error:
                self._drop(connection)
                raise Unavailable("The connection to Postgres was lost, or it did not answer in time.") from error
            except asyncpg.PostgresError:
                self._give(connection)
                raise
            except BaseException:  # cancelled in the middle: nobody knows what the server is doing on it
                self._drop(connection)
                raise
            else:
                self._give(connection)
                return answer
        raise Unavailable(f"Postgres found no turn for this: {conflict}.") from conflict

    @property
    def count(self) -> int:
        """How many connections are open, or being made."""
        return self._open

    def open(self) -> None:
        """Connections are made from now on, when they are needed."""
        self._closing = False

    async def close(self) -> None:
        """Lets what runs come to its end, and closes every connection. Idempotent."""
        self._closing = True
        if self._shrinking is not None:
            self._shrinking.cancel()
        while self._waiting:
            self._tell(self._waiting.popleft(), None)
        while self._free:
            self._retire(self._free.pop()[0])
        while self._open:
            self._closed.clear()
            await self._closed.wait()

    # -- taking and giving back -----------------------------------------------------------------------------------------

    async def _take(self) -> Connection:
        while self._free:
            connection, _ = self._free.pop()
            if not connection.is_closed():
                return connection
            self._drop(connection)
        if self._closing:
            raise Unavailable("The store is closed.")
        if self._open < self._size:
            return await self._connect()
        connection_or_room = await self._wait()
        return connection_or_room or await self._take()

    async def _connect(self) -> Connection:
        self._open += 1
        try:
            return await self.address.connect()
        except BaseException:
            self._closed_one()
            raise

    async def _wait(self) -> Connection | None:
        """Waits for a connection that another statement gives back; None: there is room for a new one."""
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._wait_seconds):
                return await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and (handed := waiter.result()) is not None:
                self._give(handed)
            if isinstance(error, TimeoutError):
                raise Unavailable(f"All {self._size} connections to Postgres are busy.") from error
            raise

    def _give(self, connection: Connection) -> None:
        if self._closing:
            self._retire(connection)
            return
        if connection.is_closed():
            self._drop(connection)
            return
        while self._waiting:
            if self._tell(self._waiting.popleft(), connection):
                return
        self._free.append((connection, self._clock.monotonic()))
        if self._shrinking is None and len(self._free) > 1:
            self._shrinking = asyncio.get_running_loop().call_later(self._idle_seconds, self._shrink)

    def _tell(self, waiter: asyncio.Future[Connection | None], connection: Connection | None) -> bool:
        """Hands something to a waiter, unless it has given up."""
        if waiter.done():
            return False
        waiter.set_result(connection)
        return True

    def _drop(self, connection: Connection) -> None:
        """Cuts a connection of which nothing is known any more."""
        connection.terminate()
        self._closed_one()

    def _retire(self, connection: Connection) -> None:
        """Takes leave on a connection that works."""
        task = asyncio.get_running_loop().create_task(self._say_goodbye(connection))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _say_goodbye(self, connection: Connection) -> None:
        try:
            await connection.close(timeout=1)
        except (*LOST, asyncpg.PostgresError):
            connection.terminate()
        finally:
            self._closed_one()

    def _closed_one(self) -> None:
        """There is room for one more: whoever waits the longest may open it."""
        self._open -= 1
        self._closed.set()
        while self._waiting:
            if self._tell(self._waiting.popleft(), None):
                return

    def _shrink(self) -> None:
        """Closes what was not used for long. The free ones lie in the order of their last use."""
        self._shrinking = None
        now = self._clock.monotonic()
        while len(self._free) > 1 and now - self._free[0][1] >= self._idle_seconds:
            self._retire(self._free.pop(0)[0])
        if len(self._free) > 1:
            due = self._free[0][1] + self._idle_seconds - now
            self._shrinking = asyncio.get_running_loop().call_later(max(due, 0.1), self._shrink)
