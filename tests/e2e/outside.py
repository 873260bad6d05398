"""The database, looked into and changed behind the service's back."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from typing import Any

import asyncpg


def in_database(url: str, statement: str) -> list[Sequence[Any]]:
    """Runs a statement, in a transaction of its own, and returns its rows."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.partition("///")[2], timeout=10)
        try:
            with connection:
                return connection.execute(statement).fetchall()
        finally:
            connection.close()

    async def fetched() -> list[Sequence[Any]]:
        connection = await asyncpg.connect(url.replace("+asyncpg", ""))
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    return asyncio.run(fetched())
