"""SQLite's one writer: groups that are durable before anybody hears of them, and operations that do not harm each other."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runward.core.errors import InvariantViolated, Unavailable
from runward.core.kernel.commit import Created, Stale, Written
from runward.core.kernel.frames import StoredFrame
from runward.engine.clock import SystemChance, SystemClock
from runward.stores.sql import Pool, SqlStores
from runward.stores.sql.sqlite.connection import Session, set_wal
from runward.stores.sql.sqlite.store import SqliteDatabase
from runward.stores.sql.sqlite.writer import GROUP, Writer
from tests.contract.backends_sql import SqlBackend
from tests.contract.builders import append, changes, created, message, new_actor, picture, position_of, running, stored, uid_of
from tests.stores.conftest import opened, url_of


@contextmanager
def locked(file: Path) -> Iterator[sqlite3.Connection]:
    """Holds the file's write lock, as another process's transaction does."""
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.close()


def rows(file: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(file)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


@pytest.fixture
async def writer(file: Path) -> AsyncIterator[Writer]:
    """A writer on the file, and nothing else."""
    made = Writer(file, clock=SystemClock(), chance=SystemChance(), wait_seconds=2)
    await asyncio.to_thread(made.start)
    yield made
    await asyncio.to_thread(made.close)


# -- groups --------------------------------------------------------------------------------------------------------------


async def test_I_23_an_answer_comes_after_the_commit(on_file: SqlStores) -> None:
    """The commit is held up: nobody may be answered before it is done."""
    held, go_on = threading.Event(), threading.Event()

    def before(statement: str) -> None:
        if statement == "COMMIT":
            held.set()
            go_on.wait(10)

    database = on_file.database
    assert isinstance(database, SqliteDatabase)
    connection = database.writer._link.connection()
    connection.set_trace_callback(before)
    creations = [asyncio.create_task(on_file.store.create(new_actor(number), None)) for number in range(1, 31)]
    assert await asyncio.to_thread(held.wait, 10)
    await asyncio.sleep(0.05)
    assert not any(creation.done() for creation in creations)
    assert await on_file.store.heads([uid_of(number) for number in range(1, 31)]) == {}
    go_on.set()
    await asyncio.gather(*creations)
    assert len(await on_file.store.heads([uid_of(number) for number in range(1, 31)])) == 30


async def test_what_comes_while_a_commit_is_under_way_shares_the_next(file: Path, writer: Writer) -> None:
    """A session is one transaction's."""
    sessions: list[Session] = []
    threads = set()

    def note(session: Session) -> None:
        sessions.append(session)
        threads.add(threading.get_ident())

    with locked(file):
        first = asyncio.create_task(writer.do(note))
        await asyncio.sleep(0.05)  # it waits for the lock, alone
        others = [asyncio.create_task(writer.do(note)) for _ in range(GROUP + 10)]
        await asyncio.sleep(0.05)
        assert sessions == []
        assert not any(task.done() for task in (first, *others))
    await asyncio.gather(first, *others)
    assert [sum(session is other for other in sessions) for session in dict.fromkeys(sessions)] == [1, GROUP, 10]
    assert len(threads) == 1 and threading.get_ident() not in threads


async def test_an_operation_that_fails_undoes_itself_alone(on_file: SqlStores, file: Path) -> None:
    envelopes = [await running(on_file.store, number) for number in range(1, 5)]
    for envelope in envelopes:
        await on_file.store.commit(changes(envelope, messages=(message(1),)))
    envelopes = [await stored(on_file.reads, uid_of(number)) for number in range(1, 5)]
    commits = [changes(envelope, messages=(message(2), message(1 if number == 2 else 3))) for number, envelope in enumerate(envelopes)]
    with locked(file):
        waiting = [asyncio.create_task(on_file.store.commit(commit)) for commit in commits]
        await asyncio.sleep(0.05)
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Written, Written, InvariantViolated, Written]
    assert position_of(await stored(on_file.reads, uid_of(3))) == position_of(envelopes[2])
    assert [row.seq for row in await on_file.reads.messages(uid_of(3), after=0, limit=None)] == [1]


async def test_renewals_go_before_what_waits(on_file: SqlStores, file: Path) -> None:
    envelope = await running(on_file.store)
    renewals = await on_file.store.renewals()
    order: list[str] = []
    with locked(file):
        creations = [asyncio.create_task(on_file.store.create(new_actor(number), None)) for number in range(10, 10 + 3 * GROUP)]
        for creation in creations:
            creation.add_done_callback(lambda _: order.append("created"))
        await asyncio.sleep(0.05)
        renewing = asyncio.create_task(renewals.renew("worker-1", [envelope.uid], 60_000))
        renewing.add_done_callback(lambda _: order.append("renewed"))
        await asyncio.sleep(0.05)
    await asyncio.gather(renewing, *creations)
    assert order.index("renewed") <= 2 * GROUP


async def test_operations_come_from_any_thread_and_loop(writer: Writer) -> None:
    def elsewhere() -> int:
        return asyncio.run(writer.do(lambda session: session.now))

    here, *there = await asyncio.gather(writer.do(lambda session: session.now), *(asyncio.to_thread(elsewhere) for _ in range(8)))
    assert all(abs(now - here) < 60_000 for now in there)


