"""What a run costs the database, counted in the database: commits, statements and log.

Postgres reports some of it only when its processes have been idle for ten seconds, so the counting waits; the work of an idle service in
the same time is subtracted. SQLite's log is read itself: a reader keeps it from being begun anew, so every commit since is in it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import struct
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import asyncpg

from tests.bench.house import House, running
from tests.bench.load import load
from tests.bench.report import Findings, Row, Table, row
from tests.bench.servers import Process, floor, runward

FLUSH_SECONDS = 11.0
"""After how long idle backends have reported what they did."""

RUNS = 40
PAUSE_SECONDS = 0.02
"""How long a lone caller waits between two runs, so that what one leaves behind is not written together with the next."""

# -- Postgres --------------------------------------------------------------------------------------------------------------

AT_ONCE = """
    SELECT pg_snapshot_xmax(pg_current_snapshot())::text::float8 AS writing_transactions,
        pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 / 1000 AS wal_kb,
        (SELECT coalesce(sum(calls), 0) FROM pg_stat_statements JOIN pg_database ON oid = dbid
            WHERE datname = $1 AND query !~* '^(begin|commit|rollback|savepoint|release)')::float8 AS statements
"""
REPORTED = """
    SELECT sum(fsyncs)::float8 AS commits FROM pg_stat_io WHERE object = 'wal' AND backend_type = 'client backend'
"""
"""Commits that waited for the disk. Backends report this number once they have been idle for ten seconds."""

STATEMENTS = """
    SELECT calls, rows, mean_exec_time, query FROM pg_stat_statements JOIN pg_database ON oid = dbid WHERE datname = $1 ORDER BY calls DESC
"""

Counted = Mapping[str, tuple[float, float]]
"""By name how much was done, and in how many seconds."""


async def measure_postgres(house: House) -> Findings:
    """A run's work at one caller, and that of an idle service, for ours and the floor."""
    ours = await _counted(house, await house.database("postgres", migrated=True), runward)
    least = await _counted(house, await house.database("postgres", migrated=False), lambda command, url: floor(url))
    run, idle = ours["run"], ours["idle"]
    rows = [
        row("8", [run["commits"]], f"floor {least['run']['commits']:.1f}"),
        row("9", [run["statements"]], f"floor {least['run']['statements']:.1f}"),
        row("9a", [run["wal_kb"]], f"floor {least['run']['wal_kb']:.1f} kB"),
        row("14", [idle["statements"]], f"floor {least['idle']['statements']:.2f}"),
    ]
    names = list(run)
    table = Table(
        title="Postgres, work of a run at one caller, and of an idle service each second",
        columns=["", *(name.replace("_", " ") for name in names)],
        lines=[
            [f"{who}, {what}", *(f"{found[what][name]:.2f}" for name in names)]
            for who, found in (("runward serve", ours), ("floor", least))
            for what in ("run", "idle")
        ],
    )
    return Findings(rows=rows, tables=[table], data={"ours": ours, "floor": least})


