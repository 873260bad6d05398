"""A check cannot be broken off once it runs: what it may cost is known before (R48)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runward.agents.costs import (
    BUDGET,
    ENOUGH,
    MAX_FOREIGN_COST,
    cost_of,
    foreign_complaint,
    pattern_states,
    size_of,
    states_of,
    turns_of,
    ways_of,
)
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
        {"properties": {"default": {"pattern": "x{2000}"}}},
        {"$defs": {"const": {"pattern": "x{2000}"}}, "$ref": "#/$defs/const"},
        {"properties": {"examples": {"enum": [{"n": n} for n in range(5_000)]}}},
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


SLOW = "[ab]*a[ab]{900}c0"
"""Linear, and slow: each character is held against nine hundred states."""


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": SLOW}, "ab" * 400_000),
        ({"allOf": [{"pattern": f"[ab]*a[ab]{{900}}c{n}"} for n in range(5)]}, "ab" * 8_000),
        ({"items": {"anyOf": [{"pattern": f"(a|b)*a(a|b){{10}}c{n}"} for n in range(1_000)]}}, ["ab" * 200] * 1_000),
        ({"patternProperties": {SLOW: True}}, {"ab" * 400_000: 1}),
        *(({"properties": {name: {"pattern": SLOW}}}, {name: "ab" * 400_000}) for name in ("enum", "default", "pattern", "$defs", "$ref")),
        ({"properties": {"const": {"enum": [{"pattern": "x"}], "pattern": SLOW}}}, {"const": "ab" * 400_000}),
        ({"$defs": {"a": {"pattern": SLOW}}, "items": {"$ref": "#/$defs/a"}}, {"x": "ab" * 400_000}),
    ],
)
def test_R48_patterns_hold_nobody_up_however_many_states_they_have(schema: dict[str, Any], value: Any) -> None:
    assert foreign_complaint(schema) is None
    begun = time.process_time()
    assert Schema(schema, of="It").complaint(value) == "the whole is too large to be checked against its schema"
    assert time.process_time() - begun < 1


UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        ("", 0),
        ("^[a-z]{1,64}$", 64),
        (UUID, 36),
        (SLOW, 904),
        ("((ab){10}){10}", 200),
        ("(?:ab){2,}", 6),
        ("a|b", 2),
        (".{3}", 30),
        (r"\p{L}{2}[\p{N}x]", 300),
        (r"x\{3}\W", 14),
        (r"[]a\]]{3}[^a]", 13),
        ("(a{5", 3),
        ("a)b", 2),
        ("a{9999999999999}{9999999999999}", ENOUGH),
    ],
)
def test_states_are_counted_with_repetitions_written_out(pattern: str, states: int) -> None:
    assert pattern_states(pattern) == states
    assert states_of({"items": {"pattern": pattern}, "const": {"pattern": "a"}, "enum": [{"pattern": "a"}]}) == states


@given(st.text(alphabet="ab()[]{}^$.*+?|\\pd1,9"))
def test_any_text_has_a_number_of_states(pattern: str) -> None:
    assert 0 <= pattern_states(pattern) <= ENOUGH


def test_patterns_that_people_write_take_the_texts_that_people_have() -> None:
    schema = Schema({"type": "object", "additionalProperties": {"pattern": UUID}}, of="It")
    assert schema.fits({str(n): f"{n:08x}-0000-4000-8000-000000000000" for n in range(10_000)})


def nested(depth: int, leaf: Any = 1) -> Any:
    value = leaf
    for _ in range(depth):
        value = {"x": value}
    return value


A = {"$ref": "#/$defs/a"}
TWICE = {"$defs": {"a": {"anyOf": [{"properties": {"x": A}, "required": [name]} for name in "zy"] + [{"type": "string"}]}}, **A}
"""Each level of a wrong value is wrong in two ways, and so is each level below it, in each of them."""


def test_R48_a_value_that_is_wrong_in_endless_ways_is_told_to_be_wrong_at_once() -> None:
    assert foreign_complaint(TWICE) is None
    schema = Schema(TWICE, of="It")
    begun = time.process_time()
    for depth in (12, 17, 40, 60):
        assert schema.complaint(nested(depth)) == (
            "the whole does not fit its schema, which refers to itself, and is nested too deep to tell where"
        )
        assert [each.pointer for each in schema.mismatches(nested(depth))] == [""]
    assert time.process_time() - begun < 1
    assert schema.complaint(nested(2)) is not None and "nested" not in str(schema.complaint(nested(2)))
    tree = {
        "$defs": {"a": {"anyOf": [{"type": "array", "items": A}, {"additionalProperties": A, "type": "object"}, {"type": "number"}]}},
        **A,
    }
    assert Schema(tree, of="It").complaint(nested(60)) is None, "what fits, fits however deep it is"


@pytest.mark.parametrize(
    ("schema", "turns"),
    [
        ({}, 0),
        (TWICE, 2),
        (doubling(8), 0),
        ({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}] * 2}, "b": {"anyOf": [{"properties": {"x": A}}] * 2}}, **A}, 4),
        ({"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"}, 1),
        ({"properties": {"x": {"$ref": "#"}, "y": {"$ref": "#"}, "z": {"items": {"$ref": "#"}}}}, 3),
    ],
)
def test_the_turns_of_a_schema_are_where_it_goes_back_into_itself(schema: dict[str, Any], turns: int) -> None:
    assert turns_of(schema) == turns


def test_ways_multiply_at_each_level_of_a_value() -> None:
    assert (ways_of(1, nested(50)), ways_of(2, nested(3)), ways_of(3, [1, [2, {"x": []}]]), ways_of(2, 1)) == (1, 8, 27, 1)
    assert ways_of(5_000, nested(60)) == ENOUGH


def test_the_size_of_a_value_counts_its_places() -> None:
    assert (size_of(1), size_of([1, 2]), size_of({"a": [1, {"b": None}]}), size_of("x" * 640)) == (1, 3, 5, 11)
