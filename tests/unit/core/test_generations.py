"""Model calls of the agent's own code, in the run's ledger: reserved, settled once, bounded (R33)."""

from __future__ import annotations

from typing import Any

import pytest

from runward.core.budgets import Close
from runward.core.kernel.actor import Status
from runward.core.kernel.mail import MailKind
from runward.core.runs import budget, codec
from runward.core.runs.asking import GenerationAsked, GenerationEnded
from runward.core.runs.calls import How
from runward.core.runs.decide import CallModel, CloseBudget, RunCall, Work
from runward.core.runs.facts import Broke, BudgetClosed
from runward.core.runs.ledger import Amount, CallTerms, Plan
from runward.core.runs.limits import Limits
from runward.core.runs.shared import SharedBudgets
from runward.core.usage import Usage
from runward.core.values import replace
from tests.unit.core.driving import RATES, Drive

TERMS = CallTerms(max_output_tokens=100, rates={"test:model": RATES})


def asks(drive: Drive, key: str = "g1", *, prompt: int = 10, **differing: Any) -> Drive:
    """The agent's code asks a model."""
    fact = GenerationAsked(at=drive.at, key=key, model="test:model", prompt=prompt, wanted=100)
    drive.apply(replace(fact, **differing))
    return drive


def told(drive: Drive, key: str = "g1", **differing: Any) -> Drive:
    fact = GenerationEnded(at=drive.at, key=key, usage=Usage(input_tokens=9, output_tokens=6))
    drive.apply(replace(fact, **differing))
    return drive


def working(**limits: Any) -> Drive:
    """A run whose tool is at work."""
    return Drive(terms=TERMS, **limits).running("look")


def test_R33_a_call_of_the_agents_code_is_reserved_and_settled() -> None:
    drive = asks(working())
    assert budget.reserved(drive.run) == Amount(tokens=110, picos=10 * 312_500 + 100 * 2_000_000)
    spent, calls = drive.run.ledger.spent, drive.run.usage.model_calls
    told(drive)
    assert drive.run.generations == () and budget.reserved(drive.run) == Amount()
    assert drive.run.ledger.spent.tokens == spent.tokens + 15 and drive.run.usage.model_calls == calls + 1
    assert drive.of("usage")[-1]["total_usage"]["total_tokens"] == drive.run.usage.total_tokens


def test_R33_it_is_settled_once() -> None:
    drive = told(told(asks(working())), usage=Usage(input_tokens=99))
    assert drive.run.ledger.spent.tokens == 15 + 15
    drive = told(asks(working()), "somebody else's")
    assert len(drive.run.generations) == 1


@pytest.mark.parametrize(("sent", "billed", "unknown"), [(True, True, 110), (True, False, 0), (False, False, 0)])
def test_R33_what_gave_no_answer_is_unknown_or_released(sent: bool, billed: bool, unknown: int) -> None:
    drive = told(asks(working()), usage=None, sent=sent, billed=billed)
    assert (drive.run.ledger.unknown.tokens, drive.run.usage.model_calls) == (unknown, 1 + sent)


def test_R33_what_a_leg_leaves_behind_is_unknown() -> None:
    drive = asks(working())
    drive.settle()
    assert codec.decode(codec.encode(drive.run)).generations == drive.run.generations
    drive.crash()
    assert (drive.run.generations, drive.run.ledger.unknown.tokens) == ((), 110)
    assert told(drive).run.ledger.unknown.tokens == 110, "what its code says later changes nothing"


def test_R33_what_a_run_leaves_behind_is_unknown() -> None:
    drive = asks(working()).gets()
    drive.settle()
    drive.ends("1.1", How.CANCELLED)
    run = drive.ended().run
    assert (run.generations, run.ledger.unknown.tokens) == ((), 110)
    assert told(asks(drive, "late")).run is run, "nobody asks a model for a run that has ended"


def test_R38_a_run_that_is_about_to_end_asks_no_model() -> None:
    drive = asks(working().gets())
    assert drive.run.cancel is not None and (drive.run.generations, drive.run.spent_out) == ((), None)


def test_R33_parallel_calls_share_the_bound() -> None:
    """15 are spent; two of 110 fit into 250, and a third one has 15 left."""
    drive = asks(asks(asks(working(max_total_tokens=250), "g1"), "g2"), "g3")
    assert [generation.key for generation in drive.run.generations] == ["g1", "g2"]
    assert budget.committed(drive.run).tokens == 15 + 110 + 110 <= 250
    assert drive.run.spent_out is not None and drive.settle() == Work(start=(RunCall("1.1", 1),)), "what goes on, goes on"
    told(told(drive, "g1"), "g2").ends("1.1", How.RETURNED)
    run = drive.ended().run
    assert run.ended is not None and (run.status, run.ended.reason) == (Status.STOPPED, "budget_exceeded")
    assert run.ended.details["committed_tokens"] == 235 and drive.results() == [("1.1", "ok")]