async def _counted(house: House, database: str, process: Callable[[str, str], Process]) -> dict[str, Any]:
    """A run's work at one caller without that of an idle service in the same time; and that, each second."""
    served = process("serve", database)
    name = database.rpartition("/")[2]
    for each in (name, "postgres"):
        await house.execute(each, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    connection = await house.connect("postgres")
    try:
        with running(served):
            await load(served.url, callers=8, runs=100)
            await asyncio.sleep(FLUSH_SECONDS)
            resting = await _work(connection, name, None)
            busy = await _work(connection, name, load(served.url, callers=1, runs=RUNS, pause=PAUSE_SECONDS))
            statements = await connection.fetch(STATEMENTS, name)
    finally:
        await connection.close()
    idle = {key: done / seconds for key, (done, seconds) in resting.items()}
    run = {key: (done - idle[key] * seconds) / RUNS for key, (done, seconds) in busy.items()}
    return {"run": run, "idle": idle, "statements": [_statement(each) for each in statements]}


async def _work(connection: asyncpg.Connection[Any], name: str, doing: Awaitable[object] | None) -> Counted:
    """What is done in a database while something happens, or, without anything, until late reports are in."""
    await connection.execute("SELECT pg_stat_statements_reset()")
    before, begun = await _numbers(connection, REPORTED) | await _numbers(connection, AT_ONCE, name), time.perf_counter()
    await (doing or asyncio.sleep(FLUSH_SECONDS))
    after, seconds = await _numbers(connection, AT_ONCE, name), time.perf_counter() - begun
    if doing is not None:
        await asyncio.sleep(FLUSH_SECONDS)
    late, waited = await _numbers(connection, REPORTED), time.perf_counter() - begun
    found = {key: (value, seconds) for key, value in after.items()} | {key: (value, waited) for key, value in late.items()}
    return {key: (value - before[key], took) for key, (value, took) in found.items()}


async def _numbers(connection: asyncpg.Connection[Any], query: str, *arguments: str) -> dict[str, float]:
    found = await connection.fetchrow(query, *arguments)
    assert found is not None
    return dict(found)


def _statement(found: asyncpg.Record) -> dict[str, Any]:
    return {
        "calls_a_run": found["calls"] / RUNS,
        "rows": found["rows"],
        "mean_ms": found["mean_exec_time"],
        "statement": found["query"][:400],
    }


# -- SQLite ----------------------------------------------------------------------------------------------------------------

HEADER, FRAME_HEADER = 32, 24


async def measure_sqlite(house: House) -> Findings:
    """A run's commits at one caller and at many, and what a turn and an effect add to them. The least of a few loads counts: on a busy
    machine now and then a text is journaled before its turn is over."""
    ours = await house.database("sqlite", migrated=True)
    least = await house.database("sqlite", migrated=False)
    found: dict[str, dict[str, float]] = {}
    with running(runward_process := runward("serve", ours), floor_process := floor(least)):
        for name, process, database, agent, callers in (
            ("one turn with a read", runward_process, ours, "bench", 1),
            ("two turns with reads", runward_process, ours, "two-reads", 1),
            ("one turn with an effect", runward_process, ours, "one-effect", 1),
            ("one turn, 32 callers", runward_process, ours, "bench", 32),
            ("floor", floor_process, least, "bench", 1),
            ("floor, 32 callers", floor_process, least, "bench", 32),
        ):
            await load(process.url, callers=8, runs=RUNS, agent=agent)
            path = Path(database.partition(":///")[2])
            seen = [await _log_of(path, process.url, agent, callers) for _ in range(1 if house.quick else 3)]
            found[name] = {key: min(each[key] for each in seen) for key in seen[0]}
    one = found["one turn with a read"]["commits"]
    rows: list[Row] = [
        row("8a", [found["two turns with reads"]["commits"] - one], "SQLite: what a second turn adds"),
        row("8b", [found["one turn with an effect"]["commits"] - one], "SQLite: a write in place of a read"),
    ]
    table = Table(
        title="SQLite, log of a run",
        columns=["", "commits", "pages", "kB"],
        lines=[[name, *(f"{values[key]:.2f}" for key in ("commits", "pages", "kb"))] for name, values in found.items()],
    )
    return Findings(rows=rows, tables=[table], data=found)


async def _log_of(path: Path, url: str, agent: str, callers: int) -> dict[str, float]:
    """What each run of a load adds to the log."""
    runs = RUNS if callers == 1 else RUNS * 4
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    try:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        before = log(path)
        await load(url, callers=callers, runs=runs, agent=agent, pause=PAUSE_SECONDS if callers == 1 else 0)
        after = log(path)
    finally:
        reader.close()
    assert after[: len(before)] == before, "the log was begun anew"
    new, page = after[len(before) :], _page_size(path)
    return {"commits": sum(new) / runs, "pages": len(new) / runs, "kb": len(new) * (page + FRAME_HEADER) / 1000 / runs}


def log(path: Path) -> Sequence[bool]:
    """The valid frames of a database's log, in order: whether each ends a transaction."""
    data = Path(f"{path}-wal").read_bytes()
    size, salt = FRAME_HEADER + _page_size(path), data[16:24]
    frames = (data[place : place + FRAME_HEADER] for place in range(HEADER, len(data) - size + 1, size))
    ends = []
    for frame in frames:
        if frame[8:16] != salt:
            break
        ends.append(struct.unpack(">I", frame[4:8])[0] != 0)
    return ends


def _page_size(path: Path) -> int:
    with path.open("rb") as file:
        return int(struct.unpack(">H", file.read(18)[16:18])[0])
