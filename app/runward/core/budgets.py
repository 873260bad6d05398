"""Persistent budgets: what several runs may spend together, and what they have spent of it (R34). Pure: stores keep accounts, this counts.

An amount that was spent counts for good in a budget without a window. In a rolling window it counts in a bucket: a sixtieth of the window,
a second at least. A bucket counts until the window has moved past the end of it, so that an amount counts for the whole window and for one
bucket more at most: never too little. What is reserved counts until it is closed, whatever the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from runward.core.runs.ledger import Amount
from runward.core.values import replace

BUCKETS: Final = 60
"""How many buckets a window has."""
LEAST_BUCKET_MS: Final = 1000
SOON_MS: Final = 30_000
"""What was refused because of something that may be over any moment is worth another try after so long."""


NOTHING: Final = Amount()


class OnExhausted(StrEnum):
    """What becomes of a run that a budget refuses."""

    STOP = "stop"
    SUSPEND = "suspend"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a budget allows. None bounds nothing; `window_seconds` None counts for good. `warn_at` is a percentage of either bound."""

    max_total_tokens: int | None = None
    max_picos: int | None = None
    window_seconds: int | None = None
    warn_at: int | None = None
    on_exhausted: OnExhausted = OnExhausted.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """What was spent in a part of the window that ends at `until`, in milliseconds; 0 where there is no window."""

    until: int
    spent: Amount = NOTHING
    unknown: Amount = NOTHING


