"""A run as it is shown: the view of `GET /runs/{id}` and the control state of `data-agent` frames. Nothing private is in either."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any

from runward.core.ids import idempotency_key
from runward.core.kernel.actor import Envelope, Status
from runward.core.kernel.frames import Frame
from runward.core.kernel.mail import approval_key, budget_key, client_key, question_key, unknown_key
from runward.core.redaction import SECRETS, shown_arguments
from runward.core.runs import budget, sharing
from runward.core.runs.calls import Awaited, Awaits, Call, CallStage, Gate
from runward.core.runs.frames import data_agent, usage_fields
from runward.core.runs.ledger import Amount
from runward.core.runs.shared import BudgetWait
from runward.core.runs.state import Ending, Hold, RunState, StopReason
from runward.core.runs.unsettled import Probing, UnknownEffect
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
        data |= {"usage": usage_fields(run.usage), "output": run.output, "final": True}
        data |= {key: value for key, value in (("stop", _stop(run.ended)), ("error", _error(run.ended))) if value is not None}
    return data


def draft_frame(run: RunState, value: Any) -> Frame:
    """The control state with as much of the answer as has been written: a draft, never the typed value (R27)."""
    return data_agent({**control(run), "partial": {"attempt": run.output_attempts + 1, "value": value}})


def view(row: Envelope, run: RunState, arrived: Container[str] = ()) -> dict[str, Any]:
    """The run view. `row` says where the run stands, also while its state is in a worker's hands. What `arrived` in the inbox, by key, and
    is not applied yet is not pending any more."""
    shown = row.status
    ended = run.ended if shown.ended else None
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
        "failovers": [{"step": each.step, "from": each.source, "to": each.target, "code": each.code} for each in run.failovers],
        "text": run.text,
        "output": run.output if shown is Status.COMPLETED else None,
        "stop": _stop(ended),
        "error": _error(ended),
        "pending": pending(run, arrived),
        "task_outcome": row.task_outcome if shown.ended or not run.status.ended else "in_progress",
        "usage": usage_fields(run.usage),
        "accounting": accounting(run),
        "budgets": [] if run.shared is None else list(run.shared.keys),
        "parent_run_id": None,
        "metadata": json.loads(row.metadata),
        "links": {"self": f"/runs/{row.public_id}", "events": f"/runs/{row.public_id}/events"},
    }


def accounting(run: RunState) -> dict[str, Any]:
    """What the run's model calls cost. `unpriced_calls` are those whose dollars nobody knows."""
    return {
        "spent": _amount(run.ledger.spent),
        "reserved": _amount(budget.reserved(run)),
        "unknown": _amount(run.ledger.unknown),
        "committed": _amount(budget.committed(run)),
        "unpriced_calls": run.ledger.unpriced,
    }


def accounting_by_model(run: RunState) -> dict[str, Any]:
    """The same with its bounds, and model by model."""
    accounts = run.ledger.accounts
    return {
        "limits": {"max_total_tokens": run.limits.max_total_tokens, "max_cost_usd": run.limits.max_cost_usd},
        **accounting(run),
        "by_model": [
            {
                "model": account.model,
                "usage": usage_fields(account.usage),
                "spent": _amount(account.spent),
                "unknown": _amount(account.unknown),
                "unpriced_calls": account.unpriced,
            }
            for account in accounts
        ],
    }


def _amount(amount: Amount) -> dict[str, Any]:
    return {"tokens": amount.tokens, "usd": amount.usd}


def from_columns(row: Envelope) -> RunState:
    """As much of a run as its row tells, where nobody here can read its state."""
    ended = None
    if row.stop_reason is not None and row.stop_reason in {reason.value for reason in StopReason}:
        ended = Ending(status=row.status, reason=StopReason(row.stop_reason))
    return RunState(uid=row.uid, agent=row.agent, created_at=row.created_at, status=row.status, ended=ended)


def pending(run: RunState, arrived: Container[str] = ()) -> dict[str, Any]:
    """What the run waits for, or has left unsettled, item by item, without what has `arrived` for it by key."""
    gated = [(call, call.gate) for call in run.turn if call.stage is CallStage.GATED and call.gate is not None]
    waiting = [(call, call.awaited) for call in run.turn if call.stage is CallStage.WAITING and call.awaited is not None]
    results = [call for call, awaited in waiting if awaited.what is Awaits.RESULT]
    questions = [(call, awaited) for call, awaited in waiting if awaited.what is Awaits.ANSWER]
    timers = [(call, awaited) for call, awaited in waiting if awaited.what is Awaits.TIME]
    unknowns = [effect for effect in run.unknowns if effect.claim is None and not effect.again]
    return {
        "approvals": [_approval(call, gate) for call, gate in gated if approval_key(gate.id) not in arrived],
        "client_calls": [_client_call(call) for call in results if client_key(call.id) not in arrived],
        "questions": [_question(call, awaited) for call, awaited in questions if question_key(awaited.question_id) not in arrived],
        "timers": [{**_item(call), "due_at": optional_rfc3339(awaited.due_at)} for call, awaited in timers],
        "tasks": [],
        "children": [],
        "unknown_effects": [_unknown(run, effect) for effect in unknowns if key_of(effect) not in arrived],
        "budget": _budget(run.budget_wait, arrived),
        "hold": None if run.hold is None else _hold(run.hold),
    }


