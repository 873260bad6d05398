"""What bounds a run. Copied into the run when it is created; a request can only tighten its agent's (R35)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal, InvalidOperation
from math import inf
from typing import Any

from runward.core.errors import DefinitionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a run. None means unbounded.

    - `max_steps`: model calls of the loop, finalization and repair turns included. Reached: `stopped: max_steps`.
    - `max_output_attempts`, `max_verify_attempts`: candidates for a typed output, and verdicts on them.
    - `timeout_seconds`: time the run is worked on, over all legs; the queue and waits for people do not count.
    - `expires_seconds`: its whole life, from its creation. Both end it `stopped: deadline` (R35a).
    - `max_total_tokens`, `max_cost_usd` (a decimal string): what it may spend.
    - `model_timeout_seconds`: one model call, whole; `first_event_timeout_seconds`: until its first piece; `chunk_timeout_seconds`: between
      two pieces.
    - `max_parallel_tools`: calls of one turn that run at once.
    - `model_retries`: how often one model call is asked again after a transient failure before its first content.

    Raises DefinitionError for values out of range.
    """

    max_steps: int = 20
    max_output_attempts: int = 2
    max_verify_attempts: int = 2
    timeout_seconds: float | None = None
    expires_seconds: float | None = None
    max_total_tokens: int | None = None
    max_cost_usd: str | None = None
    model_timeout_seconds: float = 300
    first_event_timeout_seconds: float = 60
    chunk_timeout_seconds: float = 60
    max_parallel_tools: int = 8
    model_retries: int = 2

    def __post_init__(self) -> None:
        for name in ("max_steps", "max_output_attempts", "max_verify_attempts", "max_parallel_tools"):
            if getattr(self, name) < 1:
                raise DefinitionError(f"Limits.{name} must be at least 1.")
        if self.model_retries < 0:
            raise DefinitionError("Limits.model_retries must not be negative.")
        for name in ("timeout_seconds", "expires_seconds", "model_timeout_seconds", "first_event_timeout_seconds", "chunk_timeout_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < inf:
                raise DefinitionError(f"Limits.{name} must be more than 0 seconds, and finite: None is what bounds nothing.")
        if self.max_total_tokens is not None and self.max_total_tokens < 1:
            raise DefinitionError("Limits.max_total_tokens must be at least 1.")
        if self.max_cost_usd is not None and not is_amount(self.max_cost_usd):
            raise DefinitionError('Limits.max_cost_usd must be a decimal string above 0, such as "0.50".')

    def tightened(self, other: TighterLimits) -> Limits:
        """These limits with everything `other` bounds more tightly; what it bounds more loosely is cut to these (R35)."""
        changed = {}
        for field in fields(TighterLimits):
            asked, mine = getattr(other, field.name), getattr(self, field.name)
            if asked is None:
                continue
            if field.name == "max_cost_usd":
                changed[field.name] = asked if mine is None else min(asked, mine, key=Decimal)
            else:
                changed[field.name] = asked if mine is None else min(asked, mine)
        return Limits(**{field.name: changed.get(field.name, getattr(self, field.name)) for field in fields(Limits)})

    def raised(self, bounds: Mapping[str, Any]) -> Limits:
        """These limits with every number of `bounds`, by its field, that bounds more loosely; what nothing bounds stays so (R35)."""
        mine = {name: getattr(self, name) for name in bounds}
        return replace(self, **{name: value for name, value in bounds.items() if mine[name] is not None and value > mine[name]})


@dataclass(frozen=True, slots=True, kw_only=True)
class TighterLimits:
    """What a request may bound. None leaves the agent's."""

    max_steps: int | None = None
    max_output_attempts: int | None = None
    max_verify_attempts: int | None = None
    timeout_seconds: float | None = None
    expires_seconds: float | None = None
    max_total_tokens: int | None = None
    max_cost_usd: str | None = None


def is_amount(text: str) -> bool:
    """Whether a text is a finite decimal above 0."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        return False
    return value.is_finite() and value > 0
