"""The few connections of a process: bounded, shared fairly, never held for nothing, and right behind a pooler."""

from __future__ import annotations

import asyncio

import pytest

from runward.core.errors import DefinitionError, Unavailable
from runward.core.kernel.commit import Appended, Written
from runward.engine.clock import SystemChance, SystemClock
from runward.stores.sql import Pool, SqlStores
from runward.stores.sql.postgres.address import address_of
from runward.stores.sql.postgres.connections import Connections
from runward.stores.sql.postgres.store import PostgresStore
from runward.stores.sql.queries import clock
from runward.stores.sql.statements import POSTGRES
from runward.stores.sql.urls import parsed
from tests.contract.builders import append, changes, claim_request, created, running, stored, uid_of
from tests.stores.conftest import direct, opened, until

OTHERS = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
TWO = Pool(connections=2, wait_seconds=0.3, command_seconds=5)


class Locked:
    """Holds an actor's row, so that writes to it have to wait."""

    def __init__(self, url: str, uid: str) -> None:
        self._url, self._uid = url, uid

    async def __aenter__(self) -> Locked:
        self._server, self._watcher = await direct(self._url), await direct(self._url)
        self._transaction = self._server.transaction()
        await self._transaction.start()
        await self._server.execute("SELECT 1 FROM actors WHERE uid = $1 FOR UPDATE", self._uid)
        return self

    async def waiting(self, count: int) -> None:
        """Returns once exactly so many statements wait for the row."""
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        async with asyncio.timeout(10):
            while await self._watcher.fetchval(waiting) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def __aexit__(self, *error: object) -> None:
        await self._transaction.rollback()
        await self._server.close()
        await self._watcher.close()


async def sessions(url: str) -> int:
    """How many connections the database has beside this one."""
    server = await direct(url)
    count: int = await server.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {OTHERS}")
    await server.close()
    return count


async def test_I_52_when_all_connections_are_busy_the_store_is_unavailable_and_recovers(migrated_url: str) -> None:
    stores = await opened(migrated_url, TWO)
    envelope = await running(stores.store)
    async with Locked(migrated_url, envelope.uid) as row:
        held = [asyncio.create_task(stores.store.append_mail(append(1, f"k{number}"))) for number in range(2)]
        await row.waiting(2)
        for _ in range(3):
            with pytest.raises(Unavailable, match="busy"):
                await stores.reads.get(envelope.uid)
    answers = await asyncio.gather(*held)
    assert sorted(answer.seqs for answer in answers if isinstance(answer, Appended)) == [(1,), (2,)]
    assert (await stored(stores.reads, envelope.uid)).mail_received == 2
    await stores.store.close()


async def test_I_18_a_busy_pool_does_not_keep_a_worker_from_renewing(migrated_url: str) -> None:
    stores = await opened(migrated_url, TWO)
    envelope, other = await running(stores.store, 1), await running(stores.store, 2)
    renewals = await stores.store.renewals()
    async with Locked(migrated_url, envelope.uid) as row:
        held = [asyncio.create_task(stores.store.append_mail(append(1, f"k{number}"))) for number in range(2)]
        await row.waiting(2)
        renewal = await renewals.renew("worker-1", [other.uid], 60_000)
        assert set(renewal.held) == {other.uid}
    await asyncio.gather(*held)
    await renewals.close()
    await stores.store.close()


async def test_a_renewal_reconnects(migrated_url: str) -> None:
    stores = await opened(migrated_url)
    envelope = await running(stores.store)
    renewals = await stores.store.renewals()
    assert set((await renewals.renew("worker-1", [envelope.uid], 60_000)).held) == {envelope.uid}
    server = await direct(migrated_url)
    await server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OTHERS}")
    await server.close()
    async with asyncio.timeout(10):
        while True:
            try:
                renewal = await renewals.renew("worker-1", [envelope.uid], 60_000)
                break
            except Unavailable:
                continue
    assert set(renewal.held) == {envelope.uid}
    await renewals.close()
    await stores.store.close()


async def test_whoever_waits_gets_the_next_connection(migrated_url: str) -> None:
    stores = await opened(migrated_url, Pool(connections=2, wait_seconds=10, command_seconds=10))
    await asyncio.gather(*(created(stores.store, number) for number in range(1, 41)))
    assert await sessions(migrated_url) <= 2
    assert len((await stores.store.claim(claim_request(*(f"b{number}" for number in range(1, 41))))).taken) == 40
    await stores.store.close()
    assert await sessions(migrated_url) == 0


