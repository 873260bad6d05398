"""How a run begins."""

from __future__ import annotations

from collections.abc import Sequence

from runward.core.messages import Message
from runward.core.runs import frames
from runward.core.runs.emitted import Emitted
from runward.core.runs.limits import Limits
from runward.core.runs.state import Reservation, RunState
from runward.core.values import replace


def begin(
    *, uid: str, agent: str, created_at: int, limits: Limits, model: str | None, messages: Sequence[Message]
) -> tuple[RunState, Emitted]:
    """A new run: its state with step 1's reservation (the first leg corrects it before the call), its first frame, its input.

    `model` is None where the agent chooses it in the first leg.
    """
    numbered = tuple(message.model_copy(update={"seq": seq, "step": None}) for seq, message in enumerate(messages, 1))
    run = RunState(uid=uid, agent=agent, created_at=created_at, limits=limits, model=model, messages=len(numbered))
    run = replace(run, reservation=Reservation(step=1, attempt=1, leg=0))
    return run, Emitted(frames=(frames.start(agent),), messages=numbered)
