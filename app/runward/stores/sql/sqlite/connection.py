"""Connections to the file, and what their errors mean."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from runward.core.errors import SchemaMismatch, Unavailable
from runward.stores.sql.database import NoSuchTable, NotUnique, Steps
from runward.stores.sql.rows import Row
from runward.stores.sql.statements import Statement

T = TypeVar("T")

_REASONS: Final = {
    sqlite3.SQLITE_FULL: "the disk is full, or the file has reached its largest size",
    sqlite3.SQLITE_IOERR: "the disk fails",
    sqlite3.SQLITE_READONLY: "the file, or its folder, is read-only",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
    sqlite3.SQLITE_BUSY: "another process holds its lock",
    sqlite3.SQLITE_LOCKED: "another connection holds its lock",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_PROTOCOL: "its locks do not work: it has to be on a local disk",
    sqlite3.SQLITE_CORRUPT: "the file is damaged",
    sqlite3.SQLITE_NOTADB: "the file is no database",
}
"""The errors that say that the database is away; any other is a bug."""


class Link:
    """A connection to a file, for one thread, made again when the file was replaced or the connection is of no more use."""

    def __init__(self, file: Path, *, writes: bool) -> None:
        self._file = file
        self._writes = writes
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def open(self) -> sqlite3.Connection:
        """Connects. Raises SchemaMismatch when there is no file, Unavailable when it cannot be opened."""
        self.close()
        identity = _identity(self._file)
        if identity is None:
            raise SchemaMismatch(f"There is no database file {self._file}: run `runward migrate`.", code="schema_outdated")
        try:
            self._connection = _connect(self._file, writes=self._writes)
        except sqlite3.Error as error:
            raise translated(error) from error
        self._identity = identity
        return self._connection

    def connection(self) -> sqlite3.Connection:
        """The connection to the file of that name. Raises Unavailable."""
        if self._connection is not None and _identity(self._file) == self._identity:
            return self._connection
        try:
            return self.open()
        except SchemaMismatch as error:
            raise Unavailable(f"The database file {self._file} is gone.") from error

    def roll_back(self) -> None:
        """Undoes what is open; when that fails, too, the connection is given up."""
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _connect(file: Path, *, writes: bool) -> sqlite3.Connection:
    """A connection that begins no transaction by itself, and whose commits are on the disk when they return."""
    name = f"file:{quote(str(file.absolute()))}?mode=rw"
    patience = 0 if writes else 5
    connection = sqlite3.connect(name, uri=True, isolation_level=None, timeout=patience, check_same_thread=False, cached_statements=256)
    if writes:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")
        set_wal(connection)
    else:
        connection.execute("PRAGMA query_only = ON")
    return connection


def set_wal(connection: sqlite3.Connection) -> None:
    """Sees to it that readers and the writer do not wait for each other. Raises Unavailable where the file system cannot do that."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise Unavailable("SQLite cannot keep a write-ahead log here: the file has to be on a local disk.")


def _identity(file: Path) -> tuple[int, int] | None:
    """Which file it is that has a name; None: none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def code_of(error: sqlite3.Error) -> int:
    """The primary result code of an error; 0 where it is the driver's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def translated(error: sqlite3.Error) -> Exception:
    """What an error of the driver means to a caller: the database is away, or the error itself, which is a bug."""
    code = code_of(error)
    if code in _REASONS:
        return Unavailable(f"The SQLite database cannot be used: {_REASONS[code]} ({error}).")
    if getattr(error, "sqlite_errorcode", 0) in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY):
        return NotUnique(str(error))
    if code == sqlite3.SQLITE_ERROR and str(error).startswith("no such table"):
        return NoSuchTable(str(error))
    return error


class Session:
    """Statements on one connection, within the transaction of whoever uses it. `now` is the database's time when that began."""

    __slots__ = ("_connection", "now")

    def __init__(self, connection: sqlite3.Connection, now: int) -> None:
        self._connection = connection
        self.now = now

    def rows(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        """Runs a statement and returns its rows."""
        return self._connection.execute(statement.text, statement.arguments(values)).fetchall()

    def row(self, statement: Statement, values: Mapping[str, Any]) -> Row | None:
        """The first row of a statement."""
        found: Row | None = self._connection.execute(statement.text, statement.arguments(values)).fetchone()
        return found

    def run(self, steps: Steps[T]) -> T:
        """Runs an operation of several statements."""
        try:
            statement, values = next(steps)
            while True:
                statement, values = steps.send(self.rows(statement, values))
        except StopIteration as end:
            answer: T = end.value
            return answer

    def many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None:
        """Runs a statement once for each of some rows."""
        self._connection.executemany(statement.text, map(statement.arguments, rows))
