"""How a run begins."""

from __future__ import annotations

from collections.abc import Sequence

from runward.core.messages import Message
from runward.core.runs import budget, frames
from runward.core.runs.budget import with_plan
from runward.core.runs.emitted import Emitted
from runward.core.runs.ledger import CallTerms, Plan
from runward.core.runs.limits import Limits
from runward.core.runs.shared import SharedBudgets
from runward.core.runs.state import OutputTerms, Phase, Reservation, RunState
from runward.core.values import replace


def begin(
    *,
    uid: str,
    agent: str,
    created_at: int,
    limits: Limits,
    model: str | None,
    messages: Sequence[Message],
    fallbacks: Sequence[str] = (),
    outputs: OutputTerms | None = None,
    loops: bool = True,
    start_at: int | None = None,
    guards_input: bool = False,
    terms: CallTerms | None = None,
    overhead: int = 0,
    budgets: Sequence[str] = (),
) -> tuple[RunState, Emitted]:
    """A new run: its state with step 1's reservation (the first leg corrects it before the call), its first frame, its input.

    `model` is None where the agent chooses it in the first leg. `outputs`: the answer has a type; without a loop of tool calls, the first
    turn gives it (R27). `guards_input`: the agent's guardrails look at the input first, and it enters the transcript as they leave it.
    `terms` is what is known of its model calls, `overhead` how many tokens every prompt is besides its messages.
    `budgets` are the keys of those that it spends from together with other runs.
    """
    numbered = () if guards_input else as_input(messages)
    phase = Phase.FINALIZING if outputs is not None and not loops else Phase.LOOP
    run = RunState(
        uid=uid,
        agent=agent,
        created_at=created_at,
        start_at=start_at,
        limits=limits,
        model=model,
        fallbacks=tuple(fallbacks),
        outputs=outputs,
        phase=phase,
        messages=len(numbered),
        input_unguarded=guards_input,
        prompt_tokens=overhead,
        shared=SharedBudgets(keys=tuple(budgets)) if budgets else None,
        rates=terms.rates if terms is not None and limits.max_cost_usd is not None else {},
    )
    prompt = budget.prompt_of(budget.heard(run, messages))
    made = budget.planned(run if terms is None else replace(run, terms=terms), prompt)
    marker = Reservation(step=1, attempt=1, leg=0)
    marker = with_plan(marker, made) if isinstance(made, Plan) else replace(marker, prompt=prompt)
    run = replace(budget.heard(run, numbered), reservation=marker)
    return run, Emitted(frames=(frames.start(agent),), messages=numbered)


def as_input(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Messages as the first ones of a transcript."""
    return tuple(message.model_copy(update={"seq": seq, "step": None}) for seq, message in enumerate(messages, 1))
