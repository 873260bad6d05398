"""Facts about the calls of a turn, applied."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from runward.core.errors import InvariantViolated
from runward.core.messages import FilePart, Message, ToolResultPart
from runward.core.runs import frames
from runward.core.runs.calls import (
    CANCELLED,
    CUT_OFF,
    NOT_STARTED,
    TIMED_OUT,
    UNCERTAIN,
    UNEXPECTED,
    UNKNOWN_TO_MODEL,
    Call,
    CallStage,
    How,
    Result,
    Then,
    ToolTraits,
    UnknownEffect,
    after,
    backoff_ms,
    parse_arguments,
)
from runward.core.runs.emitted import NOTHING, Emitted
from runward.core.runs.facts import AttemptEnded, CheckpointSaved, CloseTurn, Mark, Projected, Screened, Screening
from runward.core.runs.receipts import receipt_of
from runward.core.runs.state import RunState
from runward.core.runs.transitions import CallEvent, next_stage
from runward.core.usage import Usage

Applied = tuple[RunState, Emitted]

FINISHED_UNSEEN = "The call finished, but the run ended before its result was shown."


def screened(run: RunState, fact: Screened) -> Applied:
    """Every proposed call is now ready or refused; all of them are announced, in the model's order."""
    by_id = {screening.call_id: screening for screening in fact.screenings}
    said: Emitted = NOTHING
    for call in run.turn:
        if call.stage is CallStage.PROPOSED:
            run, emitted = _screened(run, call, by_id.get(call.id), fact.at)
            said += emitted
    return run, said


def cut_off(run: RunState, at: int) -> Applied:
    """The finish gate: calls of an answer that was cut off or refused are announced and answered, and none of them runs."""
    said: Emitted = NOTHING
    for call in run.turn:
        refusal = Result(output=CUT_OFF, is_error=True, outcome="cancelled")
        run, emitted = _ended(run, call, refusal, at, CallEvent.REFUSED)
        said += _announced(call) + emitted
    message = result_message(run, run.turn)
    return replace(run, turn=(), messages=message.seq), said + Emitted(messages=(message,))


def _announced(call: Call, traits: ToolTraits | None = None) -> Emitted:
    """The call as the model issued it."""
    issued, _ = parse_arguments(call.arguments)
    return Emitted(frames=(frames.tool_call(call, issued, traits.effect.value if traits else None, False),))


def _screened(run: RunState, call: Call, screening: Screening | None, at: int) -> Applied:
    if screening is None:
        raise InvariantViolated(f"Call {call.id} was not screened with its turn.")
    announced = _announced(call, screening.traits)
    traits, refusal = screening.traits, screening.refusal
    if traits is not None:
        call = replace(
            call,
            effect=traits.effect,
            timeout_seconds=traits.timeout_seconds,
            max_attempts=traits.max_attempts,
            on_unknown=traits.on_unknown,
            projects=traits.projects,
        )
    if refusal is not None:
        run, ended = _ended(run, call, refusal, at, CallEvent.REFUSED)
        return run, announced + ended
    if traits is None:
        raise InvariantViolated(f"Call {call.id} was admitted without a tool.")
    call = replace(call, stage=next_stage(call.stage, CallEvent.ADMITTED), arguments=screening.arguments)
    return _with(run, call), announced


def marked(run: RunState, fact: Mark) -> Applied:
    """These calls start as soon as this is durable (R13)."""
    said: Emitted = NOTHING
    for call_id in fact.call_ids:
        call = run.call(call_id)
        call = replace(
            call,
            stage=next_stage(call.stage, CallEvent.MARKED),
            attempt=call.attempt + 1,
            leg=run.leg,
            worker=run.worker,
            started_at=fact.at,
        )
        run = _with(run, call)
        said += Emitted(frames=(frames.tool_state(call, "executing"),), receipts=(receipt_of(call, call.arguments),))
    return run, said


