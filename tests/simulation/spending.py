"""Budgets that the runs of a simulated world share, and what must never happen to them (R34, R35)."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from runward.core.budgets import NOTHING, OnExhausted, Terms
from runward.core.runs.shared import reservation_id
from runward.core.runs.state import RunState
from runward.core.values import replace
from runward.engine.callers import LOCAL
from runward.engine.service import Service
from runward.ports.budgets import Admitted
from runward.stores.memory.database import Rows
from tests.simulation.bills import Bill

if TYPE_CHECKING:
    from tests.simulation.watch import Watch
    from tests.simulation.world import World

TENANT = "default"
KEYS = ("team", "user:1")
MORE = 20_000
"""How much an operator raises a bound by: about four model calls."""


def drawn(chance: Random) -> dict[str, Terms]:
    """The budgets of a world, most of which have none. What stops runs would end them before anything happens to them: it is seldom."""
    if chance.random() < 0.5:
        return {}
    return {
        key: Terms(
            max_total_tokens=chance.choice((None, 2_000, 10_000, 30_000)),
            window_seconds=chance.choice((None, None, 4)),
            warn_at=chance.choice((None, 50)),
            on_exhausted=OnExhausted.STOP if chance.random() < 0.15 else OnExhausted.SUSPEND,
        )
        for key in KEYS[: chance.choice((1, 2))]
    }


async def make(service: Service, terms: dict[str, Terms]) -> None:
    """Makes budgets, before anything goes wrong."""
    for key, each in terms.items():
        await service.budgets.put(LOCAL, key, each)


async def raised(service: Service, key: str) -> None:
    """An operator allows more. It may happen twice: nobody minds."""
    await service.budgets.change(LOCAL, key, more)


def more(terms: Terms) -> Terms:
    return replace(terms, max_total_tokens=None if terms.max_total_tokens is None else terms.max_total_tokens + MORE)


class Spending:
    """The watch over the budgets of one world. `spent` and `unknown` are what its runs say that they used of each, in tokens."""

    def __init__(self, world: World, watch: Watch) -> None:
        self._world = world
        self._watch = watch
        self._spent: Counter[str] = Counter()
        self._unknown: Counter[str] = Counter()

    def reserved(self) -> None:
        """Somebody was admitted, or was not: no budget is past its bound, but for what providers used beyond what they were allowed."""
        database, beyond = self._world.database, self._watch.bills.beyond
        for (_, key), budget in database.budgets.items():
            bound, committed = budget.account.terms.max_total_tokens, budget.account.committed(database.now())
            kept = bound is None or committed.tokens <= bound + beyond
            self._watch.check(kept, "R34 no budget is overdrawn", f"{key}: {committed.tokens} of {bound}")

    def model_starts(self, run: RunState, bill: Bill, where: str) -> None:
        if run.shared is None:
            return
        id = reservation_id(run.uid, *bill.key) if isinstance(bill.key, tuple) else f"{run.uid}/{bill.key}"
        self._watch.check(self.admits(id), "R34 the budgets admit a call before it is made", f"{where}: {id}")

    def admits(self, id: str) -> bool:
        """Whether the budgets have admitted this reservation, and it is not over."""
        row = self._world.database.reservations.get((TENANT, id))
        return row is not None and isinstance(row.outcome, Admitted) and row.closed is None

    def over(self, rows: Rows, run: RunState, where: str) -> None:
        """Nobody drives the run any more: nothing is reserved for it, and it waits for a budget only where it says so."""
        uid, shared = rows.envelope.uid, run.shared
        mine = [row for row in self._world.database.reservations.values() if row.holder == uid]
        opened = [row for row in mine if isinstance(row.outcome, Admitted) and row.closed is None]
        self._watch.check(not opened, "R34 nothing stays reserved", f"{where}: {opened}")
        self._watch.check(shared is None or not shared.closings, "R34 the budgets know of every call", f"{where}: {shared}")
        waits = {row.waits_for for row in mine if row.waits_for is not None}
        expected = set() if shared is None or shared.wait is None or run.status.ended else {shared.wait.key}
        self._watch.check(waits == expected, "R35 whoever waits is found", f"{where}: {waits} where {expected} are due")
        self.counted(run)

    def counted(self, run: RunState) -> None:
        """A run that nobody drives any more says what it used."""
        for key in () if run.shared is None else run.shared.keys:
            self._spent[key] += run.ledger.spent.tokens
            self._unknown[key] += run.ledger.unknown.tokens

    def judge(self) -> None:
        """All runs are over, one way or another."""
        for (_, key), budget in self._world.database.budgets.items():
            account = budget.account
            self._watch.check(account.reserved == NOTHING, "R34 nothing stays reserved", f"{key}: {account.reserved}")
            if account.terms.window_seconds is None:
                spent, unknown = account.spent(0).tokens, account.unknown(0).tokens
                self._watch.check(spent == self._spent[key], "R33 every call counts once", f"{key}: {spent}, runs: {self._spent[key]}")
                kept = unknown <= self._unknown[key]
                self._watch.check(kept, "R33 what was never reserved counts nothing", f"{key}: {unknown}, runs: {self._unknown[key]}")
