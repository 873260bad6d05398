"""Persistent budgets, on either database: each operation is a few statements in one transaction.

The budgets are locked first, in the order of their keys, and only then is read what decides. A reservation's own row is written under the
locks of its budgets; two that write the same id meet at its primary key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Integer, Select, Table, and_, delete, func, null, select, tuple_, update
from sqlalchemy.engine.interfaces import Dialect

from runward.core.budgets import NOTHING, Account, Close, OnExhausted, Shortage, Terms, admit, crossed
from runward.core.runs.ledger import Amount
from runward.ports.budgets import Admitted, AlreadyClosed, Budget, Closed, Overlooked, Refused, ReserveAnswer, Reserving, Waiter
from runward.stores.guards import check_text
from runward.stores.sql import queries
from runward.stores.sql.budget_rows import (
    BUDGET,
    RESERVATION,
    Reservation,
    account_of,
    account_values,
    budget_of,
    closed_text,
    outcome_text,
    reservation_of,
    terms_values,
)
from runward.stores.sql.database import Database, Steps
from runward.stores.sql.expressions import TRUE
from runward.stores.sql.statements import POSTGRES, Statement, among, as_list, clock_expression, given, insert_into
from runward.stores.sql.tables import ID, budget_reservations, budgets

_GONE: Final = Closed(how=Close.RELEASED)
"""What becomes of a reservation that counted nothing."""


class SqlBudgets:
    """`ports.budgets.Budgets`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._dialect = database.dialect

    async def get(self, tenant: str, key: str) -> Budget | None:
        rows = await self._database.read(_get(self._dialect), {"tenant": tenant, "key": key})
        return budget_of(rows[0], tenant, key) if rows else None

    async def put(self, tenant: str, key: str, terms: Terms, changed_by: str | None) -> Budget:
        check_text((tenant, key, changed_by))
        return await self._database.transact(lambda: self._put(tenant, key, terms, changed_by))

    async def change(self, tenant: str, key: str, change: Callable[[Terms], Terms], changed_by: str | None) -> Budget | None:
        check_text((tenant, key, changed_by))
        return await self._database.transact(lambda: self._change(tenant, key, change, changed_by))

    async def known(self, tenant: str, keys: Sequence[str]) -> frozenset[str]:
        values = {"tenant": tenant, "keys": as_list(keys, self._dialect)}
        return frozenset(row[0] for row in await self._database.read(_known(self._dialect), values))

    async def reserve(self, reserving: Reserving) -> ReserveAnswer:
        check_text((reserving.tenant, *reserving.keys, reserving.id, reserving.holder))
        return await self._database.transact(lambda: self._reserve(reserving))

    async def close(self, tenant: str, id: str, how: Close, actual: Amount = NOTHING) -> Closed:
        check_text((tenant, id))
        return await self._database.transact(lambda: self._close(tenant, id, how, actual))

    async def waiting(self, tenant: str, key: str, *, after: str | None, limit: int) -> Sequence[Waiter]:
        values = {"tenant": tenant, "key": key, "after": after or "", "limit": limit}
        return [Waiter(id=id, holder=holder) for id, holder in await self._database.read(_waiting(self._dialect), values)]

    async def overlooked(self, *, after: tuple[str, str] | None, limit: int) -> Sequence[Overlooked]:
        after_tenant, after_id = after or ("", "")
        values = {"after_tenant": after_tenant, "after_id": after_id, "limit": limit}
        rows = await self._database.read(_overlooked(self._dialect), values)
        return [
            Overlooked(tenant=tenant, key=key, changed_by=changed_by, waiter=Waiter(id=id, holder=holder))
            for tenant, key, changed_by, id, holder in rows
        ]

    async def prune_reservations(self, *, made_before: int, limit: int) -> int:
        return len(await self._database.write(_prune_reservations(self._dialect), {"before": made_before, "limit": limit}))

    async def prune(self, *, used_before: int, limit: int) -> int:
        return len(await self._database.write(_prune(self._dialect), {"before": used_before, "limit": limit}))

    # -- steps of transactions ---------------------------------------------------------------------------------------------

    def _put(self, tenant: str, key: str, terms: Terms, changed_by: str | None) -> Steps[Budget]:
        values = {"tenant": tenant, "key": key, "changed_by": changed_by, **terms_values(terms), **account_values(Account(terms=terms))}
        yield _insert(self._dialect), values
        changed = yield from self._change(tenant, key, lambda _: terms, changed_by)
        assert changed is not None, "it was made in this very transaction"
        return changed

    def _change(self, tenant: str, key: str, change: Callable[[Terms], Terms], changed_by: str | None) -> Steps[Budget | None]:
        accounts = yield from self._locked(tenant, (key,))
        if key not in accounts:
            return None
        now = yield from self._now()
        account = accounts[key].with_terms(change(accounts[key].terms), now)
        values = {"tenant": tenant, "key": key, "changed_by": changed_by, **terms_values(account.terms), **account_values(account)}
        yield _set_terms(self._dialect), values
        rows = yield _get(self._dialect), {"tenant": tenant, "key": key}
        return budget_of(rows[0], tenant, key)

    def _reserve(self, reserving: Reserving) -> Steps[ReserveAnswer]:
        tenant = reserving.tenant
        accounts = yield from self._locked(tenant, reserving.keys)
        now = yield from self._now()
        after = admit(accounts, reserving.keys, reserving.amount, now, priced=reserving.priced)
        outcome: ReserveAnswer = (
            Refused(shortage=after, at=now) if isinstance(after, Shortage) else Admitted(crossed=crossed(accounts, after))
        )
        if (yield from self._noted(reserving, outcome)):
            if not isinstance(after, Shortage):
                yield from self._counted(tenant, after)
            return outcome
        known = yield from self._reservation(tenant, reserving.id)
        assert known is not None, "its row was in the way"
        return known.outcome if known.closed is None else AlreadyClosed(how=known.closed.how)

    def _noted(self, reserving: Reserving, outcome: ReserveAnswer) -> Steps[bool]:
        """Whether the reservation's row could be written: False when its id was used before."""
        waits_for = None
        if isinstance(outcome, Refused) and outcome.shortage.on_exhausted is OnExhausted.SUSPEND:
            waits_for = outcome.shortage.key
        row = Reservation(keys=tuple(reserving.keys), holder=reserving.holder, amount=reserving.amount, outcome=outcome)
        values = {"tenant": reserving.tenant, "id": reserving.id, "holder": reserving.holder, "waits_for": waits_for}
        values |= {"asked": row.asked_text, "outcome": outcome_text(outcome), "closed": None}
        over = isinstance(outcome, Refused) and waits_for is None
        rows = yield _note(self._dialect), {**values, "over": over}
        if rows and reserving.instead_of is not None:
            values = {"tenant": reserving.tenant, "id": reserving.instead_of, "closed": closed_text(_GONE)}
            yield _forget(self._dialect), values
        return bool(rows)

    def _close(self, tenant: str, id: str, how: Close, actual: Amount) -> Steps[Closed]:
        """The keys of a reservation never change: they are read before the locks, and what decides is read behind them."""
        seen = yield from self._reservation(tenant, id)
        if seen is None:
            values = {"tenant": tenant, "id": id, "holder": "", "waits_for": None, "over": True}
            unasked = Reservation(keys=(), holder="", amount=NOTHING, outcome=AlreadyClosed(how=_GONE.how))
            values |= {"asked": unasked.asked_text, "outcome": outcome_text(unasked.outcome), "closed": closed_text(_GONE)}
            if (yield _note(self._dialect), values):
                return _GONE
            seen = yield from self._reservation(tenant, id)
            assert seen is not None, "its row was in the way"
        before = yield from self._locked(tenant, seen.keys)
        row = yield from self._reservation(tenant, id)
        assert row is not None, "an open reservation is never forgotten"
        if row.closed is not None:
            return row.closed
        closed = _GONE
        if isinstance(row.outcome, Admitted):
            now = yield from self._now()
            after = {key: account.close(row.amount, how, actual, now) for key, account in before.items()}
            yield from self._counted(tenant, after)
            closed = Closed(how=how, crossed=crossed(before, after))
        yield _set_closed(self._dialect), {"tenant": tenant, "id": id, "closed": closed_text(closed)}
        return closed

    def _locked(self, tenant: str, keys: Sequence[str]) -> Steps[dict[str, Account]]:
        """The accounts of the budgets that are there, which nobody else changes before this transaction is over."""
        rows = yield _lock(self._dialect), {"tenant": tenant, "keys": as_list(keys, self._dialect)}
        return {row[0]: account_of(row[1:]) for row in rows}

    def _reservation(self, tenant: str, id: str) -> Steps[Reservation | None]:
        rows = yield _reservation(self._dialect), {"tenant": tenant, "id": id}
        return reservation_of(rows[0]) if rows else None

    def _counted(self, tenant: str, accounts: Mapping[str, Account]) -> Steps[None]:
        for key, account in accounts.items():
            yield _count(self._dialect), {"tenant": tenant, "key": key, **account_values(account)}

    def _now(self) -> Steps[int]:
        """The store's clock, read behind the locks: whoever waited for them counts by the time when it got them."""
        rows = yield queries.clock(self._dialect), {}
        return int(rows[0][0])


