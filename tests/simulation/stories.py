"""Golden stories: short runs with one right ending, which use every kind of call and of input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from runward.core.budgets import OnExhausted, Terms
from tests.simulation.agents import AGENT, PRIMARY, TYPED, Manners, Turn
from tests.simulation.tools import arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Story(Manners):
    """`turns` are the model's, by step; `tools`, `probes` and `models` say which attempts of which call or step go wrong, and how.

    `people`: somebody answers whatever the run waits for; `verdict` is what they decide, None for nothing. `budget` is one that the run
    spends from. What is done to the run besides, cancel, hold, release, rebind or raise, is in `hands`, by seconds. `told`: the model is
    told of an effect that nobody knows it happened, and goes on. `agent`: whose run it is; `verdicts` are its verifier's, in order, the
    last one for ever; `down` are models that always fail.
    """

    name: str
    turns: Sequence[Turn]
    tools: Mapping[tuple[str, int], str] = field(default_factory=dict)
    probes: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[tuple[int, int], str] = field(default_factory=dict)
    people: bool = False
    told: bool = False
    verdict: Mapping[str, Any] | None = field(default_factory=lambda: {"approved": True})
    hands: Mapping[float, str] = field(default_factory=dict)
    budget: Terms | None = None
    agent: str = AGENT
    verdicts: Sequence[str] = ("verified",)
    down: Sequence[str] = ()
    ending: str = "completed"
    effects: int = 0
    """How many effects happen when nothing goes wrong."""

    projection_fails = 0.0

    def tool(self, run_id: str, call_id: str, attempt: int, chance: Random) -> str:
        return self.tools.get((call_id, attempt), "")

    def probe(self, run_id: str, call_id: str, attempt: int, chance: Random) -> str:
        return self.probes.get(call_id, "")

    def model(self, run_id: str, step: int, attempt: int, chance: Random) -> Turn:
        turn = self.turns[step - 1]
        fails = self.models.get((step, attempt))
        return turn if fails is None else Turn(words=turn.words, pace=turn.pace, says=turn.says, fails=fails)

    answer = model

    def is_down(self, run_id: str, model: str, chance: Random) -> bool:
        return model in self.down

    def judges(self, run_id: str, number: int, chance: Random) -> str:
        return self.verdicts[min(number, len(self.verdicts)) - 1]

    @property
    def exact(self) -> bool:
        """Whether the ending is the same whatever happens: somebody answers, or no effect is in it that may not be repeated."""
        return self.people or self.name in (
            *("text", "read", "tool-retries", "checkpoint", "asks-a-model", "timer", "expires", "expiry-stops"),
            *("typed", "repaired", "fails-over", "fails-over-typed"),
            *(each.name for each in BUDGETS),
        )


def asks(*names: str) -> Turn:
    """A turn that asks for tools."""
    return Turn(words=1, calls=tuple((name, _arguments(name, number)) for number, name in enumerate(names)), finish="tool_calls")


def _arguments(name: str, number: int) -> str:
    return arguments(name, Random(0)) if name in ("ask_user", "ask_soon", "durable_wait") else f'{{"n": {number}}}'


def says(text: str) -> Turn:
    """A turn that says exactly this."""
    return Turn(pace=0.02, says=text)


TEXT = Turn(words=3, pace=0.02)
ANSWERS = tuple(says(f'{{"n": {number}}}') for number in range(5))
UNKNOWN = {("1.1", 1): "cannot tell"}
WAITS = Terms(max_total_tokens=1_000, on_exhausted=OnExhausted.SUSPEND)
VANISHED = {("1.1", 1): "vanishes"}

PLAIN = (
    Story(name="text", turns=(TEXT,)),
    Story(name="read", turns=(asks("look"), TEXT), effects=1),
    Story(name="every-effect", turns=(asks("look", "put", "pay", "run_it"), TEXT), effects=4),
    Story(name="tool-retries", turns=(asks("put"), TEXT), tools={("1.1", 1): "breaks after", ("1.1", 2): "hangs"}, effects=3),
    Story(name="model-retries", turns=(asks("pay"), TEXT), models={(1, 1): "at once", (2, 1): "at once"}, effects=1),
    Story(
        name="cancel-in-tool", turns=(asks("look", "pay"),), tools={("1.2", 1): "hangs"}, hands={0.3: "cancel"}, ending="stopped", effects=2
    ),
    Story(name="cancel-in-model", turns=(Turn(words=50, pace=0.1),), hands={0.4: "cancel"}, ending="stopped"),
    Story(name="projection", turns=(asks("ship", "report"), TEXT), effects=2),
    Story(name="told-unknown", turns=(asks("post"), TEXT), tools=UNKNOWN, effects=1),
    Story(name="waits", turns=(asks("pay", "look"), TEXT), tools=UNKNOWN, ending="suspended", effects=2),
    Story(name="checkpoint", turns=(asks("look"), TEXT), tools={("1.1", 1): "saves"}, effects=1),
    Story(name="asks-a-model", turns=(asks("look"), TEXT), tools={("1.1", 1): "asks"}, effects=1),
)

PEOPLE = (
    Story(name="approved", turns=(asks("refund", "look"), TEXT), people=True, effects=2),
    Story(name="edited", turns=(asks("wire"), TEXT), people=True, verdict={"approved": True, "edited_arguments": {"n": 8}}, effects=1),
    Story(name="denied", turns=(asks("refund", "put", "refund"), TEXT), people=True, effects=1, verdict={"approved": False}),
    Story(name="expires", turns=(asks("wire", "look"), TEXT), verdict=None, effects=1),
    Story(name="expiry-stops", turns=(asks("launch"),), verdict=None, ending="stopped"),
    Story(name="cancel-gated", turns=(asks("refund", "fetch"),), hands={0.3: "cancel"}, ending="stopped"),
    Story(name="asked-anew", turns=(asks("wire"), TEXT), people=True, hands={0.08: "hold", 0.4: "rebind", 0.6: "release"}, effects=1),
    Story(name="mixed", turns=(asks("fetch", "ask_user", "durable_wait", "look", "refund"), TEXT), people=True, effects=2),
    Story(name="timer", turns=(asks("durable_wait"), TEXT)),
    Story(name="needs-input", turns=(asks("look", "enlist"), TEXT), people=True, effects=2),
    Story(name="held", turns=(asks("look", "pay"), asks("pay"), TEXT), hands={0.03: "hold", 1.0: "release"}, people=True, effects=3),
    Story(name="tried-again", turns=(asks("pay"), TEXT), models={(2, 1): "midway"}, people=True, effects=1),
)

UNKNOWNS = (
    Story(name="probe-finds", turns=(asks("charge"), TEXT), tools=UNKNOWN, people=True, effects=1),
    Story(name="probe-misses", turns=(asks("bill"), TEXT), tools=VANISHED, people=True, effects=1),
    Story(name="probe-fails", turns=(asks("charge"), TEXT), tools=UNKNOWN, probes={"1.1": "raises"}, people=True, effects=1),
    Story(name="reconciled", turns=(asks("pay"), TEXT), tools=UNKNOWN, people=True, effects=1),
    Story(name="run-again", turns=(asks("refund"), TEXT), tools=VANISHED, probes={"1.1": "cannot tell"}, people=True, effects=1),
    Story(name="proven", turns=(asks("transfer"), TEXT), tools=UNKNOWN, people=True, effects=1),
    Story(name="settled-late", turns=(asks("post"), TEXT), tools=UNKNOWN, people=True, effects=1, told=True),
)

BUDGETS = (
    Story(name="budget", turns=(asks("look"), TEXT), budget=Terms(max_total_tokens=100_000, warn_at=1), effects=1),
    Story(name="budget-raised", turns=(asks("look"), TEXT), budget=WAITS, hands={1.0: "raise"}, effects=1),
    Story(name="budget-stops", turns=(asks("look"), TEXT), budget=Terms(max_total_tokens=1_000), ending="stopped"),
    Story(name="budget-cancelled", turns=(TEXT,), budget=WAITS, hands={0.3: "cancel"}, ending="stopped"),
    Story(name="budget-held", turns=(TEXT,), budget=WAITS, hands={0.3: "hold", 0.6: "raise", 1.0: "release"}),
    Story(name="budget-retries", turns=(asks("look"), TEXT), budget=Terms(), models={(1, 1): "at once", (2, 1): "at once"}, effects=1),
    Story(name="budget-tried-again", turns=(asks("look"), TEXT), budget=Terms(), models={(2, 1): "midway"}, people=True, effects=1),
)

TYPES = (
    Story(name="typed", agent=TYPED, turns=(asks("look"), TEXT, says('{"n": 1}')), effects=1),
    Story(name="repaired", agent=TYPED, turns=(TEXT, says("nope"), says('{"n": "1"}'), says('{"n": 1}'))),
    Story(name="beyond-repair", agent=TYPED, turns=(TEXT, says("no"), says("no"), says("no"), says('{"n": 1}')), ending="stopped"),
    Story(name="rejected", agent=TYPED, turns=(TEXT, *ANSWERS), verdicts=("rejected", "verified")),
    Story(name="never-right", agent=TYPED, turns=(TEXT, *ANSWERS), verdicts=("rejected",), ending="stopped"),
    Story(name="unsure", agent=TYPED, turns=(TEXT, *ANSWERS), verdicts=("raises",), ending="stopped"),
    Story(name="slow", agent=TYPED, turns=(TEXT, *ANSWERS), verdicts=("hangs",), ending="stopped"),
    Story(
        name="cancelled-while-verified", agent=TYPED, turns=(TEXT, *ANSWERS), verdicts=("hangs",), hands={0.4: "cancel"}, ending="stopped"
    ),
    Story(name="fails-over", turns=(asks("pay"), TEXT), down=(PRIMARY,), people=True, effects=1),
    Story(
        name="fails-over-typed",
        agent=TYPED,
        turns=(asks("look"), TEXT, says('{"n": 1}')),
        models={(3, 1): "at once"},
        down=(PRIMARY,),
        effects=1,
    ),
    Story(name="typed-again", agent=TYPED, turns=(TEXT, says('{"n": 1}')), models={(2, 1): "midway"}, people=True),
)

STORIES = (*PLAIN, *PEOPLE, *UNKNOWNS, *BUDGETS, *TYPES)
