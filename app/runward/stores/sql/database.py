"""What the parts that are the same on both databases need from either."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy.engine.interfaces import Dialect

from runward.core.errors import Unavailable
from runward.stores.sql.rows import Row
from runward.stores.sql.statements import Statement

T = TypeVar("T")


Steps = Generator[tuple[Statement, Mapping[str, Any]], Sequence[Row], T]
"""An operation of several statements: it yields one after another with its values, is sent its rows, and returns what it returns. So it is
written once for a database whose driver blocks and one whose driver does not."""


class Database(Protocol):
    """One database. Its methods raise `Unavailable`."""

    @property
    def dialect(self) -> Dialect: ...

    async def read(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Row]:
        """The rows of a statement that changes nothing."""
        ...

    async def write(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Row]:
        """Runs one statement in a transaction of its own, durable when this returns, and returns the rows it answers with."""
        ...

    async def transact(self, steps: Callable[[], Steps[T]]) -> T:
        """Runs an operation of several statements in one transaction (READ COMMITTED), durable when this returns. What it raises undoes it.
        It may run more than once, each time from the start, when others were in its way."""
        ...


class NotUnique(Exception):
    """A write met a row that has its key already; nothing was written."""


class NoSuchTable(Unavailable):
    """A statement names a table that is not there: the database was never migrated, or another one took its place."""
