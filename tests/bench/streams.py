"""What a frame costs on its way out: our streams against a bare response that encodes each frame (`make bench`; never a timed test).

    python -m tests.bench.streams [rounds]

Two loads, 200 readers each, alternating between the two: `replay`, 240 stored frames a reader as fast as they go; `live`, one run that says
50 frames a second, with the time from its append to each reader. The server's CPU per frame is the number to trust on a shared machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import statistics
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from typing import cast

import orjson
import psutil
import uvicorn
import uvloop
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from runward.api.connections import Connection
from runward.core.kernel.actor import Status
from runward.core.kernel.frames import Frame
from tests.api.house import House, Server, house
from tests.api.puppet import Puppet, state

PORT = 18_191
READERS = 200
REPLAYED = 240
RATE, SECONDS = 50, 3
TEXT = "The quick brown fox jumps over the lazy dog. " * 3

# -- the server ------------------------------------------------------------------------------------------------------------


def delta(sent: float) -> Frame:
    return Frame(type="text-delta", fields={"step": 1, "attempt": 1, "delta": TEXT, "sent": sent})


class Bench:
    """The house's app with a bare stream beside ours, and what feeds both."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.queues: set[asyncio.Queue[float | None]] = set()
        for path, endpoint in (("/bare/replay", self.bare_replay), ("/bare/live", self.bare_live)):
            house.app.router.add_route(path, endpoint)
        house.app.router.add_route("/publish/{run_id}", self.publish)
        house.app.router.add_route("/stored", self.stored)

    async def stored(self, request: Request) -> Response:
        """A run with frames that is over."""
        puppet = await self.puppet()
        await puppet.say(*[delta(0) for _ in range(REPLAYED - 3)], state("completed", final=True), status=Status.COMPLETED)
        return JSONResponse(puppet.run_id)

    async def puppet(self) -> Puppet:
        return await Puppet.claim(self.house, (await self.house.created())["run_id"])

    async def publish(self, request: Request) -> Response:
        """Says `RATE` frames a second, to our readers or, as run `bare`, to the others."""
        run_id = request.path_params["run_id"]
        puppet = None if run_id == "bare" else await Puppet.claim(self.house, run_id)
        begun = time.perf_counter()
        for number in range(RATE * SECONDS):
            await asyncio.sleep(max(0.0, begun + number / RATE - time.perf_counter()))
            sent = time.perf_counter()
            for queue in self.queues:
                queue.put_nowait(sent)
            if puppet is not None:
                await puppet.say(delta(sent))
        for queue in self.queues:
            queue.put_nowait(None)
        if puppet is not None:
            await puppet.say(state("completed", final=True), status=Status.COMPLETED)
        return JSONResponse("done")

    async def bare_replay(self, request: Request) -> Response:
        async def frames() -> AsyncIterator[bytes]:
            for number in range(REPLAYED):
                yield encoded(number, 0)
                if not number % 64:
                    await asyncio.sleep(0)

        return StreamingResponse(frames(), media_type="text/event-stream")

    async def bare_live(self, request: Request) -> Response:
        async def frames() -> AsyncIterator[bytes]:
            queue: asyncio.Queue[float | None] = asyncio.Queue()
            self.queues.add(queue)
            try:
                number = 0
                while (sent := await queue.get()) is not None:
                    number += 1
                    yield encoded(number, sent)
            finally:
                self.queues.discard(queue)

        return StreamingResponse(frames(), media_type="text/event-stream")


def encoded(number: int, sent: float) -> bytes:
    frame = {"type": "text-delta", "seq": number, "run_id": "0" * 32, "at": "2026-01-31T12:00:00.000Z", "step": 1, "attempt": 1}
    return b"id: %d\ndata: %b\n\n" % (number, orjson.dumps({**frame, "delta": TEXT, "sent": sent}))


async def serve() -> None:
    async with house(worker=False) as made:
        Bench(made)
        config = uvicorn.Config(made.app, port=PORT, http=Connection, ws="none", lifespan="off", access_log=False, log_level="warning")
        await Server(config).serve()


# -- the readers -----------------------------------------------------------------------------------------------------------


class Reader(asyncio.Protocol):
    """Counts frames, and notes how old each is."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.frames = 0
        self.ages: list[float] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        asked = f"GET {self.path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        cast(asyncio.Transport, transport).write(asked.encode())

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.frames += data.count(b'"type":')
        self.ages += [now - float(found[1]) for found in re.finditer(rb'"sent":([\d.]+)', data)]

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set_result(None)


async def measured(server: psutil.Process, path: str, publish: str | None) -> tuple[float, float]:
    """Microseconds of CPU a frame, and the age in ms of all but the oldest twentieth of them."""
    loop = asyncio.get_running_loop()
    before = spent(server)
    readers = [(await loop.create_connection(lambda: Reader(path), "127.0.0.1", PORT))[1] for _ in range(READERS)]
    if publish is not None:
        await asyncio.sleep(0.5)
        before = spent(server)
        await asyncio.to_thread(get, publish)
    await asyncio.gather(*[reader.over for reader in readers])
    ages = sorted(age for reader in readers for age in reader.ages)
    frames = sum(reader.frames for reader in readers)
    expected = READERS * (REPLAYED if publish is None else RATE * SECONDS)
    assert frames >= expected * 0.99, (path, frames, expected)
    return (spent(server) - before) / frames * 1e6, ages[int(len(ages) * 0.95)] * 1e3


def spent(server: psutil.Process) -> float:
    times = server.cpu_times()
    return float(times.user + times.system)


def get(path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=60) as answer:
        return str(json.load(answer))


async def run(rounds: int) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.bench.streams", "serve")
    server = psutil.Process(process.pid)
    try:
        stored = await asyncio.to_thread(begun)
        seen: dict[str, list[tuple[float, float]]] = {}
        for _ in range(rounds):
            for name, path in (("replay bare", "/bare/replay"), ("replay ours", f"/runs/{stored}/events")):
                seen.setdefault(name, []).append(await measured(server, path, None))
            seen.setdefault("live   bare", []).append(await measured(server, "/bare/live", "/publish/bare"))
            run_id = await asyncio.to_thread(created)
            seen.setdefault("live   ours", []).append(await measured(server, f"/runs/{run_id}/events", f"/publish/{run_id}"))
        for name, numbers in seen.items():
            cpu, age = (statistics.median(column) for column in zip(*numbers, strict=True))
            late = f", p95 {age:5.1f} ms" if name.startswith("live") else ""
            print(f"{name}: {cpu:5.1f} µs of CPU a frame {[round(number[0], 1) for number in numbers]}{late}")
    finally:
        process.terminate()
        await process.wait()


def begun() -> str:
    """A stored run of the server, once there is one."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            return get("/stored")
        time.sleep(0.1)
    raise TimeoutError("The server did not start.")


def created() -> str:
    body = json.dumps({"agent": "support", "input": "hi"}).encode()
    asked = urllib.request.Request(f"http://127.0.0.1:{PORT}/runs", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return str(json.load(answer)["run_id"])


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        uvloop.run(serve())
    else:
        uvloop.run(run(int(sys.argv[1]) if sys.argv[1:] else 3))
