"""A run as it is shown: the view of `GET /runs/{id}` and the control state of `data-agent` frames. Nothing private is in either."""

from __future__ import annotations

import json
from typing import Any

from runward.core.ids import idempotency_key
from runward.core.kernel.actor import Envelope, Status
from runward.core.runs.calls import Call, CallStage, UnknownEffect
from runward.core.runs.frames import usage_fields
from runward.core.runs.state import Ending, RunState
from runward.core.times import optional_rfc3339, rfc3339

_FAILED_OUTCOMES = (Status.STOPPED, Status.FAILED)


def control(run: RunState) -> dict[str, Any]:
    """The control state: while the run goes on only where it stands, when it waits or has ended everything a client needs."""
    data: dict[str, Any] = {"status": run.status.value, "phase": run.phase.value, "steps": run.step}
    if run.status is Status.SUSPENDED or run.status.ended:
        data |= {"task_outcome": task_outcome(run), "pending": pending(run)}
        if run.text is not None:
            data["text"] = run.text
    if run.status.ended:
        data |= {"usage": usage_fields(run.usage), "output": None, "final": True}
        data |= {key: value for key, value in (("stop", _stop(run.ended)), ("error", _error(run.ended))) if value is not None}
    return data


def view(row: Envelope, run: RunState) -> dict[str, Any]:
    """The run view. `row` says where the run stands, also while its state is in a worker's hands."""
    shown = row.status
    return {
        "run_id": row.public_id,
        "agent": row.agent,
        "agent_version": row.agent_version,
        "scope": {"tenant": row.scope.tenant, "user": row.scope.user, "namespace": row.scope.namespace},
        "status": shown.value,
        "phase": run.phase.value,
        "revision": row.revision,
        "last_seq": row.last_seq,
        "events_after": run.events_after,
        "created_at": rfc3339(row.created_at),
        "updated_at": rfc3339(row.updated_at),
        "started_at": optional_rfc3339(row.started_at),
        "ended_at": optional_rfc3339(row.ended_at),
        "cancel_requested_at": optional_rfc3339(row.cancel_requested_at),
        "steps": run.step,
        "model": run.model,
        "failovers": [],
        "text": run.text,
        "output": None,
        "stop": _stop(run.ended),
        "error": _error(run.ended),
        "pending": pending(run),
        "task_outcome": row.task_outcome,
        "usage": usage_fields(run.usage),
        "parent_run_id": None,
        "metadata": json.loads(row.metadata),
        "links": {"self": f"/runs/{row.public_id}", "events": f"/runs/{row.public_id}/events"},
    }


def pending(run: RunState) -> dict[str, Any]:
    """What the run waits for, or has left unsettled, item by item."""
    return {
        "approvals": [],
        "client_calls": [],
        "questions": [],
        "timers": [],
        "tasks": [],
        "children": [],
        "unknown_effects": [_unknown(run, effect) for effect in run.unknowns],
        "budget": None,
        "hold": None,
    }


def task_outcome(run: RunState) -> str:
    """What became of the task, which is not what became of the run (R11)."""
    if not run.status.ended:
        return "needs_reconciliation" if run.unknowns else "in_progress"
    if run.unknowns:
        return "needs_reconciliation"
    return "failed" if run.status in _FAILED_OUTCOMES else "resolved"


def call_states(run: RunState) -> list[dict[str, str]]:
    """What is known of each call of the turn in hand, in words of R38."""
    return [{"tool_call_id": call.id, "tool_name": call.name, "state": _known(call)} for call in run.turn]


def _known(call: Call) -> str:
    outcome = call.result.outcome if call.result else None
    if call.stage is CallStage.UNKNOWN or outcome == "unknown":
        return "unknown"
    if call.stage is CallStage.EXECUTED or (call.stage is CallStage.ENDED and call.ran and outcome != "cancelled"):
        return "finished"
    return "cancelled" if call.ran else "not_started"


def _unknown(run: RunState, effect: UnknownEffect) -> dict[str, Any]:
    return {
        "tool_call_id": effect.tool_call_id,
        "step": effect.step,
        "tool_name": effect.tool_name,
        "effect": effect.effect.value,
        "arguments": json.loads(effect.arguments),
        "idempotency_key": idempotency_key(run.uid, effect.tool_call_id),
        "attempt": effect.attempt,
        "started_at": rfc3339(effect.started_at),
        "worker": effect.worker,
        "evidence_required": False,
    }


def _stop(ended: Ending | None) -> dict[str, Any] | None:
    if ended is None or ended.reason is None:
        return None
    return {"reason": ended.reason.value, "details": dict(ended.details)}


def _error(ended: Ending | None) -> dict[str, Any] | None:
    if ended is None or ended.failure is None:
        return None
    failure = ended.failure
    details = {**failure.details, **ended.details}
    return {"code": failure.code, "message": failure.message, "transient": failure.transient, "details": details}
