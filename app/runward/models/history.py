"""The transcript as a provider's messages.

An answer goes back to the model that gave it as it was stored (`replay`), to any other model in our own words: its text and its calls,
never its thoughts. Results are paired with their calls by the id that the provider gave the call, where it is of use: ids repeat and
can be missing (R17), and then ours takes its place in both.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pydantic_ai.messages import (
    INVALID_JSON_KEY,
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from runward.core import messages as ours
from runward.models import replay
from runward.models.failures import Broken

_NOT_IN_AN_ID = re.compile(r"[^a-zA-Z0-9_-]")
LONGEST_NAME = 64
LONGEST_ID = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a provider wants its transcript written.

    `format`: whose stored answers it reads. `thinks_back`: which thoughts it takes back; others would reach it as text between tags.
    `url_types`: media types of files that it fetches by itself, as prefixes. `plain_ids`: ids may only have letters, digits, `_` and `-`.
    `blank_text`: text of nothing but white space is accepted.
    """

    format: str
    thinks_back: Callable[[ThinkingPart], bool]
    url_types: tuple[str, ...] = ("image/",)
    plain_ids: bool = False
    blank_text: bool = True


def history_of(messages: Iterable[ours.Message], dialect: Dialect) -> list[ModelMessage]:
    """The whole transcript, oldest first."""
    ids = _Ids(dialect.plain_ids)
    return [_message(message, dialect, ids) for message in messages]


def _message(message: ours.Message, dialect: Dialect, ids: _Ids) -> ModelMessage:
    match message.role:
        case "assistant":
            return _answer(message, dialect, ids)
        case "tool":
            return ModelRequest(parts=[_result(part, dialect, ids) for part in message.tool_results])
        case "user":
            return ModelRequest(parts=[UserPromptPart(_said(message.content, dialect))])


def _answer(message: ours.Message, dialect: Dialect, ids: _Ids) -> ModelResponse:
    stored = replay.load(message.opaque) if message.opaque_format == dialect.format else None
    if stored is None or len(replay.calls_of(stored)) != len(message.tool_calls):
        stored = _in_our_words(message)
    numbered = iter(message.tool_calls)
    parts: list[ModelResponsePart] = []
    for part in stored.parts:
        match part:
            case ToolCallPart():
                parts.append(_named(part, ids.assign(next(numbered).tool_call_id, part.tool_call_id)))
            case ThinkingPart() if not dialect.thinks_back(part):
                pass
            case TextPart(content=text) if not dialect.blank_text and not text.strip():
                pass
            case _:
                parts.append(part)
    return replace(stored, parts=parts)


def _in_our_words(message: ours.Message) -> ModelResponse:
    text = message.text
    said: list[ModelResponsePart] = [TextPart(text)] if text else []
    asked = [ToolCallPart(call.tool_name, _arguments(call.arguments), "") for call in message.tool_calls]
    return ModelResponse(parts=[*said, *asked])


def _arguments(value: Any) -> str | dict[str, Any]:
    """Arguments as the library takes them; a text that is not an object is marked by it as such."""
    return value if isinstance(value, str | dict) else json.dumps(value)


class _Asked(ToolCallPart):
    """A call that goes back with the very text of arguments that the model wrote; the library would write them anew."""

    def args_as_json_str(self) -> str:
        written = super().args_as_json_str()
        return self.args if isinstance(self.args, str) and self.args and INVALID_JSON_KEY not in written else written


def _named(call: ToolCallPart, id: str) -> ToolCallPart:
    """The call under this id, and under a name that no provider chokes on: a model may have made one up (F-60)."""
    given = {field.name: getattr(call, field.name) for field in fields(call) if field.init}
    return _Asked(**{**given, "tool_call_id": id, "tool_name": _safe_name(call.tool_name)})


def _safe_name(name: str) -> str:
    return _NOT_IN_AN_ID.sub("_", name)[:LONGEST_NAME] or "unknown"


def _result(part: ours.ToolResultPart, dialect: Dialect, ids: _Ids) -> ToolReturnPart:
    output = part.output if isinstance(part.output, str) else json.dumps(part.output, ensure_ascii=False, separators=(",", ":"))
    content: Any = [output, *(_file(file, dialect) for file in part.files)] if part.files else output
    result = ToolReturnPart(_safe_name(part.tool_name), content, ids.of(part.tool_call_id))
    return replace(result, outcome="failed") if part.is_error else result


def _said(parts: Sequence[ours.Part], dialect: Dialect) -> str | list[UserContent]:
    said: list[UserContent] = []
    for part in parts:
        if isinstance(part, ours.TextPart):
            said.append(part.text)
        elif isinstance(part, ours.FilePart):
            said.append(_file(part, dialect))
    return said[0] if len(said) == 1 and isinstance(said[0], str) else said


def _file(file: ours.FilePart, dialect: Dialect) -> UserContent:
    if file.data is not None:
        return BinaryContent(base64.b64decode(file.data, validate=True), media_type=file.media_type)
    if file.url is None or not file.media_type.startswith(dialect.url_types):
        # The library would fetch it here. A worker fetches nothing that a caller names.
        raise NotImplementedError(f"a {file.media_type} file by its address")
    kind = ImageUrl if file.media_type.startswith("image/") else DocumentUrl
    return kind(file.url, media_type=file.media_type)


class _Ids:
    """Which id a call goes by at the provider. Every id is used once, in the whole transcript."""

    def __init__(self, plain: bool) -> None:
        self._plain = plain
        self._taken: set[str] = set()
        self._by_call: dict[str, str] = {}

    def assign(self, call_id: str, provider_id: str) -> str:
        """The provider's own id if it can be used, else one made of ours."""
        usable = 0 < len(provider_id) <= LONGEST_ID and not (self._plain and _NOT_IN_AN_ID.search(provider_id))
        id = provider_id if usable and provider_id not in self._taken else _own_id(call_id)
        while id in self._taken:
            id += "_"
        self._taken.add(id)
        self._by_call[call_id] = id
        return id

    def of(self, call_id: str) -> str:
        """The id under which the call went out."""
        if call_id not in self._by_call:
            raise Broken("rejected", "A result has no call.")
        return self._by_call[call_id]


def _own_id(call_id: str) -> str:
    return "call_" + _NOT_IN_AN_ID.sub("_", call_id)
