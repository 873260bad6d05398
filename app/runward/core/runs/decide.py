"""What comes next, as a pure function of the state (docs/concepts.md, "A leg").

`decide` answers either with a move, which the leg applies at once, or with the work that should be going on: the leg starts what is missing
and stops what is no longer wanted. Whatever was moved is durable before any work that needs it starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from runward.core.kernel.actor import Status
from runward.core.runs import budget, sharing
from runward.core.runs.asking import HangUp
from runward.core.runs.calls import CallStage
from runward.core.runs.dues import probe_is_due
from runward.core.runs.facts import BeginVerifying, Close, CloseTurn, End, GiveBack, Mark, Move, Reserve, Settle, Suspend
from runward.core.runs.state import Ending, RunState, StopReason
from runward.core.runs.waiting import due_by


@dataclass(frozen=True, slots=True)
class ChooseModel:
    """Ask the agent which model this run uses."""


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask the model, not before a time. Needs its reservation to be durable."""

    step: int
    attempt: int
    not_before: int | None = None


@dataclass(frozen=True, slots=True)
class AskBudgets:
    """Have the budgets that the run shares with others admit what is reserved for a model call. Needs that to be durable."""

    step: int
    attempt: int


@dataclass(frozen=True, slots=True)
class CloseBudget:
    """Tell those budgets that a reservation is over. It may happen again: what they were told first stands."""

    id: str


@dataclass(frozen=True, slots=True)
class GuardInput:
    """Show the input to the agent's guardrails, before anything else sees it. No effect: it may happen again."""


@dataclass(frozen=True, slots=True)
class GuardOutput:
    """Show the answer of a step to the agent's guardrails, before it is stored, shown or verified. No effect: it may happen again."""

    step: int


@dataclass(frozen=True, slots=True)
class Screen:
    """Take the turn's proposed and cleared calls through stations 2 to 4. No effect: it may happen again."""

    step: int


@dataclass(frozen=True, slots=True)
class RunCall:
    """Run an attempt of a tool call, not before a time. Needs its `executing` receipt to be durable."""

    call_id: str
    attempt: int
    not_before: int | None = None


@dataclass(frozen=True, slots=True)
class Project:
    """Turn a stored raw result into what the model sees."""

    call_id: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask a call's tool what became of the effect of this attempt. No effect: it may happen again."""

    call_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class CheckEvidence:
    """Show a call's tool the evidence by which somebody wants to settle the effect of this attempt. No effect: it may happen again."""

    call_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class VerifyOutput:
    """Ask the agent's verifier about the candidate. It may be asked about one candidate more than once."""

    attempt: int


Performed = VerifyOutput | GuardInput | GuardOutput | ChooseModel | CallModel | Screen | RunCall | Project | Probe | CheckEvidence
"""What needs the agent's code."""
Activity = Performed | AskBudgets | CloseBudget


@dataclass(frozen=True, slots=True)
class Work:
    """`start` is what should be going on, `stop` what may be going on and should not: each of it ends with a fact of its own. So does
    `finish`: what may go on, but does not begin any more."""

    start: tuple[Activity, ...] = ()
    stop: tuple[Activity, ...] = ()
    finish: tuple[Activity, ...] = ()


@dataclass(frozen=True, slots=True)
class LegOver:
    """The run was given back, suspended or ended: nothing is left for this leg."""


Decision = Move | Work | LegOver


def decide(run: RunState, at: int) -> Decision:
    """What comes next at store time `at`. Total: every reachable state has exactly one answer."""
    decision = _decided(run, at)
    if run.generations and isinstance(decision, Suspend | GiveBack | End):
        return HangUp(at=at)
    return decision if run.shared is None else _told_first(run, decision)


def _told_first(run: RunState, decision: Decision) -> Decision:
    """Before the next reservation, a wait and the end the budgets are told of every reservation that is over; while there is work, beside
    it."""
    closes = tuple(CloseBudget(each.id) for each in sharing.to_close(run, ending=isinstance(decision, End)))
    if closes and isinstance(decision, Work):
        return Work(start=(*decision.start, *closes), stop=decision.stop, finish=decision.finish)
    return Work(start=closes) if closes and isinstance(decision, Reserve | Suspend | GiveBack | End) else decision


def _decided(run: RunState, at: int) -> Decision:
    if run.status is not Status.RUNNING:
        return LegOver()
    found = next((effect for effect in run.unknowns if effect.found is not None and effect.claim is None), None)
    if found is not None:
        return Settle(at=at, call_id=found.tool_call_id)
    ending = due_ending(run)
    if ending is not None:
        stop = in_flight(run)
        return Work(stop=stop) if stop else End(at=at, ending=ending)
    if run.turn:
        return _turn(run, at)
    if run.unguarded is not None:
        return _unguarded(run, at)
    if run.candidate is not None:
        return _candidate(run, at)
    if run.model_call_open:
        return _model_call(run, at)
    if not run.step_open and run.step >= run.limits.max_steps:
        return End(at=at, ending=Ending(status=Status.STOPPED, reason=StopReason.MAX_STEPS))
    if run.outputs is not None and run.output_attempts >= run.limits.max_output_attempts:
        return End(at=at, ending=Ending(status=Status.STOPPED, reason=StopReason.OUTPUT_ATTEMPTS_EXHAUSTED))
    if run.hold is not None:
        return Suspend(at=at)
    if sharing.waits(run, at):
        return _wait_for_budget(run, at)
    if run.draining or run.caretaker or _too_early(run, at):
        return GiveBack(at=at)
    over = budget.refusal(run)
    return Reserve(at=at) if over is None else End(at=at, ending=over)


