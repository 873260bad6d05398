"""The workload `model → tool → model → done`, over HTTP to the end of each stream, ours and the floor in turn on one machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tests.bench.house import House, Kind, running
from tests.bench.load import Load, load, percentile
from tests.bench.report import Findings, Row, Table, row, spread
from tests.bench.servers import Process, floor, runward

CALLERS = (1, 32)
NAMES = {"sqlite": "SQLite", "postgres": "Postgres"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A service under load: its processes, the first of which has the door."""

    name: str
    database: str
    processes: Sequence[Process]

    @property
    def url(self) -> str:
        return self.processes[0].url

    def cpu(self) -> float:
        return sum(process.cpu() for process in self.processes)

    def rss(self) -> float:
        return sum(process.rss() for process in self.processes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One load on one contender. CPU in ms a run, memory in MB behind it."""

    load: Load
    server_cpu: float
    database_cpu: float
    rss: float

    def numbers(self) -> dict[str, float]:
        """What is kept of it."""
        times = {"first_frame": self.load.first_frame, "first_step": self.load.first_step, "done": self.load.done}
        return {
            "runs_per_second": self.load.runs_per_second,
            **{f"{name}_p{share}": percentile(values, share / 100) for name, values in times.items() for share in (50, 95)},
            "server_cpu_ms": self.server_cpu,
            "database_cpu_ms": self.database_cpu,
            "client_cpu_ms": self.load.client_cpu,
            "rss_mb": self.rss,
        }


Seen = Mapping[str, Mapping[int, Sequence[Slice]]]
"""The slices of each contender, by number of callers."""


async def measure(house: House, kind: Kind) -> Findings:
    """Ours in one process, ours as an API and a worker, and the floor, in turn."""
    seen = await _turns(house, await _contenders(house, kind))
    rows = _sqlite_rows(seen) if kind == "sqlite" else _postgres_rows(seen)
    data = {
        name: {f"c={callers}": [each.numbers() for each in slices] for callers, slices in loads.items()} for name, loads in seen.items()
    }
    return Findings(rows=rows, tables=[_table(f"{NAMES[kind]}, {callers} callers", seen, callers) for callers in CALLERS], data=data)


async def _contenders(house: House, kind: Kind) -> Sequence[Contender]:
    one, two, least = [await house.database(kind, migrated=migrated) for migrated in (True, True, False)]
    contenders = (
        Contender(name="runward serve", database=one, processes=[runward("serve", one)]),
        Contender(
            name="serve --no-worker + worker", database=two, processes=[runward("serve", two, "--no-worker"), runward("worker", two)]
        ),
        Contender(name="floor", database=least, processes=[floor(least)]),
    )
    return [contenders[0], contenders[-1]] if house.quick else contenders


async def _turns(house: House, contenders: Sequence[Contender]) -> Seen:
    rounds, runs = (3, {1: 30, 32: 200}) if house.quick else (5, {1: 60, 32: 400})
    seen: dict[str, dict[int, list[Slice]]] = {each.name: {callers: [] for callers in CALLERS} for each in contenders}
    with ExitStack() as stack:
        for each in contenders:
            stack.enter_context(running(*each.processes))
            await load(each.url, callers=8, runs=100)
            await house.analyze(each.database)
        for _ in range(rounds):
            for callers in CALLERS:
                for each in contenders:
                    seen[each.name][callers].append(await _slice(house, each, callers, runs[callers]))
    return seen


async def _slice(house: House, contender: Contender, callers: int, runs: int) -> Slice:
    server, database = contender.cpu(), house.postgres.cpu()
    found = await load(contender.url, callers=callers, runs=runs)
    return Slice(
        load=found,
        server_cpu=(contender.cpu() - server) / runs * 1e3,
        database_cpu=(house.postgres.cpu() - database) / runs * 1e3,
        rss=contender.rss(),
    )


def ratios(seen: Seen, callers: int, value: Callable[[Load], float]) -> list[float]:
    """Ours of the floor's, pair by pair: the two of a pair ran one after the other."""
    pairs = zip(seen["runward serve"][callers], seen["floor"][callers], strict=True)
    return [value(ours.load) / value(partner.load) for ours, partner in pairs]


def _postgres_rows(seen: Seen) -> list[Row]:
    ours, partner = seen["runward serve"], seen["floor"]
    return [
        row("4", ratios(seen, 32, lambda each: each.runs_per_second), _against(ours[32], partner[32], "runs_per_second", "/s")),
        row("6", ratios(seen, 1, lambda each: percentile(each.done, 0.5)), _against(ours[1], partner[1], "done_p50", " ms")),
        row("7", ratios(seen, 1, lambda each: percentile(each.first_step, 0.5)), _against(ours[1], partner[1], "first_step_p50", " ms")),
        row("10", [each.server_cpu for each in ours[32]], f"floor {spread([each.server_cpu for each in partner[32]], 2)}"),
    ]


def _sqlite_rows(seen: Seen) -> list[Row]:
    against = _against(seen["runward serve"][32], seen["floor"][32], "runs_per_second", "/s")
    return [row("5", ratios(seen, 32, lambda each: each.runs_per_second), against)]


def _against(ours: Sequence[Slice], partner: Sequence[Slice], name: str, unit: str) -> str:
    mine, its = (statistics.median(each.numbers()[name] for each in slices) for slices in (ours, partner))
    return f"{mine:.1f}{unit} against {its:.1f}{unit}"


def _table(title: str, seen: Seen, callers: int) -> Table:
    columns = [
        "",
        "runs/s",
        "first frame p50 / p95 ms",
        "first step p50 / p95",
        "done p50 / p95",
        "CPU ms a run: server, database, client",
        "RSS MB",
    ]
    return Table(title=title, columns=columns, lines=[_line(name, loads[callers]) for name, loads in seen.items()])


def _line(name: str, slices: Sequence[Slice]) -> list[str]:
    numbers: list[dict[str, Any]] = [each.numbers() for each in slices]
    median = {key: statistics.median(each[key] for each in numbers) for key in numbers[0]}
    times = [f"{median[f'{what}_p50']:.1f} / {median[f'{what}_p95']:.1f}" for what in ("first_frame", "first_step", "done")]
    spent = ", ".join(f"{median[f'{who}_cpu_ms']:.2f}" for who in ("server", "database", "client"))
    return [name, spread([each["runs_per_second"] for each in numbers]), *times, spent, f"{numbers[-1]['rss_mb']:.0f}"]
