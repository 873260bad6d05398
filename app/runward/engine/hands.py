"""Who begins what a leg does: the run's performer, which has the agent's code, or what any leg has."""

from __future__ import annotations

from runward.core.runs.decide import Activity, AskBudgets, CloseBudget
from runward.core.runs.state import RunState
from runward.engine.activities import Running
from runward.engine.performer import Driver, Performer
from runward.engine.sharing import BudgetDialogue


class Hands:
    """Begins activities of one run. A caretaker has no performer: it lacks the code."""

    def __init__(self, performer: Performer | None, dialogue: BudgetDialogue) -> None:
        self._performer = performer
        self._dialogue = dialogue

    def begin(self, activity: Activity, run: RunState, driver: Driver) -> Running:
        """The activity, ready to run. `run` is the state that asked for it."""
        if isinstance(activity, AskBudgets | CloseBudget):
            return self._dialogue.begin(activity, run)
        assert self._performer is not None, "a caretaker has no such work to start"
        return self._performer.begin(activity, run, driver)
