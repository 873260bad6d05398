"""The catalogue of `make mutants` fits the code: every guard is where it says, and every test that it names is there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.guard)
def test_a_guard_is_where_the_catalogue_says(mutant: Mutant) -> None:
    source = (ROOT / "app" / "runward" / mutant.file).read_text()
    assert source.count(mutant.old) == 1
    compile(source.replace(mutant.old, mutant.new), mutant.file, "exec")
    paths = [test for test in mutant.tests if test.startswith("tests/")]
    assert paths and all((ROOT / path).exists() for path in paths)


def test_every_guard_is_named_once() -> None:
    assert [guard for guard, count in Counter(mutant.guard for mutant in MUTANTS).items() if count > 1] == []
