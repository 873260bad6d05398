"""`@tool`: what it takes from a function, and what it refuses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel, Field

import runward
from runward import Approval, DefinitionError, Tool, ToolContext, tool
from runward.core.runs.calls import Effect

if TYPE_CHECKING:
    from nowhere import Shop, ShopContext  # type: ignore[import-not-found]


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    sku: str
    count: int = 1


def schema_of(function: Callable[..., Any], **options: Any) -> Any:
    return tool(**options)(function).parameters


# -- schemas from functions ------------------------------------------------------------------------------------------------


def test_the_schema_comes_from_the_types() -> None:
    def order(  # noqa: PLR0917
        order_id: int,
        amount: Decimal,
        when: date,
        color: Color,
        lines: list[Line],
        note: str | None = None,
        count: Annotated[int, Field(ge=1, description="How many.")] = 1,
    ) -> str:
        return ""

    schema = schema_of(order)
    assert schema["type"] == "object" and schema["additionalProperties"] is False
    assert schema["required"] == ["order_id", "amount", "when", "color", "lines"]
    properties = schema["properties"]
    assert list(properties) == ["order_id", "amount", "when", "color", "lines", "note", "count"]
    assert properties["order_id"] == {"type": "integer"}
    assert properties["when"] == {"type": "string", "format": "date"}
    assert properties["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert properties["count"] == {"type": "integer", "minimum": 1, "description": "How many.", "default": 1}
    assert properties["lines"] == {"type": "array", "items": {"$ref": "#/$defs/Line"}}
    assert schema["$defs"]["Color"]["enum"] == ["red", "blue"]


def test_names_that_pydantic_keeps_for_itself_are_ordinary_parameters() -> None:
    def odd(model_config: int, schema: str, json: str, _hidden: int, copy: bool = False) -> None: ...

    made = tool(odd)
    assert list(made.parameters["properties"]) == ["model_config", "schema", "json", "_hidden", "copy"]
    values = made.signature.build({"model_config": 1, "schema": "a", "json": "b", "_hidden": 2})
    assert made.signature.bind(values, None) == ([], {"model_config": 1, "schema": "a", "json": "b", "_hidden": 2, "copy": False})


def test_a_field_as_default_and_an_alias_are_understood() -> None:
    def search(text: str = Field("all", max_length=20), max_hits: Annotated[int, Field(alias="maxHits")] = 5) -> None: ...

    made = tool(search)
    assert made.parameters["properties"] == {
        "text": {"type": "string", "maxLength": 20, "default": "all"},
        "maxHits": {"type": "integer", "default": 5},
    }
    assert made.signature.bind(made.signature.build({"maxHits": 7}), None) == ([], {"text": "all", "max_hits": 7})


def test_positional_parameters_stay_positional() -> None:
    def add(first: int, ctx: ToolContext, /, second: int) -> int:
        return first + second

    signature = tool(add).signature
    assert signature.bind(signature.build({"first": 1, "second": 2}), "the context") == ([1, "the context"], {"second": 2})


def test_a_default_that_is_no_json_is_not_shown() -> None:
    marker = object()

    def take(number: int, extra: Any = marker) -> None: ...

    made = tool(take)
    assert made.parameters["properties"]["extra"] == {}
    assert made.signature.bind(made.signature.build({"number": 1}), None)[1]["extra"] is marker


def test_no_parameters_are_an_empty_object() -> None:
    def ping() -> str:
        return "pong"

    assert schema_of(ping) == {"type": "object", "properties": {}, "additionalProperties": False}


# -- docstrings --------------------------------------------------------------------------------------------------------------


def google(order_id: int, note: str = "") -> None:
    """Look up an order.

    It takes a while.

    Args:
        order_id: The number on
            the confirmation.
        note (str): What for.

    Returns:
        Nothing.
    """


def numpy(order_id: int, note: str = "") -> None:
    """Look up an order.

    It takes a while.

    Parameters
    ----------
    order_id : int
        The number on
        the confirmation.
    note
        What for.
    """


def sphinx(order_id: int, note: str = "") -> None:
    """Look up an order.

    It takes a while.

    :param order_id: The number on
        the confirmation.
    :param str note: What for.
    :returns: Nothing.
    """


@pytest.mark.parametrize("function", [google, numpy, sphinx])
def test_descriptions_come_from_the_docstring(function: Callable[..., None]) -> None:
    made = tool(function)
    assert made.description == "Look up an order.\n\nIt takes a while."
    described = {name: each.get("description") for name, each in made.parameters["properties"].items()}
    assert described == {"order_id": "The number on the confirmation.", "note": "What for."}


def test_what_the_author_says_outright_wins() -> None:
    def look(order_id: Annotated[int, Field(description="From Field.")]) -> None:
        """From the docstring.

        Args:
            order_id: From the docstring.
        """

    made = tool(name="look_up", description="From the decorator.")(look)
    assert (made.name, made.description) == ("look_up", "From the decorator.")
    assert made.parameters["properties"]["order_id"]["description"] == "From Field."


def test_a_plain_docstring_is_the_description_as_it_is() -> None:
    def note() -> None:
        """Note: this
        and that."""

    assert tool(note).description == "Note: this\nand that."


# -- the context --------------------------------------------------------------------------------------------------------------


def test_the_context_is_injected_and_not_in_the_schema() -> None:
    def plain(order_id: int, ctx: ToolContext) -> None: ...
    def typed(order_id: int, ctx: ToolContext[Shop, ShopContext]) -> None: ...
    def optional(order_id: int, ctx: ToolContext[Shop, ShopContext] | None = None) -> None: ...
    def dotted(order_id: int, ctx: runward.ToolContext[Any, Any]) -> None: ...
    def base(order_id: int, ctx: runward.RunContext[Any, Any]) -> None: ...
    def annotated(order_id: int, ctx: Annotated[ToolContext[Any, Any], "of the call"]) -> None: ...

    for function in (plain, typed, optional, dotted, base, annotated):
        made = tool(function)
        assert list(made.parameters["properties"]) == ["order_id"], function.__name__
        assert made.signature.bind(made.signature.build({"order_id": 1}), "the context") == ([], {"order_id": 1, "ctx": "the context"})


def test_the_context_is_known_when_only_type_checkers_import_it() -> None:
    namespace: dict[str, Any] = {}
    source = "async def look(order_id: int, ctx: 'ToolContext[Shop, None] | None') -> 'Order': ..."
    exec(source, namespace)  # with and without `from __future__ import annotations`: this module has it
    exec(compile(source.replace("look", "look_up"), "shop.py", "exec", dont_inherit=True), namespace)
    for name in ("look", "look_up"):
        assert list(schema_of(namespace[name])["properties"]) == ["order_id"]


def test_local_types_are_found_in_string_annotations() -> None:
    class Address(BaseModel):
        city: str

    @tool
    def ship(to: Address) -> None: ...

    @tool(effect="read")
    def weigh(to: Address) -> None: ...

    assert ship.parameters["$defs"]["Address"]["required"] == weigh.parameters["$defs"]["Address"]["required"] == ["city"]


# -- it stays a function -------------------------------------------------------------------------------------------------------


async def test_a_tool_is_still_called_as_its_function() -> None:
    @tool(effect="read")
    async def double(number: int) -> int:
        """Doubles."""
        return 2 * number

    assert await double(21) == 42
    assert double.__doc__ == "Doubles." and list(inspect.signature(double).parameters) == ["number"]


def test_bound_methods_work() -> None:
    class Store:
        def __init__(self, name: str) -> None:
            self.name = name

        def lookup(self, order_id: int) -> str:
            """Look up."""
            return f"{self.name} {order_id}"

    made = tool(effect="read")(Store("north").lookup)
    assert (made.name, made.description, made(7)) == ("lookup", "Look up.", "north 7")
    assert list(made.parameters["properties"]) == ["order_id"]


def test_a_changed_copy_is_checked_again() -> None:
    @tool(effect="read")
    def look(order_id: int) -> None: ...

    assert replace(look, name="other").name == "other"
    with pytest.raises(DefinitionError, match="timeout_seconds"):
        replace(look, timeout_seconds=0)


# -- what is refused -----------------------------------------------------------------------------------------------------------


class Opaque:
    pass


def untyped(order_id) -> None: ...  # type: ignore[no-untyped-def]
def variable(*order_ids: int) -> None: ...
def keywords(**order_ids: int) -> None: ...
def opaque(order_id: int, thing: Opaque) -> None: ...
def function_typed(callback: Callable[[], int]) -> None: ...
def unknown(thing: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def twice(one: ToolContext, other: ToolContext) -> None: ...
def lookahead(text: Annotated[str, Field(pattern="(?=a)")]) -> None: ...


async def streaming(order_id: int) -> Any:
    yield order_id


def generating(order_id: int) -> Any:
    yield order_id


class Desk:
    def lookup(self, order_id: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (untyped, r"test_tools\.untyped: parameter `order_id` has no type"),
        (variable, r"test_tools\.variable: parameter `order_ids` takes any number of arguments"),
        (keywords, r"test_tools\.keywords: parameter `order_ids` takes any number of arguments"),
        (opaque, r"test_tools\.opaque: parameter `thing` cannot be described to a model"),
        (function_typed, r"test_tools\.function_typed: parameter `callback` cannot be described"),
        (unknown, r"test_tools\.unknown: parameter `thing`: its type 'Nowhere' cannot be resolved"),
        (twice, r"test_tools\.twice: parameters `one` and `other` both ask for the context"),
        (lookahead, r"test_tools\.lookahead: parameter `text` cannot be described"),
        (streaming, r"test_tools\.streaming is a generator"),
        (generating, r"test_tools\.generating is a generator"),
        (Desk.lookup, r"Desk\.lookup: parameter `self` has no type\. Make the tool from a bound method"),
        (Desk, r"test_tools\.Desk is not a function or a bound method"),
        (print, r"builtins\.print is not a function"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_by_name(function: Any, reason: str) -> None:
    with pytest.raises(DefinitionError, match=reason):
        tool(function)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"effect": "reads"}, "effect is 'reads', but has to be one of read, idempotent_write"),
        ({"name": "look up"}, "A tool's name is 'look up'"),
        ({"name": "ä" * 3}, "A tool's name"),
        ({"name": "x" * 65}, "A tool's name"),
        ({"description": 3}, "description must be a text"),
        ({"timeout_seconds": 0}, "timeout_seconds must be more than 0"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds must be more than 0"),
        ({"timeout_seconds": float("inf")}, "timeout_seconds must be more than 0"),
        ({"max_attempts": 0}, "max_attempts must be at least 1"),
        ({"on_unknown": "ignore"}, "on_unknown must be"),
        ({"enabled": "yes"}, "enabled must be"),
        ({"probe": "yes"}, "probe must be a function"),
        ({"output_schema": {"type": "objekt"}}, "output_schema is not a JSON Schema"),
        ({"output_schema": {"$ref": "https://example.org/schema.json"}}, "output_schema is not a JSON Schema"),
        ({"parameters": {"properties": {"other": {}}}}, "names `other`, which the function does not take"),
        ({"parameters": {"properties": {}}}, "leaves out `order_id`, which the function needs"),
        ({"parameters": {"type": "array", "properties": {"order_id": {}}}}, '"type": "object"'),
        ({"parameters": {"properties": {"order_id": {"pattern": "(?<=a)b"}}}}, "is not a JSON Schema"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], reason: str) -> None:
    def look(order_id: int) -> None: ...

    with pytest.raises(DefinitionError, match=reason):
        tool(**options)(look)


def test_a_schema_of_the_authors_own_is_what_the_model_sees() -> None:
    given = {"properties": {"order_id": {"type": "integer", "minimum": 1}}}

    @tool(parameters=given)
    def look(order_id: int, note: str = "") -> None: ...

    assert look.parameters == {"type": "object", "additionalProperties": False, **given}
    given["properties"]["order_id"]["minimum"] = 5
    assert look.parameters["properties"]["order_id"]["minimum"] == 1


# -- effect and approval ---------------------------------------------------------------------------------------------------------


def made(effect: Any = "unclassified", needs_approval: Any = None) -> Tool[Any]:
    def act(order_id: int) -> None: ...

    declared: Tool[Any] = tool(effect=effect, needs_approval=needs_approval)(act)
    return declared


@pytest.mark.parametrize("effect", list(Effect))
def test_R14_the_effect_decides_about_approval_unless_the_author_does(effect: Effect) -> None:
    assert (made(effect.value).approval is not None) is (effect in (Effect.NON_IDEMPOTENT_WRITE, Effect.UNCLASSIFIED))
    assert made(effect.value, needs_approval=False).approval is None
    assert made(effect.value, needs_approval=True).approval == Approval()
    assert made(effect.value, needs_approval=Approval(version="2")).approval == Approval(version="2")


def test_a_predicate_is_an_approval_that_asks_sometimes() -> None:
    def above(arguments: Any, ctx: ToolContext) -> bool:
        return bool(arguments["amount"] > 100)

    assert made("read", above).approval == Approval(when=above)


def test_a_tool_without_options_is_unclassified_and_asked_for() -> None:
    @tool
    def act(order_id: int) -> None: ...

    assert act.traits.effect is Effect.UNCLASSIFIED and act.approval is not None


@pytest.mark.parametrize(
    "options",
    [{"when": "always"}, {"version": ""}, {"version": 1}, {"expires_seconds": 0}, {"on_expiry": "approve"}],
    ids=lambda given: next(iter(given)),
)
def test_an_approval_out_of_range_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=r"Approval\."):
        Approval(**options)


def test_the_traits_say_what_a_run_has_to_know() -> None:
    @tool(effect="idempotent_write", timeout_seconds=5, max_attempts=7, on_unknown="tell_model", to_model_output=str)
    def act(order_id: int) -> int:
        """Acts."""
        return order_id

    traits = act.traits
    assert (traits.name, traits.description, traits.effect, traits.timeout_seconds) == ("act", "Acts.", Effect.IDEMPOTENT_WRITE, 5)
    assert (traits.max_attempts, traits.on_unknown, traits.projects) == (7, "tell_model", True)
    assert traits.parameters == act.parameters
