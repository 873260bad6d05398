"""Budgets in miniature: what a run spends from together with others, with every promise checked as they are asked (R34)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runward.core.budgets import NOTHING, Account, Close, OnExhausted, Shortage, Terms, admit, crossed
from runward.core.kernel.mail import budget_key
from runward.core.runs.facts import BudgetClosed, BudgetsAnswered
from runward.core.runs.ledger import Amount
from runward.core.runs.shared import Closing
from runward.core.runs.sharing import id_beside, id_of
from runward.core.runs.state import Generation, RunState
from runward.core.values import replace


@dataclass(frozen=True, slots=True)
class Question:
    """What a leg asks for. It may come late: when another leg drives the run, or nobody."""

    id: str
    amount: Amount
    instead_of: str | None

    @classmethod
    def of(cls, run: RunState) -> Question:
        assert run.shared is not None and run.reservation is not None
        wait = run.shared.wait
        return cls(id_of(run, run.reservation), run.reservation.amount, None if wait is None else wait.id)

    @classmethod
    def of_code(cls, run: RunState, generation: Generation) -> Question:
        """What the agent's own code asks for."""
        return cls(id_beside(run, generation.key), generation.amount, None)


@dataclass(frozen=True, slots=True)
class Row:
    """A reservation as the budgets keep it."""

    amount: Amount
    shortage: Shortage | None = None
    crossed: tuple[str, ...] = ()
    closed: BudgetClosed | None = None


class Purse:
    """The budgets of one run, by their keys. `spent` and `unknown` are all that was ever closed so."""

    def __init__(self, terms: Mapping[str, Terms]) -> None:
        self.accounts = {key: Account(terms=each) for key, each in terms.items()}
        self.rows: dict[str, Row] = {}
        self.spent = Amount()
        self.unknown = Amount()
        self.beyond = Amount()
        """What calls used beyond what was reserved for them."""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.accounts)

    @property
    def waiting(self) -> list[str]:
        """The reservations that were refused, and that somebody waits under."""
        return [
            id for id, row in self.rows.items() if row.shortage and row.shortage.on_exhausted is OnExhausted.SUSPEND and row.closed is None
        ]

    def reserve(self, asked: Question, at: int) -> BudgetsAnswered:
        if asked.id not in self.rows:
            if asked.instead_of in self.waiting:
                self.rows[asked.instead_of] = replace(self.rows[asked.instead_of], closed=BudgetClosed(at=at, id=asked.instead_of))
            after = admit(self.accounts, self.keys, asked.amount, at)
            if isinstance(after, Shortage):
                self.rows[asked.id] = Row(asked.amount, shortage=after)
            else:
                self.rows[asked.id] = Row(asked.amount, crossed=crossed(self.accounts, after))
                self.accounts = dict(after)
                self._check(at)
        row = self.rows[asked.id]
        if row.closed is not None:
            return BudgetsAnswered(at=at, id=asked.id, closed=True)
        return BudgetsAnswered(at=at, id=asked.id, crossed=row.crossed, shortage=row.shortage)

    def close(self, over: Closing, at: int) -> BudgetClosed:
        row = self.rows.get(over.id, Row(NOTHING, closed=BudgetClosed(at=at, id=over.id)))
        self.rows[over.id] = row
        if row.closed is not None:
            return replace(row.closed, at=at)
        after = self.accounts
        if row.shortage is None:
            after = {key: account.close(row.amount, over.how, over.amount, at) for key, account in self.accounts.items()}
            self._count(row.amount, over)
        closed = BudgetClosed(at=at, id=over.id, crossed=crossed(self.accounts, after))
        self.accounts, self.rows[over.id] = after, replace(row, closed=closed)
        return closed

    def raised(self, tokens: int, at: int) -> list[tuple[str, dict[str, str]]]:
        """An operator raises every bound; the mail that this sends, by its keys."""
        for key, account in self.accounts.items():
            terms = account.terms
            bound = None if terms.max_total_tokens is None else terms.max_total_tokens + tokens
            self.accounts[key] = account.with_terms(replace(terms, max_total_tokens=bound), at)
        return [(budget_key(id), {"key": "a", "reservation_id": id}) for id in self.waiting]

    def is_open(self, run: RunState) -> bool:
        """Whether the call that the run has reserved is admitted, and not over."""
        assert run.reservation is not None
        row = self.rows.get(id_of(run, run.reservation))
        return row is not None and row.shortage is None and row.closed is None

    def check_rest(self, run: RunState) -> None:
        """Nobody drives the run: nothing is reserved for it, and what it has spent is what the budgets know."""
        assert run.shared is not None and not run.shared.closings, "a run is left with something to tell its budgets"
        assert all(account.reserved == NOTHING for account in self.accounts.values()), "a run is left with something reserved (R34)"
        assert self.spent == run.ledger.spent, "what a run has spent counts once"
        assert self.unknown.tokens <= run.ledger.unknown.tokens, "what was never reserved counts nothing"
        wait = run.shared.wait
        assert self.waiting == ([] if wait is None or run.status.ended else [wait.id]), "who waits is found, and nobody else"

    def _count(self, reserved: Amount, over: Closing) -> None:
        match over.how:
            case Close.SETTLED:
                self.spent += over.amount
                more = Amount(
                    tokens=max(0, over.amount.tokens - reserved.tokens),
                    picos=max(0, over.amount.picos - reserved.picos),
                )
                self.beyond += more
            case Close.UNKNOWN:
                self.unknown += reserved
            case Close.RELEASED:
                assert over.amount == NOTHING

    def _check(self, at: int) -> None:
        for account in self.accounts.values():
            bound = account.terms.max_total_tokens
            assert bound is None or account.committed(at).tokens <= bound + self.beyond.tokens, "admitted past a bound (R34)"
