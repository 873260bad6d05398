"""What it costs to check a value against a JSON Schema, before anybody does: a check cannot be broken off once it runs.

References multiply: forty definitions that each refer twice to the next are a trillion checks. So a schema's cost is what it would be with
every reference written out, and a check costs that times the size of the value. Patterns cost besides: in linear time still means that each
character of a text may be held against each state of a pattern, and `[ab]{900}` is nine hundred of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

BUDGET: Final = 50_000_000
"""How much one check may cost; about a second."""
MAX_FOREIGN_COST: Final = 5_000
"""How much a schema may cost that comes with a request."""
MAX_FOREIGN_PATTERN: Final = 512
MAX_FOREIGN_REPEATS: Final = 1_000
"""How long a pattern of such a schema may be, in characters, and how often it may repeat anything, all its repetitions multiplied."""
MAX_EXPLAINED: Final = 2_000
"""In how many ways a schema may be checked against a value so that its mistakes are told (`ways_of`)."""
ENOUGH: Final = 10**12

_REPEATS = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_DATA: Final = frozenset({"const", "default", "examples"})
"""Keywords whose value is data: no schema is in it."""
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})
_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
"""Keywords whose value holds schemas by names that are no keywords: a property may be called `default`."""


def cost_of(schema: Any) -> int:
    """How many checks a schema is for one place of a value, with every reference into itself written out; a reference back to where it is
    counts once, because each turn needs a deeper place of the value."""
    try:
        return _Costs(schema).of(schema)
    except RecursionError:  # so many references one after the other cost whoever follows them as much
        return ENOUGH


def check_cost(schema_cost: int, schema_states: int, value: Any) -> int:
    """What a check of a value costs, by what `cost_of` and `states_of` say of its schema."""
    cost = schema_cost * size_of(value)
    return cost if not schema_states else cost + schema_states * _characters_of(value)


def states_of(schema: Any) -> int:
    """How many states the patterns of a schema have together, about, with every reference into itself written out."""
    try:
        return _States(schema).of(schema)
    except RecursionError:
        return ENOUGH


def turns_of(schema: Any) -> int:
    """In how many places a schema, or a definition of it, refers back to where it is, with every reference written out: in at most so many
    ways a check goes on at each level of a value."""
    counted = _Turns(schema)
    try:
        whole = counted.of(schema)
    except RecursionError:
        return ENOUGH
    return max(counted.known.values(), default=0) if counted.known and not counted.has_root else whole


def ways_of(turns: int, value: Any) -> int:
    """In how many ways a check may go through a value to its bottom, at most: a list of its mistakes may have so many."""
    return 1 if turns < 2 else min(turns ** _depth_of(value), ENOUGH)


def size_of(value: Any) -> int:
    """How many places a JSON value has."""
    size, open_values = 0, [value]
    while open_values:
        each = open_values.pop()
        size += 1
        if isinstance(each, str):
            size += len(each) // 64
        else:
            open_values.extend(_inside(each))
    return size


def _depth_of(value: Any) -> int:
    """How many levels of objects and arrays a JSON value has."""
    depth, level = 0, [value]
    while level := [inner for each in level for inner in _inside(each)]:
        depth += 1
    return depth


def _inside(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else value.values() if isinstance(value, Mapping) else ()


def _characters_of(value: Any) -> int:
    """How many characters the texts of a JSON value have, names of properties included."""
    characters, open_values = 0, [value]
    while open_values:
        each = open_values.pop()
        if isinstance(each, str):
            characters += len(each)
        else:
            characters += sum(map(len, each)) if isinstance(each, Mapping) else 0
            open_values.extend(_inside(each))
    return characters


def foreign_complaint(schema: Any) -> str | None:
    """Why a schema that comes with a request is not taken; None when it costs little enough."""
    if cost_of(schema) > MAX_FOREIGN_COST:
        return f"it is too costly to check: at most {MAX_FOREIGN_COST} checks, with every $ref written out"
    for pattern in _patterns(schema):
        if len(pattern) > MAX_FOREIGN_PATTERN or _repeats(pattern) > MAX_FOREIGN_REPEATS:
            return f"a pattern is too costly: at most {MAX_FOREIGN_PATTERN} characters, and {MAX_FOREIGN_REPEATS} repetitions"
    return None


class _Costs:
    """Counts, with what each definition costs kept. `_place` is what a schema costs by being there, `_back` a reference to where it is."""

    _place, _back = 1, 1

    def __init__(self, document: Any) -> None:
        self._document = document
        self.known: dict[str, int] = {}
        self.has_root = False
        self._open = {"#"}

    def of(self, schema: Any) -> int:
        cost = self._place
        if isinstance(schema, list):
            cost = sum(map(self.of, schema)) or self._place
        elif isinstance(schema, Mapping):
            for keyword, value in schema.items():
                if keyword in ("$ref", "$dynamicRef") and isinstance(value, str):
                    cost += self._referred(value)
                elif (more := self._more(keyword, value)) is not None:
                    cost += more
                elif keyword in _BY_NAME and isinstance(value, Mapping):
                    cost += self._place + sum(map(self.of, value.values()))
                elif keyword not in _DATA and keyword not in _DEFINITIONS:
                    cost += self.of(value)
        return min(cost, ENOUGH)

    def _more(self, keyword: str, value: Any) -> int | None:
        """What a keyword costs by itself; None where it costs what is in it."""
        if keyword == "enum" and isinstance(value, list):
            return sum(map(size_of, value))
        return 16 if keyword == "uniqueItems" and value is True else None

    def _referred(self, reference: str) -> int:
        if reference in self.known:
            return self.known[reference]
        self.has_root = self.has_root or reference == "#"
        if reference in self._open:
            return self._back
        self._open.add(reference)
        cost = self.of(_target(self._document, reference))
        self._open.discard(reference)
        self.known[reference] = cost
        return cost


class _States(_Costs):
    """Counts the states of patterns alone."""

    _place, _back = 0, 0

    def _more(self, keyword: str, value: Any) -> int | None:
        if keyword == "pattern" and isinstance(value, str):
            return pattern_states(value)
        if keyword == "patternProperties" and isinstance(value, Mapping):
            return sum(map(pattern_states, value)) + sum(map(self.of, value.values()))
        return 0 if keyword == "enum" and isinstance(value, list) else None


class _Turns(_Costs):
    """Counts the references back alone."""

    _place = 0

    def _more(self, keyword: str, value: Any) -> int | None:
        return 0 if keyword == "enum" and isinstance(value, list) else None


_ANY: Final = 10
_PROPERTY: Final = 100
"""States of what stands for any character, and for a property of them as `\\p{L}`: they are told apart byte by byte."""


def pattern_states(pattern: str) -> int:
    """How many states a pattern has, about: one for each character that it reads, with all repetitions written out."""
    groups, total, last, at = [], 0, 0, 0
    while at < len(pattern):
        char, repeats = pattern[at], _REPEATS.match(pattern, at)
        at += 1
        if repeats is not None:
            times = min(max(int(repeats[1]), int(repeats[2] or 0), 1), ENOUGH)
            total, last = total + last * (times - 1), last * times
            at = repeats.end()
        elif char == "(":
            groups.append(total)
            total = 0
        elif char == ")" and groups:
            total, last = groups.pop() + total, total
        elif char not in "*+?|^$)":
            last, at = _atom(pattern, at - 1)
            total += last
        total, last = min(total, ENOUGH), min(last, ENOUGH)
    return min(total + sum(groups), ENOUGH)


def _atom(pattern: str, at: int) -> tuple[int, int]:
    """The states of one character, escape or class, and where what follows begins."""
    if pattern[at] == "[":
        end = at + 1
        while end < len(pattern) and (pattern[end] != "]" or end == at + 1):
            end += 2 if pattern[end] == "\\" else 1
        inside = pattern[at + 1 : end]
        return _PROPERTY if "\\p" in inside or "\\P" in inside else _ANY if inside.startswith("^") else 1, end + 1
    if pattern[at] == "\\":
        braces = re.compile(r"\\[pPxu]\{[^}]*\}").match(pattern, at)
        end = at + 2 if braces is None else braces.end()
        return _PROPERTY if pattern[at + 1 : at + 2] in ("p", "P") else _ANY if pattern[at + 1 : at + 2] in ("D", "W", "S") else 1, end
    return _ANY if pattern[at] == "." else 1, at + 1


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
            if keyword in _BY_NAME | _DEFINITIONS and isinstance(value, Mapping):
                yield from _patterns([*value.values()])
            elif keyword not in _DATA:
                yield from _patterns(value)


def _repeats(pattern: str) -> int:
    """All bounds of repetitions, multiplied, as if each stood within the one before it."""
    product = 1
    for least, most in _REPEATS.findall(pattern):
        product *= max(int(least), int(most or 0), 1)
        if product > ENOUGH:
            break
    return product
