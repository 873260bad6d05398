"""Postgres as a database of the ports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import asyncpg
from sqlalchemy.engine.interfaces import Dialect

from runward.core.kernel.actor import Position
from runward.core.kernel.commit import AppendAnswer, Changes, Claims, CommitAnswer, CreateAnswer, IdempotencyKey, NewActor, Stale, Written
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.mail import Letter
from runward.ports.store import Append, ClaimRequest, Head, Renewals
from runward.stores.sql import queries
from runward.stores.sql.database import NoSuchTable, NotUnique, Steps
from runward.stores.sql.postgres.claim import Taker
from runward.stores.sql.postgres.commit import append_frames, commit
from runward.stores.sql.postgres.connections import Connections
from runward.stores.sql.postgres.create import create
from runward.stores.sql.postgres.leases import ask_drain, disown, seize
from runward.stores.sql.postgres.mailbox import append_mail
from runward.stores.sql.postgres.pruning import delete_actor, prune, prune_keys
from runward.stores.sql.postgres.renewals import PostgresRenewals
from runward.stores.sql.rows import Row, heads_of
from runward.stores.sql.schema import check_schema
from runward.stores.sql.statements import POSTGRES, Statement

T = TypeVar("T")


class PostgresDatabase:
    """`stores.sql.database.Database` on the process's connections."""

    dialect: Final[Dialect] = POSTGRES

    def __init__(self, connections: Connections) -> None:
        self.connections = connections

    async def read(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Row]:
        try:
            rows: Sequence[Any] = await self.connections.fetch(statement, values)
        except asyncpg.UndefinedTableError as error:
            raise NoSuchTable("The database has no tables: run `runward migrate`.") from error
        return rows

    async def write(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Row]:
        try:
            return await self.read(statement, values)
        except asyncpg.UniqueViolationError as error:
            raise NotUnique from error

    async def transact(self, steps: Callable[[], Steps[T]]) -> T:
        return await self.connections.transact(steps)


class PostgresStore:
    """`ports.store.Store`."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._connections = database.connections
        self._taker = Taker(database.connections)

    async def open(self) -> None:
        self._connections.open()
        try:
            await check_schema(self._database)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._connections.close()

    async def now(self) -> int:
        ((now,),) = await self._database.read(queries.clock(POSTGRES), {})
        return int(now)

    async def create(self, new: NewActor, key: IdempotencyKey | None) -> CreateAnswer:
        return await create(self._connections, new, key)

    async def claim(self, request: ClaimRequest) -> Claims:
        return await self._taker.claim(request)

    async def commit(self, changes: Changes) -> CommitAnswer:
        return await commit(self._connections, changes)

    async def append_frames(self, uid: str, follows: Position, frames: Sequence[StoredFrame]) -> Written | Stale:
        return await append_frames(self._connections, uid, follows, frames)

    async def append_mail(self, append: Append) -> AppendAnswer:
        return await append_mail(self._connections, append)

    async def ask_drain(self, uid: str) -> int | None:
        return await ask_drain(self._connections, uid)

    async def seize(self, uid: str, letter: Letter, *, lapsed_only: bool) -> int | None:
        return await seize(self._connections, uid, letter, lapsed_only=lapsed_only)

    async def owned(self, owner: str) -> Mapping[str, int]:
        return {row[0]: row[1] for row in await self._database.read(queries.owned(POSTGRES), {"owner": owner})}

    async def disown(self, owner: str, legs: Mapping[str, int]) -> Sequence[str]:
        return await disown(self._connections, owner, legs)

    async def delete(self, uid: str) -> bool:
        return await delete_actor(self._connections, uid)

    async def prune(self, *, ended_before: int, limit: int) -> int:
        return await prune(self._connections, ended_before=ended_before, limit=limit)

    async def prune_keys(self, *, created_before: int, limit: int) -> int:
        return await prune_keys(self._connections, created_before=created_before, limit=limit)

    async def heads(self, uids: Sequence[str]) -> Mapping[str, Head]:
        return heads_of(await self._database.read(queries.heads(POSTGRES), {"uids": list(uids)}))

    async def renewals(self) -> Renewals:
        return PostgresRenewals(self._connections.address)
