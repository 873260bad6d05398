"""A database that is taken, on both of them: callers are told to come again, and nobody has to do anything for it to end."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing

import httpx
import pytest

from runward.stores.sql import Pool
from tests.api.events import followed
from tests.api.house import House, house, served
from tests.stores.conftest import direct

RUN = {"agent": "support", "input": "Where is order 7?"}
SMALL = Pool(connections=2, readers=2, wait_seconds=0.3, command_seconds=30)
ON_DISK = pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)


@asynccontextmanager
async def taken(url: str) -> AsyncIterator[None]:
    """Somebody else has the database, for as long as this lasts."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.split("///")[1], isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")
        return
    holder = await direct(url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("LOCK TABLE actors IN ACCESS EXCLUSIVE MODE")
    yield
    await transaction.rollback()
    await holder.close()


def posted(made: House, number: int) -> asyncio.Task[httpx.Response]:
    return asyncio.ensure_future(made.http.post("/runs", json=RUN, headers={"Idempotency-Key": f"k{number}"}))


async def all_wait(url: str) -> None:
    """Returns once every connection of the pool waits for the lock."""
    looking = await direct(url)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(10):
        while await looking.fetchval(waiting) < SMALL.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await looking.close()


@ON_DISK
async def test_I_52_when_nothing_is_free_callers_are_told_to_come_again_and_it_recovers_by_itself(url: str) -> None:
    async with house(worker=False, url=url, pool=SMALL) as made:
        await made.created()
        async with taken(url):
            asked = [posted(made, number) for number in range(12)]
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            while len(done) < 12 - SMALL.connections:
                done, _ = await asyncio.wait(asked, timeout=0.05)
            for answer in [task.result() for task in done]:
                assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "unavailable", "1")
        answers = [await task for task in asked]
        assert {answer.status_code for answer in answers} <= {202, 503}
        again = [await posted(made, number) for number in range(12)]
        assert [answer.status_code for answer in again] == [200 if answer.status_code == 202 else 202 for answer in answers]
        assert len((await made.http.get("/runs")).json()["data"]) == 13
        assert (await made.http.get("/readyz")).status_code == 200
        assert {name for name, _ in made.heard.problems} <= {"request_unavailable"}


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_I_52_while_nothing_is_free_a_stream_is_asked_to_come_back_and_the_process_is_not_ready(url: str) -> None:
    async with house(worker=False, url=url, pool=SMALL) as made:
        run = await made.created()
        async with taken(url):
            held = [posted(made, number) for number in range(SMALL.connections)]
            await all_wait(url)
            stream = await made.http.get(f"/runs/{run['run_id']}/events")
            assert (stream.status_code, stream.text[:12]) == (200, "retry: 5000\n")
            for path in ("/readyz", f"/runs/{run['run_id']}", "/approvals", "/runs"):
                answer = await made.http.get(path)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert (await made.http.get("/healthz")).status_code == 200
        assert [(await task).status_code for task in held] == [202, 202]
        assert (await made.http.get(f"/runs/{run['run_id']}")).json() == run


@ON_DISK
async def test_F_23_streams_pin_no_connection(url: str) -> None:
    async with house(worker=False, url=url, pool=SMALL) as made:
        run = await made.created()
        async with served(made) as port, AsyncExitStack() as open_streams:
            streams = [await open_streams.enter_async_context(followed(port, run["run_id"])) for _ in range(20)]
            for events in streams:
                await events.to(1)
            answers = await asyncio.gather(*(made.http.post("/runs", json=RUN) for _ in range(10)))
            assert {answer.status_code for answer in answers} == {202}
