"""What a leg asks of the budgets that its run shares with others, and tells them. It needs no author code: any leg can do it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from runward.core.runs import sharing
from runward.core.runs.budget import rates_of
from runward.core.runs.decide import AskBudgets, CloseBudget
from runward.core.runs.facts import BudgetClosed, BudgetsAnswered, Happening
from runward.core.runs.state import RunState
from runward.engine.hold import Hold
from runward.engine.patience import patiently
from runward.engine.services import Services
from runward.ports.budgets import Admitted, AlreadyClosed, Refused, Reserving

T = TypeVar("T")


class BudgetDialogue:
    """Asks and tells for one run. While the store is away it goes on trying, as long as the lease lasts: both can be repeated."""

    def __init__(self, services: Services, hold: Hold, *, tenant: str) -> None:
        self._services = services
        self._hold = hold
        self._tenant = tenant

    def begin(self, activity: AskBudgets | CloseBudget, run: RunState) -> BudgetQuestion | BudgetAnnouncement:
        """The activity, ready to run. `run` is the state that asked for it."""
        if isinstance(activity, AskBudgets):
            return BudgetQuestion(self, run)
        return BudgetAnnouncement(self, activity, run)

    async def ask(self, run: RunState) -> Happening:
        assert run.shared is not None and run.reservation is not None, "only what is reserved is asked for"
        shared, id = run.shared, sharing.id_of(run, run.reservation)
        asked = Reserving(
            id=id,
            tenant=self._tenant,
            keys=shared.keys,
            amount=run.reservation.amount,
            holder=run.uid,
            instead_of=None if shared.wait is None else shared.wait.id,
            priced=rates_of(run, run.model) is not None,
        )
        await self._reach("before_budget")
        answer = await self._patiently(lambda: self._services.budgets.reserve(asked))
        await self._reach("after_budget")
        at = self._services.time.now()
        match answer:
            case Admitted(crossed=crossed):
                return BudgetsAnswered(at=at, id=id, crossed=crossed)
            case Refused(shortage=shortage):
                return BudgetsAnswered(at=at, id=id, shortage=shortage)
            case AlreadyClosed():
                return BudgetsAnswered(at=at, id=id, closed=True)

    async def tell(self, activity: CloseBudget, run: RunState) -> Happening:
        over = next(each for each in sharing.to_close(run, ending=True) if each.id == activity.id)
        await self._reach("before_settle")
        closed = await self._patiently(lambda: self._services.budgets.close(self._tenant, over.id, over.how, over.amount))
        return BudgetClosed(at=self._services.time.now(), id=over.id, crossed=closed.crossed)

    async def _reach(self, point: str) -> None:
        if (faults := self._services.faults) is not None:
            await faults.reach(point)

    async def _patiently(self, write: Callable[[], Awaitable[T]]) -> T:
        return await patiently(write, hold=self._hold, clock=self._services.clock)


class BudgetQuestion:
    """Asks the budgets for what is reserved."""

    def __init__(self, dialogue: BudgetDialogue, run: RunState) -> None:
        self._dialogue = dialogue
        self._run = run

    def stop(self) -> None:
        """Nothing to stop: it is over soon, and what it reserved too late is closed."""

    async def outcome(self) -> Happening:
        return await self._dialogue.ask(self._run)


class BudgetAnnouncement:
    """Tells the budgets that a reservation is over."""

    def __init__(self, dialogue: BudgetDialogue, activity: CloseBudget, run: RunState) -> None:
        self._dialogue = dialogue
        self._activity = activity
        self._run = run

    def stop(self) -> None:
        """Nothing to stop: it has to be told."""

    async def outcome(self) -> Happening:
        return await self._dialogue.tell(self._activity, self._run)
