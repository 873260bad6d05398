"""The one thread of this process that writes to the file, several operations to a transaction.

A commit has to reach the disk, and costs the same for one operation as for sixty: so everything that came while the last one was under
way goes into the next, each operation under a savepoint of its own, and all are answered when it is durable. The queue is the thread's:
any loop, of any thread, may ask.

SQLite undoes the whole transaction by itself when the disk is full or fails. Then nothing of the group has happened, nobody was answered,
and each operation runs again alone, so that only the one that does not fit fails.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from runward.core.errors import RunwardError, Unavailable
from runward.ports.clock import Chance, Clock
from runward.stores.sql import queries
from runward.stores.sql.sqlite.connection import Link, Session, code_of, translated
from runward.stores.sql.statements import SQLITE

T = TypeVar("T")

GROUP: Final = 64
"""How many operations share a transaction at most."""

TRY_SECONDS: Final = (0.0005, 0.002)
"""How long to wait, at random between these, before the lock is tried again: many processes that wait get it in turn, none for seconds."""


class Undone(Exception):
    """The transaction is gone, and with it everything that was done in it."""


@dataclass(slots=True, eq=False)
class Entry:
    """One operation, who waits for it, and what became of it."""

    work: Callable[[Session], Any]
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What to call, on the thread, when another process has written, and how often to look, in seconds."""

    changed: Callable[[], None]
    seconds: float


class Writer:
    """The thread, once `start` was called. `do` runs an operation on it."""

    def __init__(self, file: Path, *, clock: Clock, chance: Chance, wait_seconds: float) -> None:
        self._link = Link(file, writes=True)
        self._clock = clock
        self._chance = chance
        self._wait_seconds = wait_seconds
        self._queue: deque[Entry] = deque()
        self._news = threading.Condition()
        self._never = threading.Event()
        self._closing = False
        self._watch: Watch | None = None
        self._version: int | None = None
        self._look_at = 0.0
        self._thread: threading.Thread | None = None

    # -- called from loops ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connects, and begins to take operations. Nothing to do when it has. Raises SchemaMismatch or Unavailable."""
        if self._thread is not None:
            return
        self._link.open()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="runward-sqlite-writer", daemon=True)
        self._thread.start()

    async def do(self, work: Callable[[Session], T], *, first: bool = False) -> T:
        """Runs an operation in a transaction and returns what it returns, once that is durable; what it raises has undone it.

        `first` puts it before all that wait. Raises Unavailable when the file cannot be written.
        """
        loop = asyncio.get_running_loop()
        entry = Entry(work, loop.create_future(), loop)
        with self._news:
            if self._closing or self._thread is None:
                raise Unavailable("The store is closed.")
            if first:
                self._queue.appendleft(entry)
            else:
                self._queue.append(entry)
            self._news.notify()
        answer: T = await entry.answer
        return answer

    def watch(self, watch: Watch | None) -> None:
        """Looks from now on whether other processes have written; None: no more. The first look always tells: nobody knows of before."""
        with self._news:
            self._watch, self._version, self._look_at = watch, None, 0.0
            self._news.notify()

    def close(self) -> None:
        """Ends the thread when everything that was asked for is done. Blocks. Idempotent."""
        with self._news:
            self._closing = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # -- the thread -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (group := self._next_group()) is not None:
            if group:
                self._write(group)
                _answer(group)
            self._look_if_due()
        self._link.close()

    def _next_group(self) -> Sequence[Entry] | None:
        """What waits to be written; nothing when it is time to look at the file; None at the end."""
        with self._news:
            while not self._queue:
                if self._closing:
                    return None
                if not self._news.wait(None if self._watch is None else max(0.0, self._look_at - self._clock.monotonic())):
                    return ()
            return [self._queue.popleft() for _ in range(min(GROUP, len(self._queue)))]

    def _write(self, group: Sequence[Entry]) -> None:
        try:
            self._transaction(self._link.connection(), group)
        except Exception as error:  # noqa: BLE001  the thread goes on, and whoever asked gets to know
            self._link.roll_back()
            if len(group) > 1 and isinstance(error, (sqlite3.Error, Undone)):
                for entry in group:
                    self._write([entry])
            else:
                for entry in group:
                    entry.result, entry.error = None, _meaning(error)

    def _transaction(self, connection: sqlite3.Connection, group: Sequence[Entry]) -> None:
        self._begin(connection)
        (now,) = connection.execute(queries.clock(SQLITE).text).fetchone()
        session = Session(connection, now)
        for entry in group:
            connection.execute("SAVEPOINT operation")
            try:
                entry.result, entry.error = entry.work(session), None
            except Exception as error:
                entry.result, entry.error = None, _meaning(error)
                if not connection.in_transaction:
                    raise Undone from error
                connection.execute("ROLLBACK TO operation")
            connection.execute("RELEASE operation")
        connection.execute("COMMIT")

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Gets the file's write lock. The driver's own waiting lets one process wait for seconds while others get it again and again."""
        deadline = self._clock.monotonic() + self._wait_seconds
        shortest, longest = TRY_SECONDS
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if code_of(error) != sqlite3.SQLITE_BUSY:
                    raise
                if self._clock.monotonic() >= deadline:
                    raise Unavailable("The SQLite database is locked by another process.") from error
            self._never.wait(shortest + (longest - shortest) * self._chance.jitter())

    def _look_if_due(self) -> None:
        """Tells the watch when another connection has committed since it last looked, or when it looks for the first time."""
        watch = self._watch
        if watch is None or self._clock.monotonic() < self._look_at:
            return
        try:
            (version,) = self._link.connection().execute("PRAGMA data_version").fetchone()
        except (sqlite3.Error, RunwardError):  # the next write says what is wrong; until then nobody can have written anything
            version = self._version
        with self._news:
            if watch is not self._watch:
                return
            changed, self._version = version != self._version, version
            self._look_at = self._clock.monotonic() + watch.seconds
        if changed:
            watch.changed()


def _meaning(error: Exception) -> Exception:
    cause = error.__cause__ if isinstance(error, Undone) else error
    return translated(cause) if isinstance(cause, sqlite3.Error) else error


def _answer(group: Sequence[Entry]) -> None:
    """Answers everybody: one wake-up per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Entry]] = {}
    for entry in group:
        by_loop.setdefault(entry.loop, []).append(entry)
    for loop, entries in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, entries)
        except RuntimeError:  # the loop is closed: nobody waits any more
            continue


def _settle(entries: Sequence[Entry]) -> None:
    for entry in entries:
        if entry.answer.done():
            continue
        if entry.error is not None:
            entry.answer.set_exception(entry.error)
        else:
            entry.answer.set_result(entry.result)