async def test_a_cancelled_write_lets_its_connection_go(migrated_url: str) -> None:
    stores = await opened(migrated_url, TWO)
    envelope = await running(stores.store)
    async with Locked(migrated_url, envelope.uid) as row:
        for _ in range(3):
            writes = [asyncio.create_task(stores.store.append_mail(append(1, f"k{number}"))) for number in range(2)]
            await row.waiting(2)
            for write in writes:
                write.cancel()
            assert all(isinstance(answer, asyncio.CancelledError) for answer in await asyncio.gather(*writes, return_exceptions=True))
        assert (await stored(stores.reads, envelope.uid)).mail_received == 0
    assert isinstance(await stores.store.commit(changes(envelope)), Written)
    await stores.store.close()


async def test_a_write_that_was_given_up_does_not_wait_on_for_long(migrated_url: str) -> None:
    """What has waited for a row as long as a statement may take is ended by the server, too, whatever became of the client."""
    stores = await opened(migrated_url, Pool(connections=2, wait_seconds=1, command_seconds=0.5))
    envelope = await running(stores.store)
    async with Locked(migrated_url, envelope.uid) as row:
        with pytest.raises(Unavailable):
            await stores.store.append_mail(append(1, "k1"))
        await row.waiting(0)
    assert (await stored(stores.reads, envelope.uid)).mail_received == 0
    await stores.store.close()


async def test_connections_that_idle_are_given_back(migrated_url: str) -> None:
    address = address_of(parsed(migrated_url), command_seconds=5)
    made = Connections(address, size=5, wait_seconds=5, clock=SystemClock(), chance=SystemChance(), idle_seconds=0.2)
    made.open()
    await asyncio.gather(*(made.fetch(clock(POSTGRES), {}) for _ in range(5)))
    assert made.count == 5
    await until(lambda: made.count == 1)
    await made.fetch(clock(POSTGRES), {})
    await made.close()
    assert made.count == 0


async def test_a_closed_store_is_unavailable(migrated_url: str) -> None:
    stores = await opened(migrated_url)
    await stores.store.close()
    with pytest.raises(Unavailable, match="closed"):
        await stores.store.now()


async def test_closing_lets_a_write_come_to_its_end(migrated_url: str) -> None:
    stores = await opened(migrated_url)
    envelope = await running(stores.store)
    async with Locked(migrated_url, envelope.uid) as row:
        write = asyncio.create_task(stores.store.append_mail(append(1, "k1")))
        await row.waiting(1)
        closing = asyncio.create_task(stores.store.close())
    await closing
    assert isinstance(await write, Appended)


# -- behind a pooler -----------------------------------------------------------------------------------------------------


async def test_behind_a_pooler_nothing_is_prepared_or_set(migrated_url: str) -> None:
    """Two statements may meet two sessions there: each has to bring everything along."""
    stores = await opened(migrated_url + "?prepared_statement_cache_size=0")
    await everything(stores)
    assert isinstance(stores.store, PostgresStore)
    connection = await address_of(parsed(migrated_url + "?prepared_statement_cache_size=0"), command_seconds=5).connect()
    await connection.fetch("SELECT $1::int", 1)
    assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements") == 0
    assert await connection.fetchval("SHOW plan_cache_mode") == "auto"
    await connection.close()
    await stores.store.close()


async def everything(stores: SqlStores) -> None:
    envelope = await running(stores.store)
    assert isinstance(await stores.store.append_mail(append(1, "k1")), Appended)
    assert await stores.store.commit(changes(envelope)) == Written(mail_received=1, drain_leg=None)
    assert set(await stores.store.heads([uid_of(1)])) == {uid_of(1)}


async def test_behind_a_pooler_the_database_has_to_default_to_read_committed(migrated_url: str) -> None:
    server = await direct(migrated_url)
    name = await server.fetchval("SELECT current_database()")
    await server.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'repeatable read'")
    await server.close()
    with pytest.raises(DefinitionError, match="READ COMMITTED"):
        await opened(migrated_url + "?prepared_statement_cache_size=0")
