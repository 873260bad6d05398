"""What counts against a budget, against a plain list of what happened."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runward.core.budgets import BUCKETS, LEAST_BUCKET_MS, NOTHING, Account, Close, Shortage, Terms, admit, crossed
from runward.core.runs.ledger import Amount

NOW = 1_700_000_000_000


@dataclass
class Happened:
    """What was reserved and closed, one by one, and when."""

    open: list[tuple[str, Amount]] = field(default_factory=list)
    closed: list[tuple[int, Amount]] = field(default_factory=list)

    def spent_since(self, moment: int) -> Amount:
        total = NOTHING
        for at, amount in self.closed:
            total = total + amount if at > moment else total
        return total

    @property
    def reserved(self) -> Amount:
        total = NOTHING
        for _, amount in self.open:
            total = total + amount
        return total


amounts = st.builds(Amount, tokens=st.integers(0, 60), picos=st.integers(0, 60))
steps = st.one_of(
    st.tuples(st.just("wait"), st.integers(0, 90_000)),
    st.tuples(st.just("reserve"), amounts),
    st.tuples(st.just("close"), st.tuples(st.sampled_from(Close), st.integers(0, 5))),
)


@given(
    bounds=st.tuples(st.none() | st.integers(0, 200), st.none() | st.integers(0, 200)),
    window=st.none() | st.integers(1, 300),
    todo=st.lists(steps, max_size=60),
)
def test_R34_no_admission_goes_past_a_bound_and_nothing_leaves_a_window_early(
    bounds: tuple[int | None, int | None], window: int | None, todo: list[tuple[str, object]]
) -> None:
    accounts = {"k": Account(terms=Terms(max_total_tokens=bounds[0], max_picos=bounds[1], window_seconds=window))}
    happened, now = Happened(), NOW
    for _, value in todo:
        if isinstance(value, int):
            now += value
        elif isinstance(value, Amount):
            after = admit(accounts, ["k"], value, now)
            if isinstance(after, Shortage):
                assert not accounts["k"].remaining(now).holds(value)
                if after.resets_at is not None:
                    assert after.resets_at > now
                    assert accounts["k"].remaining(after.resets_at).holds(value), "then it fits, if nothing else is spent"
                    assert not accounts["k"].remaining(after.resets_at - 1).holds(value), "and not before"
                continue
            accounts = dict(after)
            happened.open.append(("k", value))
            total = accounts["k"].committed(now)
            assert all(bound is None or amount <= bound for amount, bound in zip((total.tokens, total.picos), bounds, strict=True)), (
                "past its bound"
            )
        elif happened.open:
            assert isinstance(value, tuple)
            how, which = value
            _, reserved = happened.open.pop(which % len(happened.open))
            actual = Amount(tokens=reserved.tokens // 2, picos=reserved.picos)
            accounts = {"k": accounts["k"].close(reserved, how, actual, now)}
            if how is not Close.RELEASED:
                happened.closed.append((now, actual if how is Close.SETTLED else reserved))
        account = accounts["k"]
        counted = account.spent(now) + account.unknown(now)
        assert account.reserved == happened.reserved
        if window is None:
            assert counted == happened.spent_since(0)
        else:
            width = max(LEAST_BUCKET_MS, window * 1000 // BUCKETS)
            least, most = (happened.spent_since(moment) for moment in (now - window * 1000, now - window * 1000 - width - 1))
            assert least.tokens <= counted.tokens <= most.tokens
            assert least.picos <= counted.picos <= most.picos
            assert len(account.buckets) <= BUCKETS + 2 or window < BUCKETS


@given(st.lists(st.integers(1, 40), max_size=30))
def test_of_all_closings_one_crosses_the_warning(spendings: list[int]) -> None:
    accounts = {"k": Account(terms=Terms(max_total_tokens=500, warn_at=70))}
    crossings, total = 0, 0
    for amount in spendings:
        after = {"k": accounts["k"].reserve(Amount(tokens=amount), NOW).close(Amount(tokens=amount), Close.UNKNOWN, NOTHING, NOW)}
        crossings += crossed(accounts, after) == ("k",)
        accounts, total = after, total + amount
    assert crossings == (total >= 350)


@pytest.mark.parametrize("how", [Close.SETTLED, Close.UNKNOWN])
@pytest.mark.parametrize("into", [0, 1, 59_999, 60_000])
def test_R34_an_amount_counts_for_the_whole_window_and_for_one_bucket_more_at_most(how: Close, into: int) -> None:
    """Whenever in a bucket it was spent: these are a minute long, and the first one begins at `begins`."""
    window, width = 3_600_000, 60_000
    begins = NOW // width * width
    at, amount = begins + into, Amount(tokens=7)
    account = Account(terms=Terms(max_total_tokens=10, window_seconds=window // 1000)).reserve(amount, at)
    account = account.close(amount, how, amount, at)
    assert account.used(at) == account.used(at + window - 1) == amount
    assert account.used(at + window + width) == NOTHING
    leaves = account.resets_at(at)
    assert leaves is not None and at + window <= leaves <= at + window + width
    assert (account.used(leaves - 1), account.used(leaves)) == (amount, NOTHING)
