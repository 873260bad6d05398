"""Budgets and reservations as rows, and back. Sums are JSON, whatever their size: a column of 64 bits would bound them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from runward.core.budgets import NOTHING, Account, Bucket, Close, OnExhausted, Room, Shortage, Terms
from runward.core.runs.ledger import Amount
from runward.ports.budgets import Admitted, AlreadyClosed, Budget, Closed, Refused, ReserveAnswer
from runward.stores.sql.rows import Row, Values
from runward.stores.sql.tables import budget_reservations, budgets, columns

BUDGET: Final = columns(
    budgets,
    "max_total_tokens max_picos window_seconds warn_at on_exhausted counted created_at changed_at changed_by used_at",
)
RESERVATION: Final = columns(budget_reservations, "holder asked outcome closed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A reservation as stored: what was asked for, what was answered, and how it was closed."""

    keys: tuple[str, ...]
    holder: str
    amount: Amount
    outcome: ReserveAnswer
    closed: Closed | None = None

    @property
    def asked_text(self) -> str:
        return json.dumps({"keys": self.keys, "amount": _pair(self.amount)})


def terms_values(terms: Terms) -> Values:
    return {
        "max_total_tokens": terms.max_total_tokens,
        "max_picos": terms.max_picos,
        "window_seconds": terms.window_seconds,
        "warn_at": terms.warn_at,
        "on_exhausted": terms.on_exhausted.value,
    }


def account_values(account: Account) -> Values:
    """The columns that reservations change."""
    counted = {
        "reserved": _pair(account.reserved),
        "buckets": [[bucket.until, *_pair(bucket.spent), *_pair(bucket.unknown)] for bucket in account.buckets],
        "warned": account.warned,
    }
    return {"idle": account.reserved == NOTHING, "counted": json.dumps(counted)}


def account_of(row: Row) -> Account:
    """The account of a row of `BUDGET`."""
    max_total_tokens, max_picos, window_seconds, warn_at, on_exhausted, counted = row[:6]
    terms = Terms(
        max_total_tokens=max_total_tokens,
        max_picos=max_picos,
        window_seconds=window_seconds,
        warn_at=warn_at,
        on_exhausted=OnExhausted(on_exhausted),
    )
    sums = json.loads(counted)
    buckets = tuple(Bucket(until=until, spent=_amount(pairs[:2]), unknown=_amount(pairs[2:])) for until, *pairs in sums["buckets"])
    return Account(terms=terms, reserved=_amount(sums["reserved"]), buckets=buckets, warned=sums["warned"])


def budget_of(row: Row, tenant: str, key: str) -> Budget:
    """The budget of a row of `BUDGET` with the clock behind it."""
    created_at, changed_at, changed_by, used_at, now = row[6:]
    account = account_of(row)
    return Budget(
        tenant=tenant,
        key=key,
        account=account,
        created_at=created_at,
        changed_at=changed_at,
        changed_by=changed_by,
        used_at=used_at,
        now=now,
    )


def outcome_text(outcome: ReserveAnswer) -> str:
    match outcome:
        case Admitted(crossed=crossed):
            return json.dumps({"crossed": crossed})
        case AlreadyClosed(how=how):
            return json.dumps({"how": how.value})
        case Refused(shortage=shortage, at=at):
            room = shortage.remaining
            told = {
                "key": shortage.key,
                "on_exhausted": shortage.on_exhausted.value,
                "remaining": None if room is None else [room.tokens, room.picos],
                "bound": shortage.bound,
                "unpriced": shortage.unpriced,
                "resets_at": shortage.resets_at,
                "soon": shortage.soon,
            }
            return json.dumps({"refused": told, "at": at})


def closed_text(closed: Closed) -> str:
    return json.dumps({"how": closed.how.value, "crossed": closed.crossed})


def reservation_of(row: Row) -> Reservation:
    """The reservation of a row of `RESERVATION`."""
    holder, asked, outcome, closed = row
    wanted = json.loads(asked)
    return Reservation(
        keys=tuple(wanted["keys"]),
        holder=holder,
        amount=_amount(wanted["amount"]),
        outcome=_outcome_of(json.loads(outcome)),
        closed=None if closed is None else _closed_of(json.loads(closed)),
    )


def _outcome_of(told: dict[str, Any]) -> ReserveAnswer:
    if "crossed" in told:
        return Admitted(crossed=tuple(told["crossed"]))
    if "how" in told:
        return AlreadyClosed(how=Close(told["how"]))
    refused = told["refused"]
    room = refused["remaining"]
    shortage = Shortage(
        key=refused["key"],
        on_exhausted=OnExhausted(refused["on_exhausted"]),
        remaining=None if room is None else Room(tokens=room[0], picos=room[1]),
        bound=refused["bound"],
        unpriced=refused["unpriced"],
        resets_at=refused["resets_at"],
        soon=refused["soon"],
    )
    return Refused(shortage=shortage, at=told["at"])


def _closed_of(told: dict[str, Any]) -> Closed:
    return Closed(how=Close(told["how"]), crossed=tuple(told["crossed"]))


def _pair(amount: Amount) -> list[int]:
    return [amount.tokens, amount.picos]


def _amount(pair: Sequence[int]) -> Amount:
    tokens, picos = pair
    return Amount(tokens=tokens, picos=picos)
