"""SQLite as a database of the ports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy.engine.interfaces import Dialect

from runward.core.kernel.actor import Position
from runward.core.kernel.commit import AppendAnswer, Changes, Claims, CommitAnswer, CreateAnswer, IdempotencyKey, NewActor, Stale, Written
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.mail import Letter
from runward.ports.store import Append, ClaimRequest, Head, Renewal, Renewals
from runward.stores.guards import check_changes, check_letters, check_new_actor, check_numbers, check_text
from runward.stores.sql import queries
from runward.stores.sql.database import Steps
from runward.stores.sql.rows import Row, heads_of
from runward.stores.sql.schema import check_schema
from runward.stores.sql.sqlite.claim import Past, claim
from runward.stores.sql.sqlite.commit import append_frames, commit
from runward.stores.sql.sqlite.create import create
from runward.stores.sql.sqlite.leases import ask_drain, disown, renew, seize
from runward.stores.sql.sqlite.mailbox import append_mail
from runward.stores.sql.sqlite.pruning import delete_actor, prune, prune_keys
from runward.stores.sql.sqlite.readers import Readers
from runward.stores.sql.sqlite.writer import Writer
from runward.stores.sql.statements import SQLITE, Statement, as_list

T = TypeVar("T")


class SqliteDatabase:
    """`stores.sql.database.Database` on the process's writer and readers."""

    dialect: Final[Dialect] = SQLITE

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self.writer = writer
        self.readers = readers

    async def read(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Row]:
        return await self.readers.read(statement, values)

    async def write(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Row]:
        return await self.writer.do(lambda session: session.rows(statement, values))

    async def transact(self, steps: Callable[[], Steps[T]]) -> T:
        return await self.writer.do(lambda session: session.run(steps()))


class SqliteStore:
    """`ports.store.Store`. Values are checked before they are queued."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._writer = database.writer
        self._past = Past()

    async def open(self) -> None:
        await asyncio.to_thread(self._writer.start)
        self._database.readers.open()
        try:
            await check_schema(self._database)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await asyncio.to_thread(self._writer.close)
        await asyncio.to_thread(self._database.readers.close)

    async def now(self) -> int:
        ((now,),) = await self._database.read(queries.clock(SQLITE), {})
        return int(now)

    async def create(self, new: NewActor, key: IdempotencyKey | None) -> CreateAnswer:
        check_new_actor(new)
        check_text(key)
        return await self._writer.do(lambda session: create(session, new, key))

    async def claim(self, request: ClaimRequest) -> Claims:
        return await self._writer.do(lambda session: claim(session, self._past, request))

    async def commit(self, changes: Changes) -> CommitAnswer:
        check_changes(changes)
        return await self._writer.do(lambda session: commit(session, changes))

    async def append_frames(self, uid: str, follows: Position, frames: Sequence[StoredFrame]) -> Written | Stale:
        check_numbers(follows.last_seq, frames)
        return await self._writer.do(lambda session: append_frames(session, uid, follows, frames))

    async def append_mail(self, append: Append) -> AppendAnswer:
        check_letters(append.letters)
        check_text(append.closings)
        return await self._writer.do(lambda session: append_mail(session, append))

    async def ask_drain(self, uid: str) -> int | None:
        return await self._writer.do(lambda session: ask_drain(session, uid))

    async def seize(self, uid: str, letter: Letter, *, lapsed_only: bool) -> int | None:
        check_letters((letter,))
        return await self._writer.do(lambda session: seize(session, uid, letter, lapsed_only=lapsed_only))

    async def owned(self, owner: str) -> Mapping[str, int]:
        return {row[0]: row[1] for row in await self._database.read(queries.owned(SQLITE), {"owner": owner})}

    async def disown(self, owner: str, legs: Mapping[str, int]) -> Sequence[str]:
        return await self._writer.do(lambda session: disown(session, owner, legs))

    async def delete(self, uid: str) -> bool:
        return await self._writer.do(lambda session: delete_actor(session, uid))

    async def prune(self, *, ended_before: int, limit: int) -> int:
        return await self._writer.do(lambda session: prune(session, ended_before=ended_before, limit=limit))

    async def prune_keys(self, *, created_before: int, limit: int) -> int:
        return await self._writer.do(lambda session: prune_keys(session, created_before=created_before, limit=limit))

    async def heads(self, uids: Sequence[str]) -> Mapping[str, Head]:
        return heads_of(await self._database.read(queries.heads(SQLITE), {"uids": as_list(uids, SQLITE)}))

    async def renewals(self) -> Renewals:
        return SqliteRenewals(self._writer)


class SqliteRenewals:
    """`ports.store.Renewals`: goes before everything that waits for the writer."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def renew(self, owner: str, uids: Sequence[str], ttl_ms: int) -> Renewal:
        return await self._writer.do(lambda session: renew(session, owner, uids, ttl_ms), first=True)

    async def close(self) -> None:
        """The writer is the store's."""
