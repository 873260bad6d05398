"""The strict reader and the headers, by themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from runward.api import bodies, headers, strict_json
from runward.core.errors import Invalid
from runward.core.times import from_rfc3339, rfc3339

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | texts, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5)
)


@settings(max_examples=200, deadline=None)
@given(values, st.booleans())
def test_R46_json_comes_through_unchanged(value: Any, ascii_only: bool) -> None:
    assert strict_json.parse(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_R46_any_bytes_are_read_or_refused(raw: bytes) -> None:
    assert read(raw) in ("invalid_json", "invalid_value") or read(raw) == json.loads(raw)


def read(raw: bytes) -> Any:
    """What the reader makes of some bytes, or the code of its refusal."""
    try:
        return strict_json.parse(raw)
    except Invalid as error:
        return error.code


@pytest.mark.parametrize(
    "parts", [[b'"123456789"'], [b'"1234', b'56789"'], [b"", b'"123456789"'], [b'"12', b"3456789", b'"'], [b"x" * 99, b""]]
)
async def test_R48_a_body_is_counted_however_it_comes(parts: list[bytes]) -> None:
    waiting = list(parts)

    async def receive() -> dict[str, Any]:
        part = waiting.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(waiting)}

    request = Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, receive)
    with pytest.raises(Invalid) as refused:
        await bodies.read_json(request, 10, optional=False)
    assert refused.value.code == "body_too_large"
    if len(b"".join(parts)) == 11:
        waiting.extend(parts)
        assert await bodies.read_json(request, 11, optional=False) == "123456789"


@pytest.mark.parametrize(("depth", "fits"), [(64, True), (65, False)])
@pytest.mark.parametrize("inner", ["", "1", '{"a":[]}'])
def test_R46_nesting_is_counted_exactly(depth: int, fits: bool, inner: str) -> None:
    here = depth - (2 if inner.startswith("{") else 0)
    raw = b"[" * here + inner.encode() + b"]" * here
    if fits:
        assert isinstance(strict_json.parse(raw), list)
    else:
        with pytest.raises(Invalid):
            strict_json.parse(raw)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert strict_json.parse(b"[" + b",".join([b"[{}]"] * 500) + b"]") == [[{}]] * 500


@pytest.mark.parametrize("raw", [rb'"\ud83d\ude00"', rb'"\\u0000"', rb'"\\ud800"', '"\U0001f600"'.encode(), rb'"\u00e9"'])
def test_pairs_and_escaped_backslashes_are_clean(raw: bytes) -> None:
    assert strict_json.parse(raw) == json.loads(raw)


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (["wait=5"], 5),
        (["respond-async, wait=10"], 10),
        (["respond-async", "Wait = 7"], 7),
        (['wait="3"'], 3),
        (["wait=5; foo=bar"], 5),
        (["wait=0"], 0),
        (["wait=600"], 60),
        (["wait=4, wait=9"], 4),
        ([], None),
        (["wait"], None),
        (["wait=abc"], None),
        (["wait=-1"], None),
        (["wait=1.5"], None),
        (["await=5"], None),
        (["wait=1_0"], None),
        (["wait=\u0661"], None),
    ],
)
def test_preferences_are_read_as_rfc_7240_has_them(values: list[str], seconds: int | None) -> None:
    assert headers.preferred_wait(values) == seconds


@pytest.mark.parametrize(
    ("values", "stream"),
    [
        (["text/event-stream"], True),
        (["Text/Event-Stream; charset=utf-8"], True),
        (["text/event-stream, application/json"], True),
        (["application/json;q=0.5", "text/event-stream"], True),
        (["application/json, text/event-stream;q=0.5"], False),
        (["text/event-stream;q=0"], False),
        (["text/event-stream;q=oops"], False),
        (["*/*"], False),
        (["text/*"], False),
        (["application/json"], False),
        ([], False),
    ],
)
def test_a_stream_is_answered_to_who_asks_for_one(values: list[str], stream: bool) -> None:
    assert headers.wants_stream(values) is stream


@settings(max_examples=200, deadline=None)
@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_times_come_back_as_they_were(moment: int) -> None:
    assert from_rfc3339(rfc3339(moment)) == moment


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00.0019z", 2),
        ("1970-01-01T02:00:00.5+02:00", 500),
        ("1970-01-01T00:00:00.123456789Z", 123),
        ("1969-12-31T23:59:59.999-00:00", -1),
        ("1970-01-01 00:00:00Z", None),
        ("1970-01-01T00:00:00", None),
        ("1970-01-01T00:00Z", None),
        ("1970-01-01T24:00:00Z", None),
        ("1970-13-01T00:00:00Z", None),
        ("1970-01-01T00:00:00+99:00", None),
        ("1970-01-01T00:00:00Z\n", None),
        ("\u0661970-01-01T00:00:00Z", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("9999-12-31T23:59:59-14:00", None),
        ("", None),
    ],
)
def test_times_are_rfc_3339_with_their_zone(text: str, moment: int | None) -> None:
    assert from_rfc3339(text) == moment
