"""Functions as tools: arguments in, results out, on the loop and in threads."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel

from runward import File, Text, ToolContext, ToolError
from runward.core.runs.calls import Effect
from runward.core.text import is_clean
from runward.ports import tools as port
from runward.ports.tools import BadResult
from runward.testing import make_context
from tests.tools.doubles import MAX_BYTES, call, local


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    sku: str
    count: int = 1


@dataclass
class Address:
    city: str


def test_it_is_a_tool_of_the_port() -> None:
    def look(order_id: int) -> str:
        """Look up."""
        return ""

    body: port.Tool = local(look, effect="idempotent_write", timeout_seconds=5)
    assert (body.traits.name, body.traits.effect, body.traits.timeout_seconds, body.traits.projects) == (
        "look",
        Effect.IDEMPOTENT_WRITE,
        5,
        False,
    )


# -- arguments ---------------------------------------------------------------------------------------------------------------------


async def test_arguments_are_built_into_the_annotated_types() -> None:
    seen: dict[str, Any] = {}

    async def take(  # noqa: PLR0917
        when: date,
        at: datetime,
        amount: Decimal,
        color: Color,
        line: Line,
        to: Address,
        key: UUID,
        wait: timedelta,
        tags: set[str],
        pair: tuple[int, str],
        counts: dict[int, int],
        kind: Literal["a", "b"] = "a",
        note: str | None = None,
    ) -> None:
        seen.update(locals())
        del seen["seen"]

    body = local(take)
    arguments = {
        "when": "2026-03-01",
        "at": "2026-03-01T12:00:00Z",
        "amount": "12.10",
        "color": "red",
        "line": {"sku": "a"},
        "to": {"city": "Rome"},
        "key": "12345678-1234-5678-1234-567812345678",
        "wait": "PT5M",
        "tags": ["x", "y"],
        "pair": [1, "b"],
        "counts": {"1": 2},
    }
    assert body.refusal(arguments) is None
    await body.invoke(arguments, make_context())
    assert seen == {
        "when": date(2026, 3, 1),
        "at": datetime(2026, 3, 1, 12, tzinfo=UTC),
        "amount": Decimal("12.10"),
        "color": Color.RED,
        "line": Line(sku="a", count=1),
        "to": Address("Rome"),
        "key": UUID("12345678-1234-5678-1234-567812345678"),
        "wait": timedelta(minutes=5),
        "tags": {"x", "y"},
        "pair": (1, "b"),
        "counts": {1: 2},
        "kind": "a",
        "note": None,
    }


def even(number: int) -> int:
    if number % 2:
        raise ValueError("must be even")
    return number


def broken(number: int) -> int:
    raise RuntimeError("password=hunter2")


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ({}, "The arguments do not fit: `order_id` is missing."),
        ({"order_id": "seven"}, "The arguments do not fit: `order_id` must be an integer, not a string."),
        ({"order_id": "7"}, "The arguments do not fit: `order_id` must be an integer, not a string."),
        ({"order_id": True}, "The arguments do not fit: `order_id` must be an integer, not a boolean."),
        ({"order_id": 7, "extra": 1}, "The arguments do not fit: `extra` is not allowed."),
        ({"order_id": 7, "ctx": {}}, "The arguments do not fit: `ctx` is not allowed."),
        ({"order_id": 7, "when": "yesterday"}, "The arguments do not fit: `when`: Input should be a valid date"),
        ({"order_id": 7, "count": 3}, "The arguments do not fit: `count`: Value error, must be even."),
        ({"order_id": 7, "odd": 3}, "The arguments do not fit: they cannot be read."),
    ],
)
def test_arguments_that_do_not_fit_are_refused_for_the_model(arguments: dict[str, Any], refusal: str) -> None:
    def take(
        order_id: int,
        ctx: ToolContext,
        when: date | None = None,
        count: Annotated[int, AfterValidator(even)] = 0,
        odd: Annotated[int, AfterValidator(broken)] = 0,
    ) -> None: ...

    found = local(take).refusal(arguments)
    assert found is not None and found.startswith(refusal)
    assert "hunter2" not in found and "seven" not in found


async def test_arguments_that_fit_no_more_are_a_tool_error() -> None:
    """A deployment changed the function under a stored call: nothing has happened, and that is certain."""
    with pytest.raises(ToolError, match="not started"):
        await call(lookup, {"order": 7})


async def lookup(order_id: int, ctx: ToolContext) -> dict[str, Any]:
    return {"order_id": order_id, "key": ctx.idempotency_key}


async def test_the_context_is_handed_over() -> None:
    body = local(lookup)
    returned = await body.invoke({"order_id": 7}, make_context(run_id="r1", step=3))
    assert returned.value == {"order_id": 7, "key": "r1/3.1"} and returned.text == '{"order_id":7,"key":"r1/3.1"}'


TEXT = st.text(max_size=20).filter(is_clean)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, JSON, max_size=4))
@settings(max_examples=150, deadline=None)
def test_whatever_passes_the_check_can_be_built_and_comes_back_as_it_was(value: dict[str, Any]) -> None:
    async def echo(value: dict[str, Any]) -> dict[str, Any]:
        return value

    body = local(echo)
    assert body.refusal({"value": value}) is None
    assert asyncio.run(body.invoke({"value": value}, make_context())).value == value


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("order_id", "color", "line", "tags", "when", "amount"), JSON)))
@settings(max_examples=300, deadline=None)
def test_arguments_are_refused_or_run_and_nothing_in_between(arguments: dict[str, Any]) -> None:
    async def take(order_id: int, color: Color, line: Line, tags: set[int], when: date, amount: Decimal) -> str:  # noqa: PLR0917
        built: list[object] = [order_id, color, line, tags, when, amount]
        assert [type(value) for value in built] == [int, Color, Line, set, date, Decimal]
        return "ran"

    body = local(take)
    if body.refusal(arguments) is None:
        assert asyncio.run(body.invoke(arguments, make_context())).value == "ran"


# -- where it runs -------------------------------------------------------------------------------------------------------------------

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO", default="nobody")


async def test_async_def_runs_on_the_loop_and_def_in_a_daemon_thread() -> None:
    WHO.set("the run")
    seen: list[tuple[threading.Thread, str]] = []

    async def on_the_loop() -> None:
        seen.append((threading.current_thread(), WHO.get()))

    def in_a_thread() -> None:
        seen.append((threading.current_thread(), WHO.get()))

    await call(on_the_loop)
    await call(in_a_thread)
    (loop_thread, who), (worker_thread, who_there) = seen
    assert loop_thread is threading.current_thread() is not worker_thread
    assert worker_thread.daemon and (who, who_there) == ("the run", "the run")


async def test_a_def_that_returns_an_awaitable_is_awaited_on_the_loop() -> None:
    async def inner() -> str:
        assert threading.current_thread() is threading.main_thread()
        return "awaited"

    def outer() -> Awaitable[str]:
        return inner()

    assert await call(outer) == "awaited"


async def test_bound_methods_run() -> None:
    class Store:
        name = "north"

        async def look(self, order_id: int) -> str:
            return f"{self.name} {order_id}"

    assert await call(Store().look, {"order_id": 7}) == "north 7"


async def test_a_result_is_dumped_where_the_tool_ran() -> None:
    dumped_in: list[threading.Thread] = []

    class Lazy(BaseModel):
        number: int

        def model_post_init(self, context: Any) -> None:
            dumped_in.append(threading.current_thread())

    def make() -> list[Lazy]:
        return [Lazy(number=1)]

    assert await call(make) == [{"number": 1}] and dumped_in[0] is not threading.current_thread()


# -- projections -----------------------------------------------------------------------------------------------------------------------


async def projected(function: Callable[..., Any], to_model_output: Callable[[Any], Any]) -> Any:
    body = local(function, to_model_output=to_model_output)
    raw = json.loads((await body.invoke({}, make_context())).text)
    return (await body.project(raw, make_context())).value


async def test_a_projection_gets_the_stored_value_in_its_type() -> None:
    async def quote() -> Line:
        return Line(sku="a", count=3)

    async def later(line: Line) -> str:
        return f"{line.count} of {line.sku}"

    assert await projected(quote, lambda line: f"{line.count} of {line.sku}") == "3 of a"
    assert await projected(quote, later) == "3 of a"

    async def when() -> dict[date, Decimal]:
        return {date(2026, 3, 1): Decimal("1.50")}

    assert await projected(when, lambda days: [f"{day:%d.%m.} {amount}" for day, amount in days.items()]) == ["01.03. 1.50"]


async def test_a_projection_without_annotation_gets_json() -> None:
    async def quote():  # type: ignore[no-untyped-def]
        return Line(sku="a")

    assert await projected(quote, lambda line: line["sku"]) == "a"


async def test_a_result_that_is_not_of_its_type_is_found_at_once_where_something_follows() -> None:
    async def quote() -> Line:
        return {"price": 3}  # type: ignore[return-value]

    assert await call(quote) == {"price": 3}
    with pytest.raises(BadResult, match="not of the type"):
        await call(quote, to_model_output=str)


async def test_a_stored_value_that_fits_no_more_is_an_invalid_result() -> None:
    async def quote() -> Line:
        return Line(sku="a")

    with pytest.raises(BadResult) as raised:
        await local(quote, to_model_output=str).project({"price": 3}, make_context())
    assert raised.value.outcome == "invalid_result"


async def test_what_a_projection_raises_or_returns_is_handled_like_a_tool() -> None:
    async def quote() -> int:
        return 3

    def explode(value: int) -> str:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await projected(quote, explode)
    with pytest.raises(BadResult):
        await projected(quote, lambda value: object())


async def test_files_go_beside_the_text_and_survive_a_projection() -> None:
    def draw() -> list[Text | File]:
        return [
            Text("Sales:"),
            File(media_type="image/png", data=b"\xff\x00", name="a.png"),
            File(media_type="image/png", url="https://x/y"),
        ]

    returned = await local(draw).invoke({}, make_context())
    assert returned.value == "Sales:" and [(file.data, file.url, file.name) for file in returned.files] == [
        ("/wA=", None, "a.png"),
        (None, "https://x/y", None),
    ]
    body = local(draw, to_model_output=lambda parts: parts[1:])
    raw = await body.invoke({}, make_context())
    assert raw.files == ()
    shown = await body.project(json.loads(raw.text), make_context())
    assert shown.value == "" and shown.files == returned.files


@pytest.mark.parametrize(
    "fields",
    [{}, {"data": b"", "url": "https://x/y"}, {"url": "file:///etc/passwd"}, {"data": "text"}, {"data": b"", "media_type": "png"}],
    ids=str,
)
def test_a_file_has_one_source_and_a_media_type(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="File"):
        File(**{"media_type": "image/png", **fields})


# -- bounds ----------------------------------------------------------------------------------------------------------------------------


async def test_a_result_is_bounded_in_bytes_of_what_is_stored() -> None:
    async def text(size: int, letter: str) -> str:
        return letter * size

    assert len(await call(text, {"size": MAX_BYTES - 2, "letter": "x"})) == MAX_BYTES - 2
    for size, letter in ((MAX_BYTES - 1, "x"), (MAX_BYTES // 2, "ü"), (MAX_BYTES // 2, '"')):
        with pytest.raises(BadResult) as raised:
            await call(text, {"size": size, "letter": letter})
        assert raised.value.outcome == "too_large" and str(MAX_BYTES) in raised.value.message and len(raised.value.message) < 200


async def test_files_count() -> None:
    def draw() -> File:
        return File(media_type="image/png", data=b"x" * MAX_BYTES)

    with pytest.raises(BadResult, match="larger"):
        await call(draw)


async def test_an_output_schema_is_checked() -> None:
    schema = {"type": "object", "properties": {"price": {"type": "integer"}}, "required": ["price"]}

    async def quote(price: Any) -> dict[str, Any]:
        return {"price": price}

    assert await call(quote, {"price": 3}, output_schema=schema) == {"price": 3}
    with pytest.raises(BadResult) as raised:
        await call(quote, {"price": "s3cr3t-price"}, output_schema=schema)
    assert raised.value.outcome == "invalid_result" and "`price` must be an integer" in raised.value.message
    assert "s3cr3t" not in raised.value.message


def test_a_body_is_compiled_once() -> None:
    body = local(lookup)
    assert body.traits is body.traits
