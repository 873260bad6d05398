"""Lives through seeds again: `python -m tests.simulation 17 --notes`, or `python -m tests.simulation 1 1000`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.scenario import simulate


def main() -> int:
    """How many of the seeds broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?", help="the last seed of many")
    parser.add_argument("--notes", action="store_true", help="print everything that happened")
    parser.add_argument("--digests", action="store_true", help="print what the same seed makes the same every time")
    given = parser.parse_args()
    seeds = range(given.first, (given.last or given.first) + 1)
    bad, began = 0, time.perf_counter()
    for seed in seeds:
        outcome = simulate(seed, keep_notes=given.notes)
        if given.notes:
            print("\n".join(outcome.notes))
        if given.digests:
            print(seed, outcome.digest)
        if outcome.violations:
            bad += 1
            print(f"seed {seed}:", *outcome.violations[:3], sep="\n  ")
    took = time.perf_counter() - began
    print(f"{bad} of {len(seeds)} seeds broke a promise; {1000 * took / len(seeds):.1f} ms a seed", file=sys.stderr)
    return bad


sys.exit(min(main(), 1))
