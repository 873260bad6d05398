"""The proxy does to connections what it says: against a server that answers every line with its number, and against the real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

import asyncpg
import pytest
from redis.asyncio import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from tests.support.proxy import Proxy, redis_reply_ends

SOON = 5
"""Seconds within which everything here has long happened."""

A_WHILE = 0.05
"""Seconds in which a byte that is not held back would have arrived."""


class Client:
    """A connection to the proxy that sends lines and reads their answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, line: str) -> str:
        self.writer.write(line.encode() + b"\n")
        return (await asyncio.wait_for(self.reader.readline(), SOON)).decode().strip()


Connect = Callable[[], Awaitable[Client]]


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """A proxy in front of a server that answers `line` with `n:line`, n counting the lines it has heard on all connections."""
    heard = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        try:
            while line := await reader.readline():
                heard += 1
                writer.write(f"{heard}:".encode() + line)
        except ConnectionResetError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1")
    async with server, Proxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        yield proxy


@pytest.fixture
async def connect(proxy: Proxy) -> AsyncIterator[Connect]:
    """Makes clients of the proxy, and closes them in the end."""
    clients: list[Client] = []

    async def new() -> Client:
        clients.append(Client(*await asyncio.open_connection("127.0.0.1", proxy.port)))
        return clients[-1]

    yield new
    for client in clients:
        client.writer.close()
    await asyncio.sleep(0)


async def test_bytes_pass_and_connections_are_counted(proxy: Proxy, connect: Connect) -> None:
    first, second = await connect(), await connect()
    assert [await first.ask("a"), await second.ask("b"), await first.ask("c")] == ["1:a", "2:b", "3:c"]
    assert proxy.connections == 2


async def test_a_delay_is_waited_in_both_directions(proxy: Proxy, connect: Connect) -> None:
    client = await connect()
    proxy.delay = 0.05
    begun = asyncio.get_running_loop().time()
    assert await client.ask("a") == "1:a"
    assert asyncio.get_running_loop().time() - begun >= 0.1


async def test_a_freeze_holds_bytes_back_and_loses_none(proxy: Proxy, connect: Connect) -> None:
    client = await connect()
    proxy.freeze()
    asked = asyncio.create_task(client.ask("a"))
    assert not (await asyncio.wait([asked], timeout=A_WHILE))[0]
    proxy.thaw()
    assert await asked == "1:a"


async def test_one_direction_can_freeze_alone(proxy: Proxy, connect: Connect) -> None:
    client = await connect()
    proxy.freeze("to_client")
    asked = asyncio.create_task(client.ask("a"))
    assert not (await asyncio.wait([asked], timeout=A_WHILE))[0]
    proxy.thaw()
    assert await asked == "1:a"


async def test_a_cut_resets_what_is_open_and_accepts_what_comes(proxy: Proxy, connect: Connect) -> None:
    client = await connect()
    await client.ask("a")
    assert proxy.cut() == 1
    with pytest.raises(ConnectionResetError):
        await client.ask("b")
    assert await (await connect()).ask("c") == "2:c"


async def test_refusing_is_a_closed_port_until_it_accepts_again(proxy: Proxy, connect: Connect) -> None:
    client = await connect()
    await client.ask("a")
    await proxy.refuse()
    with pytest.raises(ConnectionResetError):
        await client.ask("b")
    with pytest.raises(ConnectionRefusedError):
        await connect()
    await proxy.accept()
    assert await (await connect()).ask("c") == "2:c"


async def test_a_reset_comes_after_the_given_bytes(proxy: Proxy, connect: Connect) -> None:
    client = await connect()
    await client.ask("a")
    proxy.reset_after(6)
    assert await client.ask("b") == "2:b"
    client.writer.write(b"ccc\n")
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(client.reader.readexactly(3), SOON)
    proxy.reset_after(None)
    assert await (await connect()).ask("d") == "4:d"


async def test_a_swallowed_reply_was_to_a_request_that_the_server_took(proxy: Proxy, connect: Connect) -> None:
    client = await connect()
    proxy.swallow_reply(to=b"x", skip=1, ends=lambda reply: reply.endswith(b"\n"))
    assert [await client.ask("a"), await client.ask("x"), await client.ask("b")] == ["1:a", "2:x", "3:b"]
    with pytest.raises(ConnectionResetError):
        await client.ask("x")
    await asyncio.wait_for(proxy.swallowed.wait(), SOON)
    assert await (await connect()).ask("x") == "5:x"


async def test_after_a_swallowed_reply_the_connection_may_hang(proxy: Proxy, connect: Connect) -> None:
    client = await connect()
    proxy.swallow_reply(ends=lambda reply: reply.endswith(b"\n"), then="hang")
    asked = asyncio.create_task(client.ask("a"))
    await asyncio.wait_for(proxy.swallowed.wait(), SOON)
    assert not (await asyncio.wait([asked], timeout=A_WHILE))[0]
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        await asked


async def test_a_commit_whose_answer_is_lost_has_happened(postgres_url: str) -> None:
    where = urlsplit(postgres_url)
    assert where.hostname and where.port
    async with Proxy(where.hostname, where.port) as proxy:
        direct = await asyncpg.connect(postgres_url.replace("+asyncpg", ""))
        connection = await asyncpg.connect(proxy.url(postgres_url).replace("+asyncpg", ""))
        await direct.execute("CREATE TABLE counter (n int)")
        await connection.execute("BEGIN; INSERT INTO counter VALUES (1)")
        proxy.swallow_reply(to=b"COMMIT")
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionResetError)):
            await connection.execute("COMMIT")
        await asyncio.wait_for(proxy.swallowed.wait(), SOON)
        assert await direct.fetchval("SELECT count(*) FROM counter") == 1
        await direct.close()


async def test_redis_is_cut_and_comes_back_through_the_proxy(redis_url: str) -> None:
    where = urlsplit(redis_url)
    assert where.hostname and where.port
    async with Proxy(where.hostname, where.port) as proxy, Redis.from_url(proxy.url(redis_url), retry=Retry(NoBackoff(), 0)) as client:
        assert await client.ping()
        proxy.swallow_reply(to=b"PING", ends=redis_reply_ends)
        with pytest.raises(RedisConnectionError):
            await client.ping()
        assert await client.ping()
