"""Hints over Postgres where something is in their way: connections that end or hang, too many of them, and poolers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from runward.ports.bus import Hint, Topic
from runward.stores import relay
from runward.stores.outbox import ANYTHING, MAX_WAITING
from runward.stores.relay import payloads
from runward.stores.sql import SqlStores
from runward.stores.sql.postgres.bus import MAX_PAYLOAD, PostgresMedium
from tests.contract.builders import uid_of
from tests.stores.conftest import Told, direct, stores_of, until
from tests.support.proxy import Link, Proxy


@dataclass
class Pooler(Proxy):
    """A proxy through which nobody can listen, as through a pooler in transaction mode: LISTEN succeeds, and nothing ever comes."""

    deaf: bool = field(default=True)

    def _heard(self, link: Link, data: bytes) -> bytes:
        if self.deaf:
            data = data.replace(b'LISTEN "runward_', b'LISTEN "nothing_')
        return super()._heard(link, data)


@pytest.fixture
async def pooler(migrated_url: str) -> AsyncIterator[Pooler]:
    async with Pooler("127.0.0.1", int(migrated_url.rsplit(":", 1)[1].split("/", maxsplit=1)[0]), deaf=False) as proxy:
        yield proxy


@pytest.fixture
async def two(migrated_url: str, pooler: Pooler) -> AsyncIterator[tuple[SqlStores, SqlStores, Told]]:
    """The stores of two processes; the second one, of which we hear, is behind the pooler. Their buses are not started."""
    told = Told()
    here, there = stores_of(migrated_url), stores_of(pooler.url(migrated_url), telemetry=told)
    for stores in (here, there):
        await stores.store.open()
    yield here, there, told
    pooler.thaw()
    for stores in (here, there):
        await stores.bus.stop()
        await stores.store.close()


async def test_no_payload_is_longer_than_postgres_takes(two: tuple[SqlStores, SqlStores, Told]) -> None:
    """M-15: one that is fails its transaction."""
    hints = [Hint(Topic.FRAMES, uid_of(number)) for number in range(2_000)]
    texts = list(payloads("p" * 32, hints, longest=MAX_PAYLOAD))
    assert len(texts) > 5 and max(map(len, texts)) <= MAX_PAYLOAD
    here, there, _ = two
    await asyncio.gather(here.bus.start(), there.bus.start())
    await until(lambda: here.bus.healthy and there.bus.healthy)
    heard: set[Hint] = set()
    there.bus.subscribe(heard.add)
    here.bus.publish(hints)
    await until(lambda: heard.issuperset(hints))


async def test_hints_of_a_moment_are_sent_together_and_once(two: tuple[SqlStores, SqlStores, Told], migrated_url: str) -> None:
    here, there, _ = two
    await asyncio.gather(here.bus.start(), there.bus.start())
    await until(lambda: here.bus.healthy and there.bus.healthy)
    server = await direct(migrated_url)
    came: list[str] = []
    channel = "runward_" + await server.fetchval("SELECT identity FROM service")
    await server.add_listener(channel, lambda *payload: came.append(str(payload[3])))
    for _ in range(50):
        here.bus.publish([Hint(Topic.READY, uid_of(1)), Hint(Topic.MAIL, uid_of(2))])
    await until(lambda: len(came) > 0)
    assert [text.partition(" ")[2] for text in came] == [f"r{uid_of(1)},m{uid_of(2)}"]
    await server.close()


async def test_a_bus_that_is_not_heard_polls_and_says_so(
    two: tuple[SqlStores, SqlStores, Told], pooler: Pooler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "ECHO_SECONDS", 0.2)
    pooler.deaf = True
    _, there, told = two
    await there.bus.start()
    await until(lambda: ("bus_polls", {"reason": "unheard"}) in told.events)
    assert not there.bus.healthy
    heard: list[Hint] = []
    there.bus.subscribe(heard.append)
    there.bus.publish([Hint(Topic.READY, "x")])
    await until(lambda: heard == [Hint(Topic.READY, "x")])  # the process itself hears
    pooler.deaf = False
    await until(lambda: there.bus.healthy)
    assert ANYTHING in heard
    assert told.events.count(("bus_polls", {"reason": "unheard"})) == 1


async def test_a_connection_that_died_without_a_sign_is_noticed(
    two: tuple[SqlStores, SqlStores, Told], pooler: Pooler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresMedium, "silence", 0.2)
    monkeypatch.setattr(relay, "ECHO_SECONDS", 0.3)
    here, there, _ = two
    await asyncio.gather(here.bus.start(), there.bus.start())
    await until(lambda: here.bus.healthy and there.bus.healthy)
    heard: list[Hint] = []
    there.bus.subscribe(heard.append)
    pooler.freeze("to_client")
    await until(lambda: not there.bus.healthy)
    here.bus.publish([Hint(Topic.READY, "lost")])
    pooler.cut()
    pooler.thaw()
    await until(lambda: there.bus.healthy)
    assert ANYTHING in heard


async def test_hints_that_could_not_be_sent_are_sent_later(two: tuple[SqlStores, SqlStores, Told], pooler: Pooler) -> None:
    here, there, told = two
    await asyncio.gather(here.bus.start(), there.bus.start())
    await until(lambda: here.bus.healthy and there.bus.healthy)
    heard: list[Hint] = []
    here.bus.subscribe(heard.append)
    await pooler.refuse()
    await until(lambda: not there.bus.healthy)
    there.bus.publish([Hint(Topic.READY, "kept")])
    await asyncio.sleep(0.3)  # it is tried meanwhile
    assert Hint(Topic.READY, "kept") not in heard
    await pooler.accept()
    await until(lambda: Hint(Topic.READY, "kept") in heard)
    await until(lambda: there.bus.healthy)
    assert told.events[1] == ("bus_polls", {"reason": "lost"})


async def test_too_many_hints_become_one_about_anything(two: tuple[SqlStores, SqlStores, Told]) -> None:
    here, there, _ = two
    await here.bus.start()
    await until(lambda: here.bus.healthy)
    heard: set[Hint] = set()
    here.bus.subscribe(heard.add)
    there.bus.publish(Hint(Topic.READY, f"{number}") for number in range(MAX_WAITING + 1))
    await there.bus.start()
    await until(lambda: ANYTHING in heard)
    assert Hint(Topic.READY, "1") not in heard


async def test_a_bus_starts_without_a_server_and_goes_on_trying(two: tuple[SqlStores, SqlStores, Told], pooler: Pooler) -> None:
    _, there, told = two
    await pooler.refuse()
    await there.bus.start()
    await until(lambda: bool(told.events))
    ((name, values),) = told.events
    assert (name, values["reason"]) == ("bus_polls", "away") and values["detail"].startswith("Postgres cannot be reached: ")
    assert not there.bus.healthy
    await pooler.accept()
    await until(lambda: there.bus.healthy)


async def test_stopping_sends_what_was_published_last(two: tuple[SqlStores, SqlStores, Told]) -> None:
    here, there, _ = two
    await asyncio.gather(here.bus.start(), there.bus.start())
    await until(lambda: here.bus.healthy and there.bus.healthy)
    heard: list[Hint] = []
    here.bus.subscribe(heard.append)
    there.bus.publish([Hint(Topic.READY, "last")])
    await there.bus.stop()
    await until(lambda: Hint(Topic.READY, "last") in heard)


async def test_an_idle_bus_asks_nothing(two: tuple[SqlStores, SqlStores, Told], migrated_url: str) -> None:
    here, _, _ = two
    await here.bus.start()
    await until(lambda: here.bus.healthy)
    server = await direct(migrated_url)
    seen = "SELECT max(query_start) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    before: Any = await server.fetchval(seen)
    await asyncio.sleep(0.5)
    assert await server.fetchval(seen) == before
    await server.close()
