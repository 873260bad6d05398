"""A check cannot be broken off once it runs: what it may cost is known before (R48)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from runward.agents.costs import BUDGET, ENOUGH, MAX_FOREIGN_COST, cost_of, foreign_complaint, size_of
from runward.agents.schemas import Schema


def doubling(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    """Definitions that each refer twice to the next: 2^levels checks."""
    defs: dict[str, Any] = {f"a{n}": {keyword: [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(levels)}
    return {"type": "object", "$defs": {**defs, f"a{levels}": {"type": "object"}}, "$ref": "#/$defs/a0"}


def chain(length: int) -> dict[str, Any]:
    defs: dict[str, Any] = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(length)}
    return {"$defs": {**defs, f"a{length}": True}, "$ref": "#/$defs/a0"}


@pytest.mark.parametrize(
    "schema",
    [
        doubling(40),
        doubling(14, "anyOf"),
        doubling(14, "oneOf"),
        chain(5_000),
        {"items": {"enum": [{"n": n} for n in range(5_000)]}},
        {"pattern": "(a|b|c){1,9999}x"},
        {"pattern": "((a{1,50}){1,50}){1,50}"},
        {"patternProperties": {"(a|b){1,5000}": True}},
        {"pattern": "a" * 600},
        {"properties": {"a": {"anyOf": [{"pattern": "x{2000}"}]}}},
        {"allOf": [{"$ref": "#"}, {"$ref": "#/allOf/0"}], "anyOf": [{"const": n} for n in range(5_000)]},
    ],
)
def test_R48_a_request_cannot_bring_a_schema_that_is_costly_to_check(schema: dict[str, Any]) -> None:
    begun = time.process_time()
    assert foreign_complaint(schema) is not None and time.process_time() - begun < 1


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"path": {"type": "string", "pattern": "^[a-z]{2,64}$"}}, "required": ["path"]},
        {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"},
        {"$defs": {"a": {"enum": ["x", "y"]}}, "items": {"$ref": "#/$defs/a"}},
        {"const": {"pattern": "x{9999}"}},
        doubling(8),
    ],
)
def test_what_people_write_is_taken(schema: dict[str, Any]) -> None:
    assert foreign_complaint(schema) is None and cost_of(schema) <= MAX_FOREIGN_COST


def test_a_value_that_is_too_large_for_its_schema_does_not_fit_and_says_so() -> None:
    schema = Schema(doubling(40), of="It")
    begun = time.process_time()
    assert not schema.fits({}) and schema.complaint({}) == "the whole is too large to be checked against its schema"
    assert time.process_time() - begun < 1 and cost_of(doubling(40)) >= ENOUGH // 2 > BUDGET


def test_the_size_of_a_value_counts_its_places() -> None:
    assert (size_of(1), size_of([1, 2]), size_of({"a": [1, {"b": None}]}), size_of("x" * 640)) == (1, 3, 5, 11)
