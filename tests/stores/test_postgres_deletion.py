"""Deleting beside writes, on Postgres: a statement sees rows as they were when it began, and must leave none behind that came since."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from runward.core.kernel.actor import Status
from runward.ports.store import Store
from tests.contract.builders import BASE, release, running, uid_of, written
from tests.stores.conftest import direct, opened

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
LETTER = """
    WITH me AS (UPDATE actors SET mail_received = mail_received + 1, mail_applied = mail_applied + 1 WHERE uid = $1
        RETURNING uid, mail_received)
    INSERT INTO mail (uid, seq, received_at, kind, dedupe_key, data, ignored)
        SELECT uid, mail_received, 0, 'reconcile', 'k', '{}', false FROM me
"""
"""A letter that comes after the end and is applied already: as a whole leg leaves it that began and ended meanwhile."""


async def ended(store: Store) -> None:
    """An actor that may be deleted."""
    await written(store, release(await running(store), Status.FAILED))


@asynccontextmanager
async def under_way(url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A letter for the actor that is written, but not committed before the end of the block."""
    server = await direct(url)
    async with server.transaction():
        await server.execute(LETTER, uid_of(1))
        yield server
    await server.close()


async def left(url: str) -> list[int]:
    """How many actors and letters there are."""
    server = await direct(url)
    counts = [await server.fetchval(f"SELECT count(*) FROM {table}") for table in ("actors", "mail")]
    await server.close()
    return counts


async def test_I_59_a_letter_that_comes_while_a_deletion_waits_goes_with_its_actor(migrated_url: str) -> None:
    stores = await opened(migrated_url)
    await ended(stores.store)
    async with under_way(migrated_url):
        watcher = await direct(migrated_url)
        deleting = asyncio.ensure_future(stores.store.delete(uid_of(1)))
        async with asyncio.timeout(10):
            while await watcher.fetchval(WAITING) == 0:  # noqa: ASYNC110 - nobody signals it
                await asyncio.sleep(0.005)
        await watcher.close()
    assert await deleting is True
    assert await left(migrated_url) == [0, 0]
    await stores.store.close()


async def test_R45_what_somebody_writes_to_is_left_for_the_next_time(migrated_url: str) -> None:
    stores = await opened(migrated_url)
    await ended(stores.store)
    async with under_way(migrated_url):
        assert await stores.store.prune(ended_before=BASE + 1_000, limit=10) == 0
    assert await left(migrated_url) == [1, 1]
    assert await stores.store.prune(ended_before=BASE + 1_000, limit=10) == 1
    assert await left(migrated_url) == [0, 0]
    await stores.store.close()
