"""Guardrails on a run's input and on its answer: what they have not seen is neither stored as a message nor shown."""

from __future__ import annotations

from typing import Final

from runward.core.kernel.actor import Status
from runward.core.runs import budget, frames
from runward.core.runs.begin import as_input
from runward.core.runs.emitted import NOTHING, Emitted
from runward.core.runs.endings import Applied
from runward.core.runs.facts import Guarded, InputGuarded
from runward.core.runs.state import Answer, Ending, Phase, RunState, StopReason
from runward.core.runs.turns import guardrails_said
from runward.core.usage import Usage
from runward.core.values import replace

CUT_SHORT: Final = {"length": StopReason.LENGTH, "content_filter": StopReason.CONTENT_FILTER, "refusal": StopReason.REFUSAL}
"""How a run stops whose model was cut off or refused."""


def input_guarded(run: RunState, fact: InputGuarded) -> Applied:
    """The guardrails have let the input pass, as they left it, or it goes no further: then no model sees it, and the run stops (R10)."""
    if not run.input_unguarded:
        return run, NOTHING
    run, said = replace(run, input_unguarded=False), guardrails_said(fact.guarded)
    if fact.messages is None:
        return replace(run, ending=stopped(StopReason.GUARDRAIL_INPUT, fact.guarded)), said
    messages = as_input(fact.messages)
    run = replace(run, messages=len(messages))
    return budget.replanned(run, budget.prompt_of(budget.heard(run, messages))), said + Emitted(messages=messages)


def looks_at(run: RunState, answer: Answer) -> bool:
    """Whether an answer is the run's own, or stands in its place where the model was cut off: that is what guardrails on output look at. A
    typed answer is one that fits its schema."""
    cut_short = answer.finish in CUT_SHORT
    if run.outputs is None:
        return cut_short or not answer.calls
    fits = run.phase is Phase.FINALIZING and answer.complaint is None
    return fits and (not cut_short or answer.finish == "length")


def dropped(run: RunState) -> Applied:
    """An answer goes no further: its step ends without a message (R32). What it cost stays counted."""
    said = Emitted(frames=(frames.reset_step(run.step, run.attempt),))
    return replace(run, unguarded=None, finish_reason="", step_usage=Usage()), said


def stopped(reason: StopReason, guarded: tuple[Guarded, ...]) -> Ending:
    """How a run ends whose input or answer a guardrail has blocked."""
    blocked = next(each for each in reversed(guarded) if each.action == "block")
    details = {"hook": blocked.hook, "guardrail": blocked.name, "reason": blocked.reason or ""}
    return Ending(status=Status.STOPPED, reason=reason, details=details)
