"""JSON that models write, read once and without a walk through what cannot be wrong with it."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, Final, NoReturn

from pydantic_core import to_json

from runward.core.runs.calls import MAX_DEPTH
from runward.core.text import clean_json, is_clean, within_depth


class TooDeep(ValueError):
    """The value is nested deeper than any may be."""


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _no_number(text)


_DECODER: Final = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)


def read_json(text: str) -> Any:
    """The JSON value that a text is, cleaned (R47). Raises TooDeep, and ValueError or RecursionError for what is none: `NaN` and what is
    too large to be a number included."""
    value = _DECODER.decode(text)
    if "\\u" in text or not (text.isascii() or is_clean(text)):  # only then can a string hold what it must not
        value = clean_json(value)
    if text.count("{") + text.count("[") > MAX_DEPTH and not within_depth(value, MAX_DEPTH):
        raise TooDeep
    return value


def cleaned(value: Any) -> Any:
    """A JSON value of an author's making, cleaned. Raises ValueError for what is none."""
    try:
        written = to_json(value, inf_nan_mode="constants")
    except ValueError:  # it holds a lone surrogate, or is nothing that JSON knows
        return clean_json(value)
    return clean_json(value) if b"\\u0000" in written else value
