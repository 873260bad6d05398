"""What a Postgres that fails, hangs or is taken away does to writes: unknown, never wrong, and forgotten once it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from runward.core.errors import InvariantViolated, Unavailable
from runward.core.kernel.actor import Envelope
from runward.core.kernel.commit import Appended, Created, Stale, Written
from runward.stores.sql import Pool, SqlStores
from runward.stores.sql.postgres import connections
from runward.stores.sql.postgres.store import PostgresDatabase
from tests.contract.builders import (
    append,
    changes,
    claim_request,
    created,
    face,
    frames,
    idempotency_key,
    message,
    new_actor,
    position_of,
    receipt,
    running,
    stored,
    to,
    uid_of,
)
from tests.stores.conftest import QUICK, direct, opened, stores_of, until
from tests.support.proxy import Proxy
from tests.support.servers import Postgres

T = TypeVar("T")
Proxied = tuple[SqlStores, Proxy, str]
OnOwn = tuple[SqlStores, Postgres, str]

MARK = "swallow-me"


async def once_back(operation: Callable[[], Awaitable[T]]) -> T:
    """The operation's answer, as soon as the store is not away any more."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await operation()
            except Unavailable:
                await asyncio.sleep(0.05)


def whole(envelope: Envelope) -> Any:
    """A commit of many parts, with a mark in what is sent."""
    return changes(
        envelope,
        face_of=face(envelope, state=f'{{"{MARK}":1}}'),
        frames=frames(1, 3),
        messages=(message(1),),
        receipts=(receipt("1.1"),),
        mail_to=(to(2, "k1"),),
    )


# -- answers that are lost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["reset", "hang"])
async def test_R2a_a_commit_whose_answer_was_lost_is_found_again(proxied: Proxied, then: Any) -> None:
    stores, proxy, _ = proxied
    envelope = await running(stores.store, 1)
    await created(stores.store, 2)
    commit = whole(envelope)
    proxy.swallow_reply(to=MARK.encode(), then=then)
    with pytest.raises(Unavailable):
        await stores.store.commit(commit)
    assert proxy.swallowed.is_set()
    assert await stores.store.commit(commit) == Stale(leg=1, position=commit.leads_to)
    assert position_of(await stored(stores.reads, envelope.uid)) == commit.leads_to
    assert [mail.key for mail in await stores.reads.mail(uid_of(2), after=0, limit=None)] == ["k1"]


async def test_R2a_a_commit_that_never_arrived_is_written_when_it_is_sent_again(proxied: Proxied) -> None:
    stores, proxy, _ = proxied
    envelope = await running(stores.store, 1)
    await created(stores.store, 2)
    await proxy.refuse()
    with pytest.raises(Unavailable):
        await stores.store.commit(whole(envelope))
    await proxy.accept()
    assert isinstance(await stores.store.commit(whole(envelope)), Written)


async def test_R2a_frames_whose_answer_was_lost_are_found_again(proxied: Proxied) -> None:
    stores, proxy, _ = proxied
    envelope = await running(stores.store)
    new = frames(1, 2, text="x")
    proxy.swallow_reply(to=envelope.uid.encode())
    with pytest.raises(Unavailable):
        await stores.store.append_frames(envelope.uid, position_of(envelope), new)
    after = replace(position_of(envelope), last_seq=2)
    assert await stores.store.append_frames(envelope.uid, position_of(envelope), new) == Stale(leg=1, position=after)


async def test_R2a_a_creation_whose_answer_was_lost_is_found_again(proxied: Proxied) -> None:
    stores, proxy, _ = proxied
    for number, key in ((1, None), (2, idempotency_key())):
        proxy.swallow_reply(to=uid_of(number).encode())
        with pytest.raises(Unavailable):
            await stores.store.create(new_actor(number), key)
        answer = await stores.store.create(new_actor(number), key)
        assert getattr(answer, "uid", None) == uid_of(number)
    assert await stores.store.create(new_actor(1), None) == Created(uid=uid_of(1))


