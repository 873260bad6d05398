"""What can be recorded of a result, and what cannot: nothing is lost silently."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_serializer

from runward.agents.annotations import UNRESOLVED
from runward.agents.content import File, Text
from runward.core.runs.calls import MAX_DEPTH
from runward.core.text import is_clean
from runward.ports.tools import BadResult
from runward.tools.results import Recorder


class Level(IntEnum):
    LOW = 1


class Color(Enum):
    RED = "red"


class Line(BaseModel):
    sku: str = Field(alias="articleNumber")
    price: Decimal = Decimal("1.50")
    token: SecretStr = SecretStr("hunter2")


class Blob(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64")
    data: bytes


class Plain(BaseModel):
    data: bytes | None = None
    ratio: float = 1.0


class Rounded(BaseModel):
    ratio: float

    @field_serializer("ratio")
    def as_text(self, value: float) -> str:
        return f"{value:.2f}"


@dataclass
class Address:
    city: str


class Point(NamedTuple):
    x: int
    y: int


class Row(TypedDict):
    day: date


def kind(value: Any) -> str:
    """The name of a value's type: the same in every process, which the text of an object is not."""
    return type(value).__name__


def recorder(annotation: Any = UNRESOLVED, **options: Any) -> Recorder:
    return Recorder(annotation, **{"output_schema": None, "max_bytes": 100_000, "projected": False, "of": "It", **options})


@pytest.mark.parametrize(
    ("annotation", "value", "recorded"),
    [
        (UNRESOLVED, None, None),
        (UNRESOLVED, {"a": [1, 2.5, "x", True, None]}, {"a": [1, 2.5, "x", True, None]}),
        (UNRESOLVED, 2**80, 2**80),
        (str, "done", "done"),
        (Line, Line(articleNumber="a"), {"articleNumber": "a", "price": "1.50", "token": "**********"}),
        (UNRESOLVED, [Line(articleNumber="a")], [{"articleNumber": "a", "price": "1.50", "token": "**********"}]),
        (UNRESOLVED, Address("Rome"), {"city": "Rome"}),
        (UNRESOLVED, Point(1, 2), [1, 2]),
        (Row, Row(day=date(2026, 3, 1)), {"day": "2026-03-01"}),
        (UNRESOLVED, {Color.RED: Level.LOW}, {"red": 1}),
        (UNRESOLVED, {1: "a", 2: "b"}, {"1": "a", "2": "b"}),
        (UNRESOLVED, {date(2026, 3, 1): timedelta(minutes=5)}, {"2026-03-01": "PT5M"}),
        (UNRESOLVED, (frozenset({1}), deque([2]), OrderedDict(a=3)), [[1], [2], {"a": 3}]),
        (UNRESOLVED, [Blob(data=b"\xff\xfe")], [{"data": "__4="}]),
        (Blob, Blob(data=b""), {"data": ""}),
        (Rounded, Rounded(ratio=float("nan")), {"ratio": "nan"}),
        (int, "not an int", "not an int"),
        (Line, {"other": 1}, {"other": 1}),
        (object(), {"a": 1}, {"a": 1}),
    ],
    ids=kind,
)
def test_what_pydantic_can_dump_is_recorded(annotation: Any, value: Any, recorded: Any) -> None:
    returned = recorder(annotation).record(value)
    assert returned.value == recorded and json.loads(returned.text) == recorded and returned.files == ()


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    return value


def cyclic() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


class Exploding(BaseModel):
    ratio: float = 1

    @field_serializer("ratio")
    def boom(self, value: float) -> str:
        raise RuntimeError("password=hunter2")


@pytest.mark.parametrize(
    ("annotation", "value", "why"),
    [
        (UNRESOLVED, float("nan"), "NaN"),
        (float, float("-inf"), "infinite"),
        (UNRESOLVED, {"a": [1, float("nan")]}, "NaN"),
        (UNRESOLVED, {float("nan")}, "NaN"),
        (Plain, Plain(ratio=float("inf")), "infinite"),
        (UNRESOLVED, Plain(ratio=float("nan")), "NaN"),
        (UNRESOLVED, Decimal("NaN"), "NaN"),
        (dict[str, Decimal], {"a": Decimal("Infinity")}, "infinite"),
        (UNRESOLVED, b"text", "bytes"),
        (bytes, b"text", "bytes"),
        (Plain, Plain(data=b"text"), "bytes"),
        (UNRESOLVED, {"a": (bytearray(b"text"),)}, "bytes"),
        (UNRESOLVED, b"\xff", "not JSON"),
        (UNRESOLVED, memoryview(b"text"), "not JSON"),
        (UNRESOLVED, object(), "not JSON"),
        (UNRESOLVED, [Unprintable()], "not JSON"),
        (UNRESOLVED, RuntimeError("password=hunter2"), "not JSON"),
        (UNRESOLVED, lambda: 1, "not JSON"),
        (UNRESOLVED, Line, "not JSON"),
        (Exploding, Exploding(), "not JSON"),
        (UNRESOLVED, (number for number in [1]), "iterator"),
        (UNRESOLVED, [(number for number in [1])], "iterator"),
        (UNRESOLVED, {1: "a", "1": "b"}, "keys"),
        (UNRESOLVED, nested(MAX_DEPTH + 1), "nested deeper"),
        (UNRESOLVED, nested(200), "nested deeper"),
        (UNRESOLVED, nested(10_000), "not JSON"),
        (UNRESOLVED, cyclic(), "not JSON"),
        (UNRESOLVED, 10**5_000, "number"),
        (UNRESOLVED, [Text("a"), 3], "Text or File"),
    ],
    ids=kind,
)
def test_what_json_cannot_hold_is_an_invalid_result(annotation: Any, value: Any, why: str) -> None:
    with pytest.raises(BadResult) as raised:
        recorder(annotation).record(value)
    assert raised.value.outcome == "invalid_result" and why in raised.value.message and "hunter2" not in raised.value.message
    assert raised.value.message.startswith("The tool ran, ")


def test_the_deepest_result_that_fits() -> None:
    assert recorder().record(nested(MAX_DEPTH)).value == nested(MAX_DEPTH)


def test_R47_text_is_cleaned_once() -> None:
    returned = recorder().record({"a\0": ["\ud800x", "ü\u2028"]})
    assert returned.value == {"a\ufffd": ["\ufffdx", "ü\u2028"]} and returned.text == '{"a\ufffd":["\ufffdx","ü\u2028"]}'
    returned.text.encode()


TEXT = st.text().filter(is_clean)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(PLAIN)
def test_plain_json_is_recorded_and_rebuilt_as_it_was(value: Any) -> None:
    for annotation in (UNRESOLVED, Any):
        made = recorder(annotation, projected=True)
        returned = made.record(value)
        assert returned.value == value == json.loads(returned.text) == made.rebuild(returned.value)


@given(st.binary(max_size=100), TEXT)
def test_files_come_back_byte_for_byte(data: bytes, text: str) -> None:
    made = recorder(list[Text | File], projected=True)
    parts = [Text(text), File(media_type="image/png", data=data)]
    assert made.rebuild(made.record(parts).value) == parts
