"""Every rule that is kept has a test, and every rule that a test names exists: `docs/rules.toml` is the list."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

NAMED = re.compile(r"(?<![A-Za-z0-9])R\d+[a-z]?(?![A-Za-z0-9])")
"""A rule's number, standing alone or between underscores."""

FIELDS = {
    "planned": {"title", "status"},
    "partly": {"title", "status", "later"},
    "implemented": {"title", "status"},
}
"""What the manifest says of a rule, by its status."""

Manifest = dict[str, dict[str, str]]


def manifest() -> Manifest:
    """The rules by number."""
    return tomllib.loads((ROOT / "docs" / "rules.toml").read_text())


def named_by_tests(source: str) -> Iterator[tuple[str, str]]:
    """Each rule that a test of a module names, in its own name or in the first line of its docstring, with the test's name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            text = node.name + "\n" + (ast.get_docstring(node) or "").split("\n")[0]
            yield from ((rule, node.name) for rule in NAMED.findall(text))


def problems(rules: Manifest, named: dict[str, str]) -> list[str]:
    """What is wrong between the rules and what tests name (rule → a test)."""
    untested = [
        f"{rule} is {entry['status']}, but no test names it"
        for rule, entry in rules.items()
        if entry["status"] != "planned" and rule not in named
    ]
    return untested + [f"{test} names {rule}, which is no rule" for rule, test in named.items() if rule not in rules]


def test_rules_and_tests_agree() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    named = {rule: f"{file.relative_to(ROOT)}::{test}" for file in files for rule, test in named_by_tests(file.read_text())}
    assert not problems(manifest(), named)


def test_the_manifest_is_well_formed_and_complete() -> None:
    rules = manifest()
    malformed = [
        rule
        for rule, entry in rules.items()
        if not re.fullmatch(r"R\d+[a-z]?", rule) or entry.keys() != FIELDS.get(entry.get("status", ""))
    ]
    assert not malformed
    assert len({entry["title"] for entry in rules.values()}) == len(rules)
    assert [f"R{number}" for number in range(1, 50) if f"R{number}" not in rules] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def test_R12_recorded_call_never_runs_again(): ...", ["R12"]),
        ("async def test_R2a_and_R3_on_a_lost_answer(): ...", ["R2a", "R3"]),
        ('class TestX:\n    def test_x(self):\n        """R19a, R6: keys.\n\n        Not R7."""', ["R19a", "R6"]),
        ("def R12_is_no_test(): ...", []),
        ('def test_names():\n    """No rule: R, RR12, R12x4, PR12."""', []),
    ],
)
def test_rules_are_read_off_names_and_docstrings(source: str, found: list[str]) -> None:
    assert [rule for rule, _ in named_by_tests(source)] == found


def test_an_untested_rule_and_an_unknown_one_are_problems() -> None:
    rules = {"R1": {"status": "implemented"}, "R2": {"status": "planned"}, "R3": {"status": "implemented"}, "R4": {"status": "partly"}}
    found = problems(rules, {"R3": "test_a", "R9": "test_b"})
    assert found == [
        "R1 is implemented, but no test names it",
        "R4 is partly, but no test names it",
        "test_b names R9, which is no rule",
    ]
    assert problems(rules, {"R1": "test_a", "R2": "test_b", "R3": "test_c", "R4": "test_d"}) == []
