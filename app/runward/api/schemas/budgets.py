"""Bodies and answers of budgets."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path
from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from runward.api.schemas.answers import Principal
from runward.api.schemas.requests import MAX_SECONDS
from runward.api.schemas.values import Body, View
from runward.api.schemas.views import AmountView
from runward.core.budgets import OnExhausted, Terms
from runward.core.ids import BUDGET_PATTERN
from runward.core.runs.ledger import picos_of
from runward.core.values import replace

MAX_TOKENS = 10**15

BudgetKey = Annotated[
    str, Path(pattern=BUDGET_PATTERN, description="The budget's key: whose it is, as the tenant calls them.", examples=["user:42"])
]
Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Usd = Annotated[str, Field(pattern=r"^([0-9]{1,6}(\.[0-9]{1,12})?|1000000(\.0{1,12})?)$")]
"""At most a million."""
Window = Annotated[int, Field(ge=1, le=MAX_SECONDS)]
Percentage = Annotated[int, Field(ge=1, le=100)]


class BudgetTerms(Body):
    """What a budget allows. What is left out, or null, bounds nothing."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"max_cost_usd": "25", "window_seconds": 86_400, "warn_at": 80, "on_exhausted": "suspend"},
                {"max_total_tokens": 2_000_000},
            ]
        }
    )

    max_total_tokens: Tokens | None = Field(default=None, description="Tokens, prompts and answers together.")
    max_cost_usd: Usd | None = Field(default=None, description="US dollars, as a decimal text; at most 12 places.")
    window_seconds: Window | None = Field(default=None, description="A rolling window; without it everything counts for good.")
    warn_at: Percentage | None = Field(default=None, description="Warn on the stream of the run that has spent so many per cent.")
    on_exhausted: Literal["stop", "suspend"] = Field(default="stop", description="What becomes of a run that asks for more.")

    @property
    def terms(self) -> Terms:
        return self.applied(Terms())

    def applied(self, terms: Terms) -> Terms:
        """Terms with what is given here in place of what they have."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        if "max_cost_usd" in values:
            usd = values.pop("max_cost_usd")
            values["max_picos"] = None if usd is None else picos_of(usd)
        if values.get("on_exhausted") is not None:
            values["on_exhausted"] = OnExhausted(values["on_exhausted"])
        return replace(terms, **values)


class BudgetChanges(BudgetTerms):
    """Which terms of a budget to change. What is left out stays, and null bounds nothing from now on."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_cost_usd": "50"}, {"warn_at": None}], "minProperties": 1})

    @model_validator(mode="after")
    def _something(self) -> BudgetChanges:
        if not self.model_fields_set:
            raise PydanticCustomError("nothing_named", "Name at least one of its terms.")
        return self


class RoomView(View):
    """What is left; null where nothing bounds it."""

    tokens: int | None
    usd: str | None


class BudgetView(View):
    """A budget. `committed` is all that counts against it: spent, reserved for calls under way, and spent as far as anybody knows.
    `resets_at` is when the next part of what is spent leaves the window."""

    key: str
    max_total_tokens: int | None
    max_cost_usd: str | None
    window_seconds: int | None
    warn_at: int | None
    on_exhausted: Literal["stop", "suspend"]
    spent: AmountView
    reserved: AmountView
    unknown: AmountView
    committed: AmountView
    remaining: RoomView
    resets_at: str | None
    created_at: str
    changed_at: str
    changed_by: Principal | None
