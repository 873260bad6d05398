"""`docs/reliability.md` names tests that exist, every report it was asked about, every row of the crash matrix, and every fault point.
So does `docs/security.md`, for each of its promises."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from runward.engine.probes import PLACES, WRITES

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text()
SECURITY = (ROOT / "docs" / "security.md").read_text()
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
"""A test as the page names it, its file taken from `tests/`."""
REPORTS = 38


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of every row of a section's tables, without their heads."""
    lines = re.findall(r"^\| (.+) \|$", section(title), re.MULTILINE)
    return [line.split(" | ") for line in lines if not line.startswith("---")][1:]


@cache
def names_in(file: str) -> frozenset[str]:
    path = ROOT / "tests" / file
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module(body=[], type_ignores=[])
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_test_that_is_named_exists() -> None:
    assert [f"{file}::{name}" for file, name in NAMED.findall(TEXT + SECURITY) if name not in names_in(file)] == []


def test_every_promise_of_security_has_a_test() -> None:
    promises = SECURITY.split("\n## The doors\n")[1].split("\n## ")[0]
    lines = [line for line in promises.splitlines() if line.startswith("| ") and not line.startswith(("| promised", "| ---"))]
    assert len(lines) > 20
    assert [line for line in lines if not NAMED.search(line)] == []


def test_every_report_has_its_row_with_a_test_or_a_reason() -> None:
    reports = rows("What others were told")
    assert [cells[0][:4] for cells in reports] == [f"A-{number:02}" for number in range(1, REPORTS + 1)]
    assert [cells[0] for cells in reports if not NAMED.search(cells[2]) and "Not reachable yet" not in cells[2]] == []


def test_every_row_of_the_crash_matrix_has_a_test() -> None:
    matrix = (ROOT / "docs" / "semantics.md").read_text().split("\n## 12. ")[1].split("\n## ")[0]
    asked = [line.split(" | ")[0].removeprefix("| ") for line in matrix.splitlines() if line.startswith("| ")][2:]
    proven = rows("The crash matrix")
    assert [cells[0] for cells in proven] == asked
    assert [cells[0] for cells in proven if not NAMED.search(cells[1])] == []


def test_every_fault_point_is_documented() -> None:
    documented = re.findall(r"^\| (`.+?`) \| (.+?) \|$", section("Fault points"), re.MULTILINE)
    writes = {f"`before_{name}`, `after_{name}`": what for name, what in WRITES.items()}
    assert dict(documented) == writes | {f"`{name}`": what for name, what in PLACES.items()}
