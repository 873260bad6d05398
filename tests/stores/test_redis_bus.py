"""Hints over Redis where something is in their way: it dies, freezes, forgets, refuses, or the network between does (A-08, F-39)."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis as Client

from runward.core.errors import DefinitionError
from runward.engine.clock import SystemChance, SystemClock
from runward.ports.bus import Hint, Topic
from runward.stores.outbox import ANYTHING, MAX_WAITING
from runward.stores.redis import redis_bus
from runward.stores.redis.bus import MAX_PAYLOAD
from runward.stores.relay import Relay
from tests.contract.builders import uid_of
from tests.stores.conftest import Told, until
from tests.support.proxy import Proxy
from tests.support.servers import Redis

PASSWORD = "CANARY-OF-A-PASSWORD"
NOTICED_SECONDS = 6.0
"""Within what time a Redis that says nothing any more is noticed: two seconds of silence, two for the echo, and a busy machine."""


def bus_on(url: str, name: str = "house", told: Told | None = None) -> Relay:
    """The bus of a process of the database of that name."""

    async def identity() -> str:
        return name

    return redis_bus(url, identity=identity, clock=SystemClock(), chance=SystemChance(), telemetry=told or Told())


class Two:
    """The buses of two processes, and what the second one heard and told."""

    def __init__(self, here: str, there: str) -> None:
        self.told = Told()
        self.here, self.there = bus_on(here), bus_on(there, told=self.told)
        self.heard: list[Hint] = []
        self.there.subscribe(self.heard.append)
        self._numbers = iter(range(1, 1_000))

    async def start(self) -> None:
        await asyncio.gather(self.here.start(), self.there.start())
        await self.healthy()

    async def healthy(self) -> None:
        await until(lambda: self.here.healthy and self.there.healthy, 15)

    async def carries(self) -> None:
        """A hint goes from here to there."""
        hint = Hint(Topic.MAIL, uid_of(next(self._numbers)))
        self.here.publish([hint])
        await until(lambda: hint in self.heard)

    async def stop(self) -> None:
        await asyncio.gather(self.here.stop(), self.there.stop())


@pytest.fixture
async def proxy(own_redis: Redis) -> AsyncIterator[Proxy]:
    async with Proxy("127.0.0.1", own_redis.port) as proxy:
        yield proxy
        proxy.thaw()


@pytest.fixture
async def two(own_redis: Redis, proxy: Proxy) -> AsyncIterator[Two]:
    """On a Redis of the test's own, started; the second one is behind the proxy."""
    two = Two(own_redis.url, proxy.url(own_redis.url))
    await two.start()
    yield two
    await two.stop()


async def command(server: Redis, *words: str) -> None:
    async with Client.from_url(server.url) as client:
        await client.execute_command(*words)  # type: ignore[no-untyped-call]  # it has no annotations


async def told_of(url: str) -> Told:
    """What a bus tells that cannot begin to listen."""
    told = Told()
    bus = bus_on(url, told=told)
    await bus.start()
    await until(lambda: bool(told.events))
    assert not bus.healthy
    await bus.stop()
    return told


# -- the server ----------------------------------------------------------------------------------------------------------


async def test_F39_a_redis_that_dies_and_comes_back_empty(two: Two, own_redis: Redis) -> None:
    for _ in range(2):
        two.heard.clear()
        await asyncio.to_thread(own_redis.kill)
        await until(lambda: not two.there.healthy and not two.here.healthy)
        await asyncio.to_thread(own_redis.start)
        await two.healthy()
        assert two.heard.count(ANYTHING) == 1
        await two.carries()
    assert [values["reason"] for name, values in two.told.events if name == "bus_polls"].count("lost") == 2


async def test_F39_a_redis_that_freezes_is_noticed_within_seconds(two: Two, own_redis: Redis) -> None:
    own_redis.pause()
    published = asyncio.get_running_loop().time()
    two.here.publish([Hint(Topic.READY, "frozen")])
    assert asyncio.get_running_loop().time() - published < 0.1
    await until(lambda: not two.there.healthy and not two.here.healthy, NOTICED_SECONDS)
    own_redis.resume()
    await two.healthy()
    assert ANYTHING in two.heard
    await two.carries()


