"""The typed answers of simulated runs: how models give them, what verifiers say, and the watch over both and over fail-over (R27-R31)."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import orjson

from runward.agents.contexts import RunContext
from runward.agents.output import Output, Verdict
from runward.core.runs import codec
from runward.core.runs.state import Phase, RunState
from runward.ports.models import ModelRequest
from runward.stores.memory.database import Rows
from tests.simulation.tools import here

if TYPE_CHECKING:
    from tests.simulation.watch import Watch
    from tests.simulation.world import World

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
GOOD = tuple(f'{{"n": {number}}}' for number in range(4))
BAD = ("nope", '{"n": "one"}', '{"m": 1}', '{"n": 1', "")
VERDICTS = (*["rejected"] * 8, "inconclusive", "raises", "hangs", "nothing")
"""What verifiers say when they do not verify."""
PATIENCE = 4.0
"""How long a verifier, or a model, has, in virtual seconds."""


def answer_of(chance: Random) -> str:
    """The text of a typed answer, which fits more often than not."""
    return chance.choice(GOOD if chance.random() < 0.7 else BAD)


def verdict_of(chance: Random) -> str:
    return "verified" if chance.random() < 0.5 else chance.choice(VERDICTS)


async def verify(candidate: Any, ctx: RunContext[Any, Any]) -> Any:
    """The verifier of all typed runs: it says whatever chance says, and may take its time."""
    process = here()
    number = process.world.watch.typed.verifies(ctx.run_id, candidate)
    chance = process.world.chance_of(ctx.run_id, "verifier", number)
    said = process.world.manners.judges(ctx.run_id, number, chance)
    await process.clock.sleep(chance.choice((0, 0, 0.01, 0.5)))
    if said == "hangs":
        await process.clock.sleep(1_000)
    if said == "raises":
        raise RuntimeError("broken")
    process.world.watch.typed.says(ctx.run_id, candidate, said)
    match said:
        case "verified":
            return Verdict.verified()
        case "rejected":
            return Verdict.rejected(f"verdict {number} says no")
        case "inconclusive":
            return Verdict.inconclusive("who knows")
        case _:
            return None


OUTPUT = Output(schema=SCHEMA, verify=verify)


class Typed:
    """The watch over typed answers and over the models that are asked. `verified` are the candidates that a verifier found right."""

    def __init__(self, world: World, watch: Watch) -> None:
        self._world = world
        self._watch = watch
        self._begun: Counter[str] = Counter()
        self._verified: dict[str, list[Any]] = defaultdict(list)
        self._unsure: Counter[str] = Counter()
        self._failed: dict[tuple[str, int, int], bool] = {}
        """Attempts of model calls that failed, by run, step and number: whether before the first content, and for a cause that may pass."""
        self.seen: Counter[str] = Counter()
        """How often what happened: a world in which something never does proves nothing about it."""

    def _check(self, kept: bool, promise: str, what: str) -> None:
        self._watch.check(kept, promise, what)

    # -- models ------------------------------------------------------------------------------------------------------------

    def asks(self, rows: Rows, model: str, request: ModelRequest, where: str) -> None:
        """A model is asked."""
        run = codec.decode(rows.envelope.state)
        gone = [failover.source for failover in run.failovers]
        self._check(
            model == run.model and model not in gone, "R31 a model that failed is not asked again", f"{where}: {model} after {gone}"
        )
        typed = run.phase is Phase.FINALIZING
        self._check((request.output_schema is not None) is typed, "R27 the typed answer has a turn of its own", f"{where}: {run.phase}")
        self._check(not typed or request.tool_choice == "none", "R27 no tool may be called in it", f"{where}: {request.tool_choice}")
        left = run.output_attempts < run.limits.max_output_attempts
        self._check(not typed or left, "R28 no answer is asked for beyond the bound", f"{where}: {run.output_attempts}")

    def fails(self, uid: str, step: int, attempt: int, *, replaceable: bool) -> None:
        """An attempt fails; `replaceable`: before its first content, for a cause that may pass."""
        self._failed[uid, step, attempt] = replaceable

    def committed(self, before: RunState, run: RunState, uid: str, leg: int, where: str) -> None:
        """What of it a commit may change."""
        self._check(run.failovers[: len(before.failovers)] == before.failovers, "R31 a fail-over stays recorded", where)
        attempt = before.reservation
        own = attempt is not None and (attempt.leg or 1) == leg  # nobody ever hears how an attempt of a leg that died ended
        failed = self._failed.get((uid, attempt.step, attempt.attempt)) if attempt is not None and own else None
        for failover in run.failovers[len(before.failovers) :]:
            self.seen[f"failover: {failover.code}"] += 1
            meant = failed is True or (failed is None and failover.code == "circuit_open")
            self._check(meant, "R31 only what failed before its first content is replaced", f"{where}: {failover}")
        open_now = run.reservation
        goes_on = open_now is not None and attempt is not None and (open_now.step, open_now.attempt) == (attempt.step, attempt.attempt)
        if failed is False and not goes_on:
            self.seen["failed for good, or after content"] += 1
            ends = run.ending is not None or run.status.ended
            self._check(ends, "R30 what broke off is not tried again by itself", f"{where}: {run.reservation} after {attempt}")
        spent = (run.output_attempts, run.verify_attempts)
        within = run.output_attempts <= run.limits.max_output_attempts and run.verify_attempts <= run.limits.max_verify_attempts
        self._check(within, "R28 attempts are bounded", f"{where}: {spent}")
        self._check(run.verify_attempts >= before.verify_attempts, "R29 attempts stay counted", f"{where}: {spent}")
        accepted = run.status.value == "completed" or (run.ending is not None and run.ending.status.value == "completed")
        self._check(
            run.output is None or accepted, "R9 only what is accepted is shown", where
        )  # budgets may have to be told before the end

    # -- verifiers -----------------------------------------------------------------------------------------------------------

    def verifies(self, run_id: str, candidate: Any) -> int:
        """A verifier begins; the number of its attempt. Also one whose worker has lost the run without having heard of it: then its
        attempt was counted all the same."""
        uid = self._world.database.public_ids.get(("default", run_id), "")
        self._begun[uid] += 1
        rows = self._world.database.actors.get(uid)
        if rows is not None:
            counted = codec.decode(rows.envelope.state).verify_attempts
            self._check(
                self._begun[uid] <= counted, "R29 an attempt is counted before it begins", f"{run_id}: {self._begun[uid]} of {counted}"
            )
            self._check(candidate in self._answers(rows), "R28 what is verified is what was answered", f"{run_id}: {candidate}")
        return self._begun[uid]

    def says(self, run_id: str, candidate: Any, said: str) -> None:
        """What a verifier is about to say."""
        uid = self._world.database.public_ids.get(("default", run_id), "")
        self.seen[f"verdict: {said}"] += 1
        if said == "verified":
            self._verified[uid].append(candidate)

    # -- the end of a run ------------------------------------------------------------------------------------------------------

    def over(self, rows: Rows, where: str) -> None:
        """A run is over, or waits for good."""
        run, uid = codec.decode(rows.envelope.state), rows.envelope.uid
        if run.outputs is None or run.status.value != "completed":
            self._check(run.output is None, "R9 only a completed run has an answer", f"{where}: {run.output}")
            reason = rows.envelope.stop_reason
            if reason == "output_attempts_exhausted":
                self._check(run.output_attempts == run.limits.max_output_attempts, "R28 attempts are used up first", where)
            if reason == "verification_attempts_exhausted":
                self._check(run.verify_attempts == run.limits.max_verify_attempts, "R28 attempts are used up first", where)
            self.seen[f"stopped: {reason}"] += run.outputs is not None
            return
        self.seen["completed"] += 1
        last = self._answers(rows)[-1:]
        self._check(last == [run.output], "R9 the answer is the last one", f"{where}: {run.output} where {last} was answered")
        if run.outputs.verifies:
            self._check(run.output in self._verified[uid], "R28 what is accepted was verified", f"{where}: {run.output}")
        self._told(rows, where)

    def _told(self, rows: Rows, where: str) -> None:
        """R28: of an answer that is none the model reads what is wrong, before it is asked again."""
        messages = [rows.messages[seq] for seq in sorted(rows.messages)]
        for message, following in pairwise(messages):
            pair = (message.role, following.role)
            self._check(pair != ("assistant", "assistant"), "R28 a failed answer is followed by what is wrong with it", where)

    def _answers(self, rows: Rows) -> list[Any]:
        """The typed answers in the transcript, as far as they are some."""
        texts = [_text(rows.messages[seq].content) for seq in sorted(rows.messages) if rows.messages[seq].role == "assistant"]
        return [value for value in map(_read, texts) if value is not None]


def _text(content: Any) -> str:
    return "".join(part["text"] for part in orjson.loads(content) if part["type"] == "text")


def _read(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("n"), int) and len(value) == 1 else None


def pieces(text: str) -> Sequence[str]:
    """A text in three pieces, as it is streamed."""
    third = len(text) // 3 + 1
    return [text[start : start + third] for start in range(0, len(text), third)]
