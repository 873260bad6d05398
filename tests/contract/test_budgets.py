"""Persistent budgets: all or none, each id once, never past a bound, whoever races (R34)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from runward.core.budgets import NOTHING, Close, OnExhausted, Room, Terms
from runward.core.runs.ledger import Amount
from runward.core.values import replace
from runward.ports.budgets import Admitted, AlreadyClosed, Budget, Closed, Overlooked, Refused, Reserving, Waiter
from tests.contract.backends import Backend
from tests.contract.builders import next_millisecond

HOUR = 3600
USER, ORG = "user:42", "org:acme"


def tokens(count: int) -> Amount:
    return Amount(tokens=count)


def reserving(id: str, amount: Amount, *keys: str, **differing: Any) -> Reserving:
    asked = Reserving(id=id, tenant="acme", keys=keys or (USER,), amount=amount, holder=f"run-of-{id}")
    return replace(asked, **differing)


async def made(backend: Backend, key: str = USER, *, tenant: str = "acme", **terms: Any) -> Budget:
    return await backend.budgets.put(tenant, key, Terms(**terms), None)


async def of(backend: Backend, key: str = USER, tenant: str = "acme") -> Budget:
    budget = await backend.budgets.get(tenant, key)
    assert budget is not None
    return budget


async def committed(backend: Backend, key: str = USER) -> Amount:
    budget = await of(backend, key)
    return budget.account.committed(budget.now)


async def spent(backend: Backend, key: str = USER) -> Amount:
    budget = await of(backend, key)
    return budget.account.spent(budget.now)


async def spend(backend: Backend, id: str, count: int, *keys: str) -> Closed:
    assert isinstance(await backend.budgets.reserve(reserving(id, tokens(count), *keys)), Admitted)
    return await backend.budgets.close("acme", id, Close.SETTLED, tokens(count))


# -- terms ---------------------------------------------------------------------------------------------------------------


async def test_a_budget_is_stored_as_it_was_set_and_set_again_without_losing_what_was_spent(backend: Backend) -> None:
    terms = Terms(max_total_tokens=1000, max_picos=5 * 10**17, window_seconds=None, warn_at=80, on_exhausted=OnExhausted.SUSPEND)
    before = await backend.store.now()
    first = await backend.budgets.put("acme", USER, terms, '{"by":"key-1"}')
    assert (first.account.terms, first.changed_by, first.tenant, first.key) == (terms, '{"by":"key-1"}', "acme", USER)
    assert before <= first.created_at <= first.changed_at <= first.now <= await backend.store.now()
    await spend(backend, "a", 300)
    await next_millisecond(backend.store)
    again = await backend.budgets.put("acme", USER, Terms(max_total_tokens=400), None)
    assert (again.account.terms, again.changed_by, again.created_at) == (Terms(max_total_tokens=400), None, first.created_at)
    assert again.changed_at > first.changed_at
    assert again.account.remaining(again.now) == Room(tokens=100, picos=None)
    read = await of(backend)
    assert read == replace(again, now=read.now)


async def test_terms_are_changed_as_they_are_in_the_very_transaction(backend: Backend) -> None:
    await made(backend, max_total_tokens=0)

    def one_more(terms: Terms) -> Terms:
        return replace(terms, max_total_tokens=(terms.max_total_tokens or 0) + 1)

    await asyncio.gather(*(backend.budgets.change("acme", USER, one_more, None) for _ in range(10)))
    assert (await of(backend)).account.terms.max_total_tokens == 10
    assert await backend.budgets.change("acme", "nobody", one_more, None) is None
    assert await backend.budgets.get("acme", "nobody") is None


async def test_a_window_that_is_new_begins_with_nothing_and_one_that_goes_keeps_what_counts(backend: Backend) -> None:
    await made(backend, max_total_tokens=1000)
    await spend(backend, "a", 300)
    await made(backend, max_total_tokens=1000, window_seconds=HOUR)
    assert await spent(backend) == NOTHING
    await spend(backend, "b", 200)
    await made(backend, max_total_tokens=1000, window_seconds=24 * HOUR)
    assert await spent(backend) == tokens(200)
    await made(backend, max_total_tokens=1000)
    await backend.age_budgets(10**12)
    assert await spent(backend) == tokens(200)


async def test_R43_the_same_key_in_another_tenant_is_another_budget(backend: Backend) -> None:
    await made(backend, max_total_tokens=100)
    assert await backend.budgets.get("other", USER) is None
    assert await backend.budgets.known("other", [USER, ORG]) == frozenset()
    assert await backend.budgets.known("acme", [USER, ORG]) == {USER}
    assert await backend.budgets.change("other", USER, lambda terms: replace(terms, max_total_tokens=1), None) is None
    answer = await backend.budgets.reserve(reserving("a", tokens(1), tenant="other"))
    assert isinstance(answer, Refused) and answer.shortage.remaining is None
    assert await backend.budgets.waiting("acme", USER, after=None, limit=10) == []
    await backend.budgets.reserve(reserving("b", tokens(60)))
    assert await backend.budgets.close("other", "b", Close.SETTLED, tokens(1)) == Closed(how=Close.RELEASED)
    assert await committed(backend) == tokens(60)
    await made(backend, tenant="other", max_total_tokens=7)
    assert (await of(backend)).account.terms.max_total_tokens == 100


# -- reserving -----------------------------------------------------------------------------------------------------------


async def test_R34_all_budgets_admit_or_none_and_the_answer_names_who_refuses(backend: Backend) -> None:
    await made(backend, USER, max_total_tokens=1000)
    await made(backend, ORG, max_total_tokens=500, on_exhausted=OnExhausted.SUSPEND)
    assert await backend.budgets.reserve(reserving("a", tokens(400), USER, ORG)) == Admitted()
    answer = await backend.budgets.reserve(reserving("b", tokens(200), USER, ORG))
    assert isinstance(answer, Refused)
    assert (answer.shortage.key, answer.shortage.on_exhausted) == (ORG, OnExhausted.SUSPEND)
    assert (answer.shortage.remaining, answer.shortage.resets_at) == (Room(tokens=100, picos=None), None)
    assert (answer.shortage.bound, answer.shortage.unpriced) == ("max_total_tokens", False)
    assert answer.shortage.soon, "what is in the way is only reserved"
    assert (await committed(backend, USER), await committed(backend, ORG)) == (tokens(400), tokens(400))


async def test_either_bound_refuses_and_what_nothing_bounds_is_only_counted(backend: Backend) -> None:
    await made(backend, USER, max_picos=100)
    await made(backend, ORG)
    assert isinstance(await backend.budgets.reserve(reserving("a", Amount(tokens=10**9, picos=100), USER, ORG)), Admitted)
    refused = await backend.budgets.reserve(reserving("b", Amount(tokens=0, picos=1), USER, ORG))
    assert isinstance(refused, Refused) and refused.shortage.remaining == Room(tokens=None, picos=0)
    assert refused.shortage.bound == "max_cost_usd"
    assert await committed(backend, ORG) == Amount(tokens=10**9, picos=100)
    huge = Amount(tokens=10**20, picos=10**30)
    assert isinstance(await backend.budgets.reserve(reserving("c", huge, ORG)), Admitted)
    assert await committed(backend, ORG) == huge + Amount(tokens=10**9, picos=100)


async def test_R33_a_budget_that_dollars_bound_refuses_what_nobody_knows_the_price_of(backend: Backend) -> None:
    await made(backend, USER, max_picos=100, on_exhausted=OnExhausted.SUSPEND)
    await made(backend, ORG, max_total_tokens=100)
    refused = await backend.budgets.reserve(reserving("a", tokens(1), USER, ORG, priced=False))
    assert isinstance(refused, Refused) and refused.shortage.unpriced and refused.shortage.key == USER
    assert await backend.budgets.reserve(reserving("a", tokens(1))) == refused
    assert await backend.budgets.waiting("acme", USER, after=None, limit=10) == [], "waiting would not help"
    assert isinstance(await backend.budgets.reserve(reserving("b", tokens(1), ORG, priced=False)), Admitted)


async def test_R34_repeating_an_id_returns_what_was_recorded(backend: Backend) -> None:
    await made(backend, max_total_tokens=100)
    assert await backend.budgets.reserve(reserving("a", tokens(60))) == Admitted()
    assert await backend.budgets.reserve(reserving("a", tokens(60))) == Admitted()
    assert await committed(backend) == tokens(60)
    refused = await backend.budgets.reserve(reserving("b", tokens(60)))
    await made(backend, max_total_tokens=1000)
    assert await backend.budgets.reserve(reserving("b", tokens(60))) == refused, "whoever tries again takes a new id"
    assert await backend.budgets.reserve(reserving("b.2", tokens(60), instead_of="b")) == Admitted()
    assert await backend.budgets.close("acme", "a", Close.SETTLED, tokens(10)) == Closed(how=Close.SETTLED)
    assert await backend.budgets.reserve(reserving("a", tokens(60))) == AlreadyClosed(how=Close.SETTLED)
    assert await committed(backend) == tokens(70)


async def test_a_budget_that_is_not_there_refuses_and_whoever_waits_is_found_when_it_is_made(backend: Backend) -> None:
    await made(backend, ORG, max_total_tokens=10)
    answer = await backend.budgets.reserve(reserving("a", tokens(1), ORG, USER))
    assert isinstance(answer, Refused)
    assert (answer.shortage.key, answer.shortage.on_exhausted, answer.shortage.remaining) == (USER, OnExhausted.SUSPEND, None)
    assert answer.shortage.due_at(answer.at) is not None, "nothing wakes it for sure: it looks again by itself"
    assert await committed(backend, ORG) == NOTHING
    assert await backend.budgets.waiting("acme", USER, after=None, limit=10) == [Waiter(id="a", holder="run-of-a")]


# -- closing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "actual", "left"),
    [(Close.SETTLED, tokens(25), (25, 0)), (Close.RELEASED, NOTHING, (0, 0)), (Close.UNKNOWN, NOTHING, (0, 60))],
)
async def test_R34_a_reservation_is_closed_once_and_the_first_closing_counts(
    backend: Backend, how: Close, actual: Amount, left: tuple[int, int]
) -> None:
    await made(backend, max_total_tokens=100)
    await backend.budgets.reserve(reserving("a", tokens(60)))
    for _ in range(2):
        assert await backend.budgets.close("acme", "a", how, actual) == Closed(how=how)
    for other in Close:
        assert await backend.budgets.close("acme", "a", other, tokens(99)) == Closed(how=how)
    budget = await of(backend)
    assert (budget.account.spent(budget.now), budget.account.unknown(budget.now)) == (tokens(left[0]), tokens(left[1]))
    assert budget.account.reserved == NOTHING


async def test_more_than_was_reserved_is_spent_all_the_same(backend: Backend) -> None:
    await made(backend, max_total_tokens=100)
    await backend.budgets.reserve(reserving("a", tokens(60)))
    await backend.budgets.close("acme", "a", Close.SETTLED, tokens(160))
    budget = await of(backend)
    assert budget.account.remaining(budget.now) == Room(tokens=0, picos=None)
    assert isinstance(await backend.budgets.reserve(reserving("b", tokens(1))), Refused)


async def test_R3_a_reservation_that_comes_after_its_closing_counts_nothing(backend: Backend) -> None:
    """Its process was paused, and the leg that took the run over has closed what it could not know of."""
    await made(backend, max_total_tokens=100)
    assert await backend.budgets.close("acme", "a", Close.UNKNOWN) == Closed(how=Close.RELEASED)
    assert await backend.budgets.reserve(reserving("a", tokens(60))) == AlreadyClosed(how=Close.RELEASED)
    assert await committed(backend) == NOTHING


async def test_closings_and_reservations_of_one_id_that_race_leave_nothing_reserved(backend: Backend) -> None:
    await made(backend, max_total_tokens=10**6)
    for n in range(10):
        await asyncio.gather(
            backend.budgets.reserve(reserving(f"a{n}", tokens(60))),
            backend.budgets.close("acme", f"a{n}", Close.SETTLED, tokens(1)),
            backend.budgets.reserve(reserving(f"a{n}", tokens(60))),
            backend.budgets.close("acme", f"a{n}", Close.SETTLED, tokens(1)),
        )
    assert (await of(backend)).account.reserved == NOTHING
    assert (await spent(backend)).tokens <= 10


# -- windows -------------------------------------------------------------------------------------------------------------


async def test_R36_what_was_spent_leaves_the_window_by_the_stores_clock(backend: Backend) -> None:
    await made(backend, max_total_tokens=100, window_seconds=HOUR)
    await spend(backend, "a", 60)
    await backend.age_budgets(HOUR * 1000 // 2)
    await spend(backend, "b", 40)
    refused = await backend.budgets.reserve(reserving("c", tokens(50)))
    assert isinstance(refused, Refused) and not refused.shortage.soon
    resets_at = refused.shortage.resets_at
    assert resets_at is not None and refused.at + HOUR * 500 <= resets_at <= refused.at + HOUR * 500 + 60_000
    assert (await of(backend)).account.resets_at(refused.at) == resets_at
    much = await backend.budgets.reserve(reserving("d", tokens(90)))
    assert isinstance(much, Refused) and much.shortage.resets_at is not None
    assert much.shortage.resets_at >= refused.at + HOUR * 1000, "that needs the second amount to leave, too"
    never = await backend.budgets.reserve(reserving("e", tokens(101)))
    assert isinstance(never, Refused) and never.shortage.resets_at is None and not never.shortage.soon
    await backend.age_budgets(resets_at - refused.at)
    assert isinstance(await backend.budgets.reserve(reserving("f", tokens(50))), Admitted)
    assert await spent(backend) == tokens(40)


async def test_what_is_reserved_and_what_nobody_knows_count_in_a_window_too(backend: Backend) -> None:
    await made(backend, max_total_tokens=100, window_seconds=HOUR)
    await backend.budgets.reserve(reserving("a", tokens(60)))
    await backend.age_budgets(2 * HOUR * 1000)
    assert await committed(backend) == tokens(60), "it is open, however long"
    await backend.budgets.close("acme", "a", Close.UNKNOWN)
    assert await committed(backend) == tokens(60)
    await backend.age_budgets((HOUR + 61) * 1000)
    assert await committed(backend) == NOTHING


# -- warnings ------------------------------------------------------------------------------------------------------------


async def test_a_warning_is_answered_once_per_crossing(backend: Backend) -> None:
    await made(backend, USER, max_total_tokens=100, warn_at=80)
    await made(backend, ORG, max_total_tokens=1000, warn_at=80)
    assert await backend.budgets.reserve(reserving("a", tokens(90), USER, ORG)) == Admitted(), "an estimate warns nobody"
    assert await backend.budgets.close("acme", "a", Close.SETTLED, tokens(79)) == Closed(how=Close.SETTLED)
    await backend.budgets.reserve(reserving("b", tokens(5), USER, ORG))
    crossing = Closed(how=Close.SETTLED, crossed=(USER,))
    assert await backend.budgets.close("acme", "b", Close.SETTLED, tokens(1)) == crossing
    assert await backend.budgets.close("acme", "b", Close.SETTLED, tokens(1)) == crossing, "its answer may have been lost"
    assert (await spend(backend, "c", 1)).crossed == ()
    await made(backend, USER, max_total_tokens=1000, warn_at=80)
    assert (await spend(backend, "d", 1)).crossed == ()
    assert (await spend(backend, "e", 730)).crossed == (USER,), "that is another crossing"
    await made(backend, ORG, max_total_tokens=100, warn_at=50)
    await made(backend, ORG, max_total_tokens=1000, warn_at=5)
    assert await backend.budgets.reserve(reserving("f", tokens(1), ORG)) == Admitted(crossed=(ORG,))


async def test_what_was_spent_in_a_window_that_moved_on_can_be_crossed_again(backend: Backend) -> None:
    await made(backend, max_picos=100, window_seconds=HOUR, warn_at=100)
    for n in range(2):
        await backend.budgets.reserve(reserving(f"a{n}", Amount(picos=100)))
        closed = await backend.budgets.close("acme", f"a{n}", Close.UNKNOWN)
        assert closed.crossed == (USER,)
        await backend.age_budgets(2 * HOUR * 1000)


# -- who waits -----------------------------------------------------------------------------------------------------------


async def test_R35_whoever_was_refused_is_found_until_they_try_again_or_are_over(backend: Backend) -> None:
    await made(backend, USER, max_total_tokens=10, on_exhausted=OnExhausted.SUSPEND)
    await made(backend, ORG, max_total_tokens=10)
    for n in range(5):
        assert isinstance(await backend.budgets.reserve(reserving(f"w{n}", tokens(11), USER, tenant="acme")), Refused)
    assert isinstance(await backend.budgets.reserve(reserving("stopped", tokens(11), ORG)), Refused)
    assert await backend.budgets.waiting("acme", ORG, after=None, limit=10) == []

    async def ids(after: str | None = None, limit: int = 10) -> Sequence[str]:
        return [waiter.id for waiter in await backend.budgets.waiting("acme", USER, after=after, limit=limit)]

    assert await ids(limit=2) == ["w0", "w1"]
    assert await ids(after="w1", limit=2) == ["w2", "w3"]
    assert await backend.budgets.close("acme", "w0", Close.RELEASED) == Closed(how=Close.RELEASED)
    assert isinstance(await backend.budgets.reserve(reserving("w1.2", tokens(11), instead_of="w1")), Refused)
    assert await backend.budgets.reserve(reserving("w2.2", tokens(1), instead_of="w2")) == Admitted()
    assert await ids() == ["w1.2", "w3", "w4"]


async def test_R35_whoever_waits_although_the_terms_were_set_since_is_overlooked(backend: Backend) -> None:
    for tenant in ("acme", "other"):
        await made(backend, USER, tenant=tenant, max_total_tokens=10, on_exhausted=OnExhausted.SUSPEND)
    await made(backend, ORG, max_total_tokens=10, on_exhausted=OnExhausted.SUSPEND)
    await next_millisecond(backend.store)
    for id, key, tenant in (("a", USER, "acme"), ("b", ORG, "acme"), ("c", USER, "acme"), ("a", USER, "other")):
        assert isinstance(await backend.budgets.reserve(reserving(id, tokens(11), key, tenant=tenant)), Refused)
    await spend(backend, "d", 1)
    assert await backend.budgets.overlooked(after=None, limit=10) == [], "using a budget sets no terms"
    await next_millisecond(backend.store)
    await backend.budgets.put("acme", USER, Terms(max_total_tokens=1000), '{"by":"key-1"}')
    await backend.budgets.change("other", USER, lambda terms: terms, None)
    a, c, others = [
        Overlooked(tenant=tenant, key=USER, changed_by=by, waiter=Waiter(id=id, holder=f"run-of-{id}"))
        for tenant, id, by in (("acme", "a", '{"by":"key-1"}'), ("acme", "c", '{"by":"key-1"}'), ("other", "a", None))
    ]
    assert await backend.budgets.overlooked(after=None, limit=10) == [a, c, others]
    assert await backend.budgets.overlooked(after=None, limit=1) == [a]
    assert await backend.budgets.overlooked(after=("acme", "a"), limit=2) == [c, others]
    await next_millisecond(backend.store)
    assert isinstance(await backend.budgets.reserve(reserving("a.2", tokens(1001), instead_of="a")), Refused)
    assert await backend.budgets.close("acme", "c", Close.RELEASED) == Closed(how=Close.RELEASED)
    assert await backend.budgets.overlooked(after=None, limit=10) == [others], "whoever asked again knows the terms"


# -- pruning -------------------------------------------------------------------------------------------------------------


async def test_R45_what_is_over_is_pruned_and_nothing_else(backend: Backend) -> None:
    await made(backend, USER, max_total_tokens=100, on_exhausted=OnExhausted.SUSPEND)
    await made(backend, ORG, max_total_tokens=1)
    await spend(backend, "settled", 10)
    await backend.budgets.reserve(reserving("open", tokens(10)))
    await backend.budgets.reserve(reserving("waits", tokens(1000)))
    await backend.budgets.reserve(reserving("refused", tokens(1000), ORG))
    now = await backend.store.now()
    assert await backend.budgets.prune_reservations(made_before=now - HOUR * 1000, limit=10) == 0
    assert await backend.budgets.prune(used_before=now - HOUR * 1000, limit=10) == 0
    await backend.age_budgets(2 * HOUR * 1000)
    assert await backend.budgets.prune_reservations(made_before=now + 10**12, limit=1) == 1
    assert await backend.budgets.prune_reservations(made_before=now + 10**12, limit=10) == 1
    assert await backend.budgets.prune(used_before=now - HOUR * 1000, limit=10) == 1
    assert await backend.budgets.get("acme", ORG) is None, "nothing was reserved on it"
    assert await committed(backend) == tokens(20)
    assert [waiter.id for waiter in await backend.budgets.waiting("acme", USER, after=None, limit=10)] == ["waits"]
    assert await backend.budgets.close("acme", "open", Close.SETTLED, tokens(5)) == Closed(how=Close.SETTLED)


async def test_R46_text_that_not_every_database_keeps_is_refused(backend: Backend) -> None:
    for key in ("a\0b", "a\ud800b"):
        with pytest.raises(ValueError, match=r"."):
            await backend.budgets.put("acme", key, Terms(), None)
        with pytest.raises(ValueError, match=r"."):
            await backend.budgets.reserve(reserving("a", tokens(1), key))


# -- races ---------------------------------------------------------------------------------------------------------------


async def test_R34_whoever_races_never_gets_a_budget_past_its_bound(backend: Backend) -> None:
    """Keys are named in any order: locked in an order of their own, nobody waits for somebody who waits for them."""
    await made(backend, USER, max_total_tokens=100)
    await made(backend, ORG, max_total_tokens=70)
    keys = [(USER, ORG), (ORG, USER), (ORG,), (USER,)]
    answers = await asyncio.gather(*(backend.budgets.reserve(reserving(f"r{n}", tokens(10), *keys[n % 4])) for n in range(32)))
    admitted = [keys[n % 4] for n, answer in enumerate(answers) if isinstance(answer, Admitted)]
    for key, bound in ((USER, 100), (ORG, 70)):
        count = sum(key in named for named in admitted)
        assert await committed(backend, key) == tokens(10 * count)
        assert 10 * count <= bound
    assert sum(ORG in named for named in admitted) == 7
