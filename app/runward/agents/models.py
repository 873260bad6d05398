"""Which model an agent asks, and how."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from runward.agents.contexts import RunContext
from runward.agents.names import check_model_name
from runward.core.errors import DefinitionError
from runward.core.usage import Usage
from runward.ports.models import Finish, ModelClient, ModelRequest, Settings

ReplyError = Literal["rate_limited", "server_error", "timeout", "disconnect_mid_stream", "bad_request", "content_filter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings(Settings):
    """How a model is asked; None leaves it to the provider.

    - `temperature`: 0 and more. `max_output_tokens`: how long an answer may be. `reasoning_effort`: "low" …, as the provider spells it.
    - `tool_choice`: "auto", "none", "required", or the name of a tool.
    - `provider_options`: passed on to the provider as they are.

    Raises DefinitionError for values out of range. Example::

        ModelSettings(temperature=0.2, max_output_tokens=2000)
    """

    def __post_init__(self) -> None:
        if self.temperature is not None and not self.temperature >= 0:
            raise DefinitionError("ModelSettings.temperature must not be negative.")
        if self.max_output_tokens is not None and not self.max_output_tokens >= 1:
            raise DefinitionError("ModelSettings.max_output_tokens must be at least 1.")
        for name in ("reasoning_effort", "tool_choice"):
            if getattr(self, name) is not None and (not isinstance(getattr(self, name), str) or not getattr(self, name)):
                raise DefinitionError(f"ModelSettings.{name} must be a text.")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a scripted reply asks for. A text as `arguments` is sent as it is, valid JSON or not; `id` plays the provider's id.

    Example::

        ToolCall("lookup_order", {"order_id": 7})
    """

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a scripted model answers.

    - `text`, `reasoning`, `tool_calls`: the answer. `finish`: how it ended; "stop" with tool calls means "tool_calls".
    - `usage`: what it reports; without, an estimate above 0.
    - `error`: what goes wrong instead, on every attempt, before any content; only "disconnect_mid_stream" streams all of `text` first.
    - `chunk_delay_seconds`: slept before each piece (a word).

    Raises DefinitionError for an unknown `finish` or `error`. Example::

        Reply(tool_calls=[ToolCall("lookup_order", {"order_id": 7})])
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: Sequence[ToolCall] = ()
    finish: Finish = "stop"
    usage: Usage | None = None
    error: ReplyError | None = None
    chunk_delay_seconds: float = 0

    def __post_init__(self) -> None:
        if self.finish not in get_args(Finish):
            raise DefinitionError(f"Reply.finish is {self.finish!r}, but has to be one of {', '.join(get_args(Finish))}.")
        if self.error is not None and self.error not in get_args(ReplyError):
            raise DefinitionError(f"Reply.error is {self.error!r}, but has to be one of {', '.join(get_args(ReplyError))}.")
        if not self.chunk_delay_seconds >= 0:
            raise DefinitionError("Reply.chunk_delay_seconds must not be negative.")
        object.__setattr__(self, "tool_calls", tuple(self.tool_calls))


Script = Sequence[Reply] | Callable[[ModelRequest], Reply | Awaitable[Reply]]


@dataclass(frozen=True, slots=True, eq=False)
class ScriptedModel:
    """A model that answers from a script: for tests, demos, and agents that need no model.

    With a list, turn *n* of a run is answered with reply *n*, so it is the same after a crash. A function gets the `ModelRequest` and
    returns the `Reply`, sync or async. `name` tells scripts apart where an agent has several; the function's own name when left out.
    `generate` answers `ctx.generate`, with one reply or a function; without it a function is asked for that as well.

    Raises DefinitionError for what is neither. Example::

        ScriptedModel([Reply(tool_calls=[ToolCall("lookup_order", {"order_id": 7})]), Reply(text="Order 7 has shipped.")])
    """

    script: Script
    name: str = ""
    generate: Reply | Callable[[ModelRequest], Reply | Awaitable[Reply]] | None = None

    def __post_init__(self) -> None:
        script: Any = self.script
        if callable(script):
            plain = getattr(script, "__name__", type(script).__name__).strip("<>")
        elif isinstance(script, Sequence) and all(isinstance(reply, Reply) for reply in script):
            object.__setattr__(self, "script", tuple(script))
            plain = "script"
        else:
            raise DefinitionError("A ScriptedModel takes a list of Reply, or a function that returns one.")
        name = self.name or plain
        object.__setattr__(self, "name", name if name.startswith("scripted:") else f"scripted:{name}")
        check_model_name(self.name, "A ScriptedModel's name")


ModelObject = ScriptedModel | ModelClient
ModelChoice = Callable[[RunContext[Any, Any]], str | Awaitable[str]]
"""Chooses the run's model, by name, once in its first leg; the choice is recorded. Sync or async."""
AnyModel = str | ModelObject | ModelChoice

CHOSEN = "chosen by the agent"
"""How manifests and fingerprints name a model that a function chooses."""


def is_choice(model: Any) -> bool:
    """Whether a function chooses the model."""
    return callable(model) and not hasattr(model, "call")


def check_model(model: Any, what: str) -> None:
    """Raises DefinitionError unless it is a model's name, a model object, or a function."""
    if isinstance(model, str):
        check_model_name(model, what)
    elif not (isinstance(model, ScriptedModel) or is_choice(model) or (hasattr(model, "call") and hasattr(model, "name"))):
        raise DefinitionError(f'{what} is {type(model).__name__}, but has to be "provider:model", a model object or a function.')


def model_name(model: AnyModel) -> str:
    """A model as manifests, fingerprints and runs name it."""
    if isinstance(model, str):
        return model
    if isinstance(model, ScriptedModel):
        return model.name
    return CHOSEN if is_choice(model) else str(getattr(model, "name"))  # noqa: B009 - a function has none, a client has
