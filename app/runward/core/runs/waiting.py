"""Calls that nobody here runs: they wait for a client's result, the user's answer, or a time (R24, R26)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from runward.core.ids import question_id
from runward.core.kernel.frames import Frame
from runward.core.kernel.mail import Letter, MailKind, client_key, question_key
from runward.core.runs import approvals, frames
from runward.core.runs.calls import Awaited, Awaits, Call, CallStage, Result, ToolTraits
from runward.core.runs.emitted import NOTHING, Emitted
from runward.core.runs.endings import Applied, ended, with_call
from runward.core.runs.receipts import receipt_of, to_text
from runward.core.runs.sentences import DECLINED, NOBODY_ANSWERED
from runward.core.runs.state import RunState
from runward.core.runs.transitions import CallEvent, next_stage
from runward.core.values import replace


def begun(run: RunState, call: Call, traits: ToolTraits, at: int) -> Applied:
    """An admitted call of a tool that waits: from now on it does."""
    expires_at = None if traits.expires_seconds is None else at + round(traits.expires_seconds * 1000)
    arguments = json.loads(call.arguments)
    match traits.awaits:
        case Awaits.RESULT:
            return _waits(run, call, Awaited(what=Awaits.RESULT, expires_at=expires_at, output_schema=traits.output_schema))
        case Awaits.ANSWER:
            question, choices = arguments["question"], tuple(arguments.get("choices", ()))
            free = arguments.get("allows_free_text", True) or not choices
            return asks(run, call, question, choices, expires_at=expires_at, allows_free_text=free)
        case _:
            return _waits(run, call, Awaited(what=Awaits.TIME, due_at=at + round(arguments["seconds"] * 1000)))


def asks(
    run: RunState,
    call: Call,
    question: str,
    choices: tuple[str, ...],
    *,
    expires_at: int | None = None,
    allows_free_text: bool | None = None,
) -> Applied:
    """The call waits for the user: because the model asks, or because its tool does before any effect."""
    free = not choices if allows_free_text is None else allows_free_text
    awaited = Awaited(
        what=Awaits.ANSWER,
        expires_at=expires_at,
        question_id=question_id(call.id, call.asked + 1),
        question=question,
        choices=choices,
        allows_free_text=free,
    )
    return _waits(run, replace(call, asked=call.asked + 1), awaited)


def client_answered(run: RunState, call: Call, data: Mapping[str, Any], at: int) -> Applied:
    """The caller's program says what came of the call."""
    is_error = bool(data.get("is_error"))
    return ended(run, call, Result(output=data["output"], is_error=is_error, outcome="failed" if is_error else None), at)


def user_answered(run: RunState, call: Call, awaited: Awaited, data: Mapping[str, Any], at: int) -> Applied:
    """The user answered, or declined to. A tool that asked runs again with the answer, under the same key."""
    declined = data.get("declined") is True
    said = Emitted(frames=(frames.question_answered(awaited.question_id, not declined),))
    if declined:
        run, answered = ended(run, call, Result(output=DECLINED, is_error=True, outcome="failed"), at)
        return run, said + answered
    if not call.attempt:
        run, answered = ended(run, call, Result(output=data["answer"]), at)
        return run, said + answered
    stage = next_stage(call.stage, CallEvent.ANSWERED)
    call = replace(call, stage=stage, awaited=None, answers=(*call.answers, data["answer"]))
    return with_call(run, call), said + Emitted(receipts=(receipt_of(call, call.arguments),))


def due_by(run: RunState, at: int) -> list[Call]:
    """The calls whose wait is over at store time `at`, answered or not."""
    return [call for call in run.turn if (due := wait_due(call)) is not None and due <= at]


def wait_due(call: Call) -> int | None:
    """When a call's wait ends by itself; None for one that waits for good, or does not wait."""
    if call.stage is CallStage.GATED and call.gate is not None:
        return call.gate.expires_at
    if call.stage is CallStage.WAITING and call.awaited is not None:
        return call.awaited.due_at if call.awaited.due_at is not None else call.awaited.expires_at
    return None


def closed_by_time(run: RunState, at: int) -> Applied:
    """Every wait whose time has come is closed by the service itself. Whoever was first keeps the key (R19a)."""
    said: Emitted = NOTHING
    for call in due_by(run, at):
        if call.stage is CallStage.GATED:
            run, emitted = approvals.expired(run, call, at)
        else:
            assert call.awaited is not None
            run, emitted = _over(run, call, call.awaited, at)
        said += emitted
    return run, said


def _over(run: RunState, call: Call, awaited: Awaited, at: int) -> Applied:
    if awaited.what is Awaits.TIME:
        return ended(run, call, Result(output={"waited_seconds": json.loads(call.arguments)["seconds"]}), at)
    if awaited.what is Awaits.RESULT:
        letter = Letter(kind=MailKind.CLIENT, key=client_key(call.id), data=to_text({"tool_call_id": call.id, "expired": True}))
        said = Emitted(closings=(letter,))
    else:
        data = to_text({"question_id": awaited.question_id, "expired": True})
        letter = Letter(kind=MailKind.QUESTION, key=question_key(awaited.question_id), data=data)
        said = Emitted(closings=(letter,), frames=(frames.question_answered(awaited.question_id, False),))
    expired = Result(output=NOBODY_ANSWERED, is_error=True, outcome="expired")
    run, answered = ended(replace(run, denied=True), call, expired, at)
    return run, said + answered


def _waits(run: RunState, call: Call, awaited: Awaited) -> Applied:
    call = replace(call, stage=next_stage(call.stage, CallEvent.WAITS), awaited=awaited)
    said = Emitted(frames=(_shown(call, awaited), frames.tool_state(call, "waiting")), receipts=(receipt_of(call, call.arguments),))
    return with_call(run, call), said


def _shown(call: Call, awaited: Awaited) -> Frame:
    match awaited.what:
        case Awaits.RESULT:
            return frames.client_call(call)
        case Awaits.ANSWER:
            return frames.question(awaited)
        case Awaits.TIME:
            return frames.timer_started(call.id, awaited.due_at or 0)
