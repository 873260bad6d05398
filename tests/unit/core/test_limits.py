"""Limits: valid or refused, and only ever tightened (R35)."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runward.core.errors import DefinitionError
from runward.core.runs.limits import Limits, TighterLimits, is_amount

COUNTS = ("max_steps", "max_output_attempts", "max_verify_attempts")
SECONDS = ("timeout_seconds", "expires_seconds")
TIGHTENED = (*COUNTS, *SECONDS, "max_total_tokens", "max_cost_usd")

counts = st.integers(1, 50)
seconds = st.none() | st.floats(0.001, 10_000, allow_nan=False)
tokens = st.none() | st.integers(1, 10**6)
amounts = st.none() | st.decimals("0.01", "100", places=2).map(str)


def own(counts: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return dict.fromkeys(COUNTS, counts) | dict.fromkeys(SECONDS, seconds) | {"max_total_tokens": tokens, "max_cost_usd": amounts}


limits = st.builds(Limits, **own(counts))
requests = st.builds(TighterLimits, **own(st.none() | counts))


def bound(value: Any) -> Decimal:
    """A limit as a number; none is more than any."""
    return Decimal("Infinity") if value is None else Decimal(str(value))


@given(mine=limits, asked=requests)
def test_R35_a_request_only_tightens(mine: Limits, asked: TighterLimits) -> None:
    result = mine.tightened(asked)
    for name in TIGHTENED:
        wanted = min(bound(getattr(mine, name)), bound(getattr(asked, name)))
        assert bound(getattr(result, name)) == wanted, name
    untouched = ("model_timeout_seconds", "first_event_timeout_seconds", "chunk_timeout_seconds", "max_parallel_tools", "model_retries")
    assert all(getattr(result, name) == getattr(mine, name) for name in untouched)


@given(mine=limits, one=requests, other=requests)
def test_R35_asking_twice_is_asking_for_the_tighter_of_both(mine: Limits, one: TighterLimits, other: TighterLimits) -> None:
    first, second = mine.tightened(one).tightened(other), mine.tightened(other).tightened(one)
    assert all(bound(getattr(first, name)) == bound(getattr(second, name)) for name in TIGHTENED)
    assert mine.tightened(one).tightened(one) == mine.tightened(one)
    assert mine.tightened(TighterLimits()) == mine


@pytest.mark.parametrize(
    "bad",
    [
        *({name: value} for name in (*COUNTS, "max_parallel_tools", "max_total_tokens") for value in (0, -1)),
        *(
            {name: value}
            for name in (*SECONDS, "model_timeout_seconds", "first_event_timeout_seconds", "chunk_timeout_seconds")
            for value in (0, -1, float("nan"), float("inf"))
        ),
        {"model_retries": -1},
        *({"max_cost_usd": value} for value in ("0", "-1", "NaN", "Infinity", "lots", "", "1 $")),
    ],
    ids=str,
)
def test_R35_what_bounds_nothing_or_everything_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(bad))):
        Limits(**bad)


def test_R35_the_defaults_are_the_documented_ones() -> None:
    assert Limits() == Limits(
        max_steps=20,
        max_output_attempts=2,
        max_verify_attempts=2,
        timeout_seconds=None,
        expires_seconds=None,
        max_total_tokens=None,
        max_cost_usd=None,
        model_timeout_seconds=300,
        first_event_timeout_seconds=60,
        chunk_timeout_seconds=60,
        max_parallel_tools=8,
        model_retries=2,
    )


@pytest.mark.parametrize(("text", "amount"), [("0.50", True), ("1e-3", True), ("0", False), ("-1", False), ("sNaN", False), ("∞", False)])
def test_amounts_are_finite_decimals_above_zero(text: str, amount: bool) -> None:
    assert is_amount(text) is amount
