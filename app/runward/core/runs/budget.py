"""How much a model call may use: reserved before it is made, and cut so that the provider itself keeps to the run's bounds (R33)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runward.core.kernel.actor import Status
from runward.core.messages import FilePart, Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from runward.core.runs.ledger import Amount, Plan, Rates, picos_of, rate_for
from runward.core.runs.state import Ending, Failure, Reservation, RunState, StopReason
from runward.core.usage import Usage
from runward.core.values import replace

CHARACTERS_PER_TOKEN = 3
"""Fewer than most texts have, so that an estimate is seldom too low."""
FILE_TOKENS = 2_000
"""What a file counts as: how long its text is says nothing."""
DEFAULT_OUTPUT_TOKENS = 4_096
"""How long an answer of a bounded run may be, where the agent does not say."""
LEAST_OUTPUT_TOKENS = 16
"""A call that has less left for its answer is not made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A call that may not be made, and how the run ends for it."""

    ending: Ending


def bounded(run: RunState) -> bool:
    """Whether anything bounds what the run spends, or somebody counts on an answer being no longer than what is reserved for it."""
    return run.limits.max_total_tokens is not None or run.limits.max_cost_usd is not None or run.shared is not None


def reserved(run: RunState) -> Amount:
    """What is reserved for calls that may be under way."""
    own = Amount() if run.reservation is None else run.reservation.amount
    return sum((generation.amount for generation in run.generations), own)


def committed(run: RunState) -> Amount:
    """Everything that the run has spent, may have spent, or is about to."""
    return run.ledger.spent + run.ledger.unknown + reserved(run)


def rates_of(run: RunState, model: str | None) -> Rates | None:
    """What a model costs: as it was recorded for this run, else as this worker knows it."""
    if model is None:
        return None
    return run.rates.get(model) or run.terms.rates.get(model)


def prompt_of(run: RunState) -> int:
    """How many tokens the next prompt is estimated at: those the model counted last, and what came since."""
    return run.prompt_tokens + tokens_of(run.prompt_characters)


def planned(run: RunState, prompt: int | None = None) -> Plan | Refusal:
    """The next call of the run's model: what it is reserved with, or why it is not made. `prompt` is for those who know better."""
    before = replace(run, reservation=None)
    return plan(
        before,
        prompt=prompt_of(run) if prompt is None else prompt,
        model=run.model,
        rates=rates_of(run, run.model),
        wanted=run.terms.max_output_tokens,
    )


def with_plan(reservation: Reservation, made: Plan) -> Reservation:
    """A reservation with what is reserved by it."""
    return replace(reservation, prompt=made.prompt, output=made.output, picos=made.picos, cut=made.cut)


def replanned(run: RunState, prompt: int | None = None) -> RunState:
    """The run that learned more about its next call, before that is made: what is reserved for it changes, or it is not made at all."""
    if run.reservation is None or not run.model_call_open:
        return run
    made = planned(run, prompt)
    if isinstance(made, Refusal):
        return replace(run, ending=run.ending or made.ending)
    return replace(run, reservation=with_plan(run.reservation, made))


def plan(run: RunState, *, prompt: int, model: str | None, rates: Rates | None, wanted: int | None) -> Plan | Refusal:
    """A call beside everything that the run has committed already."""
    limits, before, output = run.limits, committed(run), wanted or DEFAULT_OUTPUT_TOKENS
    whole = output
    if limits.max_total_tokens is not None:
        output = min(output, limits.max_total_tokens - before.tokens - prompt)
        if output < min(LEAST_OUTPUT_TOKENS, whole):
            return Refusal(ending=_over("max_total_tokens", limits.max_total_tokens, before, prompt))
    if limits.max_cost_usd is not None and model is not None:
        if rates is None:
            return Refusal(ending=_unpriced(model))
        output = min(output, _affordable(picos_of(limits.max_cost_usd) - before.picos, prompt, rates, whole))
        if output < min(LEAST_OUTPUT_TOKENS, whole):
            return Refusal(ending=_over("max_cost_usd", None, before, prompt))
    return Plan(prompt=prompt, output=output, picos=_price(rates, prompt, output), cut=output < whole)


