"""What a run's model calls cost, as whole numbers: tokens, and dollars in units of 10^-12. Totals by model, never a list of calls (R33)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from runward.core.usage import Usage
from runward.core.values import replace

PICOS = 10**12
"""A dollar in picodollars."""
MOST_MODELS = 32
"""A run's calls of further models are counted together."""
OTHERS = "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """So many tokens, and so many picodollars."""

    tokens: int = 0
    picos: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(tokens=self.tokens + other.tokens, picos=self.picos + other.picos)

    @property
    def usd(self) -> str:
        """The dollars as a plain decimal text: "0", "0.001234"."""
        whole, rest = divmod(self.picos, PICOS)
        return f"{whole}.{rest:012d}".rstrip("0") if rest else str(whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a model call may use: what its prompt is estimated at, how long its answer may be, in tokens, and what both may cost. `cut`: the
    answer may be less long than asked for, because of what is left."""

    prompt: int
    output: int
    picos: int = 0
    cut: bool = False

    @property
    def amount(self) -> Amount:
        """What is reserved for it."""
        return Amount(tokens=self.prompt + self.output, picos=self.picos)


def picos_of(usd: str) -> int:
    """A decimal text in dollars as picodollars; what is finer than that is cut off."""
    return int(Decimal(usd) * PICOS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What a token costs, in picodollars, where the prompt has more than `above` tokens."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    above: int = 0


Rates = tuple[Rate, ...]
"""A model's rates, by `above`, the first for every prompt."""


def rate_for(rates: Rates, prompt: int) -> Rate:
    """The rate that holds for a prompt of so many tokens."""
    return next((rate for rate in reversed(rates) if prompt > rate.above), rates[0])


def cost_of(rates: Rates, usage: Usage) -> int:
    """What a call cost, in picodollars."""
    rate = rate_for(rates, usage.input_tokens)
    fresh = max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens)
    cached = usage.cache_read_tokens * rate.cache_read + usage.cache_write_tokens * rate.cache_write
    return fresh * rate.input + cached + usage.output_tokens * rate.output


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTerms:
    """What a leg knows of the run's model calls: how long an answer may be, None where its author does not say, and what models cost."""

    max_output_tokens: int | None = None
    rates: Mapping[str, Rates] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The calls of one model. `unknown` may have been spent; `unpriced` counts the calls whose dollars nobody knows."""

    model: str
    usage: Usage = field(default_factory=Usage)
    spent: Amount = field(default_factory=Amount)
    unknown: Amount = field(default_factory=Amount)
    unpriced: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What became of every reservation: spent, or nobody knows."""

    accounts: tuple[Account, ...] = ()

    @property
    def spent(self) -> Amount:
        return sum((account.spent for account in self.accounts), Amount())

    @property
    def unknown(self) -> Amount:
        return sum((account.unknown for account in self.accounts), Amount())

    @property
    def unpriced(self) -> int:
        return sum(account.unpriced for account in self.accounts)

    def settled(self, model: str, usage: Usage, rates: Rates | None, reserved: Amount) -> Ledger:
        """A call gave an answer: its usage is spent. Where the provider did not say what it used, its reservation may have been."""
        if not usage.total_tokens:
            return self.lost(model, reserved, priced=rates is not None)
        spent = Amount(tokens=usage.total_tokens, picos=0 if rates is None else cost_of(rates, usage))
        return self._with(Account(model=model, usage=replace(usage, model_calls=1), spent=spent, unpriced=int(rates is None)))

    def lost(self, model: str, reserved: Amount, *, priced: bool) -> Ledger:
        """Nobody knows what a call cost: what was reserved for it may have been spent."""
        return self._with(Account(model=model, usage=Usage(model_calls=1), unknown=reserved, unpriced=int(not priced)))

    def released(self, model: str) -> Ledger:
        """A call was sent, and its provider does not bill it."""
        return self._with(Account(model=model, usage=Usage(model_calls=1)))

    def _with(self, call: Account) -> Ledger:
        known = {account.model for account in self.accounts}
        if call.model not in known and len(known) >= MOST_MODELS:
            call = replace(call, model=OTHERS)
        if call.model not in known:
            return Ledger(accounts=(*self.accounts, call))
        return Ledger(accounts=tuple(_plus(account, call) if account.model == call.model else account for account in self.accounts))


def _plus(account: Account, call: Account) -> Account:
    return Account(
        model=account.model,
        usage=account.usage.plus(call.usage),
        spent=account.spent + call.spent,
        unknown=account.unknown + call.unknown,
        unpriced=account.unpriced + call.unpriced,
    )
