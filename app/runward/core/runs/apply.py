"""`apply`: how a fact changes a run, and what has to be said and stored about it. Pure; the only way a run's state changes."""

from __future__ import annotations

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import Status
from runward.core.runs import answers, budget, frames, generations, guarding, inputs, outputs, turns, unknowns, waiting
from runward.core.runs.asking import GenerationAsked, GenerationEnded, HangUp
from runward.core.runs.decide import in_flight
from runward.core.runs.dues import deadline
from runward.core.runs.emitted import NOTHING, Emitted
from runward.core.runs.endings import Applied
from runward.core.runs.facts import (
    AnswerReceived,
    AttemptEnded,
    BeginVerifying,
    Broke,
    BudgetClosed,
    BudgetsAnswered,
    CallRefused,
    CheckpointSaved,
    Close,
    CloseTurn,
    DrainAsked,
    End,
    EvidenceChecked,
    Fact,
    GiveBack,
    InputGuarded,
    LegStarted,
    MailCame,
    Mark,
    ModelBrokenOff,
    ModelChosen,
    ModelFailed,
    OutputGuarded,
    Probed,
    Projected,
    Reserve,
    Screened,
    Settle,
    Suspend,
    TimeCame,
    VerdictGiven,
)
from runward.core.runs.state import Ending, Failure, RunState, StopReason
from runward.core.runs.transitions import RunEvent, next_status
from runward.core.runs.view import call_states, control
from runward.core.values import replace

_ENDS = {Status.COMPLETED: RunEvent.COMPLETED, Status.STOPPED: RunEvent.STOPPED, Status.FAILED: RunEvent.FAILED}


def apply(run: RunState, fact: Fact) -> Applied:
    """The run after a fact, and what that leaves to be written. Raises InvariantViolated for what cannot happen to it (R49)."""
    run, said = _applied(run, fact)
    heard = [message for message in said.messages if message.role != "assistant"] if said.messages else []
    return (budget.heard(run, heard) if heard else run), said


def _applied(run: RunState, fact: Fact) -> Applied:  # noqa: PLR0912 - one row per fact
    """One row per fact."""
    if run.status is not Status.RUNNING and not isinstance(fact, LegStarted | MailCame):
        return _not_driven(run, fact)
    match fact:
        case LegStarted():
            return _leg_started(run, fact)
        case MailCame():
            return inputs.came(run, fact.mail, fact.at)
        case TimeCame():
            return _time_came(run, fact.at), NOTHING
        case DrainAsked():
            return replace(run, draining=True, hurried=run.hurried or fact.hurried), NOTHING
        case Broke():
            return replace(run, ending=run.spent_out or _failed(fact)), NOTHING
        case ModelChosen():
            return answers.chosen(run, fact), NOTHING
        case Reserve():
            return answers.reserved(run)
        case AnswerReceived():
            return answers.received(run, fact)
        case BudgetsAnswered() | BudgetClosed():
            return answers.budgets_said(run, fact)
        case CallRefused():
            return answers.refused(run, fact)
        case ModelFailed():
            return answers.failed(run, fact)
        case ModelBrokenOff():
            return answers.broken_off(run, fact)
        case GenerationAsked() | GenerationEnded() | HangUp():
            return generations.came(run, fact)
        case InputGuarded() | OutputGuarded():
            return guarding.input_guarded(run, fact) if isinstance(fact, InputGuarded) else answers.guarded(run, fact)
        case Screened():
            return turns.screened(run, fact)
        case Mark():
            return turns.marked(run, fact)
        case AttemptEnded():
            return turns.attempt_ended(run, fact)
        case CheckpointSaved():
            return turns.checkpoint_saved(run, fact)
        case Projected():
            return turns.projected(run, fact)
        case Probed():
            return unknowns.probed(run, fact)
        case EvidenceChecked():
            return unknowns.evidence_checked(run, fact)
        case CloseTurn():
            return turns.closed(run, fact)
        case BeginVerifying():
            return outputs.verifying(run)
        case VerdictGiven():
            return outputs.judged(run, fact)
        case Close():
            return waiting.closed_by_time(run, fact.at)
        case Settle():
            return unknowns.settled_by_probe(run, fact.call_id)
        case Suspend() | GiveBack():
            return _leg_over(run, fact)
        case End():
            return _end(run, fact)


