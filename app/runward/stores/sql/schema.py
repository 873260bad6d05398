"""Whether a database's schema is the one this code needs."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Column, MetaData, Table, Text, select
from sqlalchemy.engine.interfaces import Dialect

from runward.core.errors import SchemaMismatch
from runward.stores.sql.database import Database, NoSuchTable
from runward.stores.sql.statements import Statement
from runward.stores.sql.tables import SCHEMA

_versions = Table("alembic_version", MetaData(), Column("version_num", Text))


async def check_schema(database: Database) -> None:
    """Raises SchemaMismatch unless the schema is exactly this version's: `schema_outdated` or `schema_too_new`; Unavailable."""
    try:
        rows = await database.read(_version(database.dialect), {})
    except NoSuchTable:
        rows = []
    check_version(rows[0][0] if rows else None)


def check_version(stored: str | None) -> None:
    """Raises SchemaMismatch unless this is the version the code needs. Versions are numbered so that they sort."""
    if stored is None:
        raise SchemaMismatch("The database has no tables yet: run `runward migrate`.", code="schema_outdated")
    if stored > SCHEMA:
        raise SchemaMismatch(f"The database is at schema {stored}, newer than {SCHEMA}, which is the newest this version of Runward knows.")
    if stored < SCHEMA:
        raise SchemaMismatch(
            f"The database is at schema {stored}, and this version needs {SCHEMA}: run `runward migrate`.", code="schema_outdated"
        )


@cache
def _version(dialect: Dialect) -> Statement:
    return Statement(select(_versions.c.version_num), dialect)
