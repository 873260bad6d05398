"""Reads query strings, as strictly as bodies: every parameter known, given once unless it may repeat, and spelled in one way."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar, get_origin
from urllib.parse import parse_qsl

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, PrivateAttr, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from runward.api import cursors
from runward.api.schemas.values import Label
from runward.api.validation import invalid, refused
from runward.core.errors import Invalid, Problem
from runward.core.text import is_clean
from runward.engine.tokens import MAX_LENGTH

MAX_PARAMETERS = 100
MAX_PARAMETER = 1_024
"""The most parameters a query may have, and the most characters one of them."""
TOKEN = "token"
"""The parameter that an access token comes in."""

_ESCAPE = re.compile(rb"%(?![0-9a-fA-F]{2})")

Q = TypeVar("Q", bound="Query")


class Query(BaseModel):
    """A query. Every authenticated route takes `tenant`, for operators."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    open_prefix: ClassVar[str | None] = None
    """Parameters that begin so have names of the caller's choice; they are in `named`, without it."""

    tenant: Label | None = Field(default=None, description="Operator keys only: the tenant this request is about.")
    _named: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def named(self) -> Mapping[str, str]:
        """The parameters under `open_prefix`."""
        return self._named


def tokens_in(raw: bytes) -> list[str]:
    """The access tokens in a query string; none in one that cannot be read, which is told once it is known who asks."""
    try:
        return [value for name, value in _pairs(raw) if name == TOKEN]
    except Invalid:
        return []


def read_query(model: type[Q], raw: bytes, *, may_have_token: bool = False) -> Q:
    """The parameters of a query string. Raises Invalid. An access token is no parameter of its model: it was read before."""
    given: dict[str, Any] = {}
    named: dict[str, str] = {}
    for name, value in _pairs(raw):
        if may_have_token and name == TOKEN:
            continue
        field = model.model_fields.get(name)
        if field is not None and get_origin(field.annotation) is tuple:
            given[name] = (*given.get(name, ()), value)
        elif name in given or name in named:
            raise refused([Problem(pointer=_where([name]), code="invalid_value", detail="This parameter can be given once.")])
        elif model.open_prefix and name.startswith(model.open_prefix) and field is None:
            named[name] = value
        else:
            given[name] = value
    try:
        query = model.model_validate(given)
    except ValidationError as error:
        raise invalid(error, given, where=_where) from None
    query._named.update({name.removeprefix(model.open_prefix or ""): value for name, value in named.items()})
    return query


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        if _ESCAPE.search(raw):
            raise ValueError
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, strict_parsing=bool(raw), errors="strict", max_num_fields=MAX_PARAMETERS
        )
    except ValueError:
        raise Invalid("The query string cannot be read: it has to be `name=value` pairs, escaped UTF-8, and not too many.") from None
    for name, value in pairs:
        if len(name) > MAX_PARAMETER or len(value) > (MAX_LENGTH if name == TOKEN else MAX_PARAMETER) or not is_clean(name + value):
            raise Invalid(f"A parameter is longer than {MAX_PARAMETER} characters, or has a NUL in it.")
    return pairs


def _where(parts: Sequence[str | int]) -> str:
    return "?" + str(parts[0])[:MAX_PARAMETER] if parts else "?"


def _integer(text: Any) -> int:
    value = cursors.number(text) if isinstance(text, str) else None
    if value is None:
        raise PydanticCustomError("integer", "This has to be a plain decimal number.")
    return value


def _truth(text: Any) -> bool:
    if text not in ("true", "false"):
        raise PydanticCustomError("truth", "This has to be true or false.")
    return bool(text == "true")


class Bounds:
    """The bounds of a number in the words of JSON Schema: behind a validator of ours pydantic says `ge` and `le`, which nobody reads."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler(core)
        words = {"ge": "minimum", "le": "maximum"}
        return {words.get(name, name): value for name, value in made.items()}


Whole = Annotated[int, BeforeValidator(_integer)]
Truth = Annotated[bool, BeforeValidator(_truth)]
Cursor = Annotated[str, Field(max_length=MAX_PARAMETER)]
Limit = Annotated[Whole, Field(ge=1, le=1_000), Bounds()]