# -- statements ----------------------------------------------------------------------------------------------------------


def _given(table: Any, names: str) -> dict[str, Any]:
    return {name: given(name, table.c[name].type) for name in names.split()}


def _is(table: Any, *names: str) -> list[Any]:
    return [table.c[name] == given(name, ID) for name in names]


@cache
def _get(dialect: Dialect) -> Statement:
    return Statement(select(*BUDGET, clock_expression(dialect)).where(*_is(budgets, "tenant", "key")), dialect)


@cache
def _known(dialect: Dialect) -> Statement:
    return Statement(select(budgets.c.key).where(*_is(budgets, "tenant"), among(budgets.c.key, "keys", dialect)), dialect)


@cache
def _lock(dialect: Dialect) -> Statement:
    named = select(budgets.c.key, *BUDGET).where(*_is(budgets, "tenant"), among(budgets.c.key, "keys", dialect))
    return Statement(named.order_by(budgets.c.key).with_for_update(), dialect)


@cache
def _insert(dialect: Dialect) -> Statement:
    """A budget, unless it is there."""
    now = clock_expression(dialect)
    new = _given(budgets, "tenant key changed_by max_total_tokens max_picos window_seconds warn_at on_exhausted idle counted")
    values = {**new, "created_at": now, "changed_at": now, "used_at": now}
    return Statement(insert_into(budgets, dialect).values(values).on_conflict_do_nothing(), dialect)


