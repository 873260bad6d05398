"""Schemas as objects. A tool's parameters have to be one, and so has what providers hold an answer to by themselves: a type that is none
goes out as the one property of an object, and comes back so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VALUE = "value"
DEFINITIONS = ("$defs", "definitions")
_DATA = frozenset({"const", "enum", "default", "examples"})


def is_object(schema: Mapping[str, Any]) -> bool:
    """Whether a schema says by itself that its values are objects."""
    return schema.get("type") == "object"


def as_object(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema of objects as it is, any other one as that of an object with a `value`.

    Definitions stay at the root, where every provider looks for them; other pointers into the schema are moved along with it.
    """
    if is_object(schema):
        return schema
    definitions = {name: _moved(schema[name]) for name in DEFINITIONS if name in schema}
    inner = {
        name: _moved(part) if name not in _DATA else part for name, part in schema.items() if name not in ("$schema", "$id", *DEFINITIONS)
    }
    if isinstance(inner.get("$ref"), str):
        inner["$ref"] = _pointer(inner["$ref"])
    return {"type": "object", "properties": {VALUE: inner}, "required": [VALUE], "additionalProperties": False, **definitions}


def _moved(part: Any) -> Any:
    match part:
        case dict():
            return {
                name: _pointer(value) if name == "$ref" and isinstance(value, str) else value if name in _DATA else _moved(value)
                for name, value in part.items()
            }
        case list():
            return [_moved(item) for item in part]
        case _:
            return part


def _pointer(pointer: str) -> str:
    """Where a pointer of the schema leads once the schema is a property."""
    if not pointer.startswith("#") or pointer.split("/")[1:2] in [[name] for name in DEFINITIONS]:
        return pointer
    return f"#/properties/{VALUE}{pointer[1:]}"
