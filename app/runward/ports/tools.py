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


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """From a probe: the effect happened, and this is what the tool would have returned."""

    returned: Returned


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound:
    """From a probe: the effect did not happen, and cannot any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclear:
    """From a probe: nobody knows. `why` is for people."""

    why: str


ProbeAnswer = Found | NotFound | Unclear


class Offer(Protocol):
    """A tool as a model is offered it, whoever runs it.

    `refusal` checks arguments against the tool's schema; the text it returns is for the model. Pure and fast.
    """

    @property
    def traits(self) -> ToolTraits: ...

    def refusal(self, arguments: Mapping[str, Any]) -> str | None: ...


class Tool(Offer, Protocol):
    """One tool, ready to run.

    - `invoke` runs it once. What it raises is the caller's business, with a meaning each: `ToolError`, `UnknownOutcome`, `NeedsInput`,
      `BadResult`, anything else. Cancelling the task cancels a coroutine and abandons a thread.
    - `project` turns what `invoke` returned into what the model sees. It is given the stored JSON value, so that it does the same again
      after a crash. Called only where `traits.projects`.
    - `probe` asks the outside world what became of an effect; called only where `traits.probes`. `evidence_holds` looks at what is to prove
      how one ended; called only where `traits.wants_evidence`. Both raise whatever the author's code raises.
    - `context` is the `ToolContext` of the call.
    """

    async def invoke(self, arguments: Mapping[str, Any], context: Any) -> Returned: ...

    async def project(self, raw: Any, context: Any) -> Returned: ...

    async def probe(self, idempotency_key: str, arguments: Mapping[str, Any], context: Any) -> ProbeAnswer: ...

    async def evidence_holds(self, evidence: Mapping[str, Any], context: Any) -> bool: ...
