"""What a leg has going on: one task per activity, each of which reports a fact when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from runward.core.runs.calls import How
from runward.core.runs.decide import Activity, CallModel, CloseBudget, RunCall
from runward.core.runs.facts import AttemptEnded, Broke, BudgetClosed, Happening, ModelBrokenOff
from runward.ports.clock import Clock

UNFORESEEN = "The service failed unexpectedly."


class Running(Protocol):
    """An activity under way."""

    async def outcome(self) -> Happening:
        """Does it, and says what happened. Raises CancelledError when nobody wants to know any more, LeaseLost, and nothing else."""
        ...

    def stop(self) -> None:
        """Asks it to end soon; its outcome says how far it came."""
        ...


class Activities:
    """Starts and stops activities by their description; two equal descriptions are the same activity."""

    def __init__(self, clock: Clock, report: Callable[[Happening], None], failed: Callable[[Activity, BaseException], Happening]) -> None:
        self._clock = clock
        self._report = report
        self._failed = failed
        self._running: dict[Activity, tuple[Running, asyncio.Task[None]]] = {}
        self._cancelled: list[asyncio.Task[None]] = []

    def __contains__(self, activity: Activity) -> bool:
        return activity in self._running

    def __len__(self) -> int:
        return len(self._running)

    def start(self, activity: Activity, running: Running) -> None:
        """Starts it; the caller made sure that it is not running."""
        task = asyncio.ensure_future(self._run(activity, running))
        self._running[activity] = (running, task)

    def stop(self, activity: Activity) -> bool:
        """Asks it to stop. False when it is not running."""
        if activity not in self._running:
            return False
        self._running[activity][0].stop()
        return True

    async def moment(self, activities: Iterable[Activity], seconds: float) -> None:
        """Waits until all of these are over, so many seconds at most."""
        waiting = {self._running[activity][1] for activity in activities if activity in self._running}
        patience = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            while waiting and not patience.done():
                await asyncio.wait((*waiting, patience), return_when=asyncio.FIRST_COMPLETED)
                waiting = {task for task in waiting if not task.done()}
        finally:
            patience.cancel()

    def cancel(self) -> None:
        """Cancels everything at once. Nothing is reported any more."""
        tasks = [task for _, task in self._running.values()]
        self._running.clear()
        self._cancelled += tasks
        for task in tasks:
            task.cancel()

    async def abort(self) -> None:
        """The same, and returns once everything is over."""
        self.cancel()
        await asyncio.gather(*self._cancelled, return_exceptions=True)

    async def _run(self, activity: Activity, running: Running) -> None:
        try:
            fact = await running.outcome()
        except (Exception, asyncio.CancelledError) as error:  # a task that ended without a word would be waited for until the lease is lost
            if activity not in self._running:
                raise
            fact = self._failed(activity, error)
        if self._running.pop(activity, None) is not None:
            self._report(fact)


def broke_off(activity: Activity, at: int) -> Happening:
    """The fact that ends an activity which broke in a way nobody had foreseen: a call goes on as one that raised, what a budget was not
    told is left to its operators, and anything else ends the run."""
    match activity:
        case RunCall():
            return AttemptEnded(at=at, call_id=activity.call_id, attempt=activity.attempt, how=How.RAISED)
        case CloseBudget():
            return BudgetClosed(at=at, id=activity.id)
        case _:
            return Broke(at=at, code="internal", message=UNFORESEEN, details={})


def never_started(activity: Activity, at: int) -> Happening:
    """The fact that ends an activity which the state expects and nobody had begun."""
    match activity:
        case CallModel():
            return ModelBrokenOff(at=at, step=activity.step, attempt=activity.attempt, started=False)
        case RunCall():
            return AttemptEnded(at=at, call_id=activity.call_id, attempt=activity.attempt, how=How.NOT_STARTED)
        case _:
            raise TypeError(f"{activity} has no effect that must be accounted for")