@cache
def _set_terms(dialect: Dialect) -> Statement:
    now = clock_expression(dialect)
    new = _given(budgets, "changed_by max_total_tokens max_picos window_seconds warn_at on_exhausted idle counted")
    return Statement(update(budgets).where(*_is(budgets, "tenant", "key")).values({**new, "changed_at": now, "used_at": now}), dialect)


@cache
def _count(dialect: Dialect) -> Statement:
    new = {**_given(budgets, "idle counted"), "used_at": clock_expression(dialect)}
    return Statement(update(budgets).where(*_is(budgets, "tenant", "key")).values(new), dialect)


@cache
def _note(dialect: Dialect) -> Statement:
    """A reservation's row; answers with a row unless its id was used before."""
    new = {**_given(budget_reservations, "tenant id holder asked outcome closed waits_for over"), "created_at": clock_expression(dialect)}
    noted = insert_into(budget_reservations, dialect).values(new).on_conflict_do_nothing()
    return Statement(noted.returning(budget_reservations.c.id), dialect)


@cache
def _reservation(dialect: Dialect) -> Statement:
    return Statement(select(*RESERVATION).where(*_is(budget_reservations, "tenant", "id")), dialect)


@cache
def _set_closed(dialect: Dialect) -> Statement:
    closed = {**_given(budget_reservations, "closed"), "waits_for": null(), "over": TRUE}
    return Statement(update(budget_reservations).where(*_is(budget_reservations, "tenant", "id")).values(closed), dialect)


@cache
def _forget(dialect: Dialect) -> Statement:
    """Nobody waits under a refused id any more."""
    refused = update(budget_reservations).where(*_is(budget_reservations, "tenant", "id"), budget_reservations.c.waits_for.is_not(None))
    closed = {**_given(budget_reservations, "closed"), "waits_for": null(), "over": TRUE}
    return Statement(refused.values(closed), dialect)


@cache
def _waiting(dialect: Dialect) -> Statement:
    table = budget_reservations
    of_it = select(table.c.id, table.c.holder).where(*_is(table, "tenant"), table.c.waits_for == given("key", ID))
    return Statement(of_it.where(table.c.id > given("after", ID)).order_by(table.c.id).limit(given("limit", Integer())), dialect)


@cache
def _overlooked(dialect: Dialect) -> Statement:
    table = budget_reservations
    of_it = and_(budgets.c.tenant == table.c.tenant, budgets.c.key == table.c.waits_for, budgets.c.changed_at >= table.c.created_at)
    behind = tuple_(table.c.tenant, table.c.id) > tuple_(given("after_tenant", ID), given("after_id", ID))
    found = select(table.c.tenant, budgets.c.key, budgets.c.changed_by, table.c.id, table.c.holder).join(budgets, of_it)
    told = found.where(table.c.waits_for.is_not(None), behind).order_by(table.c.tenant, table.c.id)
    return Statement(told.limit(given("limit", Integer())), dialect)


@cache
def _prune_reservations(dialect: Dialect) -> Statement:
    table = budget_reservations
    over = select(table.c.tenant, table.c.id).where(table.c.over, table.c.created_at < _cut_back(dialect))
    return _deletion(over.order_by(table.c.created_at), dialect)


@cache
def _prune(dialect: Dialect) -> Statement:
    unused = select(budgets.c.tenant, budgets.c.key).where(budgets.c.idle, budgets.c.used_at < _cut_back(dialect))
    return _deletion(unused.order_by(budgets.c.used_at), dialect)


def _cut_back(dialect: Dialect) -> ColumnElement[int]:
    """The given time, but none later than now."""
    least = func.least if dialect is POSTGRES else func.min
    return least(given("before", BigInteger()), clock_expression(dialect))


def _deletion(found: Select[Any], dialect: Dialect) -> Statement:
    """Deletes so many of the rows that are found by their primary key. What others are writing to is left for the next time."""
    old = found.limit(given("limit", Integer())).with_for_update(skip_locked=True).cte("old").prefix_with("MATERIALIZED")
    table = next(iter(found.columns_clause_froms))
    assert isinstance(table, Table)
    key = tuple(table.primary_key)
    return Statement(delete(table).where(tuple_(*key).in_(select(*old.c))).returning(key[1]), dialect)