def _time_came(run: RunState, at: int) -> RunState:
    due = deadline(run)
    return replace(run, out_of_time=run.out_of_time or (due is not None and due <= at))


def _failed(fact: Broke) -> Ending:
    return Ending(status=Status.FAILED, failure=Failure(code=fact.code, message=fact.message, details=fact.details))


def _not_driven(run: RunState, fact: Fact) -> Applied:
    """Nobody drives the run, or it has ended: time, drains and what its code still asks for pass it by, and nothing else may happen to it
    (I-20)."""
    if isinstance(fact, TimeCame | DrainAsked | GenerationAsked | GenerationEnded):
        return run, NOTHING
    raise InvariantViolated(f"{type(fact).__name__} happened to a run that is {run.status}.")


def _leg_started(run: RunState, fact: LegStarted) -> Applied:
    """A new leg: what the leg before left under way is classified first (R13, R32)."""
    worked = run.worked_ms
    if run.leg_started_at is not None:
        worked += max(0, fact.last_write_at - run.leg_started_at)
    if fact.reopened:
        run = _reopened(run)
    run = replace(run, leg=fact.leg, worker=fact.worker, binding=fact.binding, reopened=fact.reopened, caretaker=fact.caretaker)
    run = replace(run, guards_output=fact.guards_output, terms=fact.terms)
    if run.status.ended:
        return run, NOTHING
    run = replace(
        run,
        status=next_status(run.status, RunEvent.CLAIMED),
        leg_started_at=fact.at,
        worked_ms=worked,
        draining=False,
        hurried=False,
    )
    if fact.exhausted:
        failure = Failure(code="recoveries_exhausted", message="The run was recovered too often: its workers died or lost it each time.")
        run = replace(run, ending=Ending(status=Status.FAILED, failure=failure))
    said = Emitted(frames=(frames.data_agent(control(run)),))
    run, model = answers.taken_over(generations.all_lost(outputs.taken_over(run)))
    run, calls = turns.lost(run, fact.at)
    return run, said + model + calls


def _reopened(run: RunState) -> RunState:
    """A run that failed for a cause that may pass goes on where it was (R10, R30): the failed call keeps its step."""
    if run.ended is None or run.ended.failure is None or not run.ended.failure.transient:
        raise InvariantViolated("Only a run whose failure may pass is tried again.")
    return replace(
        run,
        status=next_status(run.status, RunEvent.RETRIED),
        ended=None,
        ended_at=None,
        model_failures=0,
        model_failure="",
        model_retry_at=None,
    )


def _leg_over(run: RunState, fact: Suspend | GiveBack) -> Applied:
    if in_flight(run):
        raise InvariantViolated("A run was given back with something under way.")
    event = RunEvent.WAITS if isinstance(fact, Suspend) else RunEvent.GIVEN_BACK
    run = replace(_worked(run, fact.at), status=next_status(run.status, event))
    return run, Emitted(frames=(frames.data_agent(control(run)),))


def _end(run: RunState, fact: End) -> Applied:
    if in_flight(run):
        raise InvariantViolated("A run ended with something under way.")
    ending = fact.ending
    run, said = unknowns.claims_taken(run)
    states = call_states(run)
    if run.turn:
        run, answered = turns.cut_short(run, fact.at)
        said += answered
    if run.unguarded is not None:
        run, dropped = guarding.dropped(run)
        said += dropped
    if run.finish_reason:
        run, finished = turns.step_finished(run)
        said += finished
    if run.turn or ending.reason is StopReason.CANCELLED:
        ending = replace(ending, details={**ending.details, "calls": states})
    status = next_status(run.status, _ENDS[ending.status])
    run = replace(inputs.released(_worked(run, fact.at)), status=status, ended=ending, ended_at=fact.at, ending=None, turn=())
    output = run.output if status is Status.COMPLETED else None
    run = replace(run, candidate=None, verifying=False, output=output, spent_out=None)
    last = (frames.finish(run.status.value, run.usage, run.text), frames.data_agent(control(run)))
    return run, said + Emitted(frames=last)


def _worked(run: RunState, at: int) -> RunState:
    worked = run.worked_ms + (0 if run.leg_started_at is None else max(0, at - run.leg_started_at))
    return replace(run, worked_ms=worked, leg_started_at=None)