def attempt_ended(run: RunState, fact: AttemptEnded) -> Applied:
    """What an attempt's end means for its call: the table `AFTER` says it."""
    call = run.call(fact.call_id)
    if call.stage is not CallStage.EXECUTING or call.attempt != fact.attempt:
        raise InvariantViolated(f"Attempt {fact.attempt} of call {call.id} is not under way.")
    match after(call.effect, fact.how):
        case Then.COMPLETE if call.projects:
            call = replace(call, stage=next_stage(call.stage, CallEvent.RETURNED_RAW), raw=fact.raw, ran=True)
            return _with(run, call), Emitted(receipts=(receipt_of(call, call.arguments),))
        case Then.COMPLETE | Then.FAIL:
            return _ended(run, replace(call, ran=True), _given(fact), fact.at)
        case Then.FAIL_UNCERTAIN:
            result = Result(output=UNCERTAIN, is_error=True, outcome="failed", effect_certain=False)
            return _ended(run, replace(call, ran=True), result, fact.at)
        case Then.CANCEL:
            call = replace(call, ran=True)
            return _ended(run, call, _cancelled(call), fact.at)
        case Then.TRY_AGAIN:
            return _try_again(run, call, fact)
        case Then.START_OVER:
            ran = call.ran or fact.how is not How.NOT_STARTED
            return _with(run, replace(call, stage=next_stage(call.stage, CallEvent.TRY_AGAIN), ran=ran, not_before=None)), NOTHING
        case Then.UNKNOWN:
            return _unknown(run, call, fact.at)


def lost(run: RunState, at: int) -> Applied:
    """A new leg found calls `executing`: the leg before it did not live to say what became of them (R13)."""
    said: Emitted = NOTHING
    for call in run.turn:
        if call.stage is CallStage.EXECUTING:
            run, emitted = attempt_ended(run, AttemptEnded(at=at, call_id=call.id, attempt=call.attempt, how=How.LOST))
            said += emitted
    return run, said


def checkpoint_saved(run: RunState, fact: CheckpointSaved) -> Applied:
    """A text for later attempts, kept on the receipt. One that comes after its attempt is over is too late, and dropped."""
    call = next((call for call in run.turn if call.id == fact.call_id), None)
    if call is None or call.stage is not CallStage.EXECUTING or call.attempt != fact.attempt:
        return run, NOTHING
    call = replace(call, checkpoint=fact.text)
    return _with(run, call), Emitted(receipts=(receipt_of(call, call.arguments),))


def projected(run: RunState, fact: Projected) -> Applied:
    """The model's view of an executed call is known."""
    call = run.call(fact.call_id)
    return _ended(run, call, fact.result, fact.at, CallEvent.PROJECTED)


def closed(run: RunState, fact: CloseTurn) -> Applied:
    """All results enter the transcript in the model's order, whatever order they came in (R25)."""
    if any(call.open for call in run.turn):
        raise InvariantViolated("A turn was closed before every call had its result.")
    message = result_message(run, run.turn)
    run = replace(run, turn=(), messages=message.seq)
    run, finished = step_finished(run)
    return run, Emitted(messages=(message,)) + finished


def cut_short(run: RunState, at: int) -> Applied:
    """The run ends with a turn in hand: every call that has no result yet gets one, so that the history stays paired (R17b)."""
    said: Emitted = NOTHING
    for call in run.turn:
        if call.stage is CallStage.PROPOSED:
            said += _announced(call)
        if call.open:
            run, emitted = _ended(run, call, _without_result(call), at, CallEvent.RUN_ENDED)
            said += emitted
    message = result_message(run, run.turn)
    return replace(run, messages=message.seq), said + Emitted(messages=(message,))


def result_message(run: RunState, calls: Iterable[Call]) -> Message:
    """One tool message that answers all calls of a turn."""
    return Message(seq=run.messages + 1, role="tool", step=run.step, content=tuple(_part(call) for call in calls))


