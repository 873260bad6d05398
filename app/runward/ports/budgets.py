"""Persistent budgets: what several runs may spend together (R34). The counting is in `core.budgets`.

Every adapter promises the same, proven by one contract suite (`tests/contract/test_budgets.py`):

- A budget belongs to a tenant. The same key in another tenant is another budget, and no method reaches over.
- A reservation counts against **all** its budgets or none, in one transaction, however many processes race: the budgets are locked in the
  order of their keys, and no admission ever takes one past its bounds.
- The store's clock decides what is in a window (R36).
- **A reservation's id is used once.** Repeating `reserve` with it returns what was recorded the first time, whatever is asked for now:
  a refusal, too. Whoever tries again after a refusal takes a new id and names the old one, which is forgotten then.
- **A reservation is closed once.** The first closing counts, and later ones are told what was recorded. Closing an id that nobody has
  reserved is remembered: a `reserve` that comes late, from a process that was paused, is told `AlreadyClosed` and counts nothing.
- A refusal of a budget that suspends is kept as somebody's waiting until it is closed or forgotten: `waiting` lists those. It is
  written under the budget's lock, so that whoever raises the budget afterwards finds it. `overlooked` lists those who wait although
  the terms were set since: whoever set them has died, perhaps, before it told them.

All of it raises `Unavailable` when the store is away: nothing is then known about the write. To repeat it is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runward.core.budgets import NOTHING, Account, Close, Shortage, Terms
from runward.core.runs.ledger import Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A budget as stored. `now` is the store's clock when it was read. `changed_by` is the principal of who set its terms last, as JSON
    text. `used_at` is when something was last reserved or closed on it, or its terms were set. Times in milliseconds."""

    tenant: str
    key: str
    account: Account
    created_at: int
    changed_at: int
    changed_by: str | None
    used_at: int
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserving:
    """What to reserve. `holder` is the uid of the run it is for. `instead_of` is the id of an earlier try that was refused. `priced`: its
    dollars are known, so that a budget that dollars bound can admit it."""

    id: str
    tenant: str
    keys: Sequence[str]
    amount: Amount
    holder: str
    instead_of: str | None = None
    priced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """It is reserved. `crossed` are the budgets that have by now spent so much that somebody is to be warned, and was not yet."""

    crossed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Nothing was reserved. `at` is when, on the store's clock."""

    shortage: Shortage
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyClosed:
    """The reservation is over; nothing was reserved now."""

    how: Close


ReserveAnswer = Admitted | Refused | AlreadyClosed


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The reservation is over, in this way. `crossed` are the budgets that the closing took over their `warn_at`."""

    how: Close
    crossed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """A run that a budget has refused, and that has not tried again: `id` is the refused reservation's."""

    id: str
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlooked:
    """A run that waits for a budget whose terms were set since it was refused. `changed_by` is who set them."""

    tenant: str
    key: str
    changed_by: str | None
    waiter: Waiter


class Budgets(Protocol):
    """See the module."""

    async def get(self, tenant: str, key: str) -> Budget | None: ...

    async def put(self, tenant: str, key: str, terms: Terms, changed_by: str | None) -> Budget:
        """Sets a budget's terms, whole, and makes it if need be. What is spent stays spent (`Account.with_terms`)."""
        ...

    async def change(self, tenant: str, key: str, change: Callable[[Terms], Terms], changed_by: str | None) -> Budget | None:
        """Changes a budget's terms as they are in the very transaction; None when there is no such budget."""
        ...

    async def known(self, tenant: str, keys: Sequence[str]) -> frozenset[str]:
        """Those of the keys that the tenant has a budget for."""
        ...

    async def reserve(self, reserving: Reserving) -> ReserveAnswer: ...

    async def close(self, tenant: str, id: str, how: Close, actual: Amount = NOTHING) -> Closed:
        """Settles a reservation with its actual amount, releases it, or keeps all of it as unknown. That a reservation was refused is
        forgotten; the answer is `RELEASED` then."""
        ...

    async def waiting(self, tenant: str, key: str, *, after: str | None, limit: int) -> Sequence[Waiter]:
        """The runs that wait for a budget, in the order of their ids, those behind `after`."""
        ...

    async def overlooked(self, *, after: tuple[str, str] | None, limit: int) -> Sequence[Overlooked]:
        """The runs of all tenants that wait although their budget's terms were set since, in the order of tenants and the waiters' ids,
        those behind `after`, a pair of both. One refused in the millisecond of the change is among them."""
        ...

    async def prune_reservations(self, *, made_before: int, limit: int) -> int:
        """Forgets reservations that were closed, or refused with nobody waiting, before a time; returns how many."""
        ...

    async def prune(self, *, used_before: int, limit: int) -> int:
        """Deletes budgets that nobody has used since a time, and with nothing reserved; returns how many. A time later than the store's
        clock is cut back to it, here and in `prune_reservations`."""
        ...
