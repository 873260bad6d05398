"""Asking a person before a call runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runward.agents.contexts import ToolContext
from runward.agents.names import check_id
from runward.core.errors import DefinitionError
from runward.core.runs.calls import Effect


@dataclass(frozen=True, slots=True)
class Block:
    """From a guardrail or an approval predicate: the call, input or answer goes no further. The model, or the caller, reads `reason`.

    Example::

        return Block("orders above 500 are refunded by phone")
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """From a guardrail: go on with `value` in place of what it was given. For a tool call `value` is its arguments.

    Example::

        return Rewrite({**call.arguments, "region": "eu"})
    """

    value: Any


Predicate = Callable[[Mapping[str, Any], ToolContext[Any, Any]], bool | Block | Awaitable[bool | Block]]
"""`(arguments, ctx) -> bool | Block`: True asks a person, False lets the call run, `Block` answers it to the model. Sync or async."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """How a tool's calls are approved by a person.

    - `when`: a predicate; without one every call is asked for.
    - `version`: part of every approval's id and of the agent's fingerprint. Raise it when the predicate or the tool changes meaning:
      what was asked for under another version is asked again.
    - `editable`: whether the person may change the arguments.
    - `expires_seconds`: how long a request waits, for good without; then `on_expiry`: "deny" the call, or "stop" the run.
    - `reason`: shown to the person who decides.

    Raises DefinitionError for values out of range. Example::

        @tool(effect="non_idempotent_write", needs_approval=Approval(when=lambda arguments, ctx: arguments["amount"] > 100, editable=True))
    """

    when: Predicate | None = None
    version: str = "1"
    editable: bool = False
    expires_seconds: float | None = None
    on_expiry: Literal["deny", "stop"] = "deny"
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.when is not None and not callable(self.when):
            raise DefinitionError("Approval.when must be a function of (arguments, ctx).")
        check_id(self.version, "Approval.version")
        if self.expires_seconds is not None and not self.expires_seconds > 0:
            raise DefinitionError("Approval.expires_seconds must be more than 0.")
        if self.on_expiry not in ("deny", "stop"):
            raise DefinitionError('Approval.on_expiry must be "deny" or "stop".')


NeedsApproval = bool | Approval | Predicate


def approval_of(asked: NeedsApproval | None, effect: Effect) -> Approval | None:
    """What an author's `needs_approval` means; None leaves it to the effect: writes that may not be repeated are asked for (R14)."""
    if asked is None:
        return None if effect.repeatable else Approval()
    if isinstance(asked, Approval):
        return asked
    if isinstance(asked, bool):
        return Approval() if asked else None
    return Approval(when=asked)
