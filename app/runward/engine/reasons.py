"""Why a run stands where it stands, as far as its own state says: what it waits for, and what the leg that drives it is doing."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runward.core.kernel.actor import Envelope, Status
from runward.core.kernel.mail import approval_key, budget_key, client_key, question_key
from runward.core.runs.answers import CIRCUIT_OPEN
from runward.core.runs.calls import Awaits, Call, CallStage
from runward.core.runs.dues import deadline
from runward.core.runs.shared import BudgetWait
from runward.core.runs.state import RunState
from runward.core.runs.view import key_of
from runward.core.times import optional_rfc3339, rfc3339

GOES_ON = "Nothing: it goes on by itself."


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason why a run is not moving: a stable code, a sentence about this run, and what can be done."""

    code: str
    detail: str
    next: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One thing that a run waits for. `due_at` is when the wait ends by itself. Times in milliseconds."""

    kind: str
    id: str
    since: int
    due_at: int | None
    reason: Reason

    @property
    def shown(self) -> dict[str, Any]:
        """As `/why` shows it."""
        due = {} if self.due_at is None else {"due_at": rfc3339(self.due_at)}
        return {"kind": self.kind, "id": self.id, "since": rfc3339(self.since), **due}


def waits(row: Envelope, run: RunState, arrived: Container[str]) -> Iterator[Waiting]:
    """What the run waits for, without what has `arrived` for it by key. A wait whose beginning nobody noted began when the run last said
    where it stands."""
    for call in run.turn:
        waiting = _call(row, call)
        if waiting is not None and _key(call) not in arrived:
            yield waiting
    for effect in run.unknowns:
        if effect.claim is None and not effect.told and not effect.again and key_of(effect) not in arrived:
            detail = f"Nobody knows whether call {effect.tool_call_id} of {effect.tool_name} happened."
            todo = f"Find out, then POST /runs/{row.public_id}/reconcile with retry, result or error."
            reason = Reason(code="waits_for_unknown_effect", detail=detail, next=todo)
            yield Waiting(kind="unknown_effect", id=effect.tool_call_id, since=effect.started_at, due_at=None, reason=reason)
    budget = run.budget_wait
    if budget is not None and budget_key(budget.id) not in arrived:
        yield Waiting(kind="budget", id=budget.key, since=budget.since, due_at=budget.due_at, reason=_budget(budget))
    if run.hold is not None:
        by = "" if run.hold.by is None else f" by {run.hold.by}"
        todo = f'POST /runs/{row.public_id}/resume with {{"release_hold": true}}.'
        reason = Reason(code="waits_for_hold", detail=f"The run was parked{by}.", next=todo)
        yield Waiting(kind="hold", id=str(run.holds), since=run.hold.since, due_at=None, reason=reason)


def _key(call: Call) -> str:
    """The key of the mail that ends a call's wait."""
    if call.gate is not None and call.stage is CallStage.GATED:
        return approval_key(call.gate.id)
    if call.awaited is not None and call.awaited.what is Awaits.ANSWER:
        return question_key(call.awaited.question_id)
    return client_key(call.id)


def _call(row: Envelope, call: Call) -> Waiting | None:
    gate, awaited = call.gate, call.awaited
    if call.stage is CallStage.GATED and gate is not None:
        detail = f"Call {call.id} of {call.name} waits for a person to approve it.{_expiry(gate.expires_at, gate.on_expiry)}"
        reason = Reason(code="waits_for_approval", detail=detail, next=f"POST /approvals/{gate.id} with a verdict.")
        return Waiting(kind="approval", id=gate.id, since=gate.requested_at, due_at=gate.expires_at, reason=reason)
    if call.stage is not CallStage.WAITING or awaited is None:
        return None
    since = call.started_at or row.updated_at
    match awaited.what:
        case Awaits.RESULT:
            detail = f"Call {call.id} of {call.name} waits for a result from the caller's program.{_expiry(awaited.expires_at)}"
            reason = Reason(code="waits_for_client_call", detail=detail, next=f"POST /runs/{row.public_id}/tool-results.")
            return Waiting(kind="client_call", id=call.id, since=since, due_at=awaited.expires_at, reason=reason)
        case Awaits.ANSWER:
            detail = f"Call {call.id} of {call.name} asks the user.{_expiry(awaited.expires_at)}"
            reason = Reason(code="waits_for_question", detail=detail, next=f"POST /runs/{row.public_id}/answers.")
            return Waiting(kind="question", id=awaited.question_id, since=since, due_at=awaited.expires_at, reason=reason)
        case Awaits.TIME:
            detail = f"Call {call.id} of {call.name} waits until {optional_rfc3339(awaited.due_at)}."
            reason = Reason(code="waits_for_timer", detail=detail, next=GOES_ON)
            return Waiting(kind="timer", id=call.id, since=since, due_at=awaited.due_at, reason=reason)


