"""What is held against what: targets, the rows that were measured, and how they are shown and kept."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bound of docs/performance.md. `must` is the least that counts as done, `goal` is where it goes.

    `counted` things are whole: what a few of the runs add to their mean is the machine's, such as a text that was journaled early.
    """

    measure: str
    unit: str
    better: Literal["more", "less"]
    must: float
    goal: float
    counted: bool = False


TARGETS: Mapping[str, Target] = {
    "4": Target(measure="runs/s at c=32, Postgres, of the floor's", unit="x", better="more", must=0.4, goal=0.6),
    "5": Target(measure="runs/s at c=32, SQLite, of the floor's", unit="x", better="more", must=0.4, goal=0.6),
    "6": Target(measure="submit→done p50 at c=1, Postgres, of the floor's", unit="x", better="less", must=2.5, goal=1.6),
    "7": Target(measure="submit→first step p50 at c=1, Postgres, of the floor's", unit="x", better="less", must=2.5, goal=1.6),
    "8": Target(measure="durable commits of a run, Postgres", unit="", better="less", must=6, goal=5, counted=True),
    "8a": Target(measure="commits of a model step and a step of a read tool", unit="", better="less", must=2, goal=2, counted=True),
    "8b": Target(measure="commits that an effect adds to its step", unit="", better="less", must=1, goal=1, counted=True),
    "9": Target(measure="statements of a run, Postgres", unit="", better="less", must=12, goal=8, counted=True),
    "9a": Target(measure="WAL of a run, Postgres", unit=" kB", better="less", must=8, goal=5),
    "10": Target(measure="server CPU of a run at c=32, Postgres", unit=" ms", better="less", must=7, goal=4),
    "11": Target(measure="CPU of a frame, 200 readers, of a bare stream's", unit="x", better="less", must=1.2, goal=0.7),
    "12": Target(measure="p95 of 200 readers at 50 frames/s, of a bare stream's", unit="x", better="less", must=2, goal=1.3),
    "13": Target(measure="idle RSS, API and worker", unit=" MB", better="less", must=110, goal=80),
    "13a": Target(measure="start→ready", unit=" s", better="less", must=2, goal=1),
    "14": Target(measure="idle statements a second, Postgres", unit="", better="less", must=2, goal=0.5),
    "16": Target(measure="verdict→running tool p50, Postgres, API and worker", unit=" ms", better="less", must=50, goal=20),
    "16a": Target(measure="verdict→running tool p50, SQLite, one process", unit=" ms", better="less", must=50, goal=20),
    "17": Target(measure="POST /runs p50 with a key, of that without, Postgres", unit="x", better="less", must=1.05, goal=1.02),
    "17a": Target(measure="POST /runs p50 with a key, of that without, SQLite", unit="x", better="less", must=1.05, goal=1.02),
    "18": Target(measure="memory of 1,000 idle streams", unit=" MB", better="less", must=60, goal=40),
    "18a": Target(measure="done p50 of 100 runs beside 1,000 idle streams, of that without", unit="x", better="less", must=1.1, goal=1.02),
    "19": Target(measure="reading an answer of 2 KB by a Pydantic model", unit=" µs", better="less", must=50, goal=25),
    "19a": Target(measure="reading an answer of 2 KB by a JSON Schema", unit=" µs", better="less", must=50, goal=25),
    "15": Target(measure="cost of step 100, of step 2's", unit="x", better="less", must=1.3, goal=1.1),
    "20": Target(measure="cost of a call with 1,000 in the ledger, of one with 10", unit="x", better="less", must=1.3, goal=1.1),
}
"""By row of the targets' table; a letter where one row has several measures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measurement that has a target. `seen` holds what `value` is the median of."""

    target: str
    value: float
    seen: Sequence[float]
    note: str = ""

    @property
    def verdict(self) -> str:
        target = TARGETS[self.target]
        value = round(self.value) if target.counted else self.value
        for name, bound in (("goal", target.goal), ("must", target.must)):
            if value >= bound if target.better == "more" else value <= bound:
                return name
        return "MISSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Numbers that have no target, or explain those that have."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What one part found. `data` is kept in the file and not shown."""

    rows: Sequence[Row] = ()
    tables: Sequence[Table] = ()
    data: Mapping[str, Any]


def row(target: str, seen: Sequence[float], note: str = "") -> Row:
    """The median of some values, held against a target."""
    return Row(target=target, value=statistics.median(seen), seen=tuple(seen), note=note)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The median, and between which values it lies."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f} to {high:.{digits}f}]"


def shown(rows: Sequence[Row]) -> Table:
    """Rows as a table."""
    lines = []
    for each in rows:
        target = TARGETS[each.target]
        sign = "≥" if target.better == "more" else "≤"
        bounds = [f"{sign} {bound:g}{target.unit}" for bound in (target.must, target.goal)]
        lines.append([each.target, target.measure, f"{spread(each.seen, 2)}{target.unit}", *bounds, each.verdict, each.note])
    return Table(title="Targets", columns=["#", "measure", "measured", "must", "goal", "reached", "note"], lines=lines)


def markdown(table: Table) -> str:
    """A table that reads well in a terminal and in a document."""
    cells = [list(table.columns), *[list(line) for line in table.lines]]
    widths = [max(len(line[place]) for line in cells) for place in range(len(table.columns))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join([f"{table.title}:", "", *lines, ""])


def keep(path: Path, machine: Mapping[str, str], findings: Mapping[str, Findings], weathers: Sequence[str]) -> None:
    """Writes everything into a JSON file."""
    rows = [{**asdict(each), **asdict(TARGETS[each.target]), "verdict": each.verdict} for found in findings.values() for each in found.rows]
    kept = {"machine": machine, "weather": list(weathers), "rows": rows, "parts": {name: found.data for name, found in findings.items()}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
