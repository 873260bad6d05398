"""Whether a long history makes a step dearer: a hundred steps, each of which adds two messages of 20 KB."""

from __future__ import annotations

import re
import statistics
import time

import aiohttp

from tests.bench.agents import LONG_STEPS, PAGE
from tests.bench.house import House, running
from tests.bench.load import ANSWER, END, create
from tests.bench.report import Findings, Row, Table, row, spread
from tests.bench.servers import runward

EARLY, LATE = range(2, 17), range(LONG_STEPS - 16, LONG_STEPS - 1)
"""The steps that are compared; the first takes the claim along, and the last asks for no tool."""

_BEGUN = re.compile(rb'"type":"start-step".*?"step":(\d+)')


async def measure(house: House) -> Findings:
    """The time of a step early and late in the same run, on both databases."""
    rows: list[Row] = []
    lines = []
    data = {}
    for kind in ("sqlite", "postgres"):
        database = await house.database(kind, migrated=True)
        served = runward("serve", database)
        with running(served):
            took = [await _run(served.url) for _ in range(2 if house.quick else 4)]
        early, late = ([statistics.median(steps[number] for number in numbers) for steps in took[1:]] for numbers in (EARLY, LATE))
        lines.append([kind, spread(early, 1), spread(late, 1)])
        data[kind] = {"early_ms": early, "late_ms": late}
        rows.append(row("15", [after / before for before, after in zip(early, late, strict=True)], kind))
    messages = f"a history of {2 * (LONG_STEPS - 1)} messages of {len(PAGE) / 1000:.0f} KB"
    table = Table(
        title=f"A step of {messages}",
        columns=["", f"steps {EARLY.start} to {EARLY.stop - 1}, ms", f"steps {LATE.start} to {LATE.stop - 1}, ms"],
        lines=lines,
    )
    return Findings(rows=rows, tables=[table], data=data)


async def _run(url: str) -> dict[int, float]:
    """How long each step of a run took, in ms."""
    begun: dict[int, float] = {}
    tail = b""
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=120)) as session:
        run_id = await create(session, "long")
        async with session.get(f"/runs/{run_id}/events") as stream:
            async for chunk in stream.content.iter_any():
                now = time.perf_counter()
                tail = tail[-200:] + chunk
                for found in _BEGUN.finditer(tail):
                    begun.setdefault(int(found[1]), now)
    assert ANSWER in tail and END in tail, tail[-500:]
    return {step: (begun[step + 1] - begun[step]) * 1e3 for step in range(1, LONG_STEPS)}