async def test_F39_flushing_changes_nothing(two: Two, own_redis: Redis) -> None:
    two.heard.clear()
    await command(own_redis, "FLUSHALL")
    await two.carries()
    assert ANYTHING not in two.heard and two.there.healthy


@pytest.mark.parametrize("kind", ["pubsub", "normal"])
async def test_a_connection_that_is_killed_is_made_anew(two: Two, own_redis: Redis, kind: str) -> None:
    await two.carries()
    await command(own_redis, "CLIENT", "KILL", "TYPE", kind)
    await two.carries() if kind == "normal" else await until(lambda: ("bus_polls", {"reason": "lost"}) in two.told.events)
    await two.healthy()
    await two.carries()


async def test_at_rest_one_process_asks_for_all(two: Two, own_redis: Redis) -> None:
    """And nothing is stored."""
    async with Client.from_url(own_redis.url) as client:
        watch = client.pubsub()
        await watch.subscribe("runward:house")
        came: list[Any] = []
        async with asyncio.timeout(20):
            while len(came) < 2:
                message = await watch.get_message(ignore_subscribe_messages=True, timeout=1)
                came += [] if message is None else [(asyncio.get_running_loop().time(), message["data"])]
        assert all(payload.endswith(b" ") for _, payload in came) and came[1][0] - came[0][0] > 0.5
        assert await client.dbsize() == 0
        await watch.aclose()  # type: ignore[no-untyped-call]  # it has no annotations


# -- the network ---------------------------------------------------------------------------------------------------------


async def test_A08_replies_that_come_late_lose_nothing(two: Two, proxy: Proxy) -> None:
    """aegra/aegra#439: one time-out of Redis dropped events for good."""
    proxy.delay = 0.05
    hints = [Hint(Topic.FRAMES, uid_of(number)) for number in range(200)]
    came: set[Hint] = set()
    two.here.subscribe(came.add)
    for number, hint in enumerate(hints):
        two.there.publish([hint])
        if number in (50, 150):
            proxy.swallow_reply(to=b"PUBLISH", ends=lambda reply: reply.endswith(b"\r\n"), then="hang")
        await asyncio.sleep(0.002)
    await until(lambda: came.issuperset(hints), 20)
    proxy.delay = 0
    await two.healthy()
    await two.carries()


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
async def test_a_connection_that_hangs_one_way_is_noticed(two: Two, proxy: Proxy, direction: Any) -> None:
    two.heard.clear()
    proxy.freeze(direction)
    if direction == "to_server":  # it goes on hearing, and has to have something to say to find out
        two.there.publish([Hint(Topic.READY, "kept")])
    await until(lambda: not two.there.healthy, NOTICED_SECONDS)
    assert two.here.healthy
    two.here.publish([Hint(Topic.READY, "missed")])
    proxy.cut()
    proxy.thaw()
    await two.healthy()
    assert ANYTHING in two.heard
    await two.carries()


async def test_a_connection_that_breaks_in_the_middle_of_a_payload(two: Two, proxy: Proxy) -> None:
    two.heard.clear()
    proxy.reset_after(100)
    two.here.publish(Hint(Topic.FRAMES, uid_of(number)) for number in range(500))
    await until(lambda: not two.there.healthy)
    proxy.reset_after(None)
    await two.healthy()
    assert ANYTHING in two.heard
    await two.carries()


async def test_memory_is_bounded_while_redis_is_away(two: Two, proxy: Proxy) -> None:
    came: set[Hint] = set()
    two.here.subscribe(came.add)
    await proxy.refuse()
    await until(lambda: not two.there.healthy)
    for number in range(MAX_WAITING + 1):
        two.there.publish([Hint(Topic.FRAMES, uid_of(number))])
    await proxy.accept()
    await until(lambda: ANYTHING in came)
    assert Hint(Topic.FRAMES, uid_of(0)) not in came


# -- who may, and what may be said ---------------------------------------------------------------------------------------


