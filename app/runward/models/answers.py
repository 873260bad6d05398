"""A provider's stream as deltas, and its end as an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.usage import RequestUsage

from runward.core.text import clean
from runward.core.usage import Usage
from runward.models import replay
from runward.models.failures import Broken
from runward.ports.models import AskedCall, Finish, ModelAnswer, ModelDelta

MAX_CHARACTERS = 8_000_000
"""More than this of text, thoughts and arguments together is no answer."""
MAX_CALLS = 256

_FINISHES: dict[str, Finish] = {"stop": "stop", "tool_call": "stop", "length": "length", "content_filter": "content_filter"}
_OTHER_WORDS: dict[str, Finish] = {
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "model_length": "length",
}
"""Marks that some compatible servers use and the library does not know."""


class Deltas:
    """Turns the events of one stream into deltas, in order. `started`: something of the answer has come; `has_text`: text was among it."""

    def __init__(self) -> None:
        self.started = False
        self.has_text = False
        self._characters = 0
        self._calls: dict[int, ModelDelta] = {}

    def of(self, event: ModelResponseStreamEvent) -> ModelDelta | None:
        """What an event adds to the answer; None where that is nothing to show."""
        delta = self._of(event)
        if delta is None or not delta.text:
            return None
        self.started = True
        self.has_text = self.has_text or delta.kind == "text"
        self._characters += len(delta.text)
        if self._characters > MAX_CHARACTERS:
            raise Broken("bad_response", "It is too long.")
        return delta

    def _of(self, event: ModelResponseStreamEvent) -> ModelDelta | None:
        match event:
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                return ModelDelta(kind="text", text=clean(text))
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)):
                return ModelDelta(kind="reasoning", text=clean(text or ""))
            case PartDeltaEvent(index=part, delta=ToolCallPartDelta(args_delta=arguments)) if part in self._calls:
                return self._input(part, arguments)
            case PartStartEvent(part=TextPart(content=text)):
                return ModelDelta(kind="text", text=clean(text))
            case PartStartEvent(part=ThinkingPart(content=text)):
                return ModelDelta(kind="reasoning", text=clean(text))
            case PartStartEvent(index=index, part=ToolCallPart(tool_name=name, args=arguments)):
                return self._call(index, name, arguments)
            case _:
                return None

    def _call(self, part: int, name: str, arguments: object) -> ModelDelta:
        self.started = True
        if any(earlier > part for earlier in self._calls):
            raise Broken("bad_response", "Its calls are out of order.")
        if len(self._calls) == MAX_CALLS:
            raise Broken("bad_response", "It asks for too many calls.")
        self._calls[part] = ModelDelta(kind="tool_input", text="", index=len(self._calls) + 1, tool_name=clean(name))
        return self._input(part, arguments)

    def _input(self, part: int, arguments: object) -> ModelDelta:
        call = self._calls[part]
        return ModelDelta(kind="tool_input", text=clean(_text(arguments)), index=call.index, tool_name=call.tool_name)


def answer_of(response: ModelResponse, *, name: str) -> ModelAnswer:
    """A whole answer. Raises `Broken` for one that is not (I-08)."""
    calls = replay.calls_of(response)
    details = response.provider_details or {}
    refusal = details.get("refusal") or ""
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    opaque = replay.store(response)
    return ModelAnswer(
        text=clean(text or refusal),
        reasoning=clean(replay.thinking_of(response)),
        calls=tuple(
            AskedCall(provider_id=call.tool_call_id, tool_name=clean(call.tool_name), arguments=clean(_text(call.args))) for call in calls
        ),
        finish=_finish(response, calls, details.get("finish_reason"), bool(refusal)),
        usage=usage_of(response.usage),
        model=name,
        opaque=opaque,
        opaque_format=None if opaque is None else replay.format_of(name),
    )


def usage_of(usage: RequestUsage) -> Usage:
    """Tokens in our words; zeros where the provider did not say."""
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.output_reasoning_tokens,
    )


def _finish(response: ModelResponse, calls: Sequence[ToolCallPart], mark: str | None, refused: bool) -> Finish:
    if refused or mark == "refusal":
        return "refusal"
    if mark is None or response.state not in ("complete", "incomplete"):
        raise Broken("cut_off", "It has no finish mark.")
    finish = _FINISHES.get(response.finish_reason or "") or _OTHER_WORDS.get(mark)
    if finish is None or (response.state == "incomplete" and finish == "stop"):
        raise Broken("bad_response", "Its finish mark is unknown.")
    if finish == "stop" and response.finish_reason == "tool_call" and not calls:
        raise Broken("bad_response", "It announces calls and has none.")
    return "tool_calls" if finish == "stop" and calls else finish


def _text(arguments: object) -> str:
    """Arguments as text: as the model wrote them, or, where the provider parsed them, as compact JSON."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
