"""Facts about the model call of a run, applied."""

from __future__ import annotations

from runward.core.errors import InvariantViolated
from runward.core.ids import call_id
from runward.core.kernel.actor import Status
from runward.core.messages import Message, ReasoningPart, TextPart, ToolCallPart
from runward.core.runs import budget, frames, guarding, outputs, sharing, turns
from runward.core.runs.budget import Refusal, replanned, with_plan
from runward.core.runs.calls import Call, CallStage, Effect, parse_arguments
from runward.core.runs.emitted import NOTHING, Emitted
from runward.core.runs.facts import (
    AnswerReceived,
    BudgetClosed,
    BudgetsAnswered,
    CallAsked,
    CallRefused,
    ModelBrokenOff,
    ModelChosen,
    ModelFailed,
    OutputGuarded,
)
from runward.core.runs.guarding import CUT_SHORT
from runward.core.runs.sentences import CUT_OFF, NO_TOOLS_NOW
from runward.core.runs.state import Answer, Ending, Failover, Failure, Phase, Reservation, RunState, StopReason
from runward.core.values import replace

Applied = tuple[RunState, Emitted]

MODEL_BACKOFF_MS = 500
LONGEST_RETRY_AFTER_MS = 60_000
"""A provider that asks for more patience than this fails the call; the run can be retried later."""

CIRCUIT_OPEN = "circuit_open"
"""The code of a call that was not made, because its model kept failing."""


def reserved(run: RunState) -> Applied:
    """The next model call: of a new step, or another attempt of the open one (R32: a step keeps its number over all attempts)."""
    if run.reservation is not None or run.turn:
        raise InvariantViolated("A model call was reserved while another one, or a turn, is open.")
    step, attempt = (run.step, run.attempt + 1) if run.step_open else (run.step + 1, 1)
    made = budget.planned(run)
    if isinstance(made, Refusal):
        raise InvariantViolated("A model call was reserved that is over the run's bounds.")
    reservation = with_plan(Reservation(step=step, attempt=attempt, leg=run.leg, not_before=run.model_retry_at), made)
    run = replace(run, step=step, attempt=attempt, step_open=True, reservation=reservation, model_retry_at=None)
    return run, _started(run)


def taken_over(run: RunState) -> Applied:
    """A leg begins: the reservation made at creation is the first leg's own, any other was left open by a leg that died (R32). One that is
    over the bounds, then or now, is no call: whether the run can afford one by now, is seen with its mail (R35)."""
    reservation = run.reservation
    if reservation is None:
        return run, NOTHING
    if reservation.leg == 0 and reservation.prompt and not reservation.output:
        return replace(run, reservation=None), NOTHING
    if reservation.leg == 0 and run.leg == 1:
        made = budget.planned(run, reservation.prompt)
        if isinstance(made, Refusal):
            return replace(run, reservation=None), NOTHING
        run = replace(
            run,
            reservation=with_plan(replace(reservation, leg=1), made),
            step=reservation.step,
            attempt=reservation.attempt,
            step_open=True,
        )
        return run, _started(run)
    run = replace(run, step=reservation.step, attempt=reservation.attempt, step_open=True)
    return _dropped(run, sent=True, billed=True)


def chosen(run: RunState, fact: ModelChosen) -> RunState:
    """Which model it is, is known, and what it costs: what the call in hand is reserved with is known only now."""
    rates = run.terms.rates if fact.rates is None else {**run.terms.rates, fact.model: fact.rates}
    run = replace(run, model=fact.model, terms=replace(run.terms, rates=rates))
    if fact.rates is not None and run.limits.max_cost_usd is not None:
        run = replace(run, rates={**run.rates, fact.model: fact.rates})
    return replanned(run, None if run.reservation is None else run.reservation.prompt)


def received(run: RunState, fact: AnswerReceived) -> Applied:
    """A whole answer. One that may be the run's own waits for the guardrails on output, where there are some."""
    reservation = _check(run, fact.step, fact.attempt)
    answer = Answer(
        text=fact.text,
        reasoning=fact.reasoning,
        calls=tuple(_call(run, index, call) for index, call in enumerate(fact.calls, 1)),
        finish=fact.finish,
        opaque=fact.opaque,
        opaque_format=fact.opaque_format,
        output=fact.output,
        complaint=fact.complaint,
        cut=fact.cut or reservation.cut,
    )
    usage = replace(fact.usage, model_calls=1)
    ledger = run.ledger.settled(run.model or "", usage, budget.rates_of(run, run.model), reservation.amount)
    run = replace(
        sharing.settled(run, ledger),
        reservation=None,
        step_open=False,
        model_failures=0,
        model_failure="",
        usage=run.usage.plus(usage),
        ledger=ledger,
        finish_reason=fact.finish,
        step_usage=usage,
    )
    counted = Emitted(frames=(frames.usage(usage, run.usage),))
    if run.guards_output and guarding.looks_at(run, answer):
        return replace(run, unguarded=answer), counted
    run, said = stored(run, answer, fact.at, withheld=run.withholds)
    return run, counted + said


