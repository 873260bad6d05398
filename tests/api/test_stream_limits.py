"""Streams that meet slow readers, readers who leave, a full process, a store that is away, and the end of the process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import pytest

from runward.api import sse
from runward.api.following import RunFollower
from runward.api.sse import Emit, Streams
from runward.core.errors import Unavailable
from runward.core.kernel.actor import Status
from runward.stores.memory import Faults
from tests.api.events import followed
from tests.api.house import House, house, served, until
from tests.api.puppet import Puppet, delta, state

BIG = "x" * 20_000


@pytest.fixture
async def port(quiet_house: House) -> AsyncIterator[int]:
    async with served(quiet_house) as number:
        yield number


@pytest.fixture
async def puppet(quiet_house: House) -> Puppet:
    run = await quiet_house.created()
    return await Puppet.claim(quiet_house, run["run_id"])


@pytest.fixture
def quick_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pulse every 10 ms: beats after 50 ms, and 500 ms for a reader who does not read."""
    monkeypatch.setattr(sse, "PULSE_SECONDS", 0.01)
    monkeypatch.setattr(sse, "BEAT_PULSES", 5)
    monkeypatch.setattr(sse, "STUCK_PULSES", 50)


def streams_of(house: House) -> Streams:
    streams = house.app.state.streams
    assert isinstance(streams, Streams)
    return streams


async def reader_that_does_not_read(port: int, run_id: str) -> socket.socket:
    """A connection that asked for a stream and takes nothing of it."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(made, ("127.0.0.1", port))
    await loop.sock_sendall(made, f"GET /runs/{run_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return made


async def full(house: House, puppet: Puppet) -> None:
    """Says more than a socket's buffers take, and waits until its stream is stuck with it."""
    for _ in range(20):
        await puppet.say(*[delta(BIG) for _ in range(30)])
    await until(lambda: any(stream._sending for stream in streams_of(house)._open))


@pytest.mark.usefixtures("quick_pulse")
async def test_a_stream_that_is_silent_beats_without_an_id(port: int, puppet: Puppet) -> None:
    async with followed(port, puppet.run_id, after=1) as events:
        while events.comments < 4:
            assert await events.more()
        assert (events.seen, events.raw.split(b"\n\n")[2]) == ([], b":")
        await puppet.say(delta(), state("completed", final=True), status=Status.COMPLETED)
        await events.to_end()
    assert (events.frames, events.done) == (puppet.said[1:], True)


@pytest.mark.usefixtures("quick_pulse")
async def test_R44_a_reader_who_does_not_read_is_cut_off_and_nobody_else_is(port: int, puppet: Puppet, quiet_house: House) -> None:
    stuck = await reader_that_does_not_read(port, puppet.run_id)
    async with followed(port, puppet.run_id) as events:
        reading = asyncio.ensure_future(events.to(602))
        await full(quiet_house, puppet)
        await until(lambda: len(streams_of(quiet_house)) == 1)
        await puppet.say(state("completed", final=True), status=Status.COMPLETED)
        await reading
        await events.to_end()
    assert (events.frames, events.done) == (puppet.said, True)
    assert (quiet_house.service.tails.watching, quiet_house.heard.problems) == (0, [])
    stuck.close()


async def test_a_stuck_stream_holds_little_memory(port: int, puppet: Puppet, quiet_house: House) -> None:
    stuck = await reader_that_does_not_read(port, puppet.run_id)
    await full(quiet_house, puppet)
    (stream,) = streams_of(quiet_house)._open
    assert stream._abort is not None
    transport = stream._abort.__self__  # type: ignore[attr-defined]
    assert transport.get_write_buffer_size() <= 65_536 + 2 * 65_536
    stuck.close()


@pytest.mark.parametrize("blocked", [False, True], ids=["idle", "blocked on a full socket"])
async def test_a_reader_who_leaves_frees_everything_at_once(port: int, puppet: Puppet, quiet_house: House, blocked: bool) -> None:
    reader = await reader_that_does_not_read(port, puppet.run_id)
    await until(lambda: len(streams_of(quiet_house)) == 1)
    if blocked:
        await full(quiet_house, puppet)
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closes with a reset
    reader.close()
    await until(lambda: len(streams_of(quiet_house)) == 0, seconds=3)
    await until(lambda: quiet_house.service.tails.watching == 0, seconds=3)
    assert streams_of(quiet_house)._pulse is None
    assert (await quiet_house.http.get(f"/runs/{puppet.run_id}")).json()["status"] == "running"


