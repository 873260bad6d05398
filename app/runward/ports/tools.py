"""Tools: what the engine needs from anything that can be called, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from runward.core.messages import FilePart
from runward.core.runs.calls import ToolTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What a tool returned, as JSON: `value`, and its text as it is stored. `files` go to the model beside it."""

    value: Any
    text: str
    files: tuple[FilePart, ...] = ()


class BadResult(Exception):
    """What a tool returned cannot be recorded: `outcome` is `invalid_result` or `too_large`. It ran, and does not run again."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message


class Tool(Protocol):
    """One tool, ready to run.

    - `refusal` checks arguments against the tool's schema; the text it returns is for the model. Pure and fast.
    - `invoke` runs it once. What it raises is the caller's business, with a meaning each: `ToolError`, `UnknownOutcome`, `NeedsInput`,
      `BadResult`, anything else. Cancelling the task cancels a coroutine and abandons a thread.
    - `project` turns what `invoke` returned into what the model sees. It is given the stored JSON value, so that it does the same again
      after a crash. Called only where `traits.projects`.
    - `context` is the `ToolContext` of the call.
    """

    @property
    def traits(self) -> ToolTraits: ...

    def refusal(self, arguments: Mapping[str, Any]) -> str | None: ...

    async def invoke(self, arguments: Mapping[str, Any], context: Any) -> Returned: ...

    async def project(self, raw: Any, context: Any) -> Returned: ...