def guarded(run: RunState, fact: OutputGuarded) -> Applied:
    """The guardrails have let an answer pass, or it goes no further: then nobody sees it, and the run stops (R10)."""
    if run.unguarded is None or fact.step != run.step:
        return run, NOTHING
    said = turns.guardrails_said(fact.guarded)
    if fact.answer is None:
        run, dropped = guarding.dropped(run)
        return replace(run, ending=guarding.stopped(StopReason.GUARDRAIL_OUTPUT, fact.guarded)), said + dropped
    run, more = stored(replace(run, unguarded=None), fact.answer, fact.at, withheld=True)
    return run, said + more


def stored(run: RunState, answer: Answer, at: int, *, withheld: bool) -> Applied:
    """The answer enters the transcript, and its calls, if they may run, become the turn in hand. `withheld`: its text was not shown while
    it was written, so that it is now."""
    message = _message(run, answer)
    said = (_told(run, answer) if withheld else NOTHING) + Emitted(messages=(message,))
    run = budget.heard(replace(run, text=answer.text, messages=message.seq), (message,), run.step_usage)
    finalizing = run.phase is Phase.FINALIZING
    stopped = CUT_SHORT.get(answer.finish)
    if answer.calls:
        run = replace(run, turn=answer.calls)
        if stopped is None and not finalizing:
            return run, said
        run, answered = turns.cut_off(run, at, CUT_OFF if stopped else NO_TOOLS_NOW)
        said += answered
    run, finished = turns.step_finished(run)
    said += finished
    if answer.finish == "length" and answer.cut:
        return replace(run, ending=budget.over_budget(run)), said
    if stopped is not None and not (finalizing and answer.finish == "length"):
        return replace(run, ending=Ending(status=Status.STOPPED, reason=stopped)), said
    if run.outputs is None:
        return replace(run, ending=Ending(status=Status.COMPLETED)), said
    run, more = outputs.answered(run, answer) if finalizing else outputs.finalizing(run)
    return run, said + more


def refused(run: RunState, fact: CallRefused) -> Applied:
    """The call was not made: there was too little left for it, unless the bounds were raised meanwhile, or too little was reserved."""
    _check(run, fact.step, fact.attempt)
    run, said = _dropped(run, sent=False, billed=False)
    if run.shared is not None:
        run = replace(run, prompt_tokens=fact.prompt, prompt_characters=0)
    made = budget.planned(run, fact.prompt)
    return (replace(run, ending=made.ending) if isinstance(made, Refusal) else run), said


def budgets_said(run: RunState, fact: BudgetsAnswered | BudgetClosed) -> Applied:
    """What the budgets say of the call in hand, or of one that is over. A call that they refuse is not made."""
    if isinstance(fact, BudgetClosed):
        return sharing.closed(run, fact.id, fact.crossed)
    if fact.shortage is None and not fact.closed:
        return sharing.admitted(run, fact.id, fact.crossed)
    if run.reservation is None or not run.model_call_open or sharing.id_of(run, run.reservation) != fact.id:
        return run, NOTHING
    run, said = _dropped(run, sent=False, billed=False, known=True)
    return (run if fact.shortage is None else sharing.refused(run, fact.id, fact.shortage, fact.at)), said


def failed(run: RunState, fact: ModelFailed) -> Applied:
    """No whole answer: the call's own retries, then another model, then the run fails, saying whether the cause may pass (R30, R31)."""
    _check(run, fact.step, fact.attempt)
    run, said = _dropped(run, sent=fact.sent, billed=fact.billed or fact.after_content)
    run = replace(run, model_failures=run.model_failures + 1, model_failure=fact.code)
    passes = fact.transient and not fact.after_content
    if passes and run.model_failures <= run.limits.model_retries and _is_worth_waiting_for(run, fact):
        wait = max(MODEL_BACKOFF_MS * 2 ** (run.model_failures - 1), fact.retry_after_ms or 0)
        return replace(run, model_retry_at=fact.at + wait), said
    if passes and run.fallbacks:
        return _failed_over(run, fact), said
    if run.phase is Phase.FINALIZING:
        run = replace(run, output_attempts=run.output_attempts + 1)
    failure = Failure(code="model_error", message=fact.message, transient=fact.transient, details={"kind": fact.code, "step": fact.step})
    return replace(run, ending=Ending(status=Status.FAILED, failure=failure)), said