async def test_services_that_share_a_redis_do_not_hear_each_other(own_redis: Redis) -> None:
    """Whatever the number of the database: pub/sub knows none."""
    other_number = own_redis.url.removesuffix("0") + "3"
    here, there, other = bus_on(own_redis.url), bus_on(other_number), bus_on(own_redis.url, "other house")
    heard: dict[str, list[Hint]] = {"there": [], "other": []}
    for bus in (here, there, other):
        await bus.start()
    await until(lambda: here.healthy and there.healthy and other.healthy)
    there.subscribe(heard["there"].append)
    other.subscribe(heard["other"].append)
    here.publish([Hint(Topic.READY, "ours")])
    await until(lambda: heard["there"] == [Hint(Topic.READY, "ours")])
    other.publish([Hint(Topic.READY, "theirs")])
    await until(lambda: heard["other"] == [Hint(Topic.READY, "theirs")])
    for bus in (here, there, other):
        await bus.stop()


async def test_no_payload_is_too_long(own_redis: Redis) -> None:
    two = Two(own_redis.url, own_redis.url)
    await two.start()
    hints = [Hint(Topic.FRAMES, uid_of(number)) for number in range(2_000)]
    lengths: list[int] = []
    async with Client.from_url(own_redis.url) as client:
        watch = client.pubsub()
        await watch.subscribe("runward:house")
        two.here.publish(hints)
        await until(lambda: set(hints) <= set(two.heard))
        while message := await watch.get_message(timeout=0.2):
            lengths += [len(message["data"])] if message["type"] == "message" else []
        await watch.aclose()  # type: ignore[no-untyped-call]  # it has no annotations
    assert len(lengths) > 3 and max(lengths) <= MAX_PAYLOAD
    await two.stop()


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        (f":{PASSWORD}@", "does not accept the user or the password"),
        (f"nobody:{PASSWORD}@", "does not accept the user or the password"),
        ("", "does not accept the user or the password"),
        (f"deaf:{PASSWORD}@", "may not do what hints need"),
        (f"mute:{PASSWORD}@", "may not do what hints need"),
    ],
)
async def test_F39_a_user_who_may_not_is_told_so_without_the_password(own_redis: Redis, user: str, reason: str) -> None:
    await command(own_redis, "ACL", "SETUSER", "deaf", "on", f">{PASSWORD}", "&*", "+publish")
    await command(own_redis, "ACL", "SETUSER", "mute", "on", f">{PASSWORD}", "&*", "+subscribe")
    await command(own_redis, "CONFIG", "SET", "requirepass", "another password")
    told = await told_of(own_redis.url.replace("//", f"//{user}"))
    assert PASSWORD not in repr(told.events)
    ((name, values),) = told.events
    assert (name, values["reason"]) == ("bus_polls", "away") and reason in values["detail"]


@pytest.mark.parametrize(("number", "more"), [("0", []), ("3", ["+select"])])
async def test_a_user_needs_no_more_than_is_documented(own_redis: Redis, number: str, more: list[str]) -> None:
    rules = ["on", f">{PASSWORD}", "resetchannels", "&runward:*", "-@all", "+subscribe", "+publish", *more]
    await command(own_redis, "ACL", "SETUSER", "hints", *rules)
    two = Two(*[own_redis.url.removesuffix("0").replace("//", f"//hints:{PASSWORD}@") + number] * 2)
    await two.start()
    await two.carries()
    await two.stop()


async def test_a_command_that_redis_repeats_in_its_error_is_not_shown(tmp_path: Path) -> None:
    """A Redis whose AUTH was renamed answers `unknown command 'AUTH', with args beginning with:` and then the password."""

    class WithoutAuth(Redis):
        def command(self, folder: Path) -> list[str | Path]:
            return [*super().command(folder), "--rename-command", "AUTH", ""]

    with WithoutAuth() as server:
        told = await told_of(server.url.replace("//", f"//user:{PASSWORD}@"))
    assert PASSWORD not in repr(told.events) and "refuses what it was asked" in repr(told.events)


async def test_a_number_of_a_database_that_it_does_not_have(own_redis: Redis) -> None:
    told = await told_of(own_redis.url.removesuffix("0") + "99")
    assert "has it the database of RUNWARD_REDIS_URL?" in repr(told.events)


async def test_a_host_that_is_none_and_a_port_where_nobody_listens() -> None:
    told = await told_of("redis://127.0.0.1:9/0")
    assert "connect" in told.events[0][1]["detail"].lower()
    told = await told_of("redis://nowhere.invalid:6379/0")
    assert told.events[0][1]["detail"].startswith("Redis cannot be reached: ")


