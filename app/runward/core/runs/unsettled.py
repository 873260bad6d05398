"""An effect that may or may not have happened, as the run remembers it until it is settled (R13, R15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from runward.core.runs.calls import Effect, Result

PROBE_BACKOFF_MS: Final = 30_000
PROBE_BACKOFF_CAP_MS: Final = 3_600_000


class Decision(StrEnum):
    """How an unknown effect is settled (R15)."""

    RETRY = "retry"
    RESULT = "result"
    ERROR = "error"


class ProbeStatus(StrEnum):
    """What a tool's probe said of an effect."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    CANNOT_TELL = "cannot_tell"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """What the probe said last, and when it is asked again: it was down, perhaps, when the call was. `asked` counts."""

    status: ProbeStatus
    detail: str
    checked_at: int
    asked: int
    next_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """How an effect is to be settled. `result` is what the model will see, `raw` what stands behind it where a projection follows.

    `by` is who says so, None for a probe. `evidence` proves it, `verified` says whether the tool looked at that.
    """

    decision: Decision
    at: int
    by: str | None = None
    note: str | None = None
    result: Result | None = None
    raw: Any = None
    evidence: Mapping[str, Any] | None = None
    verified: bool | None = None
    probe: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEffect:
    """A call that may or may not have happened, until somebody settles it.

    - `told`: the call has its result, and the model reads no other. `again`: somebody decided to run it once more, and it has not begun.
    - `approval` is how its call was approved, as the receipt says it. `read` is what the model has read of the call, where that is not
      that nobody knows.
    - `refused` counts the settlements that came to nothing; `refusal` says why the evidence of the last one did not hold.
    - `claim` is a settlement whose evidence is still to be checked; `found` is what a probe found, about to be recorded.
    """

    tool_call_id: str
    step: int
    tool_name: str
    effect: Effect
    arguments: str
    attempt: int
    started_at: int
    worker: str
    told: bool
    approval: Mapping[str, Any] | None = None
    read: Result | None = None
    again: bool = False
    wants_evidence: bool = False
    refused: int = 0
    refusal: str | None = None
    probing: Probing | None = None
    claim: Settlement | None = None
    found: Settlement | None = None


def probe_backoff_ms(asked: int) -> int:
    """How long until the probe is asked again: 30 s, doubled each time, at most an hour."""
    return int(min(PROBE_BACKOFF_CAP_MS, PROBE_BACKOFF_MS * 2 ** max(0, min(asked, 16) - 1)))
