"""The one strict reader of JSON that arrives (R46): what it lets through, every store keeps unchanged and every client reads alike."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from runward.core.errors import Invalid
from runward.core.text import is_clean

MAX_DEPTH = 64
"""How deep arrays and objects may be nested, the outermost included."""
MAX_INTEGER = 2**63 - 1
MIN_INTEGER = -(2**63)

_INTEGER_DIGITS = len(str(MIN_INTEGER))
_MAYBE_DIRTY = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
"""Escapes that may stand for NUL or half a surrogate pair. Raw ones cannot be there: JSON forbids control characters, UTF-8 surrogates."""


def parse(raw: bytes) -> Any:
    """The value of a JSON text in UTF-8.

    Raises Invalid: `invalid_json` for what is not JSON, has a byte order mark or a key twice; `invalid_value` for NaN, infinities, numbers
    that do not fit, NUL and lone surrogates in strings, and nesting deeper than `MAX_DEPTH`.
    """
    try:
        value = _DECODER.decode(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise Invalid("The body is not UTF-8.", code="invalid_json") from None
    except json.JSONDecodeError as error:
        raise Invalid(f"The body is not valid JSON, line {error.lineno}, column {error.colno}.", code="invalid_json") from None
    except RecursionError:
        raise _too_deep() from None
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise _too_deep()
    if _MAYBE_DIRTY.search(raw) and not _all_clean(value):
        raise Invalid("A string in the body holds a NUL or half a surrogate pair; neither can be stored.")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Invalid("An object in the body has the same key twice.", code="invalid_json")
    return made


def _integer(text: str) -> int:
    if len(text) <= _INTEGER_DIGITS:
        value = int(text)
        if MIN_INTEGER <= value <= MAX_INTEGER:
            return value
    raise Invalid("An integer in the body does not fit into 64 bits. Send it as a string.")


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise Invalid("A number in the body is too large.")
    return value


def _constant(name: str) -> NoReturn:
    raise Invalid(f"{name} is not a JSON number.")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_constant)


def _too_deep() -> Invalid:
    return Invalid(f"The body is nested deeper than {MAX_DEPTH} levels.")


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        inner = [item for holder in level for item in (holder.values() if isinstance(holder, dict) else holder)]
        level = [item for item in inner if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _all_clean(value: Any) -> bool:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if not is_clean(item):
                return False
        elif isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, dict):
            waiting.extend(item.keys())
            waiting.extend(item.values())
    return True