def _budget(wait: BudgetWait) -> Reason:
    detail = f"The budget {wait.key} has too little left for the next model call."
    if wait.due_at is not None:
        detail += f" The run asks it again at {rfc3339(wait.due_at)}."
    return Reason(code="waits_for_budget", detail=detail, next=f"PATCH /budgets/{wait.key} with more: the run goes on by itself.")


def _expiry(at: int | None, what: str = "answer as expired") -> str:
    """What becomes of a wait by itself."""
    if at is None:
        return ""
    ends = {"deny": "it is denied", "stop": "the run stops"}.get(what, "it is answered as expired")
    return f" At {rfc3339(at)} {ends} by itself."


def doing(row: Envelope, run: RunState, now: int) -> Iterator[Reason]:
    """What the leg that drives the run has said it is doing."""
    reservation = run.reservation
    if run.input_unguarded or run.unguarded is not None:
        what = "the input" if run.input_unguarded else f"the answer of step {run.step}"
        yield Reason(code="guarding", detail=f"The agent's guardrails look at {what}.", next=_patience(row, run))
    elif reservation is not None and reservation.not_before is not None and reservation.not_before > now:
        yield Reason(code="model_backoff", detail=_backoff(run, reservation.step, reservation.not_before), next=GOES_ON)
    elif reservation is not None and reservation.leg in (row.leg, 0):
        model = "The model" if run.model is None else f"The model {run.model}"
        detail = f"{model} was asked for step {reservation.step}, attempt {reservation.attempt}, and has not answered in full."
        yield Reason(code="model_call_under_way", detail=detail, next=_patience(row, run))
    for call in run.turn:
        if call.stage is CallStage.EXECUTING and call.leg == row.leg:
            yield _running(row, run, call, now)


def _backoff(run: RunState, step: int, until: int) -> str:
    if run.model_failure == CIRCUIT_OPEN:
        return f"The model {run.model} kept failing and its circuit is open; step {step} is tried again at {rfc3339(until)}."
    return f"The model failed{f' ({run.model_failure})' if run.model_failure else ''}; step {step} is tried again at {rfc3339(until)}."


def _running(row: Envelope, run: RunState, call: Call, now: int) -> Reason:
    if call.not_before is not None and call.not_before > now:
        detail = f"Call {call.id} of {call.name} failed; it is tried again at {rfc3339(call.not_before)}."
        return Reason(code="tool_backoff", detail=detail, next=GOES_ON)
    since = "" if call.started_at is None else f" since {rfc3339(call.started_at)}"
    detail = f"Call {call.id} of {call.name}, attempt {call.attempt}, has been running{since}; it has {call.timeout_seconds:g} s."
    return Reason(code="tool_running", detail=detail, next=_patience(row, run))


def _patience(row: Envelope, run: RunState) -> str:
    due = deadline(run)
    until = "" if due is None else f" The run's deadline is {rfc3339(due)}."
    return f"Wait, or POST /runs/{row.public_id}/cancel.{until}"


def since(row: Envelope, run: RunState | None) -> int:
    """Since when a run has its status, as exactly as that is stored."""
    if row.status.ended:
        return row.ended_at or row.updated_at
    if row.status is Status.QUEUED and row.ready_at is not None:
        return row.created_at if row.leg == 0 else row.ready_at
    if row.status is Status.RUNNING and run is not None and run.leg_started_at is not None:
        return run.leg_started_at
    return row.updated_at


def told(reasons: Iterator[Reason]) -> list[Mapping[str, str]]:
    """Reasons as `/why` shows them."""
    return [{"code": reason.code, "detail": reason.detail, "next": reason.next} for reason in reasons]