def key_of(effect: UnknownEffect) -> str:
    """The key of the mail that settles this effect."""
    return unknown_key(effect.tool_call_id, effect.attempt, effect.refused)


def task_outcome(run: RunState) -> str:
    """What became of the task, which is not what became of the run (R11)."""
    if any(not effect.again for effect in run.unknowns):
        return "needs_reconciliation"
    if not run.status.ended:
        return "in_progress"
    if run.status in _FAILED_OUTCOMES:
        return "failed"
    return "denied" if run.denied else "resolved"


def call_states(run: RunState) -> list[dict[str, str]]:
    """What is known of each call of the turn in hand, in words of R38."""
    return [{"tool_call_id": call.id, "tool_name": call.name, "state": _known(run, call)} for call in run.turn]


def _known(run: RunState, call: Call) -> str:
    outcome = call.result.outcome if call.result else None
    if run.unknown(call.id) is not None:
        return "unknown"
    if call.stage is CallStage.EXECUTED or (call.stage is CallStage.ENDED and call.ran and outcome != "cancelled"):
        return "finished"
    return "cancelled" if call.ran or call.stage is CallStage.WAITING else "not_started"


def _item(call: Call) -> dict[str, Any]:
    return {"tool_call_id": call.id, "step": call.step, "tool_name": call.name, "arguments": json.loads(call.arguments)}


def _approval(call: Call, gate: Gate) -> dict[str, Any]:
    return {
        **_item(call),
        "arguments": shown_arguments(call.arguments),
        "approval_id": gate.id,
        "effect": call.effect.value,
        "editable": gate.editable,
        "request_reason": gate.reason,
        "created_at": rfc3339(gate.requested_at),
        "expires_at": optional_rfc3339(gate.expires_at),
        "on_expiry": gate.on_expiry,
    }


def _client_call(call: Call) -> dict[str, Any]:
    return {**_item(call), "expires_at": optional_rfc3339(call.awaited.expires_at if call.awaited else None)}


def _question(call: Call, awaited: Awaited) -> dict[str, Any]:
    return {
        **_item(call),
        "question_id": awaited.question_id,
        "question": awaited.question,
        "choices": list(awaited.choices),
        "allows_free_text": awaited.allows_free_text,
        "expires_at": optional_rfc3339(awaited.expires_at),
    }


def _budget(wait: BudgetWait | None, arrived: Container[str]) -> dict[str, Any] | None:
    """A budget that the run waits for."""
    if wait is None or budget_key(wait.id) in arrived:
        return None
    return {**sharing.details(wait), "since": rfc3339(wait.since), "due_at": optional_rfc3339(wait.due_at)}


def _hold(hold: Hold) -> dict[str, Any]:
    return {"since": rfc3339(hold.since), "by": hold.by, "reason": hold.reason}


def _probe(probing: Probing) -> dict[str, Any]:
    return {"status": probing.status.value, "detail": probing.detail, "checked_at": rfc3339(probing.checked_at)}


def _unknown(run: RunState, effect: UnknownEffect) -> dict[str, Any]:
    return {
        "tool_call_id": effect.tool_call_id,
        "step": effect.step,
        "tool_name": effect.tool_name,
        "effect": effect.effect.value,
        "arguments": shown_arguments(effect.arguments),
        "idempotency_key": idempotency_key(run.uid, effect.tool_call_id),
        "attempt": effect.attempt,
        "started_at": rfc3339(effect.started_at),
        "worker": effect.worker,
        "evidence_required": effect.wants_evidence,
        "evidence_refused": effect.refusal,
        "probe": None if effect.probing is None else _probe(effect.probing),
    }


def _stop(ended: Ending | None) -> dict[str, Any] | None:
    if ended is None or ended.reason is None:
        return None
    return {"reason": ended.reason.value, "details": SECRETS.json(ended.details)}


def _error(ended: Ending | None) -> dict[str, Any] | None:
    if ended is None or ended.failure is None:
        return None
    failure = ended.failure
    details = {**failure.details, **ended.details}
    told = {"message": SECRETS.text(failure.message), "details": SECRETS.json(details)}
    return {"code": failure.code, "transient": failure.transient, **told}
