"""SQL, compiled once per dialect from the tables, and run on the driver's own connection."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Table, bindparam, func, literal_column, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY, asyncpg
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.sql.elements import BindParameter, CompilerElement

POSTGRES: Final[Dialect] = asyncpg.dialect()  # type: ignore[no-untyped-call]
SQLITE: Final[Dialect] = sqlite.dialect(paramstyle="qmark")


class Statement:
    """One statement as text, with the names of its parameters in the order the driver wants them.

    Values go to the driver as they are: the tables have no type that would have to convert them.
    """

    __slots__ = ("_fixed", "_names", "text")

    def __init__(self, source: CompilerElement, dialect: Dialect) -> None:
        compiled: Any = source.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        self.text: str = compiled.string
        self._names: tuple[str, ...] = tuple(compiled.positiontup or ())
        self._fixed: dict[str, Any] = {name: value for name, value in compiled.params.items() if value is not None}

    def arguments(self, values: Mapping[str, Any]) -> list[Any]:
        """The values in order. A name that is missing is the statement's own, or a bug: KeyError."""
        fixed = self._fixed
        return [values[name] if name in values else fixed[name] for name in self._names]


def given(name: str, type_: Any) -> BindParameter[Any]:
    """A parameter that each execution gives a value to."""
    return bindparam(name, type_=type_)


def given_array(name: str, type_: Any) -> BindParameter[Any]:
    """The same, for as many values as there are (Postgres)."""
    return bindparam(name, type_=ARRAY(type_))


# -- what the two databases say differently ------------------------------------------------------------------------------


def clock_expression(dialect: Dialect) -> ColumnElement[int]:
    """The database's time, in milliseconds since 1970; on Postgres it moves on within a transaction, unlike `now()`."""
    if dialect is POSTGRES:
        return literal_column("floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint", BigInteger())
    return literal_column("CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)", BigInteger())


def insert_into(table: Table, dialect: Dialect) -> postgresql.Insert | sqlite.Insert:
    """An insertion that can say what is done on a conflict."""
    return postgresql.insert(table) if dialect is POSTGRES else sqlite.insert(table)


def among(column: ColumnElement[Any], name: str, dialect: Dialect) -> ColumnElement[bool]:
    """Whether a column is one of a list, however long, that `as_list` has made the value of one parameter."""
    if dialect is POSTGRES:
        return column == func.any(given_array(name, column.type))
    item = func.json_each(bindparam(name)).table_valued("value")
    return column.in_(select(item.c.value))


def as_list(values: Sequence[str] | Sequence[int], dialect: Dialect) -> Any:
    return list(values) if dialect is POSTGRES else json.dumps(list(values))
