"""What a run keeps of the budgets that it spends from together with other runs (R34)."""

from __future__ import annotations

from dataclasses import dataclass

from runward.core.budgets import Close
from runward.core.runs.ledger import Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """A reservation that is over, and that the budgets have not been told of yet, as far as anybody knows."""

    id: str
    how: Close
    amount: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetWait:
    """A budget has refused the next model call, and the run waits. `id` is the refused reservation's.

    `remaining_tokens` is what the budget has left, None where tokens do not bound it, or there is no such budget. `due_at` is when it asks
    again by itself, `resets_at` when the budget's window has moved far enough; None: never.
    """

    id: str
    key: str
    since: int
    remaining_tokens: int | None = None
    bound: str | None = None
    resets_at: int | None = None
    due_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBudgets:
    """The budgets of a run, by their keys. `admitted` is the reservation that they have admitted last; `wait` is there while the last one
    was refused; `closings` are to be told before the run makes its next call, waits or ends. `told` is the refused reservation after which
    a budget's terms were changed: that may be heard of before the refusal is."""

    keys: tuple[str, ...]
    admitted: str | None = None
    wait: BudgetWait | None = None
    closings: tuple[Closing, ...] = ()
    told: str | None = None

    @property
    def waiting(self) -> BudgetWait | None:
        """What is waited for, as long as there is no reason to ask again at once."""
        return None if self.wait is None or self.wait.id == self.told else self.wait


def reservation_id(uid: str, step: int, attempt: int) -> str:
    """What the budgets know a model call of a run by: every attempt, and so every try after a refusal, has an id of its own."""
    return f"{uid}/{step}.{attempt}"
