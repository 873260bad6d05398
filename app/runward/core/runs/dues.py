"""When something becomes due by itself, in store time."""

from __future__ import annotations

from runward.core.runs.calls import Call, CallStage
from runward.core.runs.sharing import due_at
from runward.core.runs.state import RunState
from runward.core.runs.waiting import wait_due


def deadline(run: RunState) -> int | None:
    """When the run has to be over: the deadline of its work, or of its whole life (R35a)."""
    dues = []
    if run.limits.expires_seconds is not None:
        dues.append(run.created_at + round(run.limits.expires_seconds * 1000))
    if run.limits.timeout_seconds is not None and run.leg_started_at is not None:
        dues.append(run.leg_started_at + round(run.limits.timeout_seconds * 1000) - run.worked_ms)
    return min(dues, default=None)


def care_due(run: RunState) -> int | None:
    """When something becomes due that any worker can do: the deadline, an expiry, a timer (R41)."""
    dues = [due for due in (deadline(run), *map(wait_due, run.turn)) if due is not None]
    return min(dues, default=None)


def work_due(run: RunState, *, after: int | None = None) -> int | None:
    """When something becomes due at all, a probe of an unknown effect and another try at a budget included. `after`: only what is due
    later than that."""
    asked = (deadline(run), due_at(run))
    dues = [due for due in (*asked, *map(wait_due, run.turn), *(_probe_due(run, call) for call in run.turn)) if due is not None]
    return min((due for due in dues if after is None or due > after), default=None)


def probe_is_due(run: RunState, call: Call, at: int) -> bool:
    """Whether the tool is to be asked, now, what became of the call's effect."""
    due = _probe_due(run, call)
    return due is not None and due <= at


def _probe_due(run: RunState, call: Call) -> int | None:
    if call.stage is not CallStage.UNKNOWN or not call.probes or run.hold is not None:
        return None
    effect = run.unknown(call.id)
    if effect is None or effect.claim is not None:
        return None
    return 0 if effect.probing is None else effect.probing.next_at
