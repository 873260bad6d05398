"""What a service takes that does nothing: memory, and time to start."""

from __future__ import annotations

import asyncio
import statistics

from tests.bench.house import House, running
from tests.bench.report import Findings, Table, row, spread
from tests.bench.servers import Process, floor, runward

REST_SECONDS = 2.0


async def measure(house: House) -> Findings:
    """Starts each a few times; the first start, which compiles what has changed, does not count."""
    rounds = 2 if house.quick else 5
    seen: dict[str, list[tuple[float, float]]] = {}
    databases = {
        "runward serve, SQLite": await house.database("sqlite", migrated=True),
        "runward serve, Postgres": await house.database("postgres", migrated=True),
        "floor, SQLite": "",
    }
    for number in range(rounds + 1):
        for name, database in databases.items():
            least = await house.database("sqlite", migrated=False)
            found = await _started(runward("serve", database) if database else floor(least))
            if number:
                seen.setdefault(name, []).append(found)
    starts, memory = ({name: [pair[place] for pair in pairs] for name, pairs in seen.items()} for place in (0, 1))
    others = [name for name in seen if name != "runward serve, SQLite"]
    rows = [
        row("13", memory["runward serve, SQLite"], _beside(memory, others, " MB", 0)),
        row("13a", starts["runward serve, SQLite"], _beside(starts, others, " s", 2)),
    ]
    table = Table(
        title="At rest",
        columns=["", "start→ready s", "RSS MB"],
        lines=[[name, spread(starts[name], 2), spread(memory[name], 0)] for name in seen],
    )
    return Findings(rows=rows, tables=[table], data={"start_s": starts, "rss_mb": memory})


async def _started(process: Process) -> tuple[float, float]:
    """Seconds until it is ready, and its memory once it rests."""
    with running(process):
        await asyncio.sleep(REST_SECONDS)
        return process.seconds_to_ready, process.rss()


def _beside(values: dict[str, list[float]], names: list[str], unit: str, digits: int) -> str:
    """The medians of what it is compared to."""
    return "; ".join(f"{name} {statistics.median(values[name]):.{digits}f}{unit}" for name in names)