async def test_streams_end_properly_when_the_process_stops(quiet_house: House, puppet: Puppet) -> None:
    async with served(quiet_house) as port, followed(port, puppet.run_id) as events:
        await events.to(1)
        quiet_house.door.closing.set()
        await events.to_end()
        assert (events.retries, events.done, events.frames) == ([1000, 5000], False, puppet.said)
        async with followed(port, puppet.run_id, after=1) as late:
            await late.to_end()
        assert (late.retries, late.seen) == ([5000], [])
    assert len(streams_of(quiet_house)) == 0


@pytest.mark.usefixtures("quick_pulse")
async def test_a_reader_who_does_not_read_cannot_hold_up_the_stop(quiet_house: House, puppet: Puppet) -> None:
    async with served(quiet_house) as port:
        stuck = await reader_that_does_not_read(port, puppet.run_id)
        await full(quiet_house, puppet)
        quiet_house.door.closing.set()
        await until(lambda: len(streams_of(quiet_house)) == 0, seconds=3)
    stuck.close()


async def test_a_full_process_asks_readers_to_come_back() -> None:
    async with house(worker=False, max_streams=2) as made, served(made) as port:
        run = await made.created()
        async with followed(port, run["run_id"]) as first, followed(port, run["run_id"]) as second:
            await first.to(1)
            await second.to(1)
            async with followed(port, run["run_id"]) as third:
                await third.to_end()
            assert (third.retries, third.seen) == ([5000], [])
            assert (await made.created())["status"] == "queued"
        await until(lambda: len(streams_of(made)) == 0)
        async with followed(port, run["run_id"]) as third:
            await third.to(1)


class Away(Faults):
    """A store that can be taken away."""

    def __init__(self) -> None:
        self.away = False

    async def before(self, name: str) -> None:
        if self.away and name in ("find", "frames", "heads", "authentication", "key_by_hash"):
            raise Unavailable("The store is away.")


async def test_a_stream_lives_through_a_store_that_is_away_and_a_new_one_is_asked_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runward.api.following.AWAY_SECONDS", 0.01)
    faults = Away()
    async with house(worker=False, faults=faults) as made, served(made) as port:
        puppet = await Puppet.claim(made, (await made.created())["run_id"])
        for _ in range(6):
            await puppet.say(*[delta(f"{number} ") for number in range(300)])
        async with followed(port, puppet.run_id) as events:
            await events.to(200)
            faults.away = True
            async with followed(port, puppet.run_id) as late, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
                await late.to_end()
                assert (await http.get(f"/runs/{puppet.run_id}")).status_code == 503
            assert (late.retries, late.seen) == ([5000], [])
            faults.away = False
            await puppet.say(state("completed", final=True), status=Status.COMPLETED)
            await events.to_end()
        assert (events.frames, events.done) == (puppet.said, True)


async def test_a_stream_that_breaks_is_told_to_operators_and_just_ends(
    port: int, puppet: Puppet, quiet_house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def follow(self: RunFollower, emit: Emit) -> None:
        await emit(b": so far\n\n")
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(RunFollower, "follow", follow)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get(f"/runs/{puppet.run_id}/events")
    assert [name for name, _ in quiet_house.heard.problems] == ["request_failed"]
    assert len(streams_of(quiet_house)) == 0
    assert "hunter2" not in caplog.text
    assert "Exception in ASGI application" not in caplog.text


async def test_a_hundred_readers_pin_nothing_and_get_the_same(port: int, puppet: Puppet, quiet_house: House) -> None:
    async def read() -> list[bytes]:
        async with followed(port, puppet.run_id) as events:
            await events.to_end()
        assert events.done
        return events.frames

    readers = [asyncio.ensure_future(read()) for _ in range(100)]
    await until(lambda: len(streams_of(quiet_house)) == 100 and quiet_house.service.tails.watching > 0, seconds=30)
    assert quiet_house.service.tails.watching == 1
    for number in range(20):
        await puppet.say(delta(f"{number} "))
    await puppet.say(state("completed", final=True), status=Status.COMPLETED)
    assert await asyncio.gather(*readers) == [puppet.said] * 100
    await until(lambda: len(streams_of(quiet_house)) == 0)
