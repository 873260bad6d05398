"""Servers start, die, pause and come back as asked, and nothing outlives who started it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest
from redis import Redis as RedisClient
from redis import exceptions as redis_errors

from tests.support.databases import Databases
from tests.support.servers import Postgres, Redis, free_port
from tests.support.shared import ROOT, SharedServers

A_WHILE = 0.1
"""Seconds in which a server that is not paused would have answered."""


def eventually(condition: Callable[[], bool], seconds: float = 15) -> bool:
    """Whether a condition comes true within some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])


async def connect(url: str) -> asyncpg.Connection[asyncpg.Record]:
    return await asyncpg.connect(url.format(db="postgres").replace("+asyncpg", ""))


async def test_a_killed_postgres_comes_back_with_every_commit_on_the_same_port(own_postgres: Postgres) -> None:
    port = own_postgres.port
    connection = await connect(own_postgres.url)
    await connection.execute("CREATE TABLE kept (n int)")
    await connection.execute("INSERT INTO kept VALUES (7)")
    own_postgres.kill()
    assert not own_postgres.running
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)):
        await connection.fetchval("SELECT 1")
    with pytest.raises(ConnectionRefusedError):
        await connect(own_postgres.url)
    own_postgres.start()
    assert own_postgres.port == port
    connection = await connect(own_postgres.url)
    assert await connection.fetchval("SELECT n FROM kept") == 7
    await connection.close()


async def test_a_paused_postgres_answers_nobody_until_it_goes_on(own_postgres: Postgres) -> None:
    connection = await connect(own_postgres.url)
    own_postgres.pause()
    asked = asyncio.create_task(connection.fetchval("SELECT 1"))
    assert not (await asyncio.wait([asked], timeout=A_WHILE))[0]
    own_postgres.resume()
    assert await asked == 1
    await connection.close()


async def test_a_restart_is_orderly_and_a_paused_server_can_be_closed(own_postgres: Postgres) -> None:
    folder = own_postgres.folder
    assert folder is not None
    own_postgres.restart()
    assert "received fast shutdown request" in own_postgres.log()
    own_postgres.pause()
    own_postgres.close()
    assert not listens(own_postgres.port)
    assert not folder.exists()


def test_postgres_runs_from_copied_binaries_where_the_environment_is_closed_to_others(tmp_path: Path) -> None:
    server = Postgres()
    server._copy_binaries(tmp_path)
    assert server.binaries.is_relative_to(tmp_path)
    shown = subprocess.run([server.binaries / "initdb", "--version"], capture_output=True, text=True)
    assert shown.stdout.startswith("initdb (PostgreSQL)"), shown.stderr


def test_redis_dies_pauses_and_comes_back(own_redis: Redis) -> None:
    with RedisClient.from_url(own_redis.url, socket_timeout=A_WHILE, retry=None) as client:
        assert client.ping()
        own_redis.pause()
        with pytest.raises(redis_errors.TimeoutError):
            client.ping()
        own_redis.kill()
        with pytest.raises(redis_errors.ConnectionError):
            client.ping()
        own_redis.start()
        assert client.ping()


async def test_a_template_is_filled_once_and_copied_as_often_as_wanted(postgres_server: Databases) -> None:
    filled = []

    async def fill(url: str) -> None:
        connection = await connect(url)
        await connection.execute("CREATE TABLE from_template (n int)")
        await connection.close()

    def fill_and_note(url: str) -> None:
        asyncio.run(fill(url))
        filled.append(url)

    key = f"once_{os.getpid()}"
    names = await asyncio.gather(*(asyncio.to_thread(postgres_server.template, key, fill_and_note) for _ in range(3)))
    assert len(filled) == len(set(names)) == 1
    copies = [postgres_server.create(names[0]) for _ in range(2)]
    assert len(set(copies)) == 2
    for url in copies:
        connection = await connect(url)
        assert await connection.fetchval("SELECT count(*) FROM from_template") == 0
        await connection.close()
        postgres_server.drop(url)
        with pytest.raises(asyncpg.InvalidCatalogNameError):
            await connect(url)


async def test_a_template_that_could_not_be_filled_is_filled_by_the_next_who_asks(postgres_server: Databases) -> None:
    def fail(url: str) -> None:
        raise ZeroDivisionError

    key = f"again_{os.getpid()}"
    with pytest.raises(ZeroDivisionError):
        postgres_server.template(key, fail)
    assert postgres_server.create(postgres_server.template(key, lambda url: None))


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty folder for temporary files that every user can go to, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.parametrize("kind", ["postgres", "redis"])
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_server_started_by_hand_ends_with_its_starter(kind: str, end: signal.Signals, place: Path) -> None:
    command = [sys.executable, "-m", "tests.support.servers", kind]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(place)}) as starter:
        assert starter.stdout is not None
        port = port_of(starter.stdout.readline())
        assert listens(port)
        assert list(place.iterdir())
        starter.send_signal(end)
        assert starter.wait(20) == (-9 if end == signal.SIGKILL else 0)
    assert eventually(lambda: not listens(port) and not list(place.iterdir()))


def test_processes_of_a_session_share_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNWARD_TEST_REDIS_URL", raising=False)
    owner = SharedServers()
    joined = [SharedServers(owner.folder) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        urls = set(pool.map(SharedServers.redis, joined))
    owner.close()
    assert len(urls) == 1
    assert not listens(port_of(urls.pop()))
    assert sorted(len(process.started) for process in joined) == [0, 0, 0, 1]
    assert [keeper.wait(10) for process in joined for keeper in process.started] == [0]


OWNER = """
import signal, sys
from tests.support.shared import SharedServers
servers = SharedServers()
print(servers.redis(), flush=True)
sys.stdin.read()
servers.close()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_shared_servers_end_with_the_session_however_that_ends(killed: bool, place: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(place)}
    environment.pop("RUNWARD_TEST_REDIS_URL", None)
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        port = port_of(owner.stdout.readline())
        assert listens(port)
        if killed:
            owner.kill()
        else:
            owner.communicate(timeout=30)
            assert owner.returncode == 0
            assert not list(place.iterdir()), "closing waits until everything is gone"
    assert eventually(lambda: not listens(port) and not list(place.iterdir()))


def test_a_free_port_lies_below_those_of_outgoing_connections() -> None:
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 10
    assert max(ports) < 32768
