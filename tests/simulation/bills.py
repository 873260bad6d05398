"""What providers really bill, which no store and no engine knows, and the watch over what runs say of it (R33)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runward.core.kernel.actor import Envelope
from runward.core.runs import codec
from runward.core.runs.ledger import Amount, Rate, Rates, picos_of
from runward.core.runs.state import RunState
from runward.core.usage import Usage
from runward.ports.models import ModelRequest
from runward.stores.memory.database import Rows

if TYPE_CHECKING:
    from tests.simulation.watch import Watch

INPUT, OUTPUT = 1_000_000, 10_000_000
"""USD 1 and 10 for a million tokens, in picodollars a token."""
RATES: Rates = (Rate(input=INPUT, output=OUTPUT, cache_read=INPUT, cache_write=INPUT),)
PRICES: Mapping[str, Rates] = {"scripted:simulated": RATES, "scripted:fallback": RATES}


@dataclass(slots=True, kw_only=True)
class Bill:
    """A model call that was made. `reserved` is what its run had reserved for it, under its `key`: (step, attempt), or that of a call of
    author code. `used` is what its provider bills: nothing of a call that it turned down. `number` tells it apart: answers carry it as
    their `reasoning_tokens`, which cost nothing of their own."""

    number: int
    key: object
    reserved: Amount
    used: Amount = field(default_factory=Amount)

    @property
    def due(self) -> Amount:
        """As much of it as the run could know."""
        return Amount(tokens=min(self.used.tokens, self.reserved.tokens), picos=min(self.used.picos, self.reserved.picos))

    @property
    def beyond(self) -> Amount:
        """What the provider used beyond what it was allowed."""
        due = self.due
        return Amount(tokens=self.used.tokens - due.tokens, picos=self.used.picos - due.picos)

    def billed(self, used: Usage) -> Usage:
        """The provider bills so much for it; what it says of that."""
        self.used = Amount(tokens=used.input_tokens + used.output_tokens, picos=used.input_tokens * INPUT + used.output_tokens * OUTPUT)
        return Usage(input_tokens=used.input_tokens, output_tokens=used.output_tokens, reasoning_tokens=self.number)


class Bills:
    """Every model call of every run."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._numbers = 0
        self._bills: dict[str, list[Bill]] = defaultdict(list)
        self._reserved: dict[str, dict[object, tuple[Amount, int]]] = defaultdict(dict)
        """What was ever durably reserved in a run, and how much of it for the answer, by (step, attempt), and by key for calls of author
        code."""
        self._begun: dict[str, set[object]] = defaultdict(set)
        """The keys of the calls that were made."""
        self._told: dict[str, int] = defaultdict(int)
        """The tokens that the frames of a run say it has used, and the numbers of the calls they speak of."""
        self._settled: dict[str, set[int]] = defaultdict(set)

    # -- calls -------------------------------------------------------------------------------------------------------------

    def begins(self, uid: str, request: ModelRequest, where: str, *, admits: Callable[[str], bool] | None = None) -> Bill:
        """A model call is made. What is reserved for it is durable already. `admits`: budgets have admitted what this names."""
        found, allowed = self._reserved_for(uid, request, admits), request.settings.max_output_tokens
        self._watch.check(found is not None, "R33 the reservation is durable before the call", where)
        key, reserved, output = found or (None, Amount(), 0)
        self._watch.check(
            allowed is not None and allowed <= output, "R33 no more is allowed than is reserved", f"{where}: {allowed}, {found}"
        )
        self._numbers += 1
        bill = Bill(number=self._numbers, key=key, reserved=reserved)
        self._bills[uid].append(bill)
        return bill

    def _reserved_for(self, uid: str, request: ModelRequest, admits: Callable[[str], bool] | None) -> tuple[object, Amount, int] | None:
        known, begun = self._reserved[uid], self._begun[uid]
        key: object = (request.step, request.attempt)
        if request.purpose == "generate":
            size = -(-sum(len(message.text) for message in request.messages) // 3) + (request.settings.max_output_tokens or 0)
            alike = [key for key, (amount, _) in known.items() if isinstance(key, str) and amount.tokens == size]
            admitted = admits is None or any(admits(f"{uid}/{key}") for key in alike)
            key = next((key for key in alike if admitted and key not in begun), None)
        begun.add(key)
        return None if key not in known else (key, *known[key])

    @property
    def beyond(self) -> int:
        """The tokens that providers used beyond what they were allowed, of all runs."""
        return sum(bill.beyond.tokens for bills in self._bills.values() for bill in bills)

    # -- rows --------------------------------------------------------------------------------------------------------------

    def created(self, rows: Rows) -> None:
        self._note(rows.envelope.uid, codec.decode(rows.envelope.state))

    def _note(self, uid: str, run: RunState) -> None:
        known, own = self._reserved[uid], run.reservation
        if own is not None:
            known[own.step, own.attempt] = own.amount, own.output
        known.update({each.key: (each.amount, each.output) for each in run.generations if each.key not in known})

    def said(self, uid: str, frame: Mapping[str, Any]) -> Iterator[str]:
        """A usage frame: each answer counts once."""
        used, number = frame["usage"], frame["usage"]["reasoning_tokens"]
        if not used["total_tokens"]:
            return
        bill = next((bill for bill in self._bills[uid] if bill.number == number), None)
        if number in self._settled[uid]:
            yield f"call {number} counts twice"
        if bill is None or bill.used.tokens != used["total_tokens"]:
            yield f"{used} where {bill} is billed"
        self._settled[uid].add(number)
        self._told[uid] += used["total_tokens"]
        if self._told[uid] != frame["total_usage"]["total_tokens"]:
            yield f"{frame['total_usage']} where {self._told[uid]} tokens were told of"

    def committed(self, rows: Rows, where: str) -> None:
        """What the run says it has spent, or may have, is at least what it is billed, and keeps to its bounds but for what providers use
        beyond what they were allowed."""
        uid = rows.envelope.uid
        run, bills = codec.decode(rows.envelope.state), self._bills[rows.envelope.uid]
        self._note(uid, run)
        committed = _committed(run)
        due = sum((bill.due for bill in bills), Amount())
        beyond = sum((bill.beyond for bill in bills), Amount())
        check, what = self._watch.check, f"{where}: {committed} of {bills}, {run.ledger}"
        settled = [bill.key for bill in bills if bill.number in self._settled[uid]]
        own = None if run.reservation is None else (run.reservation.step, run.reservation.attempt)
        check(own not in settled, "R33 what is settled is not reserved any more", what)
        beside = sum(
            isinstance(key, str) for key in self._reserved[uid]
        )  # which of several calls beside each other it was, nobody can tell
        over = sum(isinstance(key, str) for key in settled)
        check(over + len(run.generations) <= beside, "R33 what is settled is not reserved any more", what)
        spent = sum(account.spent.tokens for account in run.ledger.accounts)
        check(spent == self._told[uid], "R33 what is spent is what was told", f"{what}: {self._told[uid]}")
        check(committed.tokens >= due.tokens and committed.picos >= due.picos, "R33 whatever may be billed is counted", what)
        if run.limits.max_total_tokens is not None:
            check(committed.tokens <= run.limits.max_total_tokens + beyond.tokens, "R33 tokens keep to their bound", what)
        if run.limits.max_cost_usd is not None:
            check(committed.picos <= picos_of(run.limits.max_cost_usd) + beyond.picos, "R33 dollars keep to their bound", what)

    def over(self, envelope: Envelope, where: str) -> None:
        """A run has ended: nothing is reserved any more."""
        run = codec.decode(envelope.state)
        kept = run.reservation is not None or run.generations
        self._watch.check(not (envelope.status.ended and kept), "R33 nothing stays reserved", f"{where}: {run}")


def _committed(run: RunState) -> Amount:
    """By the books alone: what is spent, unknown and reserved."""
    accounts = run.ledger.accounts
    own = [run.reservation.amount] if run.reservation is not None else []
    kept = [*(account.spent for account in accounts), *(account.unknown for account in accounts), *own]
    return sum((*kept, *(each.amount for each in run.generations)), Amount())
