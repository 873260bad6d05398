"""`python -m tests.bench [part …] [--quick] [--json FILE]`: measures, prints what was found, and exits 1 when a target was missed."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import uvloop

from tests.bench import answers, counting, flight, footprint, history, identity, ledger, orphans, pairs, streams, verdicts
from tests.bench.house import House, house
from tests.bench.machine import description, weather
from tests.bench.report import Findings, keep, markdown, shown
from tests.support.servers import terminate

Part = Callable[[House], Awaitable[Findings]]

PARTS: Mapping[str, Part] = {
    "postgres": partial(pairs.measure, kind="postgres"),
    "sqlite": partial(pairs.measure, kind="sqlite"),
    "postgres-work": counting.measure_postgres,
    "sqlite-work": counting.measure_sqlite,
    "footprint": footprint.measure,
    "streams": streams.measure,
    "history": history.measure,
    "ledger": ledger.measure,
    "flight": flight.measure,
    "verdicts": verdicts.measure,
    "orphans": orphans.measure,
    "answers": answers.measure,
    "callers": identity.measure_callers,
    "idle-streams": identity.measure_idle,
}
QUICK = ("postgres", "sqlite", "sqlite-work", "footprint", "streams", "answers")
"""What `--quick` measures unless parts are named."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="How fast, against the least code that does the same.")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"what to measure: {', '.join(PARTS)}; default: everything")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, and not every part: a minute instead of six")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), metavar="FILE", help="where the numbers are kept")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, terminate)
    unknown = [name for name in arguments.parts if name not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}: they are {', '.join(PARTS)}")
    return uvloop.run(measured(arguments.parts or (QUICK if arguments.quick else PARTS), quick=arguments.quick, path=arguments.json))


async def measured(names: Iterable[str], *, quick: bool, path: Path) -> int:
    """Measures the parts of these names. Returns the exit code."""
    machine = description()
    print(", ".join(f"{name} {value}" for name, value in machine.items()), end="\n\n")
    findings: dict[str, Findings] = {}
    weathers = []
    with house(quick=quick) as built:
        for name in names:
            weathers.append(f"{name}: {weather()}")
            begun = time.perf_counter()
            findings[name] = await PARTS[name](built)
            print(f"{weathers[-1]}; took {time.perf_counter() - begun:.0f} s", end="\n\n")
            for table in findings[name].tables:
                print(markdown(table), flush=True)
            keep(path, machine, findings, weathers)
    rows = [row for found in findings.values() for row in found.rows]
    if rows:
        print(markdown(shown(rows)))
    print(f"Kept in {path}.")
    return int(any(row.verdict == "MISSED" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
