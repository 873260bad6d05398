"""Where a Postgres is, and how a connection to it is made and told how to behave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import asyncpg
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from runward.core.errors import DefinitionError, Unavailable
from runward.stores.sql.statements import POSTGRES

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_NUMBERS: Final = {
    "port": int,
    "timeout": float,
    "command_timeout": float,
    "statement_cache_size": int,
    "max_cached_statement_lifetime": int,
    "max_cacheable_statement_size": int,
}

_SESSION: Final = (
    "SET default_transaction_isolation = 'read committed'; SET statement_timeout = {milliseconds}; "
    "SET plan_cache_mode = 'force_generic_plan'; SET jit = off; "
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"
)
"""A session of our own. Nothing runs on for long after we gave it up. One plan per statement for good, which is right for any size of the
tables: everything is found by an index, one row after the other; and by a plain scan of it, which is the one that marks the entries of rows
that are gone: a queue's index is full of those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A database's address. `pooled`: a transaction-mode pooler stands in between (`?prepared_statement_cache_size=0`), so that two
    statements may meet two sessions: nothing is prepared or set, and nothing can be listened to.

    `command_seconds` bounds every statement, and the time a connection may take to be made.
    """

    options: dict[str, Any] = field(repr=False)
    pooled: bool
    command_seconds: float

    async def connect(self) -> Connection:
        """A new connection. Raises Unavailable."""
        try:
            connection: Connection = await asyncpg.connect(**self.options)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            raise Unavailable(f"Postgres cannot be reached: {_reason(error)}.") from error
        try:
            await self._prepare(connection)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)):
                raise Unavailable(f"Postgres does not take the session's settings: {_reason(error)}.") from error
            raise
        return connection

    async def _prepare(self, connection: Connection) -> None:
        if not self.pooled:
            await connection.execute(_SESSION.format(milliseconds=round(self.command_seconds * 1000)))
            return
        isolation = await connection.fetchval("SHOW default_transaction_isolation")
        if isolation != "read committed":
            raise DefinitionError(
                f"Behind a transaction-mode pooler the database itself has to default to READ COMMITTED, not to {isolation}: "
                "ALTER DATABASE … SET default_transaction_isolation = 'read committed'."
            )


def address_of(url: URL, *, command_seconds: float) -> Address:
    """The address that a `postgresql+asyncpg://` URL names; its options are asyncpg's, and `prepared_statement_cache_size`.

    Raises DefinitionError for an option that is not a number where one is due, never showing it.
    """
    try:
        _, options = POSTGRES.create_connect_args(url)
    except (ArgumentError, ValueError):
        raise DefinitionError("RUNWARD_DATABASE_URL has options that do not belong together, or are none.") from None
    cache_size = options.pop("prepared_statement_cache_size", None)
    options.pop("prepared_statement_name_func", None)
    for name in _NUMBERS.keys() & options.keys():
        if name == "port" and isinstance(options[name], list):
            continue  # of several hosts
        try:
            options[name] = _NUMBERS[name](options[name])
        except (TypeError, ValueError):
            raise DefinitionError(f"RUNWARD_DATABASE_URL: its option {name} is not a number.") from None
    pooled = cache_size == 0 or options.get("statement_cache_size") == 0
    defaults = {"timeout": command_seconds, "command_timeout": command_seconds}
    cache = {"statement_cache_size": 0} if pooled else {"max_cached_statement_lifetime": 0, "max_cacheable_statement_size": 0}
    options = {**defaults, **cache, **options}
    return Address(options=options, pooled=pooled, command_seconds=float(options["command_timeout"]))


def _reason(error: BaseException) -> str:
    """What went wrong, for people: never a password, which no such error carries."""
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    return str(error).strip().rstrip(".").split("\n")[0] or type(error).__name__
