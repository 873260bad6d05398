"""How long an answer may be: what the run's bounds leave for it, told to the provider with the request (R33)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runward.core.messages import Message
from runward.core.runs import budget
from runward.core.runs.budget import Refusal
from runward.core.runs.state import RunState
from runward.engine.outputs import Asked


class TooLittleLeft(Exception):
    """The request takes more than is left, now that it is there. `prompt` is how many tokens it is estimated at."""

    def __init__(self, prompt: int) -> None:
        super().__init__()
        self.prompt = prompt


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many tokens an answer may have, None for as many as the provider gives; `cut`: fewer than were asked for."""

    output_tokens: int | None
    cut: bool = False


def allowance(run: RunState, asked: Asked, messages: Sequence[Message], wanted: int | None) -> Allowance:
    """What the model call in hand may use. As long as no provider has counted the prompt, it is counted here: instructions that a function
    gives are known only now. Raises TooLittleLeft, also where budgets that the run shares have admitted a shorter prompt: it asks again."""
    reservation = run.reservation
    if reservation is None or not budget.bounded(run):
        return Allowance(wanted)
    if run.usage.total_tokens and any(message.step for message in messages):
        return Allowance(reservation.output, reservation.cut)
    tools = sum(len(tool.name) + len(tool.description) + budget.size_of(tool.parameters) for tool in asked.tools)
    prompt = budget.tokens_of(len(asked.instructions) + tools + sum(map(budget.characters_of, messages)))
    made = budget.planned(run, prompt)
    if isinstance(made, Refusal) or (run.shared is not None and prompt > reservation.prompt and reservation.attempt == 1):
        raise TooLittleLeft(prompt)
    return Allowance(min(made.output, reservation.output), made.cut or reservation.cut)