def step_finished(run: RunState) -> Applied:
    """The step in hand is over: its answer and all its results are stored."""
    frame = frames.finish_step(run.step, run.finish_reason, run.step_usage)
    return replace(run, finish_reason="", step_usage=Usage()), Emitted(frames=(frame,))


def _part(call: Call) -> ToolResultPart:
    assert call.result is not None
    return ToolResultPart(
        tool_call_id=call.id,
        tool_name=call.name,
        output=call.result.output,
        is_error=call.result.is_error,
        files=tuple(FilePart(**file) for file in call.result.files) or None,
    )


def _try_again(run: RunState, call: Call, fact: AttemptEnded) -> Applied:
    failures = call.failures + 1
    call = replace(call, ran=True, failures=failures)
    if failures < call.max_attempts:
        stage = next_stage(call.stage, CallEvent.TRY_AGAIN)
        return _with(run, replace(call, stage=stage, not_before=fact.at + backoff_ms(failures))), NOTHING
    timed_out = fact.how is How.TIMED_OUT
    result = Result(
        output=TIMED_OUT if timed_out else UNEXPECTED,
        is_error=True,
        outcome="timed_out" if timed_out else "failed",
        effect_certain=not call.effect.writes,
    )
    return _ended(run, call, result, fact.at)


def _unknown(run: RunState, call: Call, at: int) -> Applied:
    told = call.on_unknown == "tell_model"
    effect = UnknownEffect(
        tool_call_id=call.id,
        step=call.step,
        tool_name=call.name,
        effect=call.effect,
        arguments=call.arguments,
        attempt=call.attempt,
        started_at=call.started_at or at,
        worker=call.worker or "",
        told=told,
    )
    run = replace(run, unknowns=(*run.unknowns, effect))
    call = replace(call, ran=True)
    state = Emitted(frames=(frames.tool_state(call, "unknown"),))
    if told:
        result = Result(output=UNKNOWN_TO_MODEL, is_error=True, outcome="unknown", effect_certain=False)
        run, ended = _ended(run, call, result, at)
        return run, state + ended
    call = replace(call, stage=next_stage(call.stage, CallEvent.BECAME_UNKNOWN))
    return _with(run, call), state + Emitted(receipts=(receipt_of(call, call.arguments),))


def _ended(run: RunState, call: Call, result: Result, at: int, event: CallEvent = CallEvent.OUTCOME) -> Applied:
    arguments = call.arguments
    call = replace(call, stage=next_stage(call.stage, event), result=result, arguments="", ended_at=at, not_before=None)
    said = Emitted(frames=(frames.tool_output(call, result),), receipts=(receipt_of(call, arguments),))
    if call.attempt and result.outcome != "unknown":
        state = "cancelled" if result.outcome == "cancelled" else "failed" if result.is_error else "completed"
        said = Emitted(frames=(frames.tool_state(call, state),)) + said
    return _with(run, call), said


def _without_result(call: Call) -> Result:
    match call.stage:
        case CallStage.EXECUTED:
            return Result(output=FINISHED_UNSEEN)
        case CallStage.UNKNOWN:
            return Result(output=UNKNOWN_TO_MODEL, is_error=True, outcome="unknown", effect_certain=False)
        case _:
            return _cancelled(call)


def _cancelled(call: Call) -> Result:
    """The run ends before the call did. What an attempt of a write has done by then nobody knows, though it may be repeated (R38)."""
    certain = not (call.ran and call.effect.writes)
    return Result(output=CANCELLED if call.ran else NOT_STARTED, is_error=True, outcome="cancelled", effect_certain=certain)


def _given(fact: AttemptEnded) -> Result:
    if fact.result is None:
        raise InvariantViolated(f"Call {fact.call_id} ended {fact.how} without a result.")
    return fact.result


def _with(run: RunState, call: Call) -> RunState:
    return replace(run, turn=tuple(call if other.id == call.id else other for other in run.turn))
