"""docs/semantics.md says what the tables say, and speaks of every rule there is."""

from __future__ import annotations

import re
import tomllib

import pytest

from runward.core.runs.calls import AFTER, CallStage, How
from runward.core.runs.state import StopReason
from runward.core.runs.transitions import CALL, RUN, mermaid
from tests.unit.core.document import BLOCK, DOCUMENT, after_table, blocks, written

TEXT = DOCUMENT.read_text()


def rules() -> set[str]:
    return set(tomllib.loads((DOCUMENT.parent / "rules.toml").read_text()))


def test_the_generated_parts_are_fresh() -> None:
    assert written(TEXT) == TEXT, "stale: run .venv/bin/python -m tests.unit.core.document"
    assert {match[2] for match in BLOCK.finditer(TEXT)} == blocks().keys()


def test_every_rule_is_spoken_of_once_and_no_other_is_named() -> None:
    headed = re.findall(r"\*\*(R\d+[a-z]?)\*\*", TEXT)
    assert sorted(headed) == sorted(rules())
    assert set(re.findall(r"\bR\d+[a-z]?\b", TEXT)) <= rules()


def test_the_tables_name_rules_that_exist() -> None:
    assert {row.rule for row in (*RUN, *CALL)} <= rules()


@pytest.mark.parametrize("rows", [RUN, CALL])
def test_a_diagram_has_a_line_for_every_row(rows: tuple[object, ...]) -> None:
    lines = mermaid(RUN if rows is RUN else CALL).splitlines()
    assert lines[0] == "stateDiagram-v2" and len(lines) == len(rows) + 1
    assert mermaid(CALL).splitlines()[1] == "    proposed --> ready: admitted (R17a)"


def test_the_table_of_attempts_has_a_row_for_every_ending() -> None:
    lines = after_table().splitlines()
    assert len(lines) == len(AFTER) + 2
    assert [line.split("`")[1] for line in lines[2:]] == [how.value for how in How]
    assert lines[6] == "| `raised` | try again | fail, effect uncertain |"


def test_what_an_attempt_can_end_as_and_a_run_can_stop_for_is_explained() -> None:
    section = TEXT[TEXT.index("How an attempt can end") : TEXT.index("- **R12**")]
    assert re.findall(r"`(\w+)`[ ,a-z]", section)[0] == "returned"
    assert [how for how in How if f"`{how}`" not in section] == []
    stops = TEXT[TEXT.index("- **R10**") : TEXT.index("- **R11**")]
    assert [reason for reason in StopReason if f"`{reason}`" not in stops] == []
    assert set(CallStage) == {row.source for row in CALL} | {row.target for row in CALL}
