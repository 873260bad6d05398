"""Types that are no objects, as the property of one: every pointer still leads where it led."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, RootModel

from runward.agents.output import Output
from runward.agents.schemas import Schema
from runward.agents.wrapping import as_object
from runward.engine.outputs import NOT_JSON, OutputReader


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Nodes(RootModel[list[Node]]):
    pass


OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "$defs": {"N": {"type": "integer"}}}
SCHEMAS: list[tuple[Any, list[Any], list[Any]]] = [
    ({"type": "array", "items": {"type": "integer"}}, [[], [1, 2]], [["x"], 1, {}]),
    ({"type": "array", "items": {"$ref": "#"}}, [[], [[], [[]]]], [[1], "x"]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"$ref": "#/prefixItems/0"}]}, [[1, 2]], [[1, "x"]]),
    ({"type": "array", "items": {"$ref": "#/definitions/N"}, "definitions": {"N": {"type": "integer"}}}, [[1]], [["x"]]),
    ({"enum": [{"$ref": "#"}, "a"]}, [{"$ref": "#"}, "a"], ["b"]),
    ({"$id": "https://example.com/answers", "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "string"}, ["x"], [1]),
    (Node.model_json_schema(), [{"name": "a", "children": [{"name": "b"}]}], [{"name": "a", "children": [{}]}]),
    (Nodes.model_json_schema(), [[{"name": "a", "children": [{"name": "b"}]}]], [[{"name": "a", "children": [1]}]]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), SCHEMAS)
def test_what_fits_a_schema_fits_it_as_a_property_and_nothing_else_does(schema: Any, good: list[Any], bad: list[Any]) -> None:
    wrapped = Schema(as_object(schema), of="The wrapped schema")
    for value in (*good, *bad):
        assert (wrapped.complaint({"value": value}) is None) is (value in good), value
    assert wrapped.complaint({}) is not None


def test_an_object_stays_what_it_is() -> None:
    assert as_object(OBJECT) is OBJECT


@pytest.mark.parametrize("text", ['{"value": [1]}', "[1]", '```json\n{"value": [1]}\n```'])
def test_a_value_is_taken_out_of_its_object_where_it_was_asked_for_in_one(text: str) -> None:
    """And read all the same where a model has left the object out."""
    reader = OutputReader(Output(schema={"type": "array", "items": {"type": "integer"}}))
    assert reader.read(text, wrapped=True).value == [1]
    assert (reader.read(text).complaint is None) == ("value" not in text)
    assert reader.read('{"value": ', wrapped=True).complaint == NOT_JSON
    assert reader.read('{"value": [1], "more": 2}', wrapped=True).complaint is not None


def test_what_was_not_asked_for_in_an_object_is_not_taken_out_of_one() -> None:
    assert OutputReader(Output(schema={})).read('{"value": 5}').value == {"value": 5}
    assert OutputReader(Output(schema={})).read('{"value": 5}', wrapped=True).value == 5
