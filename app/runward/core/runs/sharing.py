"""Facts about the budgets that a run shares with others, applied (R34, R35)."""

from __future__ import annotations

from collections.abc import Iterable

from runward.core.budgets import NOTHING, Close, OnExhausted, Shortage
from runward.core.kernel.actor import Status
from runward.core.runs import frames
from runward.core.runs.emitted import Emitted
from runward.core.runs.ledger import Amount, Ledger
from runward.core.runs.shared import BudgetWait, Closing, reservation_id
from runward.core.runs.state import Ending, Failure, Reservation, RunState, StopReason
from runward.core.times import optional_rfc3339
from runward.core.values import replace


def id_of(run: RunState, reservation: Reservation) -> str:
    """What the budgets know this reservation by."""
    return reservation_id(run.uid, reservation.step, reservation.attempt)


def is_admitted(run: RunState) -> bool:
    """Whether nothing but its own bounds keeps the run from making the model call that it has reserved."""
    if run.shared is None or run.reservation is None:
        return True
    return run.shared.admitted == id_of(run, run.reservation)


def waits(run: RunState, at: int) -> bool:
    """Whether a budget keeps the run from its next model call, and there is no reason yet to ask again."""
    wait = run.budget_wait
    return wait is not None and (wait.due_at is None or wait.due_at > at)


def due_at(run: RunState) -> int | None:
    """When the run asks a budget again that has refused it; None when it does not wait for one, or for good. One on hold asks nobody."""
    return None if run.budget_wait is None or run.hold is not None else run.budget_wait.due_at


def to_close(run: RunState, *, ending: bool) -> tuple[Closing, ...]:
    """What the budgets are to be told of now: before the end also that nobody waits any more."""
    shared = run.shared
    if shared is None:
        return ()
    if ending and shared.wait is not None:
        return (*shared.closings, Closing(id=shared.wait.id, how=Close.RELEASED, amount=NOTHING))
    return shared.closings


def settled(run: RunState, ledger: Ledger) -> RunState:
    """The call in hand gave an answer, which the run's own ledger has settled by now."""
    if run.shared is None:
        return run
    return _closing(run, *_settlement(run.ledger, ledger))


def over(run: RunState, *, billed: bool) -> RunState:
    """The call in hand gave none, and it may have been billed or was not."""
    return _closing(run, Close.UNKNOWN if billed else Close.RELEASED)


def id_beside(run: RunState, key: str) -> str:
    """What the budgets know a model call of the agent's own code by."""
    return f"{run.uid}/{key}"


def settled_beside(run: RunState, key: str, ledger: Ledger) -> RunState:
    """Such a call gave an answer, which the run's own ledger has settled by now."""
    return over_beside(run, key, *_settlement(run.ledger, ledger))


def over_beside(run: RunState, key: str, how: Close, amount: Amount = NOTHING) -> RunState:
    """Such a call is over: the budgets are to be told, whether they have heard of it or not."""
    if run.shared is None:
        return run
    over = Closing(id=id_beside(run, key), how=how, amount=amount)
    return replace(run, shared=replace(run.shared, closings=(*run.shared.closings, over)))


def _settlement(before: Ledger, after: Ledger) -> tuple[Close, Amount]:
    """What the run's own ledger made of an answer."""
    if after.unknown != before.unknown:
        return Close.UNKNOWN, NOTHING
    return Close.SETTLED, Amount(tokens=after.spent.tokens - before.spent.tokens, picos=after.spent.picos - before.spent.picos)


def _closing(run: RunState, how: Close, amount: Amount = NOTHING) -> RunState:
    """The reservation in hand is over: the budgets are to be told, whether they have heard of it or not."""
    if run.shared is None or run.reservation is None:
        return run
    over = Closing(id=id_of(run, run.reservation), how=how, amount=amount)
    return replace(run, shared=replace(run.shared, closings=(*run.shared.closings, over)))


def admitted(run: RunState, id: str, crossed: Iterable[str]) -> tuple[RunState, Emitted]:
    """All budgets have admitted a reservation. One that is over by now is closed, or about to be."""
    if run.shared is None or run.reservation is None or id != id_of(run, run.reservation):
        return run, warnings(crossed)
    return replace(run, shared=replace(run.shared, admitted=id, wait=None)), warnings(crossed)


def refused(run: RunState, id: str, shortage: Shortage, at: int) -> RunState:
    """A budget has refused the reservation that was in hand: the run waits, or ends."""
    assert run.shared is not None
    if shortage.unpriced:
        message = f"The budget {shortage.key} is bound by max_cost_usd, and nobody knows what {run.model} costs. RUNWARD_PRICES can say it."
        failure = Failure(code="unpriced_model", message=message, details={"model": run.model, "budget": shortage.key})
        ending = Ending(status=Status.FAILED, failure=failure)
        return replace(run, shared=replace(run.shared, wait=None), ending=run.ending or ending)
    wait = BudgetWait(
        id=id,
        key=shortage.key,
        since=at if run.shared.wait is None else run.shared.wait.since,
        remaining_tokens=None if shortage.remaining is None else shortage.remaining.tokens,
        bound=shortage.bound,
        resets_at=shortage.resets_at,
        due_at=shortage.due_at(at),
    )
    if shortage.on_exhausted is OnExhausted.SUSPEND:
        return replace(run, shared=replace(run.shared, wait=wait))
    ending = Ending(status=Status.STOPPED, reason=StopReason.BUDGET_EXCEEDED, details=details(wait))
    return replace(run, shared=replace(run.shared, wait=None), ending=run.ending or ending)


def closed(run: RunState, id: str, crossed: Iterable[str]) -> tuple[RunState, Emitted]:
    """The budgets know that a reservation is over."""
    if run.shared is None:
        return run, warnings(crossed)
    left = tuple(each for each in run.shared.closings if each.id != id)
    wait = run.shared.wait if run.shared.wait is not None and run.shared.wait.id != id else None
    return replace(run, shared=replace(run.shared, closings=left, wait=wait)), warnings(crossed)


def told(run: RunState, id: str) -> RunState:
    """The terms of a budget were changed after it had refused this reservation: the run asks again."""
    return run if run.shared is None else replace(run, shared=replace(run.shared, told=id))


def details(wait: BudgetWait) -> dict[str, object]:
    """What is said of a budget that has refused a run. It is seen by whoever follows the run: dollars are not."""
    return {
        "budget": wait.key,
        "limit": wait.bound,
        "remaining": {"tokens": wait.remaining_tokens},
        "resets_at": optional_rfc3339(wait.resets_at),
    }


def warnings(crossed: Iterable[str]) -> Emitted:
    """Somebody follows the run that took a budget past the mark at which its owner wants a warning."""
    return Emitted(frames=tuple(frames.warning("budget_warning", f"The budget {key} is nearly used up.") for key in crossed))