# -- other ways to it ----------------------------------------------------------------------------------------------------


async def test_through_a_socket_of_the_file_system(tmp_path: Path) -> None:
    class OnSocket(Redis):
        def command(self, folder: Path) -> list[str | Path]:
            return [*super().command(folder), "--unixsocket", folder / "socket", "--requirepass", PASSWORD]

        def ready(self, folder: Path, pid: int) -> bool:
            return (folder / "socket").exists()

    with OnSocket() as server:
        url = f"unix://:{PASSWORD}@{server.folder}/socket?db=2"
        two = Two(url, url)
        await two.start()
        await two.carries()
        await two.stop()
        told = await told_of(f"unix://{server.folder}/other")
    assert "no such file or directory" in told.events[0][1]["detail"]


async def test_over_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 2".split()
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*made, *names], check=True, capture_output=True)  # noqa: ASYNC221 - nothing else happens meanwhile
    with Redis() as plain:
        async with TlsInFront(plain.port, key, certificate) as port:
            trusted = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}"
            two = Two(trusted, trusted)
            await two.start()
            await two.carries()
            await two.stop()
            told = await told_of(f"rediss://127.0.0.1:{port}/0")
            assert "TLS fails: self" in told.events[0][1]["detail"]
            told = await told_of(f"redis://127.0.0.1:{port}/0")
            assert told.events[0][1]["detail"].startswith("Redis cannot be reached: ")
        told = await told_of(f"rediss://127.0.0.1:{plain.port}/0")
        assert told.events[0][1]["detail"].startswith("Redis cannot be reached: ")


class TlsInFront:
    """Ends TLS in front of a server that speaks none: the Valkey of the tests was built without it."""

    def __init__(self, server_port: int, key: Path, certificate: Path) -> None:
        self._server_port = server_port
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate, key)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> int:
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, server = await asyncio.open_connection("127.0.0.1", self._server_port)
        try:
            await asyncio.wait(
                [asyncio.create_task(_pump(*way)) for way in ((reader, server), (upstream, writer))], return_when="FIRST_COMPLETED"
            )
        finally:
            server.transport.abort()
            writer.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65_536):
            sink.write(data)
    except OSError:
        return


# -- URLs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        f"{PASSWORD}",
        f"http://user:{PASSWORD}@host:6379",
        f"redis://user:{PASSWORD}@host:port/0",
        f"redis://user:{PASSWORD}@host:6379/name",
        f"redis://user:{PASSWORD}@host:99999/0",
        f"redis://user:{PASSWORD}@:6379/0",
        f"redis://user:{PASSWORD}@[::1/0",
        f"redis://user:{PASSWORD}@host?db=x",
        "redis://",
        "unix://",
        "",
    ],
)
def test_what_is_no_url_of_a_redis(url: str) -> None:
    with pytest.raises(DefinitionError, match="RUNWARD_REDIS_URL is not the URL of a Redis: redis://user:password@host:6379/0") as raised:
        bus_on(url)
    assert PASSWORD not in str(raised.value)
    assert raised.value.__context__ is None or raised.value.__suppress_context__


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"redis://host?retry_on_timeout=1&x={PASSWORD}", "RUNWARD_REDIS_URL has an option that it cannot have. It may have these: "),
        (f"redis://user:12?{PASSWORD}=4@host", "RUNWARD_REDIS_URL has an option that it cannot have. It may have these: "),
        (f"redis://host?ssl_keyfile={PASSWORD}", "RUNWARD_REDIS_URL has options that do not belong to its kind of address."),
        (f"rediss://host?ssl_cert_reqs={PASSWORD}", "RUNWARD_REDIS_URL has options that do not belong to its kind of address."),
    ],
)
def test_options_that_a_url_cannot_have(url: str, message: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        bus_on(url)
    assert raised.value.detail.startswith(message) and PASSWORD not in raised.value.detail
    assert raised.value.__context__ is None or raised.value.__suppress_context__


def test_what_shows_a_bus_shows_no_password() -> None:
    bus = bus_on(f"redis://user:{PASSWORD}@host:6379/0")
    assert PASSWORD not in repr(vars(bus)) + repr(vars(bus._medium))
