"""Connections: what bounds them must not hurt who behaves."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from runward.api import connections
from tests.api.events import followed
from tests.api.house import House, served
from tests.api.puppet import Puppet, delta

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def test_a_stream_outlives_the_time_that_a_head_has(quiet_house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.05)
    puppet = await Puppet.claim(quiet_house, (await quiet_house.created())["run_id"])
    async with served(quiet_house) as port, followed(port, puppet.run_id) as events:
        await events.to(1)
        assert await events.is_quiet()
        await puppet.say(delta())
        await events.to(2)


async def test_a_connection_may_rest_between_two_requests(quiet_house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.05)
    async with served(quiet_house) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(GET)
            assert (await answer_of(reader))[0] == 200
            await asyncio.sleep(0.15)
        writer.close()


async def test_large_bodies_arrive_whole_and_refused_ones_leave_the_connection_usable(quiet_house: House) -> None:
    async with served(quiet_house) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as http:
        for size, status in ((60_000, 202), (300_000, 202), (1_048_000, 202), (3_000_000, 413), (10, 202), (1_048_000, 202)):
            body = json.dumps({"agent": "support", "input": "x" * size})
            answer = await http.post("/runs", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == status, answer.text


async def test_requests_may_come_close_behind_each_other(quiet_house: House) -> None:
    body = json.dumps({"agent": "support", "input": "x" * 100_000}).encode()
    post = b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with served(quiet_house) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET + post + GET + post + GET[:20])
        assert [(await answer_of(reader))[0] for _ in range(4)] == [200, 202, 200, 202]
        writer.write(GET[20:])
        assert (await answer_of(reader))[0] == 200
        writer.close()


async def test_a_request_may_come_byte_by_byte(quiet_house: House) -> None:
    async with served(quiet_house) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for byte in GET:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert (await answer_of(reader))[0] == 200
        writer.close()


async def test_every_head_of_a_connection_is_bounded_and_each_for_itself(quiet_house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    long = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 20_000
    async with served(quiet_house) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(5):
            writer.write(long)
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write(b"\r\n\r\n")
            assert (await answer_of(reader))[0] == 200
        writer.write(long + b"a" * 100_000)
        assert (await answer_of(reader))[0] == 431
        writer.close()
        monkeypatch.setattr(connections, "HEAD_SECONDS", 0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        assert (await answer_of(reader))[0] == 200
        writer.write(GET[:20])
        assert (await answer_of(reader))[0] == 408
        writer.close()


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """One answer: its status and body."""
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return int(head.split()[1]), await reader.readexactly(length)
