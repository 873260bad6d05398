"""Calls that a person has to approve: asked for, decided, expired (R18-R23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runward.core.ids import approval_id, canonical_json, digest
from runward.core.kernel.actor import Status
from runward.core.kernel.mail import Letter, MailKind, approval_key
from runward.core.kernel.records import ApprovalClosing, ApprovalRow
from runward.core.runs import frames
from runward.core.runs.calls import ApprovalTerms, Call, CallStage, Gate, Result, ToolTraits, Verdict
from runward.core.runs.emitted import Emitted
from runward.core.runs.endings import Applied, ended, with_call
from runward.core.runs.receipts import receipt_of, to_text
from runward.core.runs.sentences import NOBODY_DECIDED, denied
from runward.core.runs.state import Ending, RunState, StopReason
from runward.core.runs.transitions import CallEvent, next_stage
from runward.core.values import replace


def to_be_asked(run: RunState, call: Call, terms: ApprovalTerms, decided_on: str) -> bool:
    """Whether a call needs approval was decided when the model asked for it (I-32). One that was approved is asked for again under another
    version of the approval, or with other arguments than those `decided_on`, and never twice under one id: that verdict is known (R22)."""
    if call.stage is CallStage.PROPOSED:
        return True
    gate = call.gate
    if gate is None or (gate.version == terms.version and call.arguments == decided_on):
        return False
    return _id(run, call, terms) not in (gate.id, *gate.before)


def asked(run: RunState, call: Call, traits: ToolTraits, terms: ApprovalTerms, at: int) -> Applied:
    """The call waits for a verdict on exactly these arguments."""
    gate = Gate(
        id=_id(run, call, terms),
        version=terms.version,
        requested_at=at,
        expires_at=None if terms.expires_seconds is None else at + round(terms.expires_seconds * 1000),
        on_expiry=terms.on_expiry,
        editable=terms.editable,
        reason=terms.reason,
        before=(*call.gate.before, call.gate.id) if call.gate is not None else (),
    )
    call = replace(call, stage=next_stage(call.stage, CallEvent.APPROVAL_ASKED), gate=gate)
    said = Emitted(
        frames=(frames.tool_approval_request(call, gate), frames.tool_state(call, "awaiting_approval")),
        receipts=(receipt_of(call, call.arguments),),
        approvals=(_row(call, gate, traits, terms),),
    )
    return with_call(run, call), said


def decided(run: RunState, call: Call, data: Mapping[str, Any], *, by: str | None, at: int) -> Applied:
    """A person's verdict: the call may run, with the arguments they left it, or it is denied and never does (I-31)."""
    gate = call.gate
    assert gate is not None
    edited = None if data.get("edited_arguments") is None else canonical_json(data["edited_arguments"])
    verdict = Verdict(
        approved=data["approved"] is True, at=at, by=by, reason=data.get("reason"), issued=call.arguments if edited is not None else None
    )
    call = replace(call, gate=replace(gate, verdict=verdict))
    said = Emitted(frames=(frames.tool_approval_response(gate.id, verdict.approved, verdict.reason),))
    if not verdict.approved:
        result = Result(output=denied(verdict.reason), is_error=True, outcome="denied")
        run, answered = ended(replace(run, denied=True), call, result, at, CallEvent.REFUSED)
        return run, said + answered
    call = replace(call, stage=next_stage(call.stage, CallEvent.CLEARED))
    call = call if edited is None else replace(call, arguments=edited, given=None)
    return with_call(run, call), said + Emitted(receipts=(receipt_of(call, call.arguments),))


def expired(run: RunState, call: Call, at: int) -> Applied:
    """Nobody decided in time: the call is denied or the run stops, as its author chose (R20)."""
    gate = call.gate
    assert gate is not None
    letter = Letter(kind=MailKind.APPROVAL, key=approval_key(gate.id), data=to_text({"approval_id": gate.id, "expired": True}))
    said = Emitted(closings=(letter,), approval_closings=(_closing(gate, "expired", at),))
    said += Emitted(frames=(frames.tool_approval_response(gate.id, False, NOBODY_DECIDED),))
    run, answered = ended(
        replace(run, denied=True), call, Result(output=NOBODY_DECIDED, is_error=True, outcome="expired"), at, CallEvent.REFUSED
    )
    if gate.on_expiry == "stop" and run.ending is None:
        details = {"approval_id": gate.id, "tool_call_id": call.id}
        run = replace(run, ending=Ending(status=Status.STOPPED, reason=StopReason.APPROVAL_EXPIRED, details=details))
    return run, said + answered


def withdrawn(gate: Gate, at: int) -> Emitted:
    """The run ends and takes its open request with it."""
    return Emitted(approval_closings=(_closing(gate, "cancelled", at),))


def _id(run: RunState, call: Call, terms: ApprovalTerms) -> str:
    return approval_id(run.uid, call.id, call.name, terms.version, call.arguments)


def _closing(gate: Gate, status: str, at: int) -> ApprovalClosing:
    return ApprovalClosing(id=gate.id, status=status, decided_at=at, decision="{}")


def _row(call: Call, gate: Gate, traits: ToolTraits, terms: ApprovalTerms) -> ApprovalRow:
    """The request as the inbox keeps it: what whoever decides has to see, and what an edit has to fit."""
    data: dict[str, Any] = {
        "step": call.step,
        "tool_call_id": call.id,
        "effect": traits.effect.value,
        "arguments": call.arguments,
        "arguments_digest": digest(call.arguments),
        "editable": gate.editable,
        "on_expiry": gate.on_expiry,
    }
    if gate.reason is not None:
        data["request_reason"] = gate.reason
    if gate.editable:
        data["arguments_schema"] = terms.schema
    return ApprovalRow(id=gate.id, tool=call.name, created_at=gate.requested_at, expires_at=gate.expires_at, data=to_text(data))
