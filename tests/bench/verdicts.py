"""A verdict's way: from the POST that approves a call to the tool that runs, with idle workers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp

from tests.bench.house import House, Kind, running
from tests.bench.load import create, percentile
from tests.bench.report import Findings, Row, Table, row
from tests.bench.servers import runward

VERDICTS = 100
PAUSE_SECONDS = 0.05
"""Between two verdicts, so that nothing of the one before is still under way."""


async def measure(house: House) -> Findings:
    """One process on SQLite, an API and a worker on Postgres."""
    verdicts = VERDICTS // 4 if house.quick else VERDICTS
    rows: list[Row] = []
    lines: list[list[str]] = []
    data: dict[str, Any] = {}
    for kind in ("sqlite", "postgres"):
        seen = await _seen(house, kind, verdicts)
        data[kind] = seen
        target = "16" if kind == "postgres" else "16a"
        rows.append(row(target, [percentile(seen, 0.5)], note=f"{verdicts} verdicts"))
        lines.append([kind, f"{percentile(seen, 0.5):.1f}", f"{percentile(seen, 0.95):.1f}", f"{max(seen):.1f}"])
    title = "From the verdict's POST to the running tool, ms"
    return Findings(rows=rows, tables=[Table(title=title, columns=["store", "p50", "p95", "most"], lines=lines)], data=data)


async def _seen(house: House, kind: Kind, verdicts: int) -> list[float]:
    """Milliseconds of each verdict, by the clock that client and tool share."""
    database = await house.database(kind, migrated=True)
    door = runward("serve", database, *(() if kind == "sqlite" else ("--no-worker",)))
    processes = (door,) if kind == "sqlite" else (door, runward("worker", database))
    with running(*processes):
        async with aiohttp.ClientSession(door.url) as session:
            return [await _verdict(session) for _ in range(verdicts)]


async def _verdict(session: aiohttp.ClientSession) -> float:
    run_id = await create(session, "gated")
    async with session.get(f"/runs/{run_id}?wait=20") as answer:
        (request,) = (await answer.json())["pending"]["approvals"]
    await asyncio.sleep(PAUSE_SECONDS)
    decided = time.time()
    async with session.post(f"/approvals/{request['approval_id']}", json={"approved": True}) as answer:
        assert answer.status == 200, await answer.text()
    async with session.get(f"/runs/{run_id}?wait=20&until=ended") as answer:
        assert (await answer.json())["status"] == "completed"
    async with session.get(f"/runs/{run_id}/messages") as answer:
        messages = (await answer.json())["data"]
    (result,) = (part for message in messages for part in message["content"] if part["type"] == "tool_result")
    return (float(result["output"]) - decided) * 1e3
