"""Pydantic's errors as ours: a pointer, a code and a sentence each, never the value that was wrong (R46)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from runward.core.errors import Invalid, Problem
from runward.core.text import shorten

MAX_PROBLEMS = 20
MAX_POINTER = 200

_IN_OUR_WORDS = {
    "extra_forbidden": "There is no such field.",
    "missing": "This field is required.",
    "model_type": "This has to be a JSON object.",
    "dict_type": "This has to be a JSON object.",
    "union_tag_invalid": "This type is not one of those that are allowed here.",
    "union_tag_not_found": "The field that says what this is, is missing.",
}


def pointer(parts: Sequence[str | int]) -> str:
    """A JSON pointer; the whole value is the empty one."""
    return shorten("".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts), MAX_POINTER)


def invalid(error: ValidationError, value: Any, *, where: Callable[[Sequence[str | int]], str] = pointer) -> Invalid:
    """What was wrong with a value that a model refused. `where` spells a place: as a JSON pointer, or as the name of a parameter."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return refused([_problem(item, value, where) for item in details[:MAX_PROBLEMS]])


def refused(problems: Sequence[Problem]) -> Invalid:
    """One error for all of them; it has the code of the first."""
    first = problems[0]
    more = "" if len(problems) == 1 else f" There is more in `errors` ({len(problems)} in all)."
    where = f"{first.pointer}: " if first.pointer else ""
    return Invalid(f"{where}{first.detail}{more}", code=first.code, problems=problems)


def _problem(item: ErrorDetails, value: Any, where: Callable[[Sequence[str | int]], str]) -> Problem:
    kind = item["type"]
    code = "unknown_field" if kind == "extra_forbidden" else "invalid_value"
    return Problem(pointer=where(_path(item["loc"], value, kind)), code=code, detail=_IN_OUR_WORDS.get(kind, item["msg"]))


def _path(loc: Sequence[str | int], value: Any, kind: str) -> Sequence[str | int]:
    """The place in what was sent. Pydantic's own has names of union members in it, which nobody sent; one may even be that of a field."""
    _, path = _found(tuple(loc), value, missing=kind == "missing")
    return path


def _found(loc: tuple[str | int, ...], value: Any, *, missing: bool) -> tuple[bool, tuple[str | int, ...]]:
    """As much of a location as leads through the value, and whether its last part, which is the field at fault, is there."""
    if not loc:
        return True, ()
    first, rest = loc[0], loc[1:]
    there = isinstance(value, list) and isinstance(first, int) and first < len(value)
    if there or (isinstance(value, dict) and first in value):
        ends, path = _found(rest, value[first], missing=missing)
        here = (ends, (first, *path))
    elif missing and not rest:
        return True, (first,)
    else:
        here = (False, ())
    if here[0] or not rest:
        return here
    return max(here, _found(rest, value, missing=missing), key=lambda found: (found[0], len(found[1])))