class Close(StrEnum):
    """How a reservation is over: its cost is known, there was none, or nobody knows it and all of it counts as spent."""

    SETTLED = "settled"
    RELEASED = "released"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a budget has left. None: nothing bounds it."""

    tokens: int | None
    picos: int | None

    def holds(self, amount: Amount) -> bool:
        """Whether an amount fits."""
        return (self.tokens is None or amount.tokens <= self.tokens) and (self.picos is None or amount.picos <= self.picos)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why a budget refuses an amount.

    - `key` is the budget, `remaining` what it has left; None: there is no such budget.
    - `resets_at` is when its window has moved so far that the amount fits, if nothing else is spent: None if never.
    - `bound` is the one that it is over: `max_total_tokens` or `max_cost_usd`. `unpriced`: dollars bound it, and nobody knows what the
      amount is in dollars.
    - `soon`: it may fit any moment, because of what others have only reserved, or because somebody may make the budget.
    """

    key: str
    on_exhausted: OnExhausted
    remaining: Room | None
    bound: str | None = None
    unpriced: bool = False
    resets_at: int | None = None
    soon: bool = False

    def due_at(self, now: int) -> int | None:
        """When another try is worth it by itself; None: not before somebody raises the budget."""
        dues = [due for due in (self.resets_at, now + SOON_MS if self.soon else None) if due is not None]
        return min(dues, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A budget's terms and what counts against them. `warned`: that much is spent that somebody was warned."""

    terms: Terms
    reserved: Amount = NOTHING
    buckets: tuple[Bucket, ...] = ()
    warned: bool = False

    @property
    def window_ms(self) -> int | None:
        return None if self.terms.window_seconds is None else self.terms.window_seconds * 1000

    def counted(self, now: int) -> tuple[Bucket, ...]:
        """The buckets that count at a time, in order."""
        window = self.window_ms
        return self.buckets if window is None else tuple(bucket for bucket in self.buckets if bucket.until + window > now)

    def spent(self, now: int) -> Amount:
        return _sum([bucket.spent for bucket in self.counted(now)])

    def unknown(self, now: int) -> Amount:
        return _sum([bucket.unknown for bucket in self.counted(now)])

    def used(self, now: int) -> Amount:
        """What is spent, as far as anybody knows."""
        return self.spent(now) + self.unknown(now)

    def committed(self, now: int) -> Amount:
        """All that counts: spent, reserved, and spent as far as anybody knows."""
        return self.used(now) + self.reserved

    def remaining(self, now: int) -> Room:
        return self._room(self.committed(now))

    def resets_at(self, now: int) -> int | None:
        """When the next of what is spent leaves the window; None when nothing will."""
        window = self.window_ms
        return None if window is None else min((bucket.until + window for bucket in self.counted(now)), default=None)

    def with_terms(self, terms: Terms, now: int) -> Account:
        """The account under other terms. What was spent for good has no time, so that it does not count in a window that is new; what
        counts in a window counts on."""
        buckets = self.counted(now)
        if self.terms.window_seconds is None and terms.window_seconds is not None:
            buckets = ()
        elif terms.window_seconds is None and buckets:
            buckets = (Bucket(until=0, spent=self.spent(now), unknown=self.unknown(now)),)
        return replace(self, terms=terms, buckets=buckets)

    def shortage(self, key: str, amount: Amount, now: int) -> Shortage | None:
        """Why an amount does not fit; None when it does."""
        if self.remaining(now).holds(amount):
            return None
        tokens = self.remaining(now).tokens
        without_reserved = self._room(self.used(now))
        return Shortage(
            key=key,
            on_exhausted=self.terms.on_exhausted,
            remaining=self.remaining(now),
            bound="max_total_tokens" if tokens is not None and amount.tokens > tokens else "max_cost_usd",
            resets_at=self._fits_at(amount, now),
            soon=without_reserved.holds(amount),
        )

    def reserve(self, amount: Amount, now: int) -> Account:
        """The account with an amount set aside."""
        return replace(self, reserved=self.reserved + amount, buckets=self.counted(now))._warned(now)

    def close(self, reserved: Amount, how: Close, actual: Amount, now: int) -> Account:
        """The account with what was set aside spent, or given back."""
        account = replace(self, reserved=_less(self.reserved, reserved), buckets=self.counted(now))
        if how is Close.SETTLED:
            account = account._with(Bucket(until=account._end(now), spent=actual))
        elif how is Close.UNKNOWN:
            account = account._with(Bucket(until=account._end(now), unknown=reserved))
        return account._warned(now)

    # -- parts -------------------------------------------------------------------------------------------------------------

    def _room(self, committed: Amount) -> Room:
        tokens, picos = self.terms.max_total_tokens, self.terms.max_picos
        return Room(
            tokens=None if tokens is None else max(0, tokens - committed.tokens),
            picos=None if picos is None else max(0, picos - committed.picos),
        )

    def _fits_at(self, amount: Amount, now: int) -> int | None:
        window, counted = self.window_ms, list(self.counted(now))
        while window is not None and counted:
            gone = counted.pop(0)
            left = _sum([each.spent + each.unknown for each in counted])
            if self._room(left + self.reserved).holds(amount):
                return gone.until + window
        return None

    def _end(self, now: int) -> int:
        """When the bucket ends that a time is in."""
        window = self.window_ms
        if window is None:
            return 0
        width = max(LEAST_BUCKET_MS, window // BUCKETS)
        return (now // width + 1) * width

    def _with(self, more: Bucket) -> Account:
        found = next((bucket for bucket in self.buckets if bucket.until == more.until), Bucket(until=more.until))
        both = Bucket(until=more.until, spent=found.spent + more.spent, unknown=found.unknown + more.unknown)
        others = [bucket for bucket in self.buckets if bucket.until != more.until]
        return replace(self, buckets=tuple(sorted((*others, both), key=lambda bucket: bucket.until)))

    def _warned(self, now: int) -> Account:
        """What is only reserved warns nobody: it is an estimate, and comes and goes with every call."""
        return replace(self, warned=self._is_worth_a_warning(self.used(now)))

    def _is_worth_a_warning(self, used: Amount) -> bool:
        terms, percentage = self.terms, self.terms.warn_at
        if percentage is None:
            return False
        bounds = ((used.tokens, terms.max_total_tokens), (used.picos, terms.max_picos))
        return any(bound is not None and amount * 100 >= bound * percentage for amount, bound in bounds)


def admit(
    accounts: Mapping[str, Account], keys: Sequence[str], amount: Amount, now: int, *, priced: bool = True
) -> Shortage | Mapping[str, Account]:
    """The accounts with an amount reserved on each of `keys`; or why one of them, the first in the order of the keys, refuses it. `priced`:
    its dollars are known."""
    for key in sorted(keys):
        if key not in accounts:
            return Shortage(key=key, on_exhausted=OnExhausted.SUSPEND, remaining=None, soon=True)
        if not priced and accounts[key].terms.max_picos is not None:
            return Shortage(key=key, on_exhausted=OnExhausted.STOP, remaining=accounts[key].remaining(now), unpriced=True)
        short = accounts[key].shortage(key, amount, now)
        if short is not None:
            return short
    return {key: accounts[key].reserve(amount, now) for key in keys}


def crossed(before: Mapping[str, Account], after: Mapping[str, Account]) -> tuple[str, ...]:
    """The keys of the budgets that a change took over their `warn_at`."""
    return tuple(sorted(key for key, account in after.items() if account.warned and not before[key].warned))


def _less(amount: Amount, other: Amount) -> Amount:
    """What is left, never less than nothing."""
    return Amount(tokens=max(0, amount.tokens - other.tokens), picos=max(0, amount.picos - other.picos))


def _sum(amounts: Sequence[Amount]) -> Amount:
    return Amount(tokens=sum(each.tokens for each in amounts), picos=sum(each.picos for each in amounts))
