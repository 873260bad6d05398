"""The heartbeat's door: a connection of its own, made by the loop that uses it, and made again when it is lost."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from runward.core.errors import Unavailable
from runward.ports.store import Renewal
from runward.stores.sql.postgres.address import Address, Connection
from runward.stores.sql.postgres.connections import AWAY, LOST
from runward.stores.sql.postgres.leases import renew_statement
from runward.stores.sql.rows import HEAD, heads_of

REPEATED = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)


class PostgresRenewals:
    """`ports.store.Renewals`. One renewal at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Connection | None = None

    async def renew(self, owner: str, uids: Sequence[str], ttl_ms: int) -> Renewal:
        statement = renew_statement()
        arguments = statement.arguments({"owner": owner, "uids": list(uids), "ttl": ttl_ms})
        connection = await self._connected()
        try:
            rows = await connection.fetch(statement.text, *arguments)
        except (*AWAY, *LOST, *REPEATED) as error:
            self._drop()
            raise Unavailable("A renewal found Postgres away, or its answer was lost.") from error
        except BaseException:
            self._drop()
            raise
        width = len(HEAD)
        return Renewal(held=heads_of(tuple(row)[:width] for row in rows if row["uid"] is not None), now=rows[0]["now"])

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=1)
            except (*AWAY, *LOST):
                connection.terminate()

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._address.connect()
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
