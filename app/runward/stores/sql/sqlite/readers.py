"""The threads that read. In WAL mode readers wait for nobody, and nobody for them; each has a connection of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from runward.core.errors import Unavailable
from runward.stores.sql.rows import Row
from runward.stores.sql.sqlite.connection import Link, translated
from runward.stores.sql.statements import Statement

Question = tuple[Statement, Mapping[str, Any], asyncio.Future[list[Row]], asyncio.AbstractEventLoop]


class Readers:
    """A few threads, started as they are needed."""

    def __init__(self, file: Path, *, size: int) -> None:
        self._file = file
        self._size = size
        self._questions: SimpleQueue[Question | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._closed = True

    def open(self) -> None:
        """Threads are started from now on, when they are needed."""
        self._closed = False

    async def read(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        """The rows of a statement. Raises Unavailable."""
        if self._closed:
            raise Unavailable("The store is closed.")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Row]] = loop.create_future()
        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < self._size:
            self._start_thread()
        self._questions.put((statement, values, answer, loop))
        try:
            return await answer
        finally:
            self._busy -= 1

    def close(self) -> None:
        """Ends the threads when what was asked is answered. Blocks. Idempotent."""
        self._closed = True
        for _ in self._threads:
            self._questions.put(None)
        while self._threads:
            self._threads.pop().join()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=f"runward-sqlite-reader-{len(self._threads) + 1}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        link = Link(self._file, writes=False)
        while (question := self._questions.get()) is not None:
            statement, values, answer, loop = question
            try:
                rows = link.connection().execute(statement.text, statement.arguments(values)).fetchall()
            except sqlite3.Error as error:
                outcome: list[Row] | Exception = translated(error)
            except Exception as error:  # noqa: BLE001  it belongs to whoever asked
                outcome = error
            else:
                outcome = rows
            try:
                loop.call_soon_threadsafe(_settle, answer, outcome)
            except RuntimeError:  # the loop is closed: nobody waits any more
                continue
        link.close()


def _settle(answer: asyncio.Future[list[Row]], outcome: list[Row] | Exception) -> None:
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