def test_R33_a_refused_call_does_not_have_its_tool_try_again() -> None:
    drive = asks(working(max_total_tokens=30))
    drive.ends("1.1", How.RAISED)
    run = drive.ended().run
    assert run.ended is not None and run.ended.reason == "budget_exceeded" and drive.receipts["1.1"].attempt == 1


def test_R33_code_that_breaks_over_a_refused_call_is_not_to_blame() -> None:
    drive = asks(working(max_total_tokens=30))
    drive.apply(Broke(at=drive.at, code="guardrail_failed", message="It failed.", details={}))
    drive.settle()
    assert drive.run.spent_out is not None
    drive.ends("1.1", How.NOT_STARTED)
    run = drive.ended().run
    assert run.ended is not None and run.ended.reason == "budget_exceeded" and run.spent_out is None


def test_R35_a_raise_lets_a_refused_run_go_on() -> None:
    drive = asks(working(max_total_tokens=30)).gets(MailKind.LIMITS, {"limits": {"max_total_tokens": 5_000}})
    drive.ends("1.1", How.RETURNED)
    assert drive.settle() == Work(start=(CallModel(2, 1),))


def test_R33_an_answer_cut_off_by_the_bound_stops_the_run() -> None:
    drive = asks(working(max_total_tokens=100))
    told(drive, cut_off=True, usage=Usage(input_tokens=10, output_tokens=75)).ends("1.1", How.RETURNED)
    run = drive.ended().run
    assert run.ended is not None and run.ended.reason == "budget_exceeded"
    free = told(asks(working(max_total_tokens=10_000)), cut_off=True)
    assert free.run.spent_out is None, "its author wanted no more"


def test_R33_a_model_without_a_price_is_not_asked_where_dollars_bound_the_run() -> None:
    drive = asks(working(max_cost_usd="1"), model="test:free")
    assert drive.run.generations == ()
    drive.ends("1.1", How.RETURNED)
    run = drive.ended().run
    assert run.ended is not None and run.ended.failure is not None and run.ended.failure.code == "unpriced_model"


def test_R33_each_model_of_the_agents_code_has_its_account() -> None:
    drive = told(asks(working(), model="test:other", rates=RATES))
    assert [account.model for account in drive.run.ledger.accounts] == ["test:model", "test:other"]
    assert drive.run.ledger.accounts[1].spent.picos == 9 * 250_000 + 6 * 2_000_000


def test_the_bounds_of_a_run_know_of_calls_under_way() -> None:
    run = replace(asks(working()).run, limits=Limits(max_total_tokens=15 + 110 + 20))
    made = budget.plan(run, prompt=4, model="test:model", rates=RATES, wanted=100)
    assert isinstance(made, Plan) and made.output == 16


# -- budgets that runs share -------------------------------------------------------------------------------------------------


def sharing_run() -> Drive:
    """A run with budgets, whose tool is at work and whose first call they know to be over."""
    drive = working()
    drive.run = replace(drive.run, shared=SharedBudgets(keys=("user:42",)))
    return drive


def closings(drive: Drive) -> list[tuple[str, Close, int]]:
    assert drive.run.shared is not None
    return [(each.id.rpartition("/")[2], each.how, each.amount.tokens) for each in drive.run.shared.closings]


def test_R34_budgets_are_told_what_became_of_each_call() -> None:
    drive = asks(asks(asks(asks(sharing_run(), "a"), "b"), "c"), "d")
    told(drive, "a")
    told(drive, "b", usage=None, billed=False)
    told(drive, "c", usage=None)
    told(drive, "d", usage=Usage())
    over = [("a", Close.SETTLED, 15), ("b", Close.RELEASED, 0), ("c", Close.UNKNOWN, 0), ("d", Close.UNKNOWN, 0)]
    assert closings(drive) == over


def test_R34_budgets_are_told_of_what_a_run_leaves_behind_before_it_ends() -> None:
    drive = asks(sharing_run()).gets()
    drive.settle()
    drive.ends("1.1", How.CANCELLED)
    assert drive.settle() == Work(start=(CloseBudget(f"{drive.run.uid}/g1"),))
    assert closings(drive) == [("g1", Close.UNKNOWN, 0)] and drive.run.generations == ()
    drive.apply(BudgetClosed(at=drive.at, id=f"{drive.run.uid}/g1"))
    assert drive.ended().run.ended is not None
