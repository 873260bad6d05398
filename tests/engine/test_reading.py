"""How models' JSON is read: the same as the slow and plain way, for whatever is written (R46, R47)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runward.core.runs.calls import MAX_DEPTH
from runward.core.text import clean_json
from runward.engine.reading import TooDeep, cleaned, read_json

texts = st.text(st.characters(codec=None, categories=None), max_size=8)
"""Lone surrogates and NUL among them."""
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12)


@given(values, st.booleans())
@example({"a": "\x00", "\ud800": ["\udfff"]}, True)
@example(["\\u0000", 10**40, 1.0, -0.0], False)
def test_R47_what_is_read_is_clean_however_it_was_written(value: Any, escaped: bool) -> None:
    """Escapes or not: what differs is spelling. NUL cannot stand in JSON but as an escape."""
    text = json.dumps(value, ensure_ascii=escaped)
    read = read_json(text)
    assert repr(read) == repr(clean_json(value))


@given(values)
@example({"a\x00": "\ud800"})
@example({"a\x00": ["\x00"]})
@example(["\\u0000"])
def test_R47_what_an_author_makes_is_clean(value: Any) -> None:
    assert repr(cleaned(value)) == repr(clean_json(value))


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', "1e400", "-1e999", "", "{", "[1,]", "{} {}", "\ufeff{}", '"\t"'])
def test_R46_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(text)


@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_R46_depth_is_bounded_whatever_brackets_stand_in_texts(pair: str) -> None:
    def nested(depth: int) -> str:
        inner = "1"
        for _ in range(depth):
            inner = f"[{inner}]" if pair == "[]" else f'{{"a": {inner}}}'
        return inner

    assert read_json(nested(MAX_DEPTH)) is not None
    with pytest.raises(TooDeep):
        read_json(nested(MAX_DEPTH + 1))
    with pytest.raises((TooDeep, RecursionError)):
        read_json(nested(50_000))
    assert read_json(json.dumps(pair * 1_000)) == pair * 1_000
