"""A run's input: a text, or the messages of a conversation so far."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from runward.api.schemas.values import Body, given
from runward.api.validation import pointer, refused
from runward.core import messages as core
from runward.core.errors import Problem

MAX_ITEMS = 100
"""The most messages an input may have, and the most parts one message."""

Content = Annotated[str, Field(min_length=1)]
CallId = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]*$")]
ToolName = Annotated[str, Field(min_length=1, max_length=128)]


def _base64(value: str) -> str:
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise PydanticCustomError("base64", "This has to be base64.") from None
    return value


class TextIn(Body):
    """Text."""

    type: Literal["text"]
    text: str


class ReasoningIn(Body):
    """What a model thought aloud."""

    type: Literal["reasoning"]
    text: str


class FileIn(Body):
    """A file: `url`, or `data` in base64."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [given("url"), given("data")]})

    type: Literal["file"]
    media_type: Annotated[str, Field(max_length=127, pattern=r"^[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*$")]
    url: Annotated[str, Field(max_length=2_048, pattern=r"^https?://[\x21-\x7e]+$")] | None = None
    data: Annotated[str, AfterValidator(_base64)] | None = None
    name: Annotated[str, Field(min_length=1, max_length=255)] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> FileIn:
        if (self.url is None) == (self.data is None):
            raise PydanticCustomError("file", "A file has either `url` or `data`.")
        return self


class ToolCallIn(Body):
    """A call the model asked for."""

    type: Literal["tool_call"]
    tool_call_id: CallId
    tool_name: ToolName
    arguments: Any = None


class ToolResultIn(Body):
    """What the model saw of a call's result."""

    type: Literal["tool_result"]
    tool_call_id: CallId
    tool_name: ToolName
    output: Any = None
    is_error: bool = False
    files: Annotated[list[FileIn], Field(max_length=MAX_ITEMS)] | None = None


PartIn = Annotated[TextIn | ReasoningIn | FileIn | ToolCallIn | ToolResultIn, Field(discriminator="type")]
Parts = Annotated[list[PartIn], Field(min_length=1, max_length=MAX_ITEMS)]


def _form(value: Any) -> str:
    return "text" if isinstance(value, str) else "list"


def _no_system(value: Any) -> Any:
    if value == "system":
        raise PydanticCustomError("system", "Instructions are the agent's: an input has no system messages.")
    return value


class MessageIn(Body):
    """One message. `seq` and `step` may be there and are ignored, so that what `/messages` answers can be sent back."""

    model_config = ConfigDict(
        json_schema_extra={
            "not": {"properties": {"role": {"const": "tool"}, "content": {"type": "string"}}, "required": ["role", "content"]}
        }
    )

    role: Annotated[Literal["user", "assistant", "tool"], BeforeValidator(_no_system)]
    content: Annotated[Annotated[Content, Tag("text")] | Annotated[Parts, Tag("list")], Discriminator(_form)]
    seq: int | None = None
    step: int | None = None


Messages = Annotated[list[MessageIn], Field(min_length=1, max_length=MAX_ITEMS)]
Input = Annotated[Annotated[Content, Tag("text")] | Annotated[Messages, Tag("list")], Discriminator(_form)]

_ALLOWED = {"user": (TextIn, FileIn), "assistant": (TextIn, ReasoningIn, FileIn, ToolCallIn), "tool": (ToolResultIn,)}


def messages_of(given: str | Sequence[MessageIn]) -> list[core.Message]:
    """The input as messages. Raises Invalid for parts in the wrong role, and where calls and results do not pair (R17b)."""
    if isinstance(given, str):
        return [core.Message(seq=1, role="user", content=(core.TextPart(text=given),))]
    _check_pairs(given)
    return [core.Message(seq=seq, role=message.role, content=_content(message)) for seq, message in enumerate(given, 1)]


def _content(message: MessageIn) -> tuple[core.Part, ...]:
    if isinstance(message.content, str):
        return (core.TextPart(text=message.content),)
    return core.PARTS.validate_python([part.model_dump() for part in message.content])


def _check_pairs(given: Sequence[MessageIn]) -> None:
    """Every call of a turn is answered once, by the tool messages right behind it, and nothing else is."""
    open_calls: dict[str, str] = {}
    for place, message in enumerate(given):
        if message.role != "tool" and open_calls:
            raise _wrong("The calls of the message before have no results yet: tool messages come first.", place)
        asked: dict[str, str] = {}
        for number, part in enumerate(_parts(message, place)):
            if not isinstance(part, _ALLOWED[message.role]):
                raise _wrong(f"A message of role {message.role} has no such part.", place, "content", number)
            if isinstance(part, ToolCallIn):
                if part.tool_call_id in asked:
                    raise _wrong("Another call of this message has the same id.", place, "content", number)
                asked[part.tool_call_id] = part.tool_name
            elif isinstance(part, ToolResultIn) and open_calls.pop(part.tool_call_id, None) != part.tool_name:
                raise _wrong("No call of this id and tool waits for a result here.", place, "content", number)
        open_calls |= asked
    if open_calls:
        raise _wrong("The calls of this message have no results.", len(given) - 1)


def _parts(message: MessageIn, place: int) -> Sequence[Any]:
    if not isinstance(message.content, str):
        return message.content
    if message.role == "tool":
        raise _wrong("A tool message is a list of `tool_result` parts.", place, "content")
    return ()


def _wrong(detail: str, *path: str | int) -> Exception:
    return refused([Problem(pointer=pointer(["input", *path]), code="invalid_value", detail=detail)])
