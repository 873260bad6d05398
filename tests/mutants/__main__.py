"""Takes out one guard after the other, and says which test goes red first.

Prints the table that docs/reliability.md keeps. Exits 1 when a guard can be taken out unnoticed, when it is not where the catalogue says
any more, or when taking it out breaks more than a promise.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("app/runward")
SECONDS = 600
"""How long the tests of one mutant may take: some guards are what keeps a test from waiting for ever."""
RED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a mutant. `test` went red first; None when none did, and `why` says how that is."""

    mutant: Mutant
    test: str | None
    seconds: float
    why: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutants ARGS=…", description="Takes out every guard in turn.")
    parser.add_argument("words", nargs="*", help="only guards, files or tests that these words occur in")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if all(word in f"{mutant.guard} {mutant.file} {mutant.tests}" for word in arguments.words)]
    began = time.monotonic()
    with copies(arguments.jobs) as free, ThreadPoolExecutor(arguments.jobs) as threads:
        verdicts = []
        print("| guard that was taken out | the test that went red first |\n| --- | --- |")
        for verdict in threads.map(lambda mutant: judged(mutant, free), chosen):
            verdicts.append(verdict)
            shown = f"`{verdict.test}`" if verdict.test else f"**none**: {verdict.why}"
            print(f"| {verdict.mutant.guard} | {shown} |", flush=True)
    survived = [verdict for verdict in verdicts if verdict.test is None]
    minutes = (time.monotonic() - began) / 60
    print(f"\n{len(verdicts) - len(survived)} of {len(verdicts)} were noticed, in {minutes:.0f} minutes.")
    for verdict in survived:
        print(f"\n-- {verdict.mutant.guard}: {verdict.mutant.file}\n{verdict.why}", file=sys.stderr)
    raise SystemExit(1 if survived or not verdicts else 0)


@contextmanager
def copies(count: int) -> Iterator[SimpleQueue[Path]]:
    """So many copies of the tree, to be broken."""
    free: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for number in range(count):
            copy = Path(folder) / str(number)
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "dist"))
            free.put(copy)
        yield free


def judged(mutant: Mutant, free: SimpleQueue[Path]) -> Verdict:
    """Runs a mutant's tests against it."""
    tree = free.get()
    file = tree / PACKAGE / mutant.file
    whole = file.read_text()
    began = time.monotonic()
    try:
        if (found := whole.count(mutant.old)) != 1:
            return Verdict(mutant=mutant, test=None, seconds=0, why=f"its text occurs {found} times: has the guard moved?")
        broken = whole.replace(mutant.old, mutant.new)
        compile(broken, str(file), "exec")
        file.write_text(broken)
        test, why = first_red(tree, mutant.tests)
        return Verdict(mutant=mutant, test=test, seconds=time.monotonic() - began, why=why)
    finally:
        file.write_text(whole)
        free.put(tree)


def first_red(tree: Path, tests: Sequence[str]) -> tuple[str | None, str]:
    """The first test that fails in a tree, without its parameters; None, and why, when there is none."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "60", "--tb", "line", "-rfE", *tests]
    env = {**os.environ, "PYTHONPATH": str(tree / "app"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"its tests took longer than {SECONDS} s"
    red = RED.search(done.stdout)
    if done.returncode == 1 and red is not None and "::" in red[1]:
        return red[1].partition("[")[0].removeprefix("tests/"), ""
    return None, "every test stayed green" if done.returncode == 0 else f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}"


if __name__ == "__main__":
    main()
