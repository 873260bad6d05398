"""What becomes of an unknown effect: told to the model, probed, settled by a person (R13, R15)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runward.core.kernel.mail import Letter, MailKind, unknown_key
from runward.core.runs import frames
from runward.core.runs.calls import Call, CallStage, Result
from runward.core.runs.emitted import NOTHING, Emitted
from runward.core.runs.endings import Applied, ended, with_call
from runward.core.runs.facts import EvidenceChecked, Probed
from runward.core.runs.receipts import TOLD, approval_of, receipt_of, settled_receipt, to_text
from runward.core.runs.state import RunState
from runward.core.runs.transitions import CallEvent, next_stage
from runward.core.runs.unsettled import Decision, ProbeStatus, Probing, Settlement, UnknownEffect, probe_backoff_ms
from runward.core.values import replace


def became_unknown(run: RunState, call: Call, at: int) -> Applied:
    """An attempt of a write ended and nobody knows how. A tool that can find out is asked first; else the model is told, or people are."""
    tells = call.on_unknown == "tell_model"
    effect = UnknownEffect(
        tool_call_id=call.id,
        step=call.step,
        tool_name=call.name,
        effect=call.effect,
        arguments=call.arguments,
        attempt=call.attempt,
        started_at=call.started_at or at,
        worker=call.worker or "",
        told=tells and not call.probes,
        approval=approval_of(call),
        wants_evidence=call.wants_evidence,
    )
    run = replace(run, unknowns=(*run.unknowns, effect))
    call = replace(call, ran=True)
    said = Emitted(frames=(frames.tool_state(call, "unknown"),))
    if effect.told:
        run, answered = _tell(run, call, at)
        return run, said + answered
    call = replace(call, stage=next_stage(call.stage, CallEvent.BECAME_UNKNOWN))
    return with_call(run, call), said + Emitted(receipts=(receipt_of(call, call.arguments),))


def probed(run: RunState, fact: Probed) -> Applied:
    """The probe answered. One that knows settles the effect by a move of its own, so that a person who was first is not overruled."""
    effect, call = run.unknown(fact.call_id), _waiting(run, fact.call_id, fact.attempt)
    if effect is None or call is None:
        return run, NOTHING
    asked = 1 if effect.probing is None else effect.probing.asked + 1
    probing = Probing(status=fact.status, detail=fact.detail, checked_at=fact.at, asked=asked, next_at=fact.at + probe_backoff_ms(asked))
    effect = replace(effect, probing=probing, found=_found(fact))
    if effect.found is None and effect.claim is None and call.on_unknown == "tell_model":
        run = _with_effect(run, replace(effect, told=True))
        return _tell(run, call, fact.at)
    return _with_effect(run, effect), NOTHING


def settled_by_probe(run: RunState, call_id: str) -> Applied:
    """What the probe found is recorded, under the key that a person's decision would have (R19a)."""
    effect = run.unknown(call_id)
    assert effect is not None and effect.found is not None
    found = effect.found
    data = to_text({"tool_call_id": call_id, "attempt": effect.attempt, "decision": found.decision.value, "probe": found.probe})
    letter = Letter(kind=MailKind.RECONCILE, key=unknown_key(call_id, effect.attempt, effect.refused), data=data)
    run, said = _settled(run, effect, found)
    return run, said + Emitted(closings=(letter,))


def reconciled(run: RunState, effect: UnknownEffect, data: Mapping[str, Any], by: str | None, at: int) -> Applied:
    """A person settles an effect. Evidence that a tool wants to see is shown to it first, unless the run has ended."""
    decision = Decision(data["decision"])
    result = None
    if decision is Decision.RESULT:
        result = Result(output=data.get("output"))
    elif decision is Decision.ERROR:
        result = Result(output=data.get("output") or data.get("note") or "The call failed.", is_error=True, outcome="failed")
    settlement = Settlement(
        decision=decision,
        at=at,
        by=by,
        note=data.get("note"),
        result=result,
        raw=data.get("output") if decision is Decision.RESULT else None,
        evidence=data.get("evidence"),
    )
    if not effect.wants_evidence:
        return _settled(run, effect, settlement)
    if run.status.ended:  # nobody has the agent's code at hand any more
        return _settled(run, effect, replace(settlement, verified=False))
    return _with_effect(run, replace(effect, claim=settlement)), NOTHING


