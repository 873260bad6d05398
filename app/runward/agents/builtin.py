"""Tools the service brings along: asking the user, and waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from runward.agents.tools import AnyTool
from runward.core.errors import DefinitionError
from runward.core.runs.calls import Awaits, Effect, ToolTraits

LONGEST_WAIT_SECONDS: Final = 365 * 24 * 60 * 60


@dataclass(frozen=True, kw_only=True, eq=False)
class BuiltinTool(AnyTool):
    """A tool that the service runs by itself, without holding a worker: its calls wait, as `awaits` says. `expires_seconds`: how long a
    question waits, for good without.

    Change one with `dataclasses.replace(ask_user, expires_seconds=3600)`.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(repr=False)
    awaits: Awaits
    output_schema: Mapping[str, Any] | None = field(default=None, repr=False)
    expires_seconds: float | None = None

    def __post_init__(self) -> None:
        AnyTool.__post_init__(self)
        if self.expires_seconds is not None and not self.expires_seconds > 0:
            raise DefinitionError(f"Tool {self.name!r}: expires_seconds must be more than 0.")

    @property
    def kind(self) -> str:
        return "builtin"

    @property
    def traits(self) -> ToolTraits:
        return ToolTraits(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            effect=Effect.READ,
            awaits=self.awaits,
            expires_seconds=self.expires_seconds,
        )


ask_user: Final = BuiltinTool(
    name="ask_user",
    awaits=Awaits.ANSWER,
    description="Ask the user a question and wait for the answer. Offer choices where there are some.",
    parameters={
        "type": "object",
        "properties": {
            "question": {"type": "string", "minLength": 1, "maxLength": 4000, "description": "What to ask, in the user's language."},
            "choices": {
                "type": "array",
                "items": {"type": "string", "minLength": 1, "maxLength": 400},
                "maxItems": 50,
                "uniqueItems": True,
                "description": "Answers to choose from; none for an open question.",
            },
            "allows_free_text": {"type": "boolean", "default": True, "description": "Whether another answer than the choices is fine."},
        },
        "required": ["question"],
        "additionalProperties": False,
    },
)
"""Lets the model ask the user a question: the run waits, without a worker, until it is answered. Put it into an agent's `tools`."""

durable_wait: Final = BuiltinTool(
    name="durable_wait",
    awaits=Awaits.TIME,
    description="Wait for some time before going on.",
    parameters={
        "type": "object",
        "properties": {"seconds": {"type": "number", "minimum": 1, "maximum": LONGEST_WAIT_SECONDS, "description": "How long to wait."}},
        "required": ["seconds"],
        "additionalProperties": False,
    },
)
"""Lets the model wait, 1 second to 365 days, across restarts and without a worker. Put it into an agent's `tools`."""
