"""The transcript in the service's own words, whatever the provider: messages made of parts.

These are public types: a `ScriptedModel` function, an instructions function and `GET /runs/{id}/messages` all show them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TextPart(_Part):
    """Text, as written."""

    type: Literal["text"] = "text"
    text: str


class ReasoningPart(_Part):
    """What a model thought aloud, where its provider shows it."""

    type: Literal["reasoning"] = "reasoning"
    text: str


class ToolCallPart(_Part):
    """A call a model asked for. `arguments` are as the model issued them; a text where they were not a JSON object."""

    type: Literal["tool_call"] = "tool_call"
    tool_call_id: str
    tool_name: str
    arguments: Any = None


class FilePart(_Part):
    """A file: `url`, or `data` in base64."""

    type: Literal["file"] = "file"
    media_type: str
    url: str | None = None
    data: str | None = None
    name: str | None = None


class ToolResultPart(_Part):
    """What the model sees of one call's result. Every call gets exactly one."""

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    tool_name: str
    output: Any = None
    is_error: bool = False
    files: tuple[FilePart, ...] | None = None


Part = Annotated[TextPart | ReasoningPart | ToolCallPart | ToolResultPart | FilePart, Field(discriminator="type")]
Role = Literal["user", "assistant", "tool"]

PARTS: TypeAdapter[tuple[Part, ...]] = TypeAdapter(tuple[Part, ...])


class Message(BaseModel):
    """One message of a run. `seq` counts the run's messages from 1; `step` is the model call that wrote or caused it, None for input."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seq: int
    role: Role
    content: tuple[Part, ...]
    step: int | None = None
    opaque: bytes | None = Field(default=None, repr=False, exclude=True)
    opaque_format: str | None = Field(default=None, repr=False, exclude=True)

    @property
    def text(self) -> str:
        """The text parts joined; empty for tool messages."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The calls this message asks for."""
        return tuple(part for part in self.content if isinstance(part, ToolCallPart))

    @property
    def tool_results(self) -> tuple[ToolResultPart, ...]:
        """The results this message carries."""
        return tuple(part for part in self.content if isinstance(part, ToolResultPart))
