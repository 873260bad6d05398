"""What a frame costs on its way out: our streams against a bare response that encodes each frame, in turn."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import cast

import aiohttp

from tests.bench.house import House, running
from tests.bench.load import create, percentile
from tests.bench.report import Findings, Table, row, spread
from tests.bench.servers import AGENTS, PYTHON, Process

READERS = 200
RATE, LIVE_SECONDS = 50, 3
PATIENCE_SECONDS = 60
MANY, FEW = 24_000, 240
"""Frames of a run that one reader follows, and that many do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What readers of one stream saw. `cpu`: the server's, µs a frame. `ages`: how old frames were when they came, ms, p50 and p95."""

    frames_per_second: float
    cpu: float
    p50: float
    p95: float


class Reader(asyncio.Protocol):
    """Counts frames, and notes how old each is."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.frames = 0
        self.ages: list[float] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(f"GET {self._path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.frames += data.count(b'{"type":')
        self.ages += [now - float(found[1]) for found in re.finditer(rb'"sent":([1-9][\d.]*)', data)]

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set_result(None)


async def measure(house: House) -> Findings:
    """Stored frames as fast as they go, to one reader and to 200; and one run that says 50 frames a second to 200 readers."""
    database = await house.database("sqlite", migrated=True)
    settings = {"RUNWARD_DATABASE_URL": database, "RUNWARD_AGENTS": str(AGENTS)}
    server = Process([str(PYTHON), "-m", "tests.bench.stream_server"], settings)
    seen: dict[str, dict[str, list[Reading]]] = {}
    with running(server):
        async with aiohttp.ClientSession(server.url) as session:
            many, few = [await _stored(session, frames) for frames in (MANY, FEW)]
            for number in range(2 if house.quick else 6):
                found = {
                    "1 reader": (
                        await _read(server, f"/bare/stored/{MANY}", 1, MANY),
                        await _read(server, f"/runs/{many}/events", 1, MANY),
                    ),
                    f"{READERS} readers": (
                        await _read(server, f"/bare/stored/{FEW}", READERS, FEW),
                        await _read(server, f"/runs/{few}/events", READERS, FEW),
                    ),
                    f"{READERS} readers, {RATE}/s": await _live(server, session),
                }
                for name, (bare, ours) in found.items():
                    if number:  # the first round warms up
                        seen.setdefault(name, {}).setdefault("bare", []).append(bare)
                        seen[name].setdefault("ours", []).append(ours)
    return _findings(seen)


async def _stored(session: aiohttp.ClientSession, frames: int) -> str:
    """A run that is over, with so many frames."""
    run_id = await create(session, "bench")
    await _ask(session, f"/say/stored/{run_id}/{frames}")
    return run_id


async def _live(server: Process, session: aiohttp.ClientSession) -> tuple[Reading, Reading]:
    frames = RATE * LIVE_SECONDS
    run_id = await create(session, "bench")
    bare = await _read(server, "/bare/live", READERS, frames, lambda: _ask(session, f"/say/live/bare/{frames}/{RATE}"))
    return bare, await _read(
        server, f"/runs/{run_id}/events", READERS, frames, lambda: _ask(session, f"/say/live/{run_id}/{frames}/{RATE}")
    )


async def _read(server: Process, path: str, readers: int, frames: int, feed: Callable[[], Awaitable[None]] | None = None) -> Reading:
    """Follows a stream with many readers to its end; what feeds it begins when all are there."""
    loop = asyncio.get_running_loop()
    begun, spent = time.perf_counter(), server.cpu()
    reading = [(await loop.create_connection(lambda: Reader(path), "127.0.0.1", server.port))[1] for _ in range(readers)]
    if feed is not None:
        await asyncio.sleep(0.5)
        begun, spent = time.perf_counter(), server.cpu()
        await feed()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(reader.over for reader in reading))
    seconds, spent = time.perf_counter() - begun, server.cpu() - spent
    ages = [age * 1e3 for reader in reading for age in reader.ages] or [0.0]
    seen = sum(reader.frames for reader in reading)
    assert frames * readers <= seen <= (frames + 5) * readers, (path, seen)
    return Reading(frames_per_second=seen / seconds, cpu=spent / seen * 1e6, p50=percentile(ages, 0.5), p95=percentile(ages, 0.95))


async def _ask(session: aiohttp.ClientSession, path: str) -> None:
    async with session.get(path) as answer:
        assert answer.status == 200, await answer.text()


def _findings(seen: dict[str, dict[str, list[Reading]]]) -> Findings:
    stored, live = seen[f"{READERS} readers"], seen[f"{READERS} readers, {RATE}/s"]
    again = statistics.median(_ratios(live, _cpu))
    rows = [
        row(
            "11",
            _ratios(stored, _cpu),
            f"{_median(stored, 'ours', _cpu):.1f} µs, bare {_median(stored, 'bare', _cpu):.1f}; live {again:.2f}x",
        ),
        row("12", _ratios(live, _p95), f"{_median(live, 'ours', _p95):.1f} ms, bare {_median(live, 'bare', _p95):.1f} ms"),
    ]
    lines = [
        [name, who, spread([each.frames_per_second for each in found], 0), spread([each.cpu for each in found]), _ages(found)]
        for name, pair in seen.items()
        for who, found in pair.items()
    ]
    table = Table(title="Streams", columns=["", "", "frames/s", "CPU µs a frame", "age of a frame p50 / p95 ms"], lines=lines)
    data = {name: {who: [asdict(each) for each in found] for who, found in pair.items()} for name, pair in seen.items()}
    return Findings(rows=rows, tables=[table], data=data)


def _cpu(reading: Reading) -> float:
    return reading.cpu


def _p95(reading: Reading) -> float:
    return reading.p95


def _median(pair: dict[str, list[Reading]], who: str, value: Callable[[Reading], float]) -> float:
    return statistics.median(value(each) for each in pair[who])


def _ratios(pair: dict[str, list[Reading]], value: Callable[[Reading], float]) -> Sequence[float]:
    return [value(ours) / value(bare) for ours, bare in zip(pair["ours"], pair["bare"], strict=True)]


def _ages(found: Sequence[Reading]) -> str:
    p50, p95 = (statistics.median(values) for values in ([each.p50 for each in found], [each.p95 for each in found]))
    return f"{p50:.1f} / {p95:.1f}" if p95 else ""
