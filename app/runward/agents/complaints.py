"""What Pydantic found wrong with a value, for the model that wrote it: places and reasons, and never the value itself (R46)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core.core_schema import ErrorType

from runward.core.text import shorten

MOST_COMPLAINTS = 5
PLACE_LENGTH = 100
REASON_LENGTH = 300
MOST_SCALARS = 100
LONGEST_REASON = 10_000
"""A value that holds more is not looked for in a reason, nor in a longer one: then the reason is not told."""
HIDDEN = "…"
NOT_ACCEPTED = "is not accepted"

_SHORT = 3
_ECHOING = frozenset({"assertion_error", "union_tag_invalid", "value_error"})
_OWN_WORDS = frozenset(get_args(ErrorType)) - _ECHOING
"""Errors whose sentence is Pydantic's own, and made of the type alone. The others hold words of an author, or of the value."""


def complaint_of(error: ValidationError, *, whole: str) -> str:
    """The first few complaints as one sentence: "`lines.0.sku`: Field required". `whole` names the value, where no part of it is meant."""
    found = error.errors(include_url=False, include_context=False)
    told = [f"`{shorten('.'.join(map(str, each['loc'])) or whole, PLACE_LENGTH)}`: {_reason(each)}" for each in found[:MOST_COMPLAINTS]]
    return "; ".join(told) + ("; and more" if len(found) > MOST_COMPLAINTS else "")


def _reason(found: Any) -> str:
    said: str = found["msg"] if found["type"] in _OWN_WORDS else _hidden(found["msg"], found["input"])
    return shorten(said, REASON_LENGTH)


def _hidden(said: str, value: Any) -> str:
    """A sentence without the value, and without any part of it."""
    parts = set(_scalars(value))
    if len(parts) > MOST_SCALARS or len(said) > LONGEST_REASON:
        return NOT_ACCEPTED
    for part in sorted(parts, key=len, reverse=True):
        pattern = re.escape(part) if len(part) > _SHORT else rf"(?<!\w){re.escape(part)}(?!\w)"
        said = re.sub(pattern, HIDDEN, said, flags=re.IGNORECASE)
    return said


def _scalars(value: Any) -> Iterator[str]:
    """The texts and numbers in a JSON value that are long enough to tell something."""
    open_values, found = [value], 0
    while open_values and found <= MOST_SCALARS:
        match open_values.pop():
            case dict() as each:
                open_values.extend(each.values())
            case list() as each:
                open_values.extend(each)
            case str() | int() | float() as each if not isinstance(each, bool) and len(text := str(each).strip()) > 1:
                found += 1
                yield text
