"""How fast a thousand orphaned runs are taken over by one worker, and whether healthy runs keep their leases meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import asyncpg

from tests.bench.agents import GATE_VARIABLE
from tests.bench.house import House, running
from tests.bench.load import create
from tests.bench.report import Findings, Table
from tests.bench.servers import runward

ORPHANS = 1_000
HEALTHY = 20
LEASE_SECONDS = 5.0
PATIENCE_SECONDS = 180.0

STATE = """
    SELECT count(*) FILTER (WHERE agent = 'stuck' AND status = 'running') AS held,
        count(*) FILTER (WHERE status = 'completed') AS completed,
        count(*) FILTER (WHERE agent = 'stuck' AND lease_until < (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS lapsed,
        count(*) FILTER (WHERE agent = 'patient' AND recoveries > 0) AS healthy_recovered
    FROM actors
"""


async def measure(house: House) -> Findings:
    """A worker takes them all and is killed in their tools; another one, which drives healthy runs by then, recovers them."""
    orphans = ORPHANS // 4 if house.quick else ORPHANS
    database = await house.database("postgres", migrated=True)
    gate = house.folder / f"gate-{time.monotonic_ns()}"
    settings = {GATE_VARIABLE: str(gate), "RUNWARD_LEASE_TTL_SECONDS": str(LEASE_SECONDS)}
    door = runward("serve", database, "--no-worker", **settings)
    doomed = runward("worker", database, RUNWARD_WORKER_CONCURRENCY=str(orphans), **settings)
    rescuer = runward("worker", database, RUNWARD_WORKER_CONCURRENCY="64", **settings)
    connection: asyncpg.Connection[Any] = await house.connect(database)
    try:
        with running(door):
            with running(doomed):
                await _create(door.url, "stuck", orphans)
                await _until(connection, lambda state: state["held"] == orphans)
                doomed.kill()
            gate.touch()
            with running(rescuer):
                await _create(door.url, "patient", HEALTHY)
                lapsed = await _until(connection, lambda state: state["lapsed"] > 0 or state["completed"] > 0)
                state = await _until(connection, lambda state: state["completed"] == orphans + HEALTHY)
    finally:
        await connection.close()
    assert state["healthy_recovered"] == 0, "a healthy run lost its lease"
    seconds = state["at"] - lapsed["at"]
    title = f"{orphans} orphans, one worker with 64 slots, {HEALTHY} healthy runs beside them, leases of {LEASE_SECONDS:g} s"
    lines = [[f"{seconds:.1f}", f"{orphans / seconds:.0f}", str(state["healthy_recovered"])]]
    table = Table(title=title, columns=["seconds", "recovered and ended a second", "healthy runs that lost their lease"], lines=lines)
    return Findings(tables=[table], data={"orphans": orphans, "seconds": seconds, "per_second": orphans / seconds})


async def _create(url: str, agent: str, runs: int) -> None:
    numbers = iter(range(runs))
    async with aiohttp.ClientSession(url) as session:

        async def caller() -> None:
            for _ in numbers:
                await create(session, agent)

        await asyncio.gather(*(caller() for _ in range(8)))


async def _until(connection: asyncpg.Connection[Any], over: Any) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = await connection.fetchrow(STATE)
            assert found is not None
            if over(found):
                return {**dict(found), "at": time.perf_counter()}
            await asyncio.sleep(0.1)
