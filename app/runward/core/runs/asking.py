"""Facts about model calls of the agent's own code (`ctx.generate`)."""

from __future__ import annotations

from dataclasses import dataclass

from runward.core.runs.ledger import Rates
from runward.core.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationAsked:
    """The agent's own code wants to ask a model. `prompt` is in tokens, `wanted` how long the answer may be, where the author says it, and
    `rates` what the model costs, where that is known."""

    at: int
    key: str
    model: str
    prompt: int
    wanted: int | None = None
    rates: Rates | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationEnded:
    """Such a call is over. `usage` None: it gave no answer; `sent` and `billed` say what it may have cost then. `cut_off`: the answer was
    too long."""

    at: int
    key: str
    usage: Usage | None = None
    sent: bool = True
    billed: bool = True
    cut_off: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HangUp:
    """The leg is over, or the run: nobody is going to say what became of such calls that are under way."""

    at: int
