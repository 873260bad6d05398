"""What it costs to check a value against a JSON Schema, before anybody does: a check cannot be broken off once it runs.

References multiply: forty definitions that each refer twice to the next are a trillion checks. So a schema's cost is what it would be with
every reference written out, and a check costs that times the size of the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

BUDGET: Final = 50_000_000
"""How much one check may cost; about a second."""
MAX_FOREIGN_COST: Final = 5_000
"""How much a schema may cost that comes with a request."""
MAX_FOREIGN_PATTERN: Final = 512
MAX_FOREIGN_REPEATS: Final = 1_000
"""How long a pattern of such a schema may be, in characters, and how often it may repeat anything, all its repetitions multiplied."""
ENOUGH: Final = 10**12

_REPEATS = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_DATA: Final = frozenset({"const", "default", "examples"})
"""Keywords whose value is data: no schema is in it."""


def cost_of(schema: Any) -> int:
    """How many checks a schema is for one place of a value, with every reference into itself written out; a reference back to where it is
    counts once, because each turn needs a deeper place of the value."""
    try:
        return _Costs(schema).of(schema)
    except RecursionError:  # so many references one after the other cost whoever follows them as much
        return ENOUGH


def size_of(value: Any) -> int:
    """How many places a JSON value has."""
    size, open_values = 0, [value]
    while open_values:
        each = open_values.pop()
        size += 1
        if isinstance(each, str):
            size += len(each) // 64
        elif isinstance(each, dict):
            open_values.extend(each.values())
        elif isinstance(each, list):
            open_values.extend(each)
        elif isinstance(each, Mapping):
            open_values.extend(each.values())
    return size


def foreign_complaint(schema: Any) -> str | None:
    """Why a schema that comes with a request is not taken; None when it costs little enough."""
    if cost_of(schema) > MAX_FOREIGN_COST:
        return f"it is too costly to check: at most {MAX_FOREIGN_COST} checks, with every $ref written out"
    for pattern in _patterns(schema):
        if len(pattern) > MAX_FOREIGN_PATTERN or _repeats(pattern) > MAX_FOREIGN_REPEATS:
            return f"a pattern is too costly: at most {MAX_FOREIGN_PATTERN} characters, and {MAX_FOREIGN_REPEATS} repetitions"
    return None


class _Costs:
    """Counts, with what each definition costs kept."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._known: dict[str, int] = {}
        self._open: set[str] = set()

    def of(self, schema: Any) -> int:
        cost = 1
        if isinstance(schema, list):
            cost = sum(map(self.of, schema)) or 1
        elif isinstance(schema, Mapping):
            for keyword, value in schema.items():
                if keyword in ("$ref", "$dynamicRef") and isinstance(value, str):
                    cost += self._referred(value)
                elif keyword == "enum" and isinstance(value, list):
                    cost += sum(map(size_of, value))
                elif keyword == "uniqueItems" and value is True:
                    cost += 16
                elif keyword not in _DATA and keyword not in ("$defs", "definitions"):
                    cost += self.of(value)
        return min(cost, ENOUGH)

    def _referred(self, reference: str) -> int:
        if reference in self._known:
            return self._known[reference]
        if reference in self._open:
            return 1
        self._open.add(reference)
        cost = self.of(_target(self._document, reference))
        self._open.discard(reference)
        self._known[reference] = cost
        return cost


def _target(document: Any, reference: str) -> Any:
    """What a reference into the document points at; the whole document where that cannot be told, which costs most."""
    if not reference.startswith("#/"):
        return document if reference.startswith("#") else {}
    found = document
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return {}
    return found


def _patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _patterns(each)
    elif isinstance(schema, Mapping):
        for keyword, value in schema.items():
            if keyword == "pattern" and isinstance(value, str):
                yield value
            elif keyword == "patternProperties" and isinstance(value, Mapping):
                yield from value
            if keyword not in _DATA:
                yield from _patterns(value)


def _repeats(pattern: str) -> int:
    """All bounds of repetitions, multiplied, as if each stood within the one before it."""
    product = 1
    for least, most in _REPEATS.findall(pattern):
        product *= max(int(least), int(most or 0), 1)
        if product > ENOUGH:
            break
    return product
