"""What model calls cost: reserved before, settled after, bounded (R33)."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from runward.core.kernel.actor import Status
from runward.core.kernel.mail import MailKind
from runward.core.messages import FilePart, Message, ToolCallPart, ToolResultPart
from runward.core.runs import budget, codec
from runward.core.runs.budget import DEFAULT_OUTPUT_TOKENS, LEAST_OUTPUT_TOKENS, characters_of, committed
from runward.core.runs.calls import How
from runward.core.runs.decide import CallModel, ChooseModel, Work
from runward.core.runs.facts import CallRefused, ModelChosen
from runward.core.runs.ledger import MOST_MODELS, OTHERS, PICOS, Amount, CallTerms, Ledger, Rate, cost_of, picos_of
from runward.core.runs.view import accounting, accounting_by_model
from runward.core.usage import Usage
from runward.core.values import replace as changed
from tests.unit.core.driving import RATES, Drive
from tests.unit.core.tooling import asked

PRICED = CallTerms(max_output_tokens=100, rates={"test:model": RATES})
CHEAP = Usage(input_tokens=10, output_tokens=5)


def begun(terms: CallTerms = PRICED, **limits: Any) -> Drive:
    """A run whose first model call is under way, or that has ended already."""
    drive = Drive(terms=terms, **limits).claim()
    drive.settle()
    return drive


def stopped(drive: Drive) -> dict[str, object]:
    """Why a run stopped for its budget."""
    run = drive.ended().run
    assert run.ended is not None and (run.status, run.ended.reason) == (Status.STOPPED, "budget_exceeded"), run
    return dict(run.ended.details)


# -- amounts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("picos", "usd"),
    [(0, "0"), (1_234_000_000, "0.001234"), (PICOS, "1"), (1, "0.000000000001"), (12 * PICOS + PICOS // 2, "12.5"), (100 * PICOS, "100")],
)
def test_dollars_are_shown_as_plain_decimals(picos: int, usd: str) -> None:
    assert Amount(picos=picos).usd == usd and picos_of(usd) == picos


@given_any(st.integers(0, 10**27))
def test_no_picodollar_is_lost_on_the_way(picos: int) -> None:
    text = Amount(picos=picos).usd
    assert "E" not in text and Decimal(text) * PICOS == picos == picos_of(text)


def test_what_is_cached_has_its_own_price_and_long_prompts_another() -> None:
    dear = Rate(input=20, output=200, cache_read=2, cache_write=25, above=1_000)
    rates = (Rate(input=10, output=100, cache_read=1, cache_write=12), dear)
    assert cost_of(rates, Usage(input_tokens=1_000, output_tokens=3, cache_read_tokens=500, cache_write_tokens=100)) == (
        400 * 10 + 500 * 1 + 100 * 12 + 3 * 100
    )
    assert cost_of(rates, Usage(input_tokens=1_001, output_tokens=1)) == 1_001 * 20 + 200
    assert cost_of(rates, Usage(input_tokens=5, cache_read_tokens=9)) == 9, "a provider that counts oddly is owed nothing"


def test_what_a_message_is_estimated_at() -> None:
    call = ToolCallPart(tool_call_id="1.1", tool_name="look", arguments={"order": 7})
    result = ToolResultPart(
        tool_call_id="1.1", tool_name="look", output=["a" * 90, None], files=(FilePart(media_type="image/png", data="x" * 9**6),)
    )
    written = len(json.dumps({"order": 7}))
    assert 4 + written <= characters_of(Message(seq=1, role="assistant", content=(call,))) <= 4 + 2 * written
    assert 6_090 <= characters_of(Message(seq=1, role="tool", content=(result,))) <= 6_110, "how long a file is says nothing"


# -- a reservation and what becomes of it -------------------------------------------------------------------------------------


def test_R33_an_answer_settles_what_was_reserved_for_it() -> None:
    drive = begun()
    assert committed(drive.run) == Amount(tokens=2 + 100, picos=2 * 312_500 + 100 * 2_000_000)
    run = drive.answer("hi", usage=Usage(input_tokens=40, output_tokens=7, cache_read_tokens=30)).ended().run
    assert committed(run) == run.ledger.spent == Amount(tokens=47, picos=10 * 250_000 + 30 * 25_000 + 7 * 2_000_000)
    (account,) = accounting_by_model(run)["by_model"]
    assert (account["model"], account["usage"]["model_calls"], account["spent"]["usd"]) == ("test:model", 1, "0.00001725")


def test_R33_the_next_prompt_is_what_the_model_counted_and_what_came_since() -> None:
    drive = Drive(terms=PRICED).running("look")
    drive.ends("1.1", How.RETURNED)
    drive.settle()
    reservation = drive.run.reservation
    assert reservation is not None and reservation.prompt == 15 + 2, "15 tokens, and the two characters of a result with its quotes"
    assert drive.run.prompt_characters == 4


@pytest.mark.parametrize("billed", [True, False])
def test_R33_what_a_provider_does_not_bill_is_released_and_else_nobody_knows(billed: bool) -> None:
    drive = begun()
    reserved = budget.reserved(drive.run)
    drive.fails(billed=billed)
    assert drive.run.ledger.unknown == (reserved if billed else Amount()) and drive.run.ledger.spent == Amount()
    assert drive.run.ledger.accounts[0].usage == Usage(model_calls=1)


def test_R33_what_had_begun_to_answer_may_be_billed_whatever_is_said() -> None:
    drive = begun()
    reserved = budget.reserved(drive.run)
    assert drive.fails(after_content=True, billed=False).run.ledger.unknown == reserved


@pytest.mark.parametrize("started", [True, False])
def test_R33_a_call_broken_off_is_unknown_if_it_had_started(started: bool) -> None:
    drive = begun()
    reserved = budget.reserved(drive.run)
    drive.gets()
    drive.settle()
    run = drive.broken_off(started=started).ended().run
    assert run.ledger.unknown == (reserved if started else Amount()) and budget.reserved(run) == Amount()


def test_R33_a_call_lost_with_its_worker_stays_unknown() -> None:
    drive = begun()
    reserved = budget.reserved(drive.run)
    drive.crash()
    assert drive.run.ledger.unknown == reserved
    drive.settle()
    assert committed(drive.run) == reserved + budget.reserved(drive.run), "the next attempt is reserved beside it"
    assert drive.answer("hi", usage=CHEAP).ended().run.ledger.unknown == reserved


def test_R33_nobody_was_asked_before_the_model_was_chosen() -> None:
    drive = Drive(model=None, terms=PRICED).claim()
    assert drive.settle() == Work(start=(ChooseModel(),))
    drive.crash()
    assert drive.run.ledger == Ledger()


def test_R33_an_answer_without_usage_may_have_used_all_that_was_reserved() -> None:
    drive = begun()
    reserved = budget.reserved(drive.run)
    run = drive.answer("hi", usage=Usage()).ended().run
    assert run.ledger.unknown == reserved and run.ledger.spent == Amount()


def test_R33_without_a_price_tokens_count_and_calls_are_called_unpriced() -> None:
    run = begun(CallTerms()).answer("hi", usage=CHEAP).ended().run
    shown = accounting(run)
    assert (shown["spent"], shown["unpriced_calls"]) == ({"tokens": 15, "usd": "0"}, 1)


def test_R31_R33_each_model_has_its_own_account() -> None:
    drive = Drive(terms=CallTerms(rates={"test:model": RATES, "test:other": RATES}), model_retries=0)
    drive.run = changed(drive.run, fallbacks=("test:other",))
    drive._save()
    drive.claim()
    drive.settle()
    drive.fails(billed=True)
    drive.settle()
    run = drive.answer("hi", usage=CHEAP).ended().run
    assert [(account.model, account.spent.tokens, account.unknown.tokens > 0) for account in run.ledger.accounts] == [
        ("test:model", 0, True),
        ("test:other", 15, False),
    ]


def test_R7_the_state_does_not_grow_with_the_calls() -> None:
    """A ledger of 1,000 calls costs a commit no more than one of ten."""
    drive = Drive(max_steps=2_000, terms=PRICED)
    sizes = {}
    drive.claim()
    for step in range(1, 1_001):
        drive.settle()
        drive.answer("", asked("look"), usage=CHEAP)
        drive.settle()
        drive.screen()
        drive.settle()
        drive.ends(f"{step}.1", How.RETURNED)
        drive.settle()
        sizes[step] = len(codec.encode(drive.run))
    assert sizes[1_000] - sizes[10] < 64, "more digits, and nothing else"


def test_many_models_share_an_account() -> None:
    ledger = Ledger()
    for number in range(MOST_MODELS + 10):
        ledger = ledger.settled(f"test:{number}", CHEAP, RATES, Amount())
    assert len(ledger.accounts) == MOST_MODELS + 1 and ledger.accounts[-1].model == OTHERS
    assert ledger.spent.tokens == 15 * (MOST_MODELS + 10)


# -- bounds ---------------------------------------------------------------------------------------------------------------


def test_R33_a_run_that_cannot_afford_its_first_call_asks_nobody() -> None:
    drive = begun(max_total_tokens=1)
    details = stopped(drive)
    assert details == {"limit": "max_total_tokens", "bound_tokens": 1, "committed_tokens": 0, "needed_tokens": 2 + LEAST_OUTPUT_TOKENS}
    assert "start-step" not in drive.types() and drive.run.ledger == Ledger()


def test_R33_what_is_left_bounds_the_answer() -> None:
    drive = begun(max_total_tokens=60)
    reservation = drive.run.reservation
    assert reservation is not None and (reservation.prompt, reservation.output, reservation.cut) == (2, 58, True)
    assert committed(drive.run).tokens == 60


def test_R33_an_agent_that_does_not_say_how_long_answers_are_gets_the_default() -> None:
    drive = begun(CallTerms(), max_total_tokens=1_000_000)
    reservation = drive.run.reservation
    assert reservation is not None and (reservation.output, reservation.cut) == (DEFAULT_OUTPUT_TOKENS, False)


def test_R33_dollars_bound_the_answer_too() -> None:
    """Two tokens of prompt at most 0.000000625, and 30 of answer 0.00006."""
    drive = begun(max_cost_usd="0.000060625")
    reservation = drive.run.reservation
    assert reservation is not None and (reservation.output, reservation.cut) == (30, True)
    assert committed(drive.run).usd == "0.000060625"


def test_R33_the_next_call_is_not_made_when_too_little_is_left() -> None:
    drive = begun(max_total_tokens=130)
    drive.answer("", asked("look"), usage=Usage(input_tokens=60, output_tokens=4))
    drive.settle()
    drive.screen()
    drive.settle()
    drive.ends("1.1", How.RETURNED)
    details = stopped(drive)
    assert (details["limit"], details["committed_tokens"]) == ("max_total_tokens", 64)
    assert drive.results() == [("1.1", "ok")], "what ran is in the transcript"


def test_R33_an_answer_cut_off_by_the_budget_is_not_too_long() -> None:
    drive = begun(max_total_tokens=60).answer("half a", finish="length", usage=Usage(input_tokens=2, output_tokens=58))
    assert stopped(drive)["committed_tokens"] == 60 and drive.run.text == "half a"
    run = begun(max_total_tokens=60_000).answer("half a", finish="length", usage=CHEAP).ended().run
    assert run.ended is not None and run.ended.reason == "length", "its agent wanted no more"


def test_R33_what_is_unknown_counts_against_the_bound() -> None:
    drive = begun(max_total_tokens=190)
    drive.crash()
    drive.settle()
    reservation = drive.run.reservation
    assert reservation is not None and (reservation.output, reservation.cut) == (190 - 102 - 2, True)


def test_R33_a_prompt_that_turns_out_longer_is_not_sent() -> None:
    drive = begun(max_total_tokens=60)
    drive.apply(CallRefused(at=drive.at, step=1, attempt=1, prompt=50))
    assert stopped(drive)["needed_tokens"] == 50 + LEAST_OUTPUT_TOKENS
    assert drive.run.ledger == Ledger() and drive.run.usage.model_calls == 0


def test_R35_a_bound_that_is_raised_meanwhile_lets_the_run_go_on() -> None:
    drive = begun(max_total_tokens=60).gets(MailKind.LIMITS, {"limits": {"max_total_tokens": 500}})
    drive.apply(CallRefused(at=drive.at, step=1, attempt=1, prompt=50))
    assert drive.settle() == Work(start=(CallModel(1, 2),))


def test_R35_a_parked_run_can_be_given_more_before_it_goes_on() -> None:
    drive = begun(max_total_tokens=130).gets(MailKind.HOLD, {}, by="ops")
    drive.answer("", asked("look"), usage=Usage(input_tokens=60, output_tokens=64))
    drive.settle()
    drive.claim().gets(MailKind.LIMITS, {"limits": {"max_total_tokens": 1_000}})
    drive.gets(MailKind.RELEASE)
    drive.settle()
    drive.screen()
    drive.settle()
    drive.ends("1.1", How.RETURNED)
    assert drive.settle() == Work(start=(CallModel(2, 1),))


def test_R33_prices_are_recorded_where_dollars_bound_the_run() -> None:
    """What is deployed later does not change what a run may spend."""
    drive = begun(max_cost_usd="1")
    dearer = replace(RATES[0], input=10**9)
    drive.terms = CallTerms(rates={"test:model": (dearer,)})
    drive.crash()
    assert drive.run.rates == {"test:model": RATES} == codec.decode(codec.encode(drive.run)).rates
    drive.settle()
    assert drive.answer("hi", usage=CHEAP).ended().run.ledger.spent.picos == 10 * 250_000 + 5 * 2_000_000
    assert begun().run.rates == {}


def test_R33_a_chosen_model_without_a_price_fails_a_run_bound_in_dollars() -> None:
    drive = Drive(model=None, max_cost_usd="1", terms=CallTerms()).claim()
    drive.settle()
    drive.apply(ModelChosen(at=drive.at, model="test:free"))
    assert drive.settle() == Work(stop=(CallModel(1, 1),))
    run = drive.broken_off(started=False).ended().run
    assert run.ended is not None and run.ended.failure is not None
    assert (run.status, run.ended.failure.code, run.ended.failure.transient) == (Status.FAILED, "unpriced_model", False)


def test_R33_a_chosen_model_is_reserved_at_its_price() -> None:
    drive = Drive(model=None, max_cost_usd="1", terms=CallTerms()).claim()
    drive.settle()
    drive.apply(ModelChosen(at=drive.at, model="test:model", rates=RATES))
    assert drive.settle() == Work(start=(CallModel(1, 1),))
    assert budget.reserved(drive.run).picos == 2 * 312_500 + DEFAULT_OUTPUT_TOKENS * 2_000_000
    assert drive.run.rates == {"test:model": RATES}


def test_no_dollars_are_on_the_stream() -> None:
    drive = begun(max_cost_usd="0.000060625").answer("half", finish="length", usage=CHEAP)
    assert stopped(drive)["limit"] == "max_cost_usd"
    assert all(word not in json.dumps([dict(frame.fields) for frame in drive.frames]) for word in ('"usd"', "0.00", "accounting", "picos"))


@pytest.mark.parametrize(("limits", "told"), [({"max_total_tokens": 5_000}, True), ({}, False)])
def test_R33_what_a_worker_reserves_otherwise_than_was_stored_has_to_be_stored_before_the_call(limits: dict[str, Any], told: bool) -> None:
    """It knows of longer answers than whoever created the run: dying in the call, it would leave too little counted."""
    drive = Drive(terms=PRICED, **limits)
    drive.terms = changed(PRICED, max_output_tokens=200)
    stored = drive.run
    drive.claim()
    assert budget.reserved(drive.run).tokens == budget.reserved(stored).tokens + 100
    assert budget.only_the_state_tells(stored, drive.run) is told
    assert not budget.only_the_state_tells(drive.run, drive.run)
