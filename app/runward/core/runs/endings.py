"""How a call ends: with exactly one result, whatever ended it (R17b)."""

from __future__ import annotations

from runward.core.runs import frames
from runward.core.runs.calls import Call, CallStage, Result
from runward.core.runs.emitted import Emitted
from runward.core.runs.receipts import TOLD, receipt_of
from runward.core.runs.sentences import CANCELLED, FINISHED_UNSEEN, NOT_STARTED
from runward.core.runs.state import RunState
from runward.core.runs.transitions import CallEvent, next_stage
from runward.core.values import replace

Applied = tuple[RunState, Emitted]

_STATES = {"cancelled": "cancelled", "denied": "denied", "expired": "denied"}
"""The `tool-state` of a call by its outcome, where that is not plainly `completed` or `failed`."""


def with_call(run: RunState, call: Call) -> RunState:
    """The run with this call in place of the one that has its id."""
    return replace(run, turn=tuple(call if other.id == call.id else other for other in run.turn))


def ended(run: RunState, call: Call, result: Result, at: int, event: CallEvent = CallEvent.OUTCOME) -> Applied:
    """The call has its result: nothing will run under its id again (R12)."""
    effect = run.unknown(call.id)
    if effect is not None and effect.again:  # it was to run once more and does not: what its last attempt did stays unknown
        result = replace(result, effect_certain=False)
        left = replace(effect, told=True, again=False, read=result)
        effects = (left if other is effect else other for other in run.unknowns)
        run = replace(run, unknowns=tuple(effects))
    arguments = call.arguments
    waited = call.attempt or call.gate is not None or call.awaited is not None
    stage = next_stage(call.stage, event)
    call = replace(call, stage=stage, result=result, arguments="", given=None, ended_at=at, not_before=None, awaited=None)
    said = Emitted(frames=(frames.tool_output(call, result),), receipts=(receipt_of(call, arguments),))
    if waited and result.outcome != "unknown":
        state = _STATES.get(result.outcome or "", "failed" if result.is_error else "completed")
        said = Emitted(frames=(frames.tool_state(call, state),)) + said
    return with_call(run, call), said


def without_result(run: RunState, call: Call) -> Result:
    """What answers a call that the end of its run overtook."""
    if run.unknown(call.id) is not None:
        return TOLD
    match call.stage:
        case CallStage.EXECUTED:
            return Result(output=FINISHED_UNSEEN)
        case CallStage.WAITING:
            return Result(output=CANCELLED, is_error=True, outcome="cancelled")
        case _:
            return cancelled(call)


def cancelled(call: Call) -> Result:
    """The run ends before the call did. What an attempt of a write has done by then nobody knows, though it may be repeated (R38)."""
    certain = not (call.ran and call.effect.writes)
    return Result(output=CANCELLED if call.ran else NOT_STARTED, is_error=True, outcome="cancelled", effect_certain=certain)