async def test_a_loop_that_is_gone_does_not_end_the_writer(file: Path, writer: Writer) -> None:
    def ask_and_leave() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(writer.do(lambda session: session.now))
        loop.run_until_complete(asyncio.sleep(0))
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()

    with locked(file):
        await asyncio.to_thread(ask_and_leave)
    assert await writer.do(lambda session: session.now) > 0


async def test_closing_does_what_was_asked_for(file: Path) -> None:
    stores = await opened(url_of(file))
    with locked(file):
        creations = [asyncio.create_task(stores.store.create(new_actor(number), None)) for number in range(1, 100)]
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(stores.store.close())
        await asyncio.sleep(0.05)
    await closing
    assert await asyncio.gather(*creations) == [Created(uid=uid_of(number)) for number in range(1, 100)]
    with pytest.raises(Unavailable, match="closed"):
        await stores.store.now()
    with pytest.raises(Unavailable, match="closed"):
        await created(stores.store, 100)


# -- a file that cannot be written ---------------------------------------------------------------------------------------


async def test_F40_a_locked_file_is_unavailable_in_time_and_written_once_it_is_free(file: Path) -> None:
    stores = await opened(url_of(file), Pool(wait_seconds=0.3))
    with locked(file):
        answers = await asyncio.gather(*(stores.store.create(new_actor(number), None) for number in (1, 2)), return_exceptions=True)
        assert all(isinstance(answer, Unavailable) and "locked" in answer.detail for answer in answers)
        assert await stores.reads.get(uid_of(1)) is None
    assert await stores.store.create(new_actor(1), None) == Created(uid=uid_of(1))
    await stores.store.close()


def set_pragma(stores: SqlStores, pragma: str) -> None:
    """Changes what the writer's connection may do; nothing may be under way."""
    database = stores.database
    assert isinstance(database, SqliteDatabase)
    database.writer._link.connection().execute(f"PRAGMA {pragma}")


async def test_F40_on_a_full_disk_only_what_does_not_fit_fails(file: Path) -> None:
    """M-12: SQLite undoes the whole transaction by itself then."""
    backend = SqlBackend(url_of(file))
    await backend.store.open()
    envelopes = [await running(backend.store, number) for number in range(1, 6)]
    ((pages,),) = await asyncio.to_thread(rows, file, "PRAGMA page_count")
    set_pragma(backend.stores, f"max_page_count = {int(str(pages)) + 20}")
    large = (StoredFrame(seq=1, data=random.Random(1).randbytes(400_000).replace(b"\n", b"")),)
    commits = [changes(envelope, frames=large if number == 2 else ()) for number, envelope in enumerate(envelopes)]
    before = await picture(backend, 3)
    with locked(file):
        waiting = [asyncio.create_task(backend.store.commit(commit)) for commit in commits]
        await asyncio.sleep(0.05)
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Written, Written, Unavailable, Written, Written]
    assert isinstance(answers[2], Unavailable) and "full" in answers[2].detail
    assert await picture(backend, 3) == before
    set_pragma(backend.stores, "max_page_count = 1000000")
    assert isinstance(await backend.store.commit(commits[2]), Written)
    assert isinstance(await backend.store.commit(commits[2]), Stale)
    await backend.close()


async def test_F40_a_read_only_file_is_unavailable(on_file: SqlStores) -> None:
    await created(on_file.store, 1)
    set_pragma(on_file, "query_only = ON")
    answers = await asyncio.gather(*(on_file.store.create(new_actor(number), None) for number in (2, 3)), return_exceptions=True)
    assert all(isinstance(answer, Unavailable) and "read-only" in answer.detail for answer in answers)
    assert (await stored(on_file.reads, uid_of(1))).uid == uid_of(1)
    set_pragma(on_file, "query_only = OFF")
    await created(on_file.store, 2)


async def test_F40_a_file_that_is_gone_is_not_written_into_the_void(on_file: SqlStores, file: Path, tmp_path: Path) -> None:
    await created(on_file.store, 1)
    await asyncio.to_thread(file.rename, tmp_path / "moved.db")
    for refused in (created(on_file.store, 2), on_file.reads.get(uid_of(1))):
        with pytest.raises(Unavailable, match="gone"):
            await refused
    await asyncio.to_thread((tmp_path / "moved.db").rename, file)
    assert (await stored(on_file.reads, uid_of(1))).uid == uid_of(1)
    await created(on_file.store, 2)


async def test_a_file_without_tables_in_its_place_is_unavailable(on_file: SqlStores, file: Path) -> None:
    for path in (file, *file.parent.glob("runward.db-*")):
        await asyncio.to_thread(path.unlink)
    await asyncio.to_thread(rows, file, "PRAGMA user_version = 1")
    with pytest.raises(Unavailable):
        await created(on_file.store, 1)


async def test_reads_do_not_wait_for_the_writer(on_file: SqlStores, file: Path) -> None:
    await created(on_file.store, 1)
    with locked(file):
        writing = asyncio.create_task(on_file.store.append_mail(append(1, "k1")))
        async with asyncio.timeout(1):
            found = await asyncio.gather(*(on_file.reads.get(uid_of(1)) for _ in range(20)))
        assert not writing.done()
    await writing
    assert all(envelope is not None and envelope.mail_received == 0 for envelope in found)


async def test_a_file_on_no_disk_for_a_log_is_refused() -> None:
    """Readers and the writer would wait for each other."""
    connection = sqlite3.connect(":memory:")
    with pytest.raises(Unavailable, match="local disk"):
        set_wal(connection)
    connection.close()