def only_the_state_tells(before: RunState, run: RunState) -> bool:
    """Whether a fact changed what has to be durable before a model is called, though nothing is said of it: which model it is, and, where
    the run is bounded, what its call is reserved with."""
    return run.model != before.model or (bounded(run) and run.reservation is not None and reserved(run) != reserved(before))


def refusal(run: RunState) -> Ending | None:
    """How the run ends because its next call would go over its bounds, or one of its own code did; None when it may be made."""
    if run.spent_out is not None:
        return run.spent_out
    if not bounded(run):
        return None
    made = planned(run)
    return made.ending if isinstance(made, Refusal) else None


def over_budget(run: RunState) -> Ending:
    """How a run ends whose answer was cut off by what was left for it."""
    limit = "max_total_tokens" if run.limits.max_total_tokens is not None else "max_cost_usd"
    return _over(limit, run.limits.max_total_tokens, committed(run), None)


def heard(run: RunState, messages: Iterable[Message], usage: Usage | None = None) -> RunState:
    """The run with what the next prompt will hold besides: these messages were stored. An answer whose `usage` is known begins anew."""
    tokens, characters = run.prompt_tokens, run.prompt_characters
    for message in messages:
        if message.role == "assistant" and usage is not None and usage.total_tokens:
            tokens, characters = usage.total_tokens, 0
        else:
            characters += characters_of(message)
    return replace(run, prompt_tokens=tokens, prompt_characters=characters)


def tokens_of(characters: int) -> int:
    """How many tokens so many characters are estimated at, rounded up."""
    return -(-characters // CHARACTERS_PER_TOKEN)


def characters_of(message: Message) -> int:
    """How long a message is for a model."""
    size = 0
    for part in message.content:
        match part:
            case TextPart() | ReasoningPart():
                size += len(part.text)
            case ToolCallPart():
                size += len(part.tool_name) + size_of(part.arguments)
            case ToolResultPart():
                size += size_of(part.output) + len(part.files or ()) * FILE_TOKENS * CHARACTERS_PER_TOKEN
            case FilePart():
                size += FILE_TOKENS * CHARACTERS_PER_TOKEN
    return size


def size_of(value: Any) -> int:
    """About how many characters a JSON value has."""
    size, open_values = 0, [value]
    while open_values:
        each = open_values.pop()
        size += 2
        if isinstance(each, str):
            size += len(each)
        elif isinstance(each, Mapping):
            size += sum(map(len, each)) + 4 * len(each)
            open_values.extend(each.values())
        elif isinstance(each, list | tuple):
            open_values.extend(each)
        else:
            size += len(str(each))
    return size


def _affordable(left: int, prompt: int, rates: Rates, whole: int) -> int:
    """How long an answer may be for so many picodollars, its prompt included."""
    left -= _price(rates, prompt, 0)
    rate = rate_for(rates, prompt).output
    if left < 0:
        return -1
    return left // rate if rate else whole


def _price(rates: Rates | None, prompt: int, output: int) -> int:
    """What a call may cost at most: its prompt as if all of it were written to a cache, where that is dearer."""
    if rates is None:
        return 0
    rate = rate_for(rates, prompt)
    return prompt * max(rate.input, rate.cache_write) + output * rate.output


def _over(limit: str, bound: int | None, before: Amount, prompt: int | None) -> Ending:
    """What is said of it is seen by whoever follows the run: dollars are not."""
    details: dict[str, Any] = {"limit": limit, "committed_tokens": before.tokens}
    if bound is not None:
        details["bound_tokens"] = bound
    if prompt is not None:
        details["needed_tokens"] = prompt + LEAST_OUTPUT_TOKENS
    return Ending(status=Status.STOPPED, reason=StopReason.BUDGET_EXCEEDED, details=details)


def _unpriced(model: str) -> Ending:
    message = f"The run is bound by max_cost_usd, and nobody knows what {model} costs. RUNWARD_PRICES can say it."
    return Ending(status=Status.FAILED, failure=Failure(code="unpriced_model", message=message, details={"model": model}))
