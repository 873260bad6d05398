"""JSON Schemas: compiled safely, and complaints a model can act on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runward.agents.schemas import MAX_MISMATCHES, Mismatch, Schema
from runward.core.errors import DefinitionError

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order_id": {"type": "integer", "minimum": 1},
        "note": {"type": "string", "maxLength": 5},
        "color": {"enum": ["red", "blue"]},
        "when": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "to": {"oneOf": [{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}, {"type": "string"}]},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]}},
        "odd": {"anyOf": [{"type": "integer", "multipleOf": 3}, {"type": "integer", "minimum": 100}]},
        "tags": {"type": "object", "propertyNames": {"maxLength": 3}},
    },
    "required": ["order_id"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({}, "`order_id` is missing"),
        ({"order_id": "seven"}, "`order_id` must be an integer, not a string"),
        ({"order_id": True}, "`order_id` must be an integer, not a boolean"),
        ({"order_id": 0}, "`order_id` is less than the minimum of 1"),
        ({"order_id": 1, "note": "a long note"}, "`note` is longer than 5 characters"),
        ({"order_id": 1, "color": "green"}, '`color` is not one of "red" or "blue"'),
        ({"order_id": 1, "when": 3}, "`when` must be a string or null, not a number"),
        ({"order_id": 1, "to": {}}, "`to.city` is missing"),
        ({"order_id": 1, "to": 3}, "`to` must be an object or a string, not a number"),
        ({"order_id": 1, "lines": [{"sku": "a"}, {}]}, "`lines[1].sku` is missing"),
        ({"order_id": 1, "lines": [{"sku": None}]}, "`lines[0].sku` must be a string, not null"),
        ({"order_id": 1, "odd": 4}, "`odd` fits none of its 2 allowed forms"),
        ({"order_id": 1, "tags": {"long": 1}}, "`tags` has a name that is not allowed"),
        ({"order_id": 1, "extra": 1, "a/b": 2}, "`extra` is not allowed; `a/b` is not allowed"),
        ([], "the whole must be an object, not an array"),
    ],
)
def test_a_complaint_says_what_is_wrong_and_where(value: Any, complaint: str) -> None:
    schema = Schema(ORDER, of="It")
    assert schema.complaint(value) == complaint
    assert not schema.fits(value) and schema.mismatches(value)


def test_what_fits_has_no_complaint() -> None:
    schema = Schema(ORDER, of="It")
    value = {"order_id": 1, "to": {"city": "Rome"}, "when": None}
    assert schema.complaint(value) is None and schema.fits(value) and schema.mismatches(value) == ()


def test_mismatches_have_json_pointers() -> None:
    schema = Schema({"properties": {"a/b": {"items": {"type": "string"}}}}, of="It")
    assert schema.mismatches({"a/b": ["x", 1]}) == (Mismatch(pointer="/a~1b/1", message="must be a string, not a number"),)


@given(st.text(min_size=40, max_size=300))
@settings(max_examples=50, deadline=None)
def test_a_value_is_never_echoed(secret: str) -> None:
    schema = Schema(ORDER, of="It")
    for value in (
        {"order_id": secret},
        {"order_id": 1, "note": secret},
        {"order_id": 1, "color": secret},
        {"order_id": 1, "to": secret * 2},
    ):
        assert secret not in (schema.complaint(value) or "")


def test_complaints_are_short_whatever_was_sent() -> None:
    schema = Schema({"type": "array", "items": {"enum": ["x" * 5_000]}}, of="It")
    complaint = schema.complaint(list(range(10_000)))
    assert complaint is not None and complaint.count(";") == MAX_MISMATCHES and complaint.endswith("; and more") and len(complaint) < 1_500
    assert len(Schema(ORDER, of="It").complaint({"order_id": 1, "y" * 10_000: 1}) or "") < 200


@pytest.mark.parametrize(
    "document",
    [
        {"type": "strin"},
        {"properties": 3},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "https://example.org/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$schema": "https://example.org/own-dialect"},
        {"pattern": "(?=a)b"},
        {"pattern": r"(a)\1"},
        {"pattern": "("},
        {"const": float("nan")},
        {"const": {1, 2}},
    ],
    ids=str,
)
def test_what_is_no_safe_schema_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=r"^It is not (a JSON Schema|JSON)"):
        Schema(document, of="It")


def test_a_reference_to_a_file_is_refused_even_if_it_could_be_read(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "string"}')
    with pytest.raises(DefinitionError, match="Retrieval is disabled"):
        Schema({"$ref": (tmp_path / "schema.json").as_uri()}, of="It")


def test_a_pattern_takes_linear_time() -> None:
    schema = Schema({"pattern": "^(a+)+$"}, of="It")
    started = time.process_time()
    assert not schema.fits("a" * 50_000 + "b")
    assert time.process_time() - started < 5


def test_the_document_is_a_copy_in_its_own_order() -> None:
    document: dict[str, Any] = {"properties": {"b": {}, "a": {}}, "type": "object"}
    schema = Schema(document, of="It")
    document["properties"]["c"] = {}
    assert list(schema.document) == ["properties", "type"] and list(schema.document["properties"]) == ["b", "a"]


def test_an_older_draft_is_read_as_one() -> None:
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]}
    assert not Schema(draft, of="It").fits([1]) and Schema(draft, of="It").fits(["a", 1])
