"""Database URLs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from runward.core.errors import DefinitionError

POSTGRES_OPTIONS: Final = frozenset(
    {
        "command_timeout", "direct_tls", "gsslib", "host", "krbsrvname", "max_cacheable_statement_size", "max_cached_statement_lifetime",
        "passfile", "password", "port", "prepared_statement_cache_size", "service", "servicefile", "ssl", "statement_cache_size",
        "target_session_attrs", "timeout", "user",
    }
)  # fmt: skip
"""The options of a Postgres URL: those of asyncpg that a text can be, and SQLAlchemy's size of its cache."""


def parsed(url: str) -> URL:
    """The URL of a database that Runward can use. Raises DefinitionError, never showing what is in the URL: it may hold a password."""
    try:
        made = make_url(url)
    except (ArgumentError, ValueError):
        raise DefinitionError(
            "RUNWARD_DATABASE_URL is not the URL of a database: sqlite+aiosqlite:///./runward.db or postgresql+asyncpg://user@host/name."
        ) from None
    if made.drivername not in ("sqlite+aiosqlite", "postgresql+asyncpg"):
        raise DefinitionError(
            f"RUNWARD_DATABASE_URL: {made.drivername} is not a kind of database it can be: sqlite+aiosqlite and postgresql+asyncpg are."
        )
    if made.drivername == "postgresql+asyncpg" and not POSTGRES_OPTIONS.issuperset(made.query):
        raise DefinitionError(  # which one is not said: it may be half a password with a `?` in it
            f"RUNWARD_DATABASE_URL has an option that it cannot have. It may have these: {', '.join(sorted(POSTGRES_OPTIONS))}."
        )
    return made


def file_of(url: URL) -> Path:
    """The file of a SQLite URL. Raises DefinitionError for a database in memory: every connection would have one of its own."""
    if url.database in (None, "", ":memory:") or "mode=memory" in (url.database or ""):
        raise DefinitionError("RUNWARD_DATABASE_URL: a SQLite database is a file: sqlite+aiosqlite:///./runward.db.")
    if url.query:
        raise DefinitionError(f"RUNWARD_DATABASE_URL: a SQLite URL has no options such as {', '.join(sorted(url.query))}.")
    return Path(str(url.database))