def _is_worth_waiting_for(run: RunState, fact: ModelFailed) -> bool:
    """Nobody waits for a provider that asks for too much patience, nor for an open circuit while there is another model to ask."""
    if fact.code == CIRCUIT_OPEN and run.fallbacks:
        return False
    return fact.retry_after_ms is None or fact.retry_after_ms <= LONGEST_RETRY_AFTER_MS


def _failed_over(run: RunState, fact: ModelFailed) -> RunState:
    """The next model is asked in place of one that failed before it had said anything. That one is skipped from now on (R31)."""
    target, *left = run.fallbacks
    failover = Failover(step=fact.step, source=run.model or "", target=target, code=fact.code)
    return replace(
        run,
        model=target,
        fallbacks=tuple(left),
        failovers=(*run.failovers, failover),
        model_failures=0,
        model_failure="",
        model_retry_at=None,
    )


def broken_off(run: RunState, fact: ModelBrokenOff) -> Applied:
    """The service broke the call off: for a cancel, the deadline, or because the worker has to go."""
    _check(run, fact.step, fact.attempt)
    return _dropped(run, sent=fact.started, billed=fact.started)


def _dropped(run: RunState, *, sent: bool, billed: bool, known: bool = False) -> Applied:
    """An attempt ends without a stored message: its text is dropped, and what it may have cost stays counted (R30, R32, R33).

    The time that the provider asked to wait for holds for the next attempt as well: this one may have ended before it came. `known`: the
    budgets that the run shares know of it.
    """
    reservation = run.reservation
    assert reservation is not None
    frame = frames.reset_step(reservation.step, reservation.attempt)
    ledger, model = run.ledger, run.model
    if billed and model is not None:  # nobody was asked before the model was chosen
        ledger = ledger.lost(model, reservation.amount, priced=budget.rates_of(run, model) is not None)
    elif sent and model is not None:
        ledger = ledger.released(model)
    if not known:
        run = sharing.over(run, billed=billed)
    run = replace(
        run,
        reservation=None,
        model_retry_at=reservation.not_before,
        usage=replace(run.usage, model_calls=run.usage.model_calls + sent),
        lost_model_calls=run.lost_model_calls + billed,
        ledger=ledger,
    )
    return run, Emitted(frames=(frame,))


def _check(run: RunState, step: int, attempt: int) -> Reservation:
    reservation = run.reservation
    if reservation is None or not run.model_call_open or (reservation.step, reservation.attempt) != (step, attempt):
        raise InvariantViolated(f"Model call {step}/{attempt} is not under way.")
    return reservation


def _started(run: RunState) -> Emitted:
    return Emitted(frames=(frames.start_step(run.step, run.attempt, run.phase, run.agent, run.model),))


def _call(run: RunState, index: int, asked: CallAsked) -> Call:
    return Call(
        id=call_id(run.step, index),
        provider_id=asked.provider_id,
        name=asked.tool_name,
        arguments=asked.arguments,
        offered=asked.offered,
        effect=Effect.UNCLASSIFIED,
        stage=CallStage.PROPOSED,
    )


def _told(run: RunState, answer: Answer) -> Emitted:
    """What was withheld while it was written, in one piece."""
    reasoning = (frames.reasoning_delta(run.step, run.attempt, answer.reasoning),) if answer.reasoning else ()
    text = (frames.text_delta(run.step, run.attempt, answer.text),) if answer.text else ()
    return Emitted(frames=(*reasoning, *text))


def _message(run: RunState, answer: Answer) -> Message:
    reasoning = (ReasoningPart(text=answer.reasoning),) if answer.reasoning else ()
    text = (TextPart(text=answer.text),) if answer.text else ()
    calls = answer.calls
    asked = tuple(ToolCallPart(tool_call_id=call.id, tool_name=call.name, arguments=parse_arguments(call.arguments)[0]) for call in calls)
    return Message(
        seq=run.messages + 1,
        role="assistant",
        step=run.step,
        content=(*reasoning, *text, *asked),
        opaque=answer.opaque,
        opaque_format=answer.opaque_format,
    )
