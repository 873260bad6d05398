"""Where the floor keeps its runs: each step is one durable transaction that checks the revision, in the cheapest way there is."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import asyncpg
import orjson

LEASE_SECONDS = 30
GROUP = 64
"""How many operations share one of SQLite's transactions at most."""

Event = tuple[int, bytes]
"""A number and an encoded event."""


class FloorStore(Protocol):
    """What the floor needs of a database. Every write is durable once it returns, and fails when the revision is another one."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def submit(self, run_id: str, data: bytes, event: bytes) -> None:
        """Creates a run of revision 1 with its first event."""
        ...

    async def claim(self, run_id: str) -> bytes:
        """Takes the lease of a new run, and returns its data."""
        ...

    async def step(self, run_id: str, revision: int, status: str, data: bytes, events: Sequence[Event]) -> None:
        """Replaces a run's data, renews its lease, and adds events."""
        ...

    async def replay(self, run_id: str, after: int) -> Sequence[Event]:
        """The events behind a number."""
        ...


def floor_store(url: str) -> FloorStore:
    """The store of a URL, as `RUNWARD_DATABASE_URL` would have it."""
    kind, _, rest = url.partition("://")
    return SqliteFloor(Path(rest.removeprefix("/"))) if kind.startswith("sqlite") else PostgresFloor(f"postgresql://{rest}")


class PostgresFloor:
    """asyncpg: one statement a step, connections given back as they are."""

    TABLES = """
        CREATE TABLE runs (id text PRIMARY KEY, revision int NOT NULL, status text NOT NULL, lease_owner text, lease_until timestamptz,
            data text NOT NULL);
        CREATE TABLE events (run_id text, seq int, data text, PRIMARY KEY (run_id, seq))
    """
    SUBMIT = """
        WITH run AS (INSERT INTO runs VALUES ($1, 1, 'queued', NULL, NULL, $2) RETURNING id)
        INSERT INTO events SELECT id, 0, $3 FROM run
    """
    CLAIM = """
        UPDATE runs SET revision = 2, status = 'running', lease_owner = 'floor', lease_until = now() + make_interval(secs => $2)
        WHERE id = $1 AND revision = 1 AND status = 'queued' RETURNING data
    """
    STEP = """
        WITH run AS (
            UPDATE runs SET revision = revision + 1, status = $3, data = $4, lease_until = now() + make_interval(secs => $7)
            WHERE id = $1 AND revision = $2 RETURNING id
        )
        INSERT INTO events SELECT run.id, new.seq, new.data FROM run, unnest($5::int[], $6::text[]) AS new(seq, data)
    """
    REPLAY = "SELECT seq, data FROM events WHERE run_id = $1 AND seq > $2 ORDER BY seq"

    def __init__(self, url: str) -> None:
        self._url = url

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(self._url, min_size=8, max_size=16, server_settings={"jit": "off"}, reset=_as_it_is)
        await self._pool.execute(self.TABLES)

    async def close(self) -> None:
        await self._pool.close()

    async def submit(self, run_id: str, data: bytes, event: bytes) -> None:
        await self._pool.execute(self.SUBMIT, run_id, data.decode(), event.decode())

    async def claim(self, run_id: str) -> bytes:
        data: str = await self._pool.fetchval(self.CLAIM, run_id, LEASE_SECONDS)
        return data.encode()

    async def step(self, run_id: str, revision: int, status: str, data: bytes, events: Sequence[Event]) -> None:
        numbers, texts = [seq for seq, _ in events], [event.decode() for _, event in events]
        done = await self._pool.execute(self.STEP, run_id, revision, status, data.decode(), numbers, texts, LEASE_SECONDS)
        assert done == f"INSERT 0 {len(events)}", done

    async def replay(self, run_id: str, after: int) -> Sequence[Event]:
        return [(seq, data.encode()) for seq, data in await self._pool.fetch(self.REPLAY, run_id, after)]


async def _as_it_is(connection: asyncpg.Connection[Any]) -> None:
    """No reset: it would be a round trip for each statement."""


class SqliteFloor:
    """One thread that writes, what has gathered meanwhile in one transaction, synced; a connection of the loop's own reads."""

    TABLES = (
        """CREATE TABLE runs (id text PRIMARY KEY, revision int NOT NULL, status text NOT NULL, lease_owner text, lease_until real,
            data text NOT NULL)""",
        "CREATE TABLE events (run_id text, seq int, data text, PRIMARY KEY (run_id, seq))",
    )
    CLAIM = """
        UPDATE runs SET revision = 2, status = 'running', lease_owner = 'floor', lease_until = ?
        WHERE id = ? AND revision = 1 AND status = 'queued' RETURNING data
    """
    STEP = "UPDATE runs SET revision = revision + 1, status = ?, data = ?, lease_until = ? WHERE id = ? AND revision = ?"
    REPLAY = "SELECT seq, data FROM events WHERE run_id = ? AND seq > ? ORDER BY seq"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self._news = threading.Condition()
        self._open = True

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._writes, self._reads = self._connect(), self._connect()
        for table in self.TABLES:
            self._writes.execute(table)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    async def close(self) -> None:
        with self._news:
            self._open = False
            self._news.notify()
        await asyncio.to_thread(self._thread.join)
        self._writes.close()
        self._reads.close()

    async def submit(self, run_id: str, data: bytes, event: bytes) -> None:
        def work() -> None:
            self._writes.execute("INSERT INTO runs VALUES (?, 1, 'queued', NULL, NULL, ?)", (run_id, data.decode()))
            self._writes.execute("INSERT INTO events VALUES (?, 0, ?)", (run_id, event.decode()))

        await self._do(work)

    async def claim(self, run_id: str) -> bytes:
        def work() -> str:
            (data,) = self._writes.execute(self.CLAIM, (time.time() + LEASE_SECONDS, run_id)).fetchone()
            return str(data)

        data: str = await self._do(work)
        return data.encode()

    async def step(self, run_id: str, revision: int, status: str, data: bytes, events: Sequence[Event]) -> None:
        def work() -> None:
            values = (status, data.decode(), time.time() + LEASE_SECONDS, run_id, revision)
            assert self._writes.execute(self.STEP, values).rowcount == 1
            self._writes.executemany("INSERT INTO events VALUES (?, ?, ?)", [(run_id, seq, event.decode()) for seq, event in events])

        await self._do(work)

    async def replay(self, run_id: str, after: int) -> Sequence[Event]:
        return [(seq, data.encode()) for seq, data in self._reads.execute(self.REPLAY, (run_id, after))]

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=30)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    async def _do(self, work: Callable[[], Any]) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()
        with self._news:
            self._queue.append((work, answer))
            self._news.notify()
        return await answer

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._queue:
                    if not self._open:
                        return
                    self._news.wait()
                group, self._queue = self._queue[:GROUP], self._queue[GROUP:]
            self._writes.execute("BEGIN IMMEDIATE")
            results = []
            for work, _ in group:
                self._writes.execute("SAVEPOINT operation")
                results.append(work())
                self._writes.execute("RELEASE operation")
            self._writes.execute("COMMIT")
            answers = [(answer, result) for (_, answer), result in zip(group, results, strict=True)]
            self._loop.call_soon_threadsafe(_answer, answers)


def _answer(answers: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for answer, result in answers:
        if not answer.done():
            answer.set_result(result)


def encoded(value: object) -> bytes:
    return orjson.dumps(value)