def evidence_checked(run: RunState, fact: EvidenceChecked) -> Applied:
    """The tool looked at a person's evidence. What does not hold settles nothing, and somebody may try again."""
    effect = run.unknown(fact.call_id)
    if effect is None or effect.claim is None or effect.attempt != fact.attempt:
        return run, NOTHING
    if fact.refusal is None:
        return _settled(run, effect, replace(effect.claim, verified=True))
    effect = replace(effect, claim=None, refused=effect.refused + 1, refusal=fact.refusal)
    warning = frames.warning("evidence_refused", f"The evidence for call {fact.call_id} does not hold: the call is still unknown.")
    return _with_effect(run, effect), Emitted(frames=(warning,))


def passed_over(run: RunState, effect: UnknownEffect) -> RunState:
    """A decision came to nothing: another one may be taken, under a key of its own."""
    return _with_effect(run, replace(effect, claim=None, refused=effect.refused + 1))


def claims_taken(run: RunState) -> Applied:
    """The run ends: what people have found is recorded, though nobody looked at their evidence. Nothing is run again any more."""
    said: Emitted = NOTHING
    for effect in run.unknowns:
        if effect.claim is None:
            continue
        if effect.claim.decision is Decision.RETRY:
            run = passed_over(run, effect)
            continue
        run, emitted = _settled(run, effect, replace(effect.claim, verified=False))
        said += emitted
    return run, said


def _settled(run: RunState, effect: UnknownEffect, settlement: Settlement) -> Applied:
    call = _waiting(run, effect.tool_call_id, effect.attempt)
    record = _record(settlement)
    if settlement.decision is Decision.RETRY and settlement.probe is None:  # until it begins nobody knows more than before
        run = _with_effect(run, replace(effect, claim=None, found=None, refused=effect.refused + 1, again=True))
    else:
        run = replace(run, unknowns=tuple(other for other in run.unknowns if other.tool_call_id != effect.tool_call_id))
    if call is None:  # the model was told and went on, or the run has ended: only the records change
        told = (replace(call, settled=record, checkpoint=None) if call.id == effect.tool_call_id else call for call in run.turn)
        return replace(run, turn=tuple(told)), _corrected(effect, settlement, record)
    call = replace(call, settled=record)
    if settlement.decision is Decision.RETRY:
        ran = settlement.probe is None and call.ran
        call = replace(call, stage=next_stage(call.stage, CallEvent.CLEARED), not_before=None, ran=ran)
        return with_call(run, call), Emitted(receipts=(receipt_of(call, call.arguments),))
    assert settlement.result is not None
    if call.projects and not settlement.result.is_error:
        call = replace(call, stage=next_stage(call.stage, CallEvent.RETURNED_RAW), raw=settlement.raw)
        return with_call(run, call), Emitted(receipts=(receipt_of(call, call.arguments),))
    outcome = settlement.result.outcome if settlement.result.is_error else "reconciled"
    return ended(run, call, replace(settlement.result, outcome=outcome), settlement.at)


def _corrected(effect: UnknownEffect, settlement: Settlement, record: Mapping[str, Any]) -> Emitted:
    result = settlement.result
    assert result is not None, "a call that was answered is not run again"
    state = frames.tool_state_of(effect.tool_call_id, effect.tool_name, "failed" if result.is_error else "completed", effect.attempt)
    return Emitted(frames=(state,), receipts=(settled_receipt(effect, settlement, record),))


def _tell(run: RunState, call: Call, at: int) -> Applied:
    return ended(run, call, TOLD, at)


def _waiting(run: RunState, call_id: str, attempt: int) -> Call | None:
    """The call whose attempt is unknown and still unanswered."""
    for call in run.turn:
        if call.id == call_id and call.stage is CallStage.UNKNOWN and call.attempt == attempt:
            return call
    return None


def _with_effect(run: RunState, effect: UnknownEffect) -> RunState:
    return replace(run, unknowns=tuple(effect if other.tool_call_id == effect.tool_call_id else other for other in run.unknowns))


def _found(fact: Probed) -> Settlement | None:
    match fact.status:
        case ProbeStatus.HAPPENED:
            return Settlement(decision=Decision.RESULT, at=fact.at, result=fact.result, raw=fact.raw, probe=fact.status.value)
        case ProbeStatus.DID_NOT_HAPPEN:
            return Settlement(decision=Decision.RETRY, at=fact.at, probe=fact.status.value)
        case _:
            return None


def _record(settlement: Settlement) -> Mapping[str, Any]:
    """How an effect was settled, as its receipt keeps it."""
    record = {
        "decision": settlement.decision.value,
        "at": settlement.at,
        "by": settlement.by,
        "note": settlement.note,
        "evidence": settlement.evidence,
        "verified": settlement.verified,
        "probe": settlement.probe,
    }
    return {key: value for key, value in record.items() if value is not None}
