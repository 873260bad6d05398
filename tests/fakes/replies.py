"""What a fake provider can be told to answer, in nobody's wire format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Ending(Enum):
    """How a streamed answer ends once all of its content is out. Everything but DONE is a broken answer."""

    DONE = "done"
    NO_FINISH = "no_finish"  # the stream closes cleanly, without a finish mark
    CUT = "cut"  # the connection closes in the middle of the chunked body
    RESET = "reset"  # the connection is reset
    HANG = "hang"  # nothing more comes, the connection stays
    TWO_FINISHES = "two_finishes"  # a finish mark, more content, another finish mark
    CHANGED_FINISH = "changed_finish"  # a finish mark, then another one
    FINISH_TWICE = "finish_twice"  # the same finish mark once more, as some gateways do, with nothing in between
    BAD_JSON = "bad_json"  # an event whose data is not JSON
    OVERLOADED = "overloaded"  # an error event inside the stream, in the provider's own form: `Answer.error`, or that it is overloaded
    ERROR_EVENT = "error_event"  # the same as the event `error` that the Responses API has besides
    NO_END = "no_end"  # the stream closes cleanly, without a finish mark and without the wire's own last word


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call of an answer. `arguments` may be any text; it is streamed in pieces of `piece` characters. None leaves the name out."""

    name: str | None
    arguments: str
    id: str = "call_1"
    piece: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Usage. `input` is without the cached tokens for Anthropic and with them for OpenAI, as on their wires."""

    input: int = 11
    output: int = 7
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A streamed answer: thinking, then text word by word, then tool calls side by side.

    `finish` is in the provider's own words; None says what the content implies. `delay` is slept before every event, in seconds.
    `encrypted` is an OpenAI reasoning item's `encrypted_content`, `error` what an error event inside the stream holds.
    """

    text: str = ""
    pieces: Sequence[str] | None = None
    thinking: str = ""
    signature: str = ""
    redacted: str = ""
    encrypted: str = ""
    calls: Sequence[Call] = ()
    refusal: str = ""
    finish: str | None = None
    usage: Tokens | None = field(default_factory=Tokens)
    model: str = "fake-model"
    delay: float = 0.0
    ending: Ending = Ending.DONE
    error: Mapping[str, Any] | None = None

    def words(self) -> Sequence[str]:
        """The pieces that the text is streamed in."""
        return self.pieces if self.pieces is not None else [word + " " for word in self.text.split(" ")[:-1]] + self.text.split(" ")[-1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """An HTTP answer in one piece: an error, or a body of any kind. A mapping is sent as JSON, a text as it is."""

    status: int
    body: Mapping[str, Any] | str
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"

    def payload(self) -> bytes:
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAnswer:
    """The request is read and then nothing is said: the connection is reset, or, with `hang`, stays open."""

    hang: bool = False


Reply = Answer | Plain | NoAnswer

HTML = Plain(status=200, body="<html><body>Welcome</body></html>", content_type="text/html")


def from_json(value: Mapping[str, Any]) -> Reply:
    """A reply as a JSON object: `{"text": …, "calls": [["name", {…}, "id"?]], …}`, or `{"status": 429, "body": …}` for a plain one."""
    if "status" in value:
        return Plain(status=value["status"], body=value.get("body", {}), headers=value.get("headers", {}))
    fields = dict(value)
    calls = [
        Call(name=call[0], arguments=json.dumps(call[1]), id=call[2] if len(call) > 2 else f"call_{number}")
        for number, call in enumerate(fields.pop("calls", []), 1)
    ]
    if "ending" in fields:
        fields["ending"] = Ending(fields["ending"])
    if "usage" in fields:
        fields["usage"] = Tokens(**fields["usage"]) if fields["usage"] else None
    return Answer(calls=calls, **fields)
