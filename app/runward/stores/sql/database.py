"""What the parts that are the same on both databases need from either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy.engine.interfaces import Dialect

from runward.core.errors import Unavailable
from runward.stores.sql.rows import Row
from runward.stores.sql.statements import Statement


class Database(Protocol):
    """One database. Both methods raise `Unavailable`."""

    @property
    def dialect(self) -> Dialect: ...

    async def read(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Row]:
        """The rows of a statement that changes nothing."""
        ...

    async def write(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Row]:
        """Runs one statement in a transaction of its own, durable when this returns, and returns the rows it answers with."""
        ...


class NotUnique(Exception):
    """A write met a row that has its key already; nothing was written."""


class NoSuchTable(Unavailable):
    """A statement names a table that is not there: the database was never migrated, or another one took its place."""
