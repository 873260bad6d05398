"""A JSON Schema, compiled once: no network, no files, regular expressions in linear time, and messages that do not echo values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jsonschema_rs

from runward.agents.costs import BUDGET, MAX_EXPLAINED, check_cost, cost_of, states_of, turns_of, ways_of
from runward.core.errors import DefinitionError
from runward.core.text import shorten

MAX_MISMATCHES = 5
"""How many mismatches are told at once."""

_VALUE = "the value"
_MESSAGE_LENGTH = 200
_NAME_LENGTH = 64
_TYPES = {
    "array": "an array",
    "boolean": "a boolean",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Where a value does not fit its schema, and why. `pointer` is a JSON pointer; neither it nor `message` holds the value itself."""

    pointer: str
    message: str


class Schema:
    """A JSON Schema (draft 2020-12 unless its `$schema` says otherwise). `document` is a copy of its own.

    References into the network or the file system are refused, and so are patterns with look-around or back-references, which could
    take forever. A value that is too large to be checked against it does not fit (`agents.costs`). `format` is not asserted. Raises
    DefinitionError, beginning with `of`, for what is no schema.
    """

    __slots__ = ("_cost", "_states", "_turns", "_validator", "document")

    def __init__(self, document: Mapping[str, Any], *, of: str) -> None:
        try:
            self.document: dict[str, Any] = json.loads(json.dumps(document, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise DefinitionError(f"{of} is not JSON.") from error
        try:
            self._validator = jsonschema_rs.validator_for(
                self.document, mask=_VALUE, offline=True, pattern_options=jsonschema_rs.RegexOptions()
            )
        except jsonschema_rs.ValidationError as error:
            place = _path(error.instance_path)
            raise DefinitionError(f"{of} is not a JSON Schema{f' (at {place})' if place else ''}: {shorten(error.message, 300)}") from error

        self._cost, self._states, self._turns = cost_of(self.document), states_of(self.document), turns_of(self.document)

    def fits(self, value: Any) -> bool:
        """Whether a JSON value fits."""
        return self._can_check(value) and self._validator.is_valid(value)

    def mismatches(self, value: Any) -> tuple[Mismatch, ...]:
        """Where a JSON value does not fit; at most `MAX_MISMATCHES`, none when it does."""
        return tuple(islice(self._found(value), MAX_MISMATCHES))

    def complaint(self, value: Any) -> str | None:
        """The mismatches as one sentence for a model, or None when the value fits: "`lines[0].sku` must be a string, not an integer"."""
        if self.fits(value):
            return None
        found = list(islice(self._found(value), MAX_MISMATCHES + 1))
        told = [f"{_quoted(each.pointer)} {each.message}" for each in found[:MAX_MISMATCHES]]
        return "; ".join(told) + ("; and more" if len(found) > MAX_MISMATCHES else "")

    def tangled(self, value: Any) -> str | None:
        """The complaint about a value whose mistakes may be countless; None where it fits, or its mistakes can be told."""
        return self.complaint(value) if self._is_tangled(value) else None

    def _is_tangled(self, value: Any) -> bool:
        return ways_of(self._turns, value) > MAX_EXPLAINED

    def _can_check(self, value: Any) -> bool:
        return check_cost(self._cost, self._states, value) <= BUDGET

    def _found(self, value: Any) -> Iterator[Mismatch]:
        if not self._can_check(value):
            yield Mismatch(pointer="", message="is too large to be checked against its schema")
            return
        if self._is_tangled(value):  # a list of all mistakes would have one for each
            if not self._validator.is_valid(value):
                yield Mismatch(pointer="", message="does not fit its schema, which refers to itself, and is nested too deep to tell where")
            return
        for error in self._validator.iter_errors(value):
            for path, message in _explain(error, value):
                yield Mismatch(pointer=_pointer(path), message=shorten(message, _MESSAGE_LENGTH))


Path = Sequence[str | int]


def _explain(error: jsonschema_rs.ValidationError, value: Any) -> Iterator[tuple[Path, str]]:
    path = error.instance_path
    kind = error.kind
    match kind:
        case jsonschema_rs.ValidationErrorKind.Required():
            yield [*path, kind.property], "is missing"
        case jsonschema_rs.ValidationErrorKind.AdditionalProperties() | jsonschema_rs.ValidationErrorKind.UnevaluatedProperties():
            for name in kind.unexpected:
                yield [*path, name], "is not allowed"
        case jsonschema_rs.ValidationErrorKind.Type():
            yield path, _wrong_type(kind.types, path, value)
        case jsonschema_rs.ValidationErrorKind.AnyOf() | jsonschema_rs.ValidationErrorKind.OneOfNotValid():
            yield from _explain_forms(kind.context, path, value)
        case jsonschema_rs.ValidationErrorKind.PropertyNames():
            yield path, "has a name that is not allowed"
        case _:
            yield path, error.message.removeprefix(_VALUE + " ")


def _explain_forms(forms: list[list[jsonschema_rs.ValidationError]], path: Path, value: Any) -> Iterator[tuple[Path, str]]:
    """Of several allowed forms: the one whose type fits already, or all the types there are."""
    types = [_type_alone(errors, path) for errors in forms]
    meant = [errors for errors, wrong in zip(forms, types, strict=True) if wrong is None]
    if not meant:
        yield path, _wrong_type([name for wrong in types for name in wrong or ()], path, value)
    elif len(meant) == 1:
        for error in meant[0]:
            yield from _explain(error, value)
    else:
        yield path, f"fits none of its {len(forms)} allowed forms"


def _type_alone(errors: list[jsonschema_rs.ValidationError], path: Path) -> list[str] | None:
    """The types a form wants, when the wrong type is all that is wrong with it."""
    if len(errors) == 1 and list(errors[0].instance_path) == list(path):
        kind = errors[0].kind
        if isinstance(kind, jsonschema_rs.ValidationErrorKind.Type):
            return kind.types
    return None


def _wrong_type(types: Iterable[str], path: Path, value: Any) -> str:
    wanted = " or ".join(dict.fromkeys(_TYPES.get(name, name) for name in types))
    return f"must be {wanted}, not {_type_of(_at(value, path))}"


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case dict():
            return "an object"
        case _:
            return "an array"


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _pointer(path: Path) -> str:
    return "".join("/" + shorten(str(part), _NAME_LENGTH).replace("~", "~0").replace("/", "~1") for part in path)


def _quoted(pointer: str) -> str:
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    return f"`{_path(parts)}`" if parts else "the whole"


def _path(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) or part.isdecimal() else f".{part}" if text else str(part)
    return text
