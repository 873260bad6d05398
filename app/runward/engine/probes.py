"""Named fault points: places where a crash, a pause or a lost answer matters most. Off unless `RUNWARD_FAULTS` names them.

They are there for our own tests and for whoever wants to see the promises kept on a machine of theirs (docs/operating.md, "Faults on
purpose"). What is off costs one look at an attribute.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from runward.core.errors import DefinitionError, Unavailable
from runward.ports.clock import Chance, Clock
from runward.ports.telemetry import Telemetry

FAULT_EXIT_CODE = 71
"""What a process exits with at a point that says `exit`."""

WRITES: Mapping[str, str] = {
    "create": "a new run",
    "mail": "input for a run: a verdict, a result, an answer, a cancel",
    "claim": "a worker's claim, whether it takes runs or none",
    "frames": "frames between commits, such as text as it comes",
    "commit": "any commit of a leg; those below are kinds of it, and one commit may be of several",
    "answer": "a model's answer",
    "executing": "that a call starts: its effect follows",
    "executed": "what a tool returned, before the author's `to_model_output` sees it",
    "outcome": "the outcome of a call",
    "request": "a request for approval",
    "closing": "that the service itself closes a wait: an expiry, or what a probe found",
    "suspend": "that a run waits for somebody",
    "give_back": "that a run goes back to the queue, as in a drain",
    "end": "the end of a run",
}
"""What is written to the store. Each has a point `before_…` and a point `after_…`, the latter before anybody is told."""

PLACES: Mapping[str, str] = {
    "before_model": "a model is about to be called",
    "after_model": "the model has answered, and nothing of that is stored",
    "before_budget": "the budgets of a run are about to be asked; what is reserved is stored",
    "after_budget": "they have answered, and nothing of that is stored",
    "before_settle": "they are about to be told what a model call has cost",
    "before_effect": "a tool is about to be called; its receipt is stored",
    "after_effect": "the tool has returned or raised, and nothing of that is stored",
    "before_projection": "an executed call is about to be shown to its author's `to_model_output`",
    "before_probe": "a tool's probe is about to be asked about an unknown effect",
    "after_probe": "the probe has answered, and nothing of that is stored",
    "recovery": "a run was taken over from a dead worker and read, and its leg has done nothing yet",
    "draining": "a worker was told to stop, and has not begun to give its runs back",
}

_RULE = re.compile(r"(?P<point>\w+):(?P<action>[a-z]+)(=(?P<seconds>\d+(\.\d+)?))?(@((?P<nth>[1-9]\d*)|(?P<percent>\d+(\.\d+)?)%))?")


class Action(StrEnum):
    """What happens at a point."""

    KILL = "kill"
    """The process kills itself with SIGKILL."""
    EXIT = "exit"
    """The process exits at once, with `FAULT_EXIT_CODE` and without a drain."""
    STOP = "stop"
    """The process stops itself with SIGSTOP, until somebody sends it SIGCONT."""
    PAUSE = "pause"
    """Whoever is there waits; the rest of the process goes on."""
    RAISE = "raise"
    """The store is away: the write does not happen, or its answer is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """At every passage of a point, at the `nth` alone (counted from 1, since the process started), or at each with a `chance`."""

    point: str
    action: Action
    seconds: float = 0.0
    nth: int | None = None
    chance: float | None = None


def points() -> Mapping[str, str]:
    """Every point, and what is there."""
    written = {f"{when}_{name}": f"{when} this is stored: {what}" for name, what in WRITES.items() for when in ("before", "after")}
    return {**written, **PLACES}


def rules_of(text: str) -> Sequence[Rule]:
    """The rules of a setting: `point:action`, separated by commas. Raises DefinitionError, naming the rule that is none and why.

    `pause=5` names its seconds; `@2` means the second passage alone, `@10%` each with that probability, nothing every one::

        before_effect:kill@2,after_commit:pause=5,after_end:raise@10%
    """
    return [_rule(part.strip()) for part in text.split(",")]


def _rule(text: str) -> Rule:
    found = _RULE.fullmatch(text)
    if found is None:
        raise _malformed(text, "it is not point:action, as in before_effect:kill@2, after_commit:pause=5 or after_end:raise@10%")
    point, action = found["point"], found["action"]
    if point not in points():
        raise _malformed(text, f"there is no point {point!r}. The points are {', '.join(points())}")
    if action not in list(Action):
        raise _malformed(text, f"there is no action {action!r}. The actions are {', '.join(Action)}")
    if (action == Action.PAUSE) != (found["seconds"] is not None):
        raise _malformed(text, "a pause, and nothing else, names its seconds, as in pause=5")
    if action == Action.RAISE and point in PLACES:
        raise _malformed(text, "only a write can raise")
    if found["percent"] is not None and float(found["percent"]) > 100:
        raise _malformed(text, "a probability is at most 100%")
    return Rule(
        point=point,
        action=Action(action),
        seconds=float(found["seconds"] or 0),
        nth=int(found["nth"]) if found["nth"] else None,
        chance=float(found["percent"]) / 100 if found["percent"] else None,
    )


def _malformed(text: str, why: str) -> DefinitionError:
    return DefinitionError(f"RUNWARD_FAULTS: {text!r} cannot be done: {why}.")


def end_process(action: Action) -> None:
    """Ends or stops this process, here and now."""
    match action:
        case Action.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Action.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        case _:
            os._exit(FAULT_EXIT_CODE)


class FaultPoints:
    """The points of one process, with rules for some of them. Says loudly that it is on, and what it is about to do."""

    def __init__(
        self,
        rules: Sequence[Rule],
        *,
        clock: Clock,
        chance: Chance,
        telemetry: Telemetry,
        end: Callable[[Action], None] = end_process,
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._chance = chance
        self._telemetry = telemetry
        self._end = end
        self._passages = Counter[str]()
        telemetry.problem("faults_on", points=sorted({rule.point for rule in rules}))

    async def reach(self, *names: str) -> None:
        """Somebody comes to a point, or to one place with several names. Raises Unavailable where a rule says so."""
        for name in names:
            self._passages[name] += 1
            for rule in self._rules:
                if rule.point == name and self._is_due(rule):
                    await self._do(rule)

    def _is_due(self, rule: Rule) -> bool:
        if rule.chance is not None:
            return self._chance.jitter() < rule.chance
        return rule.nth in (None, self._passages[rule.point])

    async def _do(self, rule: Rule) -> None:
        self._telemetry.problem("fault", point=rule.point, action=str(rule.action), passage=self._passages[rule.point])
        match rule.action:
            case Action.PAUSE:
                await self._clock.sleep(rule.seconds)
            case Action.RAISE:
                raise Unavailable("RUNWARD_FAULTS says so.")
            case _:
                self._end(rule.action)
