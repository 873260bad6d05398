"""Whether a long ledger makes a commit dearer: a thousand model calls of one run, each reserved and settled durably."""

from __future__ import annotations

import sqlite3
import statistics
from contextlib import closing

import aiohttp

from tests.bench.agents import CONSULTATIONS
from tests.bench.house import House, Kind, running
from tests.bench.load import create
from tests.bench.report import Findings, Row, Table, row, spread
from tests.bench.servers import runward

WINDOW = 10
"""So many calls are compared: those up to the tenth, and those up to the thousandth."""


async def measure(house: House) -> Findings:
    """The time of a call, which is that of its commit, early and late in the same run, on both databases; and what the run stores."""
    rows: list[Row] = []
    lines = []
    data = {}
    for kind in ("sqlite", "postgres"):
        seen = [await _run(house, kind) for _ in range(3 if house.quick else 7)][1:]
        early = [statistics.median(took[1 : WINDOW + 1]) for took, _ in seen]
        late = [statistics.median(took[-WINDOW:]) for took, _ in seen]
        stored = max(size for _, size in seen)
        lines.append([kind, spread(early, 2), spread(late, 2), f"{stored / 1000:.1f} kB"])
        data[kind] = {"early_ms": early, "late_ms": late, "state_bytes": stored}
        rows.append(row("20", [after / before for before, after in zip(early, late, strict=True)], kind))
    table = Table(
        title=f"A model call of a tool that asks {CONSULTATIONS:,} times",
        columns=["", f"calls 2 to {WINDOW + 1}, ms", f"the last {WINDOW}, ms", "the run's state in the end"],
        lines=lines,
    )
    return Findings(rows=rows, tables=[table], data=data)


async def _run(house: House, kind: Kind) -> tuple[list[float], int]:
    """How long each call took, in ms, and how large the run's state was in the end."""
    database = await house.database(kind, migrated=True)
    with running(served := runward("serve", database)):
        async with aiohttp.ClientSession(served.url, timeout=aiohttp.ClientTimeout(total=120)) as session:
            run_id = await create(session, "consulting")
            async with session.get(f"/runs/{run_id}?wait=60") as answer:
                run = await answer.json()
            async with session.get(f"/runs/{run_id}/messages") as answer:
                messages = (await answer.json())["data"]
    assert run["status"] == "completed" and run["usage"]["model_calls"] == CONSULTATIONS + 2, run
    (result,) = (part for message in messages for part in message["content"] if part["type"] == "tool_result")
    return result["output"], await _stored(house, kind, database)


async def _stored(house: House, kind: Kind, database: str) -> int:
    """How long the state of the only run is, in bytes."""
    query = "SELECT length(state) FROM actors"
    if kind == "sqlite":
        with closing(sqlite3.connect(database.partition(":///")[2])) as file:
            return int(file.execute(query).fetchone()[0])
    connection = await house.connect(database)
    try:
        return int(await connection.fetchval(query))
    finally:
        await connection.close()
