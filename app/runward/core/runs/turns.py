"""Facts about the calls of a turn, applied."""

from __future__ import annotations

from collections.abc import Iterable

from runward.core.errors import InvariantViolated
from runward.core.messages import FilePart, Message, ToolResultPart
from runward.core.runs import approvals, frames, waiting
from runward.core.runs.calls import Call, CallStage, How, Result, Then, ToolTraits, after, backoff_ms, parse_arguments
from runward.core.runs.emitted import NOTHING, Emitted
from runward.core.runs.endings import Applied, cancelled, ended, with_call, without_result
from runward.core.runs.facts import AttemptEnded, CheckpointSaved, CloseTurn, Guarded, Mark, Projected, Screened, Screening
from runward.core.runs.receipts import receipt_of
from runward.core.runs.sentences import TIMED_OUT, UNCERTAIN, UNEXPECTED
from runward.core.runs.state import RunState
from runward.core.runs.transitions import CallEvent, next_stage
from runward.core.runs.unknowns import became_unknown
from runward.core.runs.unsettled import Decision
from runward.core.usage import Usage
from runward.core.values import replace


def screened(run: RunState, fact: Screened) -> Applied:
    """Every proposed call is now ready, waiting or refused; all of them are announced, in the model's order. So is every call that was
    cleared when they were looked at, without being announced again."""
    by_id = {screening.call_id: screening for screening in fact.screenings}
    said: Emitted = NOTHING
    for call in run.turn:
        screening = by_id.get(call.id)
        if call.stage is CallStage.PROPOSED:
            if screening is None:
                raise InvariantViolated(f"Call {call.id} was not screened with its turn.")
            said += _announced(call, screening)
        if call.stage in (CallStage.PROPOSED, CallStage.CLEARED) and screening is not None:
            run, emitted = _screened(run, call, screening, fact.at)
            said += guardrails_said(screening.guarded) + emitted
    return run, said


def cut_off(run: RunState, at: int, why: str) -> Applied:
    """The finish gate: calls of an answer that was cut off or refused are announced and answered, and none of them runs."""
    said: Emitted = NOTHING
    for call in run.turn:
        refusal = Result(output=why, is_error=True, outcome="cancelled")
        run, emitted = ended(run, call, refusal, at, CallEvent.REFUSED)
        said += _announced(call) + emitted
    message = result_message(run, run.turn)
    return replace(run, turn=(), messages=message.seq), said + Emitted(messages=(message,))


def _announced(call: Call, screening: Screening | None = None) -> Emitted:
    """The call as the model issued it."""
    issued, _ = parse_arguments(call.arguments)
    effect = screening.traits.effect.value if screening and screening.traits else None
    gated = screening is not None and screening.approval is not None
    return Emitted(frames=(frames.tool_call(call, issued, effect, gated),))


def guardrails_said(guarded: Iterable[Guarded]) -> Emitted:
    """What guardrails did."""
    return Emitted(frames=tuple(frames.guardrail(each.hook, each.action, each.name, each.reason) for each in guarded))


def _screened(run: RunState, call: Call, screening: Screening, at: int) -> Applied:
    traits, refusal = screening.traits, screening.refusal
    if traits is not None:
        call = _with_traits(call, traits)
    if refusal is not None:
        return ended(run, call, refusal, at, CallEvent.REFUSED)
    if traits is None:
        raise InvariantViolated(f"Call {call.id} was admitted without a tool.")
    decided_on, given = call.arguments, call.arguments if call.given is None else call.given
    rewritten = any(each.action == "rewrite" for each in screening.guarded)
    call = replace(call, arguments=screening.arguments, given=given if rewritten else None)
    terms = screening.approval
    if terms is not None and approvals.to_be_asked(run, call, terms, decided_on):
        return approvals.asked(run, call, traits, terms, at)
    if traits.awaits is not None:
        return waiting.begun(run, call, traits, at)
    return with_call(run, replace(call, stage=next_stage(call.stage, CallEvent.ADMITTED))), NOTHING


def _with_traits(call: Call, traits: ToolTraits) -> Call:
    """What holds for the call from now on, whatever is deployed later (R17a): a call that is looked at again keeps what it has."""
    if call.stage is not CallStage.PROPOSED:
        return call
    return replace(
        call,
        effect=traits.effect,
        timeout_seconds=traits.timeout_seconds,
        max_attempts=traits.max_attempts,
        on_unknown=traits.on_unknown,
        projects=traits.projects,
        probes=traits.probes,
        wants_evidence=traits.wants_evidence,
    )


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
        run = with_call(replace(run, unknowns=tuple(effect for effect in run.unknowns if effect.tool_call_id != call_id)), call)
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
            return with_call(run, call), Emitted(receipts=(receipt_of(call, call.arguments),))
        case Then.COMPLETE | Then.FAIL:
            return ended(run, replace(call, ran=True), _given(fact), fact.at)
        case Then.FAIL_UNCERTAIN:
            result = Result(output=UNCERTAIN, is_error=True, outcome="failed", effect_certain=False)
            return ended(run, replace(call, ran=True), result, fact.at)
        case Then.CANCEL:
            call = replace(call, ran=True)
            return ended(run, call, cancelled(call), fact.at)
        case Then.ASK:
            return waiting.asks(run, replace(call, ran=True), fact.question, fact.choices)
        case Then.TRY_AGAIN:
            return _try_again(run, call, fact)
        case Then.START_OVER:
            ran = call.ran or fact.how is not How.NOT_STARTED
            return with_call(run, replace(call, stage=next_stage(call.stage, CallEvent.TRY_AGAIN), ran=ran, not_before=None)), NOTHING
        case Then.UNKNOWN:
            return became_unknown(run, call, fact.at)


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
    return with_call(run, call), Emitted(receipts=(receipt_of(call, call.arguments),))


def projected(run: RunState, fact: Projected) -> Applied:
    """The model's view of an executed call is known."""
    call = run.call(fact.call_id)
    result = fact.result
    if call.settled is not None and call.settled["decision"] == Decision.RESULT and not result.is_error:
        result = replace(result, outcome="reconciled")
    run, answered = ended(run, call, result, fact.at, CallEvent.PROJECTED)
    return run, guardrails_said(fact.guarded) + answered


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
        if call.stage is CallStage.GATED and call.gate is not None:
            said += approvals.withdrawn(call.gate, at)
        if call.open:
            run, emitted = ended(run, call, without_result(run, call), at, CallEvent.RUN_ENDED)
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
    if failures < call.max_attempts and run.spent_out is None:
        stage = next_stage(call.stage, CallEvent.TRY_AGAIN)
        return with_call(run, replace(call, stage=stage, not_before=fact.at + backoff_ms(failures))), NOTHING
    timed_out = fact.how is How.TIMED_OUT
    result = Result(
        output=TIMED_OUT if timed_out else UNEXPECTED,
        is_error=True,
        outcome="timed_out" if timed_out else "failed",
        effect_certain=not call.effect.writes,
    )
    return ended(run, call, result, fact.at)


def _given(fact: AttemptEnded) -> Result:
    if fact.result is None:
        raise InvariantViolated(f"Call {fact.call_id} ended {fact.how} without a result.")
    return fact.result
