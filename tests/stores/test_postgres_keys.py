"""Letters that race for a key, on Postgres: a statement sees the mailbox as it was when it began, so the constraint has to decide."""

from __future__ import annotations

import asyncio

from runward.core.kernel.commit import Appended, KeyTaken
from tests.contract.builders import append, created, uid_of
from tests.stores.conftest import direct, opened

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def test_R19a_of_letters_that_began_before_any_was_there_one_takes_the_key(migrated_url: str) -> None:
    """All of them wait for the actor's row, with the mailbox empty before their eyes."""
    stores, watcher, holder = await opened(migrated_url), await direct(migrated_url), await direct(migrated_url)
    await created(stores.store)
    async with holder.transaction():
        await holder.execute("SELECT 1 FROM actors WHERE uid = $1 FOR UPDATE", uid_of(1))
        appending = [asyncio.ensure_future(stores.store.append_mail(append(1, "approval:ap_1"))) for _ in range(3)]
        async with asyncio.timeout(10):
            while await watcher.fetchval(WAITING) < len(appending):  # noqa: ASYNC110 - nobody signals it
                await asyncio.sleep(0.005)
    answers = await asyncio.gather(*appending)
    assert sorted(type(answer).__name__ for answer in answers) == [Appended.__name__, KeyTaken.__name__, KeyTaken.__name__]
    assert await watcher.fetchval("SELECT count(*) FROM mail") == 1
    for server in (watcher, holder):
        await server.close()
    await stores.store.close()