def due_ending(run: RunState) -> Ending | None:
    """How the run has to end now, if it has to: a cancel outranks the deadline, and that outranks everything else (R37)."""
    if run.cancel is not None:
        details = {"reason": run.cancel.reason} if run.cancel.reason is not None else {}
        return Ending(status=Status.STOPPED, reason=StopReason.CANCELLED, details=details)
    if run.out_of_time:
        return Ending(status=Status.STOPPED, reason=StopReason.DEADLINE)
    return run.ending


def in_flight(run: RunState) -> tuple[Activity, ...]:
    """What this leg may have under way that has an effect outside: each has to report before the run can end."""
    calls = tuple(_running(run))
    if run.reservation is not None and run.model_call_open:
        return (CallModel(run.reservation.step, run.reservation.attempt, run.reservation.not_before), *calls)
    return calls


def _unguarded(run: RunState, at: int) -> Decision:
    """An answer waits for the guardrails: they are asked, unless the run is parked, has to go, or its code is not here."""
    if run.hold is not None:
        return Suspend(at=at)
    if run.hurried or run.caretaker:
        return GiveBack(at=at)
    return Work(start=(GuardOutput(run.step), *_checks(run)))


def _candidate(run: RunState, at: int) -> Decision:
    """A candidate is there: the verifier is asked, unless the run is parked or has to go."""
    if run.verifying and not (run.hurried or run.caretaker):
        return Work(start=(VerifyOutput(run.verify_attempts), *_checks(run)))
    if run.hold is not None:
        return Suspend(at=at)
    if run.draining or run.hurried or run.caretaker:
        return GiveBack(at=at)
    if run.spent_out is not None:
        return End(at=at, ending=run.spent_out)
    if run.verify_attempts >= run.limits.max_verify_attempts:
        return End(at=at, ending=Ending(status=Status.STOPPED, reason=StopReason.VERIFICATION_ATTEMPTS_EXHAUSTED))
    return BeginVerifying(at=at)


def _too_early(run: RunState, at: int) -> bool:
    """Whether the run is not to begin yet: input can bring a leg to it before its time."""
    return run.start_at is not None and run.start_at > at


def _model_call(run: RunState, at: int) -> Work:
    reservation = run.reservation
    assert reservation is not None
    call = CallModel(reservation.step, reservation.attempt, reservation.not_before)
    if run.hurried or run.caretaker or _too_early(run, at):
        return Work(stop=(call,))
    if run.hold is not None:
        return Work(start=tuple(_checks(run)), finish=(call,))
    if run.input_unguarded:
        return Work(start=(GuardInput(), *_checks(run)))
    if run.model is None:
        return Work(start=(ChooseModel(),))
    if not sharing.is_admitted(run):
        return Work(start=(AskBudgets(reservation.step, reservation.attempt), *_checks(run)))
    return Work(start=(call, *_checks(run)))


def _wait_for_budget(run: RunState, at: int) -> Decision:
    """A budget keeps the run from its next call. Evidence about an unknown effect is looked at meanwhile."""
    checks = tuple(_checks(run))
    if checks and (run.hurried or run.caretaker):
        return GiveBack(at=at)
    return Work(start=checks) if checks else Suspend(at=at)


def _turn(run: RunState, at: int) -> Decision:
    if due_by(run, at):
        return Close(at=at)
    running = _running(run)
    if run.caretaker or run.hurried:
        return _leave_turn(run, at)
    if run.hold is None:
        if any(call.stage in _TO_SCREEN for call in run.turn):
            return Work(start=(Screen(run.step), *running))
        room = run.limits.max_parallel_tools - len(running)
        ready = [call.id for call in run.turn if call.stage is CallStage.READY][: max(0, room)]
        if ready:
            return Mark(at=at, call_ids=tuple(ready))
    work = (*running, *_looking(run, at))
    if work:
        return Work(start=work)
    if all(not call.open for call in run.turn):
        return CloseTurn(at=at)
    return Suspend(at=at)


def _looking(run: RunState, at: int) -> list[Activity]:
    """What needs the agent's code and has no effect: showing results, checking evidence, asking probes. A run on hold asks none."""
    shows = (Project(call.id) for call in run.turn if call.stage is CallStage.EXECUTED)
    probes = (Probe(call.id, call.attempt) for call in run.turn if probe_is_due(run, call, at))
    return [*shows, *_checks(run), *probes]


def _checks(run: RunState) -> list[Activity]:
    return [CheckEvidence(effect.tool_call_id, effect.attempt) for effect in run.unknowns if effect.claim is not None]


def _leave_turn(run: RunState, at: int) -> Decision:
    """The leg has to go, or lacks the code: what can be repeated is broken off, what cannot is waited for."""
    executing = [call for call in run.turn if call.stage is CallStage.EXECUTING]
    repeatable = tuple(RunCall(call.id, call.attempt, call.not_before) for call in executing if call.effect.repeatable)
    if repeatable:
        return Work(stop=repeatable)
    if executing:
        return Work(start=tuple(_running(run)))
    if run.hold is not None or (run.waiting_on and not _looking(run, at) and all(call.stage in _AT_REST for call in run.turn)):
        return Suspend(at=at)
    return GiveBack(at=at)


_TO_SCREEN = (CallStage.PROPOSED, CallStage.CLEARED)
_AT_REST = (CallStage.ENDED, CallStage.UNKNOWN, CallStage.GATED, CallStage.WAITING)


def _running(run: RunState) -> list[Activity]:
    return [RunCall(call.id, call.attempt, call.not_before) for call in run.turn if call.stage is CallStage.EXECUTING]
