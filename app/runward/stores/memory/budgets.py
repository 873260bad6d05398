"""Persistent budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from runward.core.budgets import NOTHING, Account, Close, OnExhausted, Shortage, Terms, admit, crossed
from runward.core.runs.ledger import Amount
from runward.core.values import replace
from runward.ports.budgets import Admitted, AlreadyClosed, Budget, Closed, Overlooked, Refused, ReserveAnswer, Reserving, Waiter
from runward.stores.guards import check_text
from runward.stores.memory.database import Faults, MemoryDatabase, Reserved


class MemoryBudgets:
    """`ports.budgets.Budgets`. To `Faults` its operations are `budgets.reserve` and so on."""

    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()

    async def get(self, tenant: str, key: str) -> Budget | None:
        def work() -> Budget | None:
            budget = self._database.budgets.get((tenant, key))
            return None if budget is None else replace(budget, now=self._database.now())

        return await self._database.turn(self._faults, "budgets.get", work)

    async def put(self, tenant: str, key: str, terms: Terms, changed_by: str | None) -> Budget:
        return await self._database.turn(self._faults, "budgets.put", lambda: _put(self._database, tenant, key, terms, changed_by))

    async def change(self, tenant: str, key: str, change: Callable[[Terms], Terms], changed_by: str | None) -> Budget | None:
        def work() -> Budget | None:
            budget = self._database.budgets.get((tenant, key))
            return None if budget is None else _put(self._database, tenant, key, change(budget.account.terms), changed_by)

        return await self._database.turn(self._faults, "budgets.change", work)

    async def known(self, tenant: str, keys: Sequence[str]) -> frozenset[str]:
        def work() -> frozenset[str]:
            return frozenset(key for key in keys if (tenant, key) in self._database.budgets)

        return await self._database.turn(self._faults, "budgets.known", work)

    async def reserve(self, reserving: Reserving) -> ReserveAnswer:
        return await self._database.turn(self._faults, "budgets.reserve", lambda: _reserve(self._database, reserving))

    async def close(self, tenant: str, id: str, how: Close, actual: Amount = NOTHING) -> Closed:
        return await self._database.turn(self._faults, "budgets.close", lambda: _close(self._database, tenant, id, how, actual))

    async def waiting(self, tenant: str, key: str, *, after: str | None, limit: int) -> Sequence[Waiter]:
        def work() -> Sequence[Waiter]:
            of_it = {id: row for (of, id), row in self._database.reservations.items() if (of, row.waits_for) == (tenant, key)}
            ids = sorted(id for id in of_it if after is None or id > after)
            return [Waiter(id=id, holder=of_it[id].holder) for id in ids[:limit]]

        return await self._database.turn(self._faults, "budgets.waiting", work)

    async def overlooked(self, *, after: tuple[str, str] | None, limit: int) -> Sequence[Overlooked]:
        def work() -> Sequence[Overlooked]:
            slots = sorted(slot for slot in self._database.reservations if after is None or slot > after)
            found = [one for slot in slots if (one := _overlooked(self._database, *slot)) is not None]
            return found[:limit]

        return await self._database.turn(self._faults, "budgets.overlooked", work)

    async def prune_reservations(self, *, made_before: int, limit: int) -> int:
        def work() -> int:
            before = min(made_before, self._database.now())
            old = [slot for slot, row in self._database.reservations.items() if _is_over(row) and row.created_at < before][:limit]
            for slot in old:
                del self._database.reservations[slot]
            return len(old)

        return await self._database.turn(self._faults, "budgets.prune_reservations", work)

    async def prune(self, *, used_before: int, limit: int) -> int:
        def work() -> int:
            before = min(used_before, self._database.now())
            budgets = self._database.budgets
            old = [slot for slot, budget in budgets.items() if budget.used_at < before and budget.account.reserved == NOTHING][:limit]
            for slot in old:
                del budgets[slot]
            return len(old)

        return await self._database.turn(self._faults, "budgets.prune", work)


def _put(database: MemoryDatabase, tenant: str, key: str, terms: Terms, changed_by: str | None) -> Budget:
    check_text((tenant, key, changed_by))
    now, known = database.now(), database.budgets.get((tenant, key))
    account = Account(terms=terms) if known is None else known.account.with_terms(terms, now)
    budget = Budget(
        tenant=tenant,
        key=key,
        account=account,
        created_at=now if known is None else known.created_at,
        changed_at=now,
        changed_by=changed_by,
        used_at=now,
        now=now,
    )
    database.budgets[tenant, key] = budget
    return budget


def _reserve(database: MemoryDatabase, reserving: Reserving) -> ReserveAnswer:
    check_text((reserving.tenant, *reserving.keys, reserving.id, reserving.holder))
    slot = reserving.tenant, reserving.id
    if (known := database.reservations.get(slot)) is not None:
        return known.outcome if known.closed is None else AlreadyClosed(how=known.closed.how)
    if reserving.instead_of is not None:
        _forget(database, reserving.tenant, reserving.instead_of)
    now, accounts = database.now(), _accounts(database, reserving.tenant, reserving.keys)
    after = admit(accounts, reserving.keys, reserving.amount, now, priced=reserving.priced)
    outcome: ReserveAnswer
    waits_for = None
    if isinstance(after, Shortage):
        outcome = Refused(shortage=after, at=now)
        waits_for = after.key if after.on_exhausted is OnExhausted.SUSPEND else None
    else:
        outcome = Admitted(crossed=crossed(accounts, after))
        _write(database, reserving.tenant, after, now)
    database.reservations[slot] = Reserved(
        keys=tuple(reserving.keys),
        holder=reserving.holder,
        amount=reserving.amount,
        created_at=now,
        outcome=outcome,
        waits_for=waits_for,
    )
    return outcome


def _close(database: MemoryDatabase, tenant: str, id: str, how: Close, actual: Amount) -> Closed:
    check_text((tenant, id))
    now, row = database.now(), database.reservations.get((tenant, id))
    if row is None:
        closed = Closed(how=Close.RELEASED)
        outcome = AlreadyClosed(how=closed.how)
        database.reservations[tenant, id] = Reserved(keys=(), holder="", amount=NOTHING, created_at=now, outcome=outcome, closed=closed)
        return closed
    if row.closed is not None:
        return row.closed
    closed = Closed(how=Close.RELEASED)
    if isinstance(row.outcome, Admitted):
        before = _accounts(database, tenant, row.keys)
        after = {key: account.close(row.amount, how, actual, now) for key, account in before.items()}
        _write(database, tenant, after, now)
        closed = Closed(how=how, crossed=crossed(before, after))
    database.reservations[tenant, id] = replace(row, closed=closed, waits_for=None)
    return closed


def _forget(database: MemoryDatabase, tenant: str, id: str) -> None:
    row = database.reservations.get((tenant, id))
    if row is not None and isinstance(row.outcome, Refused):
        database.reservations[tenant, id] = replace(row, closed=row.closed or Closed(how=Close.RELEASED), waits_for=None)


def _overlooked(database: MemoryDatabase, tenant: str, id: str) -> Overlooked | None:
    row = database.reservations[tenant, id]
    budget = None if row.waits_for is None else database.budgets.get((tenant, row.waits_for))
    if budget is None or budget.changed_at < row.created_at:
        return None
    return Overlooked(tenant=tenant, key=budget.key, changed_by=budget.changed_by, waiter=Waiter(id=id, holder=row.holder))


def _accounts(database: MemoryDatabase, tenant: str, keys: Sequence[str]) -> dict[str, Account]:
    return {key: database.budgets[tenant, key].account for key in keys if (tenant, key) in database.budgets}


def _write(database: MemoryDatabase, tenant: str, accounts: Mapping[str, Account], now: int) -> None:
    for key, account in accounts.items():
        database.budgets[tenant, key] = replace(database.budgets[tenant, key], account=account, used_at=now)


def _is_over(row: Reserved) -> bool:
    return row.closed is not None or (isinstance(row.outcome, Refused) and row.waits_for is None)