async def test_R2a_a_claim_whose_answer_was_lost_is_given_back(proxied: Proxied) -> None:
    stores, proxy, _ = proxied
    await running(stores.store, 2)
    await created(stores.store)
    proxy.swallow_reply(to=b"worker-7")
    with pytest.raises(Unavailable):
        await stores.store.claim(claim_request("b1", owner="worker-7"))
    assert list(await stores.store.disown("worker-7", await stores.store.owned("worker-7"))) == [uid_of(1)]
    claims = await stores.store.claim(claim_request("b1", owner="worker-7"))
    assert [taken.envelope.leg for taken in claims.taken] == [2]


async def test_R19a_mail_whose_answer_was_lost_shows_as_taken(proxied: Proxied) -> None:
    stores, proxy, _ = proxied
    await created(stores.store)
    proxy.swallow_reply(to=b"key-of-the-letter")
    with pytest.raises(Unavailable):
        await stores.store.append_mail(append(1, "key-of-the-letter"))
    (mail,) = await stores.reads.mail(uid_of(1), after=0, limit=None)
    assert mail.key == "key-of-the-letter"


# -- servers that hang, end and come back --------------------------------------------------------------------------------


async def test_a_frozen_server_is_unavailable_in_time_and_forgotten_afterwards(proxied: Proxied) -> None:
    stores, proxy, _ = proxied
    envelope = await running(stores.store, 1)
    await created(stores.store, 2)
    proxy.freeze()
    async with asyncio.timeout(QUICK.command_seconds + QUICK.wait_seconds + 5):
        answers = await asyncio.gather(
            stores.store.commit(whole(envelope)),
            stores.reads.get(envelope.uid),
            *(stores.store.create(new_actor(number), None) for number in range(10, 20)),
            return_exceptions=True,
        )
    assert all(isinstance(answer, Unavailable) for answer in answers)
    proxy.thaw()
    assert isinstance(await once_back(lambda: stores.store.commit(whole(envelope))), Written | Stale)
    assert position_of(await stored(stores.reads, envelope.uid)) == whole(envelope).leads_to


async def test_F38_a_server_that_was_killed_is_used_again_when_it_is_back(on_own_postgres: OnOwn) -> None:
    stores, server, _ = on_own_postgres
    accepted: list[str] = []
    unknown = 0
    number = 0
    killed = asyncio.Event()

    async def create_on() -> None:
        nonlocal number, unknown
        while not (killed.is_set() and len(accepted) > 200):
            number += 1
            new = new_actor(number)
            try:
                answer = await stores.store.create(new, None)
            except Unavailable:
                unknown += 1
                await asyncio.sleep(0.02)
            else:
                assert answer == Created(uid=new.uid)
                accepted.append(new.uid)

    creating = [asyncio.create_task(create_on()) for _ in range(4)]
    await until(lambda: len(accepted) > 50)
    await asyncio.to_thread(server.kill)
    await until(lambda: unknown > 4)
    await asyncio.to_thread(server.start)
    killed.set()
    await asyncio.gather(*creating)
    heads = await stores.store.heads(accepted)
    assert set(accepted) <= set(heads)


async def test_F38_connections_that_the_server_ended_are_replaced(proxied: Proxied) -> None:
    stores, _, url = proxied
    await asyncio.gather(*(created(stores.store, number) for number in range(1, 9)))
    server = await direct(url)
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    await server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
    await server.close()
    assert await once_back(lambda: created(stores.store, 9)) == uid_of(9)
    await asyncio.gather(*(created(stores.store, number) for number in range(10, 19)))


async def test_a_connection_that_is_known_to_be_closed_is_not_used(proxied: Proxied) -> None:
    stores, proxy, _ = proxied
    await asyncio.gather(*(created(stores.store, number) for number in range(1, 9)))
    database = stores.database
    assert isinstance(database, PostgresDatabase)
    free = database.connections._free
    assert len(free) > 1
    proxy.cut()
    await until(lambda: all(connection.is_closed() for connection, _ in free))
    assert await created(stores.store, 9) == uid_of(9)


async def test_a_store_opens_when_its_server_has_come(own_postgres: Postgres) -> None:
    url = own_postgres.url.format(db="postgres")
    stores = stores_of(url)
    await asyncio.to_thread(own_postgres.stop)
    with pytest.raises(Unavailable):
        await stores.store.open()
    await asyncio.to_thread(own_postgres.start)
    from tests.contract.backends_sql import fill_postgres

    await asyncio.to_thread(fill_postgres, url)
    await stores.store.open()
    await created(stores.store)
    await stores.store.close()


