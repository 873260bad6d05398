"""A model's arguments: canonical once, or refused (R17, R17a); and text that every store can keep (R47)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runward.core.ids import canonical_json, digest
from runward.core.runs.calls import MAX_ARGUMENT_BYTES, MAX_DEPTH, parse_arguments
from runward.core.text import REPLACEMENT, clean, clean_json, is_clean, shorten, within_depth

NUL, SURROGATE = "\x00", "\ud800"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", "{}"),
        ("{}", "{}"),
        (' { "b" : 1 , "a" : [ 1 , 2 ] } ', '{"a":[1,2],"b":1}'),
        ('{"n":1}', '{"n":1}'),
        ('{"n":1.0}', '{"n":1.0}'),
        ('{"n":-0.0}', '{"n":-0.0}'),
        ('{"n":1E+2}', '{"n":100.0}'),
        ('{"n":123456789012345678901234567890}', '{"n":123456789012345678901234567890}'),
        ('{"n":-9223372036854775809}', '{"n":-9223372036854775809}'),
        ('{"a":1,"a":2}', '{"a":2}'),
        ('{"é":"ü\\u00fc\\u2028"}', '{"é":"üü\u2028"}'),
        ('{"t":true,"f":false,"z":null}', '{"f":false,"t":true,"z":null}'),
        ('{"s":"\\ud83d\\ude00"}', '{"s":"😀"}'),
    ],
)
def test_R17a_one_spelling_for_what_is_the_same(text: str, canonical: str) -> None:
    value, found = parse_arguments(text)
    assert found == canonical and value == json.loads(canonical)
    assert parse_arguments(found) == (value, canonical)


def test_R17a_an_integer_and_a_float_differ() -> None:
    one, float_one = parse_arguments('{"n":1}')[1], parse_arguments('{"n":1.0}')[1]
    assert one is not None and float_one is not None and digest(one) != digest(float_one)


@pytest.mark.parametrize("text", ["{", "null", "[]", '"x"', "1", "true", "nonsense", "{'a':1}", '{"a":1}x', '{"a":}', " ", "\ufeff{}"])
def test_R17_what_is_no_json_object_does_not_run(text: str) -> None:
    assert parse_arguments(text)[1] is None


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 5_000])
def test_R17_a_number_that_no_store_could_keep_does_not_run(number: str) -> None:
    text = f'{{"n":{number}}}'
    assert parse_arguments(text) == (text, None)


@pytest.mark.parametrize(("text", "shown"), [("[1, 2]", [1, 2]), ('"x"', "x"), ("null", None), ("{bad", "{bad"), ("7", 7)])
def test_R17_what_does_not_run_is_still_shown_as_it_was(text: str, shown: Any) -> None:
    assert parse_arguments(text) == (shown, None)


def nested(depth: int) -> str:
    """An object nested so deep, counted in containers."""
    return '{"a":' * (depth - 1) + "{" + '"b":1}' + "}" * (depth - 1)


@pytest.mark.parametrize(("depth", "runs"), [(1, True), (MAX_DEPTH, True), (MAX_DEPTH + 1, False), (5_000, False), (100_000, False)])
def test_R17_depth_is_bounded(depth: int, runs: bool) -> None:
    text = nested(depth)
    shown, canonical = parse_arguments(text)
    assert (canonical is not None) is runs
    assert runs or shown == text


def test_R17_length_is_bounded_by_the_canonical_text() -> None:
    most = MAX_ARGUMENT_BYTES - len('{"s":""}')
    assert parse_arguments('{"s":  "' + "a" * most + '"  }')[1] is not None
    assert parse_arguments('{"s":"' + "a" * (most + 1) + '"}')[1] is None
    assert parse_arguments('{"s":"' + "é" * (most // 2 + 1) + '"}')[1] is None, "bytes count, not characters"


@pytest.mark.parametrize("text", ['{"a\\u0000b":"x\\u0000"}', '{"a\\ud800b":"x\\udfff"}', f'{{"a{SURROGATE}b":"x{SURROGATE}"}}'])
def test_R47_nul_and_lone_surrogates_in_arguments_are_replaced(text: str) -> None:
    value, canonical = parse_arguments(text)
    assert value == {f"a{REPLACEMENT}b": f"x{REPLACEMENT}"}
    assert canonical is not None and is_clean(canonical) and canonical.encode()


@pytest.mark.parametrize("text", ["{bad" + SURROGATE, NUL, '{"a":1e400,"b":"' + SURROGATE + '"}'])
def test_R47_text_that_is_shown_because_it_cannot_run_is_clean_too(text: str) -> None:
    shown, canonical = parse_arguments(text)
    assert canonical is None and isinstance(shown, str) and is_clean(shown)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(value=JSON)
def test_R17a_canonical_json_is_one_text_per_value_and_loses_nothing(value: Any) -> None:
    text = canonical_json(value)
    assert canonical_json(json.loads(text)) == text
    assert json.loads(text) == value


@given(value=st.dictionaries(st.text(), st.integers() | st.text(), max_size=6))
def test_R17a_the_order_of_keys_does_not_matter(value: dict[str, Any]) -> None:
    assert canonical_json(value) == canonical_json(dict(reversed(value.items())))


@given(text=st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")))
def test_R17_any_text_is_either_canonical_or_refused(text: str) -> None:
    shown, canonical = parse_arguments(text)
    json.dumps(shown, allow_nan=False, ensure_ascii=False).encode()
    if canonical is not None:
        assert parse_arguments(canonical) == (shown, canonical) and is_clean(canonical)


# -- text ----------------------------------------------------------------------------------------------------------------


@given(text=st.text(st.characters()))
def test_R47_cleaning_replaces_what_cannot_be_stored_and_nothing_else(text: str) -> None:
    cleaned = clean(text)
    assert is_clean(cleaned) and len(cleaned) == len(text) and cleaned.encode().decode() == cleaned
    dirty = [before for before, after in zip(text, cleaned, strict=True) if before != after]
    assert all(character == NUL or "\ud800" <= character <= "\udfff" for character in dirty)
    assert clean(cleaned) is cleaned


@pytest.mark.parametrize("text", ["", "plain", "\u2028\r\n\t", "😀", "\ufffd", "\x01\x7f"])
def test_R47_what_can_be_stored_stays_as_it_is(text: str) -> None:
    assert is_clean(text) and clean(text) is text


def test_R47_every_string_and_key_of_a_value_is_cleaned() -> None:
    dirty = {f"k{NUL}": [f"v{SURROGATE}", {f"{NUL}": None}], "n": 1, "b": True}
    assert clean_json(dirty) == {f"k{REPLACEMENT}": [f"v{REPLACEMENT}", {REPLACEMENT: None}], "n": 1, "b": True}


@pytest.mark.parametrize(
    ("value", "depth"), [("x", 0), (1, 0), ([1], 1), ({"a": 1}, 1), ([[1]], 2), ([1, [2, {"a": [3]}]], 4), ({"a": 1, "b": [1]}, 2)]
)
def test_depth_counts_containers(value: Any, depth: int) -> None:
    assert within_depth(value, depth)
    assert depth == 0 or not within_depth(value, depth - 1)


def test_shortened_text_says_so() -> None:
    assert (shorten("abc", 3), shorten("abcd", 3), shorten("", 3)) == ("abc", "ab…", "")
