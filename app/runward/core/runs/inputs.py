"""Mail, applied: each item once, in order, none skipped (R6a). What has no use any more is ignored aloud."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from runward.core.kernel.frames import Frame
from runward.core.kernel.mail import Mail, MailKind
from runward.core.runs import approvals, frames, sharing, unknowns, waiting
from runward.core.runs.calls import Awaits, Call, CallStage
from runward.core.runs.emitted import NOTHING, Emitted
from runward.core.runs.endings import Applied
from runward.core.runs.state import Cancel, Hold, RunState
from runward.core.runs.view import control
from runward.core.values import replace


def came(run: RunState, mail: Mail, at: int) -> Applied:
    """One item of the inbox. Whatever is said after the end is followed by a final frame, so that every journal ends with one."""
    run, said = _applied(run, mail, at) or (run, Emitted(frames=(_ignored(mail.kind),), ignored=(mail.seq,)))
    if run.status.ended and said.frames:
        said += Emitted(frames=(frames.data_agent(control(run)),))
    return run, said


def with_holds(run: RunState, arrived: Sequence[Mail]) -> RunState:
    """The run as far as holds go, once the mail that has arrived is applied: what the next hold or release meets."""
    for mail in arrived:
        if mail.kind in (MailKind.HOLD, MailKind.RELEASE):
            run, _ = _hold(run, mail, json.loads(mail.data))
    return run


def in_order(items: Sequence[Mail]) -> list[Mail]:
    """Mail in the order it is applied: a cancel outranks whatever lies beside it (R37)."""
    return sorted(items, key=lambda item: (item.kind is not MailKind.CANCEL, item.seq))


def _applied(run: RunState, mail: Mail, at: int) -> Applied | None:
    """The run with this item applied; None when it has no use."""
    data = json.loads(mail.data)
    if mail.kind is MailKind.RECONCILE:
        return _reconcile(run, mail.seq, data, _sender(mail), at)
    if mail.kind is MailKind.TAKEOVER:
        return run, NOTHING
    if run.status.ended or run.cancel is not None:
        return None
    match mail.kind:
        case MailKind.CANCEL:
            return replace(run, cancel=Cancel(at=mail.received_at, reason=data.get("reason"))), NOTHING
        case MailKind.APPROVAL:
            return _approval(run, data, _sender(mail), at)
        case MailKind.CLIENT:
            call = _waiting(run, data.get("tool_call_id"), Awaits.RESULT)
            return None if call is None else waiting.client_answered(run, call, data, at)
        case MailKind.QUESTION:
            return _question(run, data, at)
        case MailKind.HOLD | MailKind.RELEASE:
            return _hold(run, mail, data)
        case MailKind.RETRY:
            return (run, NOTHING) if run.reopened else None
        case MailKind.LIMITS:
            return replace(run, limits=run.limits.raised(data["limits"]), spent_out=None), NOTHING
        case MailKind.BUDGET:
            return sharing.told(run, data["reservation_id"]), NOTHING
        case MailKind.REBIND:
            return _rebind(run, data)
        case _:
            return None


def _approval(run: RunState, data: Mapping[str, Any], by: str | None, at: int) -> Applied | None:
    for call in run.turn:
        if call.stage is CallStage.GATED and call.gate is not None and call.gate.id == data["approval_id"]:
            return approvals.decided(run, call, data, by=data.get("decided_by") or by, at=at)
    return None


def _question(run: RunState, data: Mapping[str, Any], at: int) -> Applied | None:
    for call in run.turn:
        if call.stage is CallStage.WAITING and call.awaited is not None and call.awaited.question_id == data["question_id"]:
            return waiting.user_answered(run, call, call.awaited, data, at)
    return None


def _reconcile(run: RunState, seq: int, data: Mapping[str, Any], by: str | None, at: int) -> Applied | None:
    """Settles an unknown effect, also after the end: then status, output and stop stay as they are (R10). What is not run again can still
    be settled in another way."""
    effect = run.unknown(data.get("tool_call_id", ""))
    if effect is None or effect.attempt != data["attempt"] or effect.claim is not None or effect.again:
        return None
    if data["decision"] == "retry" and (run.status.ended or run.cancel is not None or effect.told):
        return unknowns.passed_over(run, effect), Emitted(ignored=(seq,), frames=(_ignored(MailKind.RECONCILE),))
    return unknowns.reconciled(run, effect, data, by, at)


def _hold(run: RunState, mail: Mail, data: Mapping[str, Any]) -> Applied:
    if mail.kind is MailKind.RELEASE:
        return released(run), NOTHING
    if run.hold is not None:
        return run, NOTHING
    hold = Hold(since=mail.received_at, by=_sender(mail), reason=data.get("reason"))
    return replace(run, hold=hold, holds=run.holds + 1), NOTHING


def released(run: RunState) -> RunState:
    """The run without its hold, if it has one. The next hold has a key of its own, also when the run has ended and is tried again."""
    return run if run.hold is None else replace(run, hold=None, releases=run.releases + 1)


def _rebind(run: RunState, data: Mapping[str, Any]) -> Applied | None:
    """Other code is to drive the run from its next leg on."""
    if run.binding != data["from"]:
        return None
    return replace(run, binding=data["to"], draining=True), NOTHING


def _waiting(run: RunState, call_id: str | None, what: Awaits) -> Call | None:
    for call in run.turn:
        if call.id == call_id and call.stage is CallStage.WAITING and call.awaited is not None and call.awaited.what is what:
            return call
    return None


def _ignored(kind: MailKind) -> Frame:
    return frames.warning("input_ignored", f"An input ({kind}) had no use any more.")


def _sender(mail: Mail) -> str | None:
    """Who sent it, as they are known by."""
    by = json.loads(mail.principal).get("by") if mail.principal else None
    return by if isinstance(by, str) else None
