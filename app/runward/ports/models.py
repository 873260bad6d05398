"""Models: one request, one streamed answer. What the service knows of any provider."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from runward.core.messages import Message, ToolCallPart
from runward.core.usage import Usage

Finish = Literal["stop", "tool_calls", "length", "content_filter", "refusal"]
ToolChoice = Literal["auto", "none", "required"] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model is told of it. `parameters` is a JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to ask. None means the provider's default. `provider_options` go to the provider as they are."""

    temperature: float | None = None
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None
    tool_choice: str | None = None
    provider_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One model call. `messages` is the whole transcript; `instructions` stand before it. Public: a `ScriptedModel` function gets it.

    `tools` with `tool_choice` "none" are shown and may not be called. `output_schema` is the JSON Schema the answer must fit, where the
    call is to give one; `output_mode` says how the model is held to it: "native" (the provider does), "tool" (it has to call the tool
    `output_name`) or "prompted" (the instructions ask for it). `purpose` "generate": the agent's own code asks, by `ctx.generate`, and
    `messages` are what it wrote.
    """

    agent: str
    step: int
    attempt: int
    instructions: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    tool_choice: str
    output_schema: Mapping[str, Any] | None
    output_name: str | None
    settings: Settings
    timeout_seconds: float
    first_event_timeout_seconds: float
    chunk_timeout_seconds: float
    output_mode: Literal["native", "tool", "prompted"] = "native"
    purpose: Literal["turn", "generate"] = "turn"

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The calls of the last assistant message."""
        for message in reversed(self.messages):
            if message.role == "assistant":
                return message.tool_calls
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDelta:
    """A piece of an answer as it arrives. For `tool_input` the `index` counts the answer's calls from 1 and `tool_name` is set."""

    kind: Literal["text", "reasoning", "tool_input"]
    text: str
    index: int = 0
    tool_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCall:
    """A call as the model asked for it: `arguments` is its text, unchecked; `provider_id` may repeat or be empty and is never trusted."""

    provider_id: str
    tool_name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """A whole answer. `opaque` is what the provider wants back unchanged, `opaque_format` names who can read it."""

    text: str
    reasoning: str
    calls: tuple[AskedCall, ...]
    finish: Finish
    usage: Usage
    model: str
    opaque: bytes | None = None
    opaque_format: str | None = None


class ModelCallError(Exception):
    """A model call that gave no whole answer.

    `kind` is one of `rate_limited`, `server_error`, `network`, `timeout`, `bad_response`, `cut_off` (retryable) and `auth`, `quota`,
    `rejected`, `context_overflow`, `content_filter`, `missing_key` (not); `circuit_open` (retryable) is the engine's own, for a call that
    was not made. `transient`: the same call may succeed later. `billed`: the
    provider may charge for it. `after_content`: something of the answer had arrived. `retry_after` is in seconds. The message is for
    people and holds nothing secret: never the provider's own text.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        transient: bool,
        billed: bool,
        after_content: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.transient = transient
        self.billed = billed
        self.after_content = after_content
        self.retry_after = retry_after
        self.status = status


class ModelClient(Protocol):
    """Calls one model.

    - `call` makes exactly one request, without retries of its own, and returns once the answer is whole; every piece is handed to
      `on_delta` first, in order, awaited (which is how a slow journal slows the stream down instead of filling memory).
    - An answer that is not whole (cut stream, no finish mark, timeout) is a `ModelCallError`, never an answer (I-08).
    - Cancelling the task closes the connection at once.
    - Text is cleaned (R47). Nothing of the request or the answer is logged.
    - A client may have `holds_to(schema)`, which says whether it can hold an answer to a schema by itself; where it cannot, answers are
      asked for as a tool's call. One whose `objects_only` is True is given schemas of objects alone.
    """

    @property
    def name(self) -> str:
        """`provider:model`, as shown and recorded."""
        ...

    async def call(self, request: ModelRequest, on_delta: Callable[[ModelDelta], Awaitable[None]]) -> ModelAnswer: ...


class ModelClients(Protocol):
    """All models a process can call."""

    def client(self, model: Any) -> ModelClient:
        """The client of a model: `provider:model`, a scripted model, or an object that is a client already. Cheap: clients are kept.

        Raises DefinitionError for what is none of these.
        """
        ...

    async def close(self) -> None:
        """Lets every connection go."""
        ...
