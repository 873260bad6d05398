"""How many runs one process holds: 2,000 at once with a model that thinks for a second, one worker, Postgres."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg

from tests.bench.agents import MODEL_SECONDS, PATIENT_STEPS
from tests.bench.house import House, running
from tests.bench.load import create, percentile
from tests.bench.report import Findings, Table
from tests.bench.servers import Process, runward

RUNS = 2_000
LEASE_SECONDS = 30.0
SAMPLE_SECONDS = 0.5
PATIENCE_SECONDS = 120.0

STATE = """
    SELECT count(*) FILTER (WHERE status = 'running') AS driven, count(*) FILTER (WHERE status = 'completed') AS completed,
        min(lease_until) FILTER (WHERE status = 'running') - (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS margin,
        sum(recoveries) AS recoveries
    FROM actors
"""


async def measure(house: House) -> Findings:
    """Creates them all, then starts the worker, which takes them all at once, and watches until they have ended."""
    runs = RUNS // 4 if house.quick else RUNS
    database = await house.database("postgres", migrated=True)
    lags_file = house.folder / "lags"
    door = runward("serve", database, "--no-worker")
    worker = runward("worker", database, RUNWARD_WORKER_CONCURRENCY=str(runs), BENCH_LAG_FILE=str(lags_file))
    with running(door):
        await _create(door.url, runs)
        begun = time.perf_counter()
        with running(worker):
            samples = await _watched(house, database, worker, runs)
            seconds, spent = time.perf_counter() - begun, worker.cpu()
    lags = _lags(lags_file)
    data: dict[str, Any] = {
        "most_driven_at_once": max(sample["driven"] for sample in samples),
        "seconds": seconds,
        "steps_per_second": runs * (2 * PATIENT_STEPS - 1) / seconds,
        "cpu_ms_a_run": spent / runs * 1e3,
        "rss_mb": max(sample["rss"] for sample in samples),
        "loop_lag_p50_ms": percentile(lags, 0.5),
        "loop_lag_p99_ms": percentile(lags, 0.99),
        "least_left_of_a_lease_s": min(sample["margin"] for sample in samples if sample["margin"] is not None) / 1000,
        "recoveries": max(int(sample["recoveries"]) for sample in samples),
    }
    assert data["recoveries"] == 0, "a lease ran out"
    title = f"{runs} runs with {PATIENT_STEPS} model calls of {MODEL_SECONDS:g} s each, one worker, leases of {LEASE_SECONDS:g} s"
    names = {key: f"{value:.1f}" if isinstance(value, float) else str(value) for key, value in data.items()}
    table = Table(title=title, columns=[key.replace("_", " ") for key in names], lines=[list(names.values())])
    return Findings(tables=[table], data={"runs": runs, **data})


async def _create(url: str, runs: int) -> None:
    numbers = iter(range(runs))
    async with aiohttp.ClientSession(url) as session:

        async def caller() -> None:
            for _ in numbers:
                await create(session, "patient")

        await asyncio.gather(*(caller() for _ in range(8)))


async def _watched(house: House, database: str, worker: Process, runs: int) -> list[dict[str, Any]]:
    """Samples of where the runs stand, until all have completed."""
    samples: list[dict[str, Any]] = []
    connection: asyncpg.Connection[Any] = await house.connect(database)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not samples or samples[-1]["completed"] < runs:
                await asyncio.sleep(SAMPLE_SECONDS)
                found = await connection.fetchrow(STATE)
                assert found is not None
                samples.append({**dict(found), "rss": worker.rss()})
    finally:
        await connection.close()
    return samples


def _lags(path: Path) -> list[float]:
    return [lag for line in path.read_text(encoding="utf-8").splitlines() for lag in json.loads(line)]
