"""Types that refer to themselves in several places: what may be tried is bounded by how deep a value is (R48)."""

from __future__ import annotations

import json
import time
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from runward import Output
from runward.engine.outputs import OutputReader
from tests.tools.doubles import local


class Not(BaseModel):
    arg: Expression
    op: Literal["not"]


class Negative(BaseModel):
    arg: Expression
    op: Literal["neg"]


class Absolute(BaseModel):
    arg: Expression
    op: Literal["abs"]


class Number(BaseModel):
    n: int


Expression = Not | Negative | Absolute | Number


class Formula(BaseModel):
    of: Expression


def formula(depth: int, leaf: Any) -> dict[str, Any]:
    value = {"n": leaf}
    for _ in range(depth):
        value = {"op": "abs", "arg": value}
    return {"of": value}


async def evaluate(of: Expression) -> str:
    """Evaluate an expression."""
    return str(of)


@pytest.mark.parametrize("depth", [8, 10, 20, 40])
def test_countless_mistakes_are_one_and_found_at_once(depth: int) -> None:
    reader, tool, value = OutputReader(Output(schema=Formula)), local(evaluate), formula(depth, "x")
    begun = time.process_time()
    assert "nested too deep to tell where" in str(reader.read(json.dumps(value)).complaint)
    assert "nested too deep to tell where" in str(tool.refusal(value))
    assert time.process_time() - begun < 1


def test_what_people_have_is_read_and_its_mistakes_are_told() -> None:
    reader, tool = OutputReader(Output(schema=Formula)), local(evaluate)
    assert reader.read(json.dumps(formula(6, 1))).value == formula(6, 1) and tool.refusal(formula(6, 1)) is None
    assert "nested" not in str(reader.read(json.dumps(formula(1, "x"))).complaint)