async def test_a_standby_that_does_not_write_is_unavailable(migrated_url: str) -> None:
    server = await direct(migrated_url)
    name = await server.fetchval("SELECT current_database()")
    await server.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    await server.close()
    stores = await opened(migrated_url)
    with pytest.raises(Unavailable):
        await created(stores.store)
    assert await stores.reads.get(uid_of(1)) is None
    await stores.store.close()


# -- conflicts -----------------------------------------------------------------------------------------------------------

CONFLICTS = """
    CREATE SEQUENCE tries;
    CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('tries') <= {times} THEN RAISE EXCEPTION 'not now' USING ERRCODE = '{state}'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER conflict BEFORE UPDATE ON actors FOR EACH ROW EXECUTE FUNCTION conflict();
"""


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_a_conflict_that_undid_a_write_is_repeated_until_it_succeeds(migrated_url: str, state: str) -> None:
    stores = await opened(migrated_url)
    envelope = await running(stores.store)
    server = await direct(migrated_url)
    await server.execute(CONFLICTS.format(times=3, state=state))
    assert isinstance(await stores.store.commit(changes(envelope)), Written)
    assert await server.fetchval("SELECT last_value FROM tries") == 4
    await server.close()
    await stores.store.close()


async def test_conflicts_are_not_repeated_for_ever(migrated_url: str) -> None:
    stores = await opened(migrated_url)
    envelope = await running(stores.store)
    server = await direct(migrated_url)
    await server.execute(CONFLICTS.format(times=10**6, state="40001"))
    with pytest.raises(Unavailable):
        await stores.store.commit(changes(envelope))
    await server.close()
    await stores.store.close()


async def test_the_isolation_is_read_committed_whatever_the_database_says(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise writes to one actor would fail each other, and be repeated."""
    monkeypatch.setattr(connections, "ATTEMPTS", 1)
    server = await direct(migrated_url)
    name = await server.fetchval("SELECT current_database()")
    await server.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'")
    await server.close()
    stores = await opened(migrated_url)
    await created(stores.store)
    answers = await asyncio.gather(*(stores.store.append_mail(append(1, f"k{number}")) for number in range(40)))
    assert sorted(answer.seqs for answer in answers if isinstance(answer, Appended)) == [(number,) for number in range(1, 41)]
    await stores.store.close()


async def test_a_bug_is_no_outage(migrated_url: str) -> None:
    stores = await opened(migrated_url)
    envelope = await running(stores.store)
    commit = changes(envelope, messages=(message(1),))
    assert isinstance(await stores.store.commit(commit), Written)
    again = changes(await stored(stores.reads, envelope.uid), messages=(message(1),))
    with pytest.raises(InvariantViolated):
        await stores.store.commit(again)
    assert position_of(await stored(stores.reads, envelope.uid)) == commit.leads_to
    await stores.store.close()


# -- locks ---------------------------------------------------------------------------------------------------------------


async def test_commits_with_letters_lock_in_one_order(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadlock would not be repeated here, and fail the test."""
    monkeypatch.setattr(connections, "ATTEMPTS", 1)
    stores = await opened(migrated_url, Pool(connections=8, wait_seconds=10, command_seconds=10))
    actors = [await running(stores.store, number) for number in range(1, 9)]

    async def talk(me: int) -> None:
        envelope = actors[me]
        for n in range(20):
            letters = tuple(to(number, f"{me}.{n}") for number in range(1, 9))
            assert isinstance(await stores.store.commit(changes(envelope, mail_to=letters)), Written)
            envelope = replace(envelope, revision=envelope.revision + 1)

    await asyncio.gather(*map(talk, range(8)))
    await stores.store.close()


async def test_a_claim_waits_for_nobody(migrated_url: str) -> None:
    stores = await opened(migrated_url)
    for number in (1, 2, 3):
        await created(stores.store, number, binding="b")
    server = await direct(migrated_url)
    async with server.transaction():
        await server.execute("SELECT 1 FROM actors WHERE uid = $1 FOR UPDATE", uid_of(2))
        claims = await stores.store.claim(claim_request("b", limit=2))
        assert sorted(taken.envelope.uid for taken in claims.taken) == [uid_of(1), uid_of(3)]
    assert len((await stores.store.claim(claim_request("b"))).taken) == 1
    await server.close()
    await stores.store.close()
