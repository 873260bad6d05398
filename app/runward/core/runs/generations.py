"""Model calls of the agent's own code (`ctx.generate`): reserved, settled and bounded like the run's own (R33)."""

from __future__ import annotations

from runward.core.budgets import Close
from runward.core.runs import budget, frames, sharing
from runward.core.runs.asking import GenerationAsked, GenerationEnded, HangUp
from runward.core.runs.budget import Refusal
from runward.core.runs.decide import due_ending
from runward.core.runs.emitted import NOTHING, Emitted
from runward.core.runs.state import Generation, RunState
from runward.core.usage import Usage
from runward.core.values import replace

Applied = tuple[RunState, Emitted]


def came(run: RunState, fact: GenerationAsked | GenerationEnded | HangUp) -> Applied:
    """Such a call is asked for, or over, or nobody waits for those under way any more."""
    match fact:
        case GenerationAsked():
            return _asked(run, fact)
        case GenerationEnded():
            return _ended(run, fact)
        case HangUp():
            return all_lost(run), NOTHING


def _asked(run: RunState, fact: GenerationAsked) -> Applied:
    """The call is reserved, beside all others. One that the run's bounds leave too little for is not, and ends the run at the next
    boundary: nothing that goes on is broken off for it. Nor is one of a run that is about to end."""
    if due_ending(run) is not None:
        return run, NOTHING
    if fact.rates is not None and budget.rates_of(run, fact.model) is None:
        run = replace(run, terms=replace(run.terms, rates={**run.terms.rates, fact.model: fact.rates}))
    rates = budget.rates_of(run, fact.model)
    made = budget.plan(run, prompt=fact.prompt, model=fact.model, rates=rates, wanted=fact.wanted)
    if isinstance(made, Refusal):
        return replace(run, spent_out=run.spent_out or made.ending), NOTHING
    generation = Generation(key=fact.key, model=fact.model, prompt=made.prompt, output=made.output, picos=made.picos, cut=made.cut)
    return replace(run, generations=(*run.generations, generation)), NOTHING


def _ended(run: RunState, fact: GenerationEnded) -> Applied:
    """What became of the call. One that was taken for lost already is settled once: as that (R33)."""
    generation = run.generation(fact.key)
    if generation is None:
        return run, NOTHING
    run = _without(run, generation)
    rates = budget.rates_of(run, generation.model)
    if fact.usage is None:
        if fact.billed:
            return _lost(run, generation), NOTHING
        run = sharing.over_beside(run, generation.key, Close.RELEASED)
        if fact.sent:
            return replace(run, ledger=run.ledger.released(generation.model), usage=run.usage.plus(Usage(model_calls=1))), NOTHING
        return run, NOTHING
    usage = replace(fact.usage, model_calls=1)
    ledger = run.ledger.settled(generation.model, usage, rates, generation.amount)
    run = sharing.settled_beside(run, generation.key, ledger)
    run = replace(run, ledger=ledger, usage=run.usage.plus(usage))
    if fact.cut_off and generation.cut:
        run = replace(run, spent_out=run.spent_out or budget.over_budget(run))
    return run, Emitted(frames=(frames.usage(usage, run.usage),))


def all_lost(run: RunState) -> RunState:
    """Nobody is going to say what became of the calls under way: their leg is over, or died."""
    for generation in run.generations:
        run = _lost(_without(run, generation), generation)
    return run


def _lost(run: RunState, generation: Generation) -> RunState:
    priced = generation.picos > 0 or budget.rates_of(run, generation.model) is not None
    ledger = run.ledger.lost(generation.model, generation.amount, priced=priced)
    run = sharing.over_beside(run, generation.key, Close.UNKNOWN)
    lost = run.lost_model_calls + 1
    return replace(run, ledger=ledger, usage=run.usage.plus(Usage(model_calls=1)), lost_model_calls=lost)


def _without(run: RunState, generation: Generation) -> RunState:
    return replace(run, generations=tuple(other for other in run.generations if other is not generation))
