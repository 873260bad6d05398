"""What a provider wants back unchanged: its answer as the library holds it, stored as bytes beside our own message.

Thinking signatures and encrypted reasoning are accepted by the model that made them and by no other, so the stored form is for that model
alone; every other model is given our own message.
"""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart
from pydantic_core import PydanticSerializationError

_LEFT_OUT = {"__all__": {"usage", "provider_url", "metadata"}}

FORMAT_VERSION = 2
"""The library's major version: what one of its releases wrote, every later one of this number reads."""


def format_of(name: str) -> str:
    """Who can read what a model's answers are stored as. `name` is `provider:model`."""
    return f"pydantic-ai/{FORMAT_VERSION}:{name}"


def store(response: ModelResponse) -> bytes | None:
    """An answer as bytes; None where our own message says as much, or where it holds what no bytes can (lone surrogates).

    The provider's address stays out: it may hold a secret.
    """
    if all(_is_mere_text(part) for part in response.parts):
        return None
    try:
        return ModelMessagesTypeAdapter.dump_json([response], exclude=_LEFT_OUT, exclude_none=True)
    except PydanticSerializationError:
        return None


def load(stored: bytes | None) -> ModelResponse | None:
    """An answer as it was stored; None for what this version cannot read, whose message is then sent in our own words."""
    if stored is None:
        return None
    try:
        messages = ModelMessagesTypeAdapter.validate_json(stored)
    except ValidationError:
        return None
    return messages[0] if len(messages) == 1 and isinstance(messages[0], ModelResponse) else None


def thinking_of(response: ModelResponse) -> str:
    """What the model thought aloud."""
    return "".join(part.content for part in response.parts if isinstance(part, ThinkingPart))


def calls_of(response: ModelResponse) -> list[ToolCallPart]:
    """The calls that an answer asks for, in order."""
    return [part for part in response.parts if isinstance(part, ToolCallPart)]


def _is_mere_text(part: ModelResponsePart) -> bool:
    return isinstance(part, TextPart) and part.id is None and part.provider_details is None
