"""Stations 2 to 4 for a turn's proposed calls: what may run, with which arguments, and what is answered instead."""

from __future__ import annotations

import json
from collections.abc import Mapping

from runward.core.runs.calls import MAX_ARGUMENT_BYTES, MAX_CALLS_PER_TURN, Call, CallStage, Result, parse_arguments
from runward.core.runs.facts import Broke, Happening, Screened, Screening
from runward.core.runs.state import RunState
from runward.core.text import shorten
from runward.engine.timing import StoreTime
from runward.ports.tools import Tool

NAMES_SHOWN = 32
NAME_SHOWN = 128


class Screener:
    """Looks at every proposed call of the turn, all at once, before any of them starts."""

    def __init__(self, run: RunState, *, tools: Mapping[str, Tool], unsupported: Mapping[str, str], time: StoreTime) -> None:
        self._run = run
        self._tools = tools
        self._unsupported = unsupported
        self._time = time

    def stop(self) -> None:
        """Nothing to stop: it has no effect, and the next leg does it again."""

    async def outcome(self) -> Happening:
        at = self._time.now()
        proposed = [call for call in self._run.turn if call.stage is CallStage.PROPOSED]
        for call in proposed:
            if call.offered and call.name in self._unsupported:
                return Broke(at=at, code="internal", message=self._unsupported[call.name], details={"tool_name": call.name})
        return Screened(at=at, screenings=tuple(self._screening(call) for call in proposed))

    def _screening(self, call: Call) -> Screening:
        if call.position > MAX_CALLS_PER_TURN:
            return _refused(call, "blocked", f"Only the first {MAX_CALLS_PER_TURN} calls of one answer are run. Ask again for the others.")
        tool = self._tools.get(call.name)
        if tool is None or not call.offered:
            return _refused(call, "unknown_tool", self._unknown_tool(call.name))
        _, canonical = parse_arguments(call.arguments)
        if canonical is None:
            message = f"The arguments must be a JSON object of at most {MAX_ARGUMENT_BYTES // 1024} KiB."
            return Screening(call_id=call.id, traits=tool.traits, arguments="", refusal=_error("invalid_arguments", message))
        refusal = tool.refusal(json.loads(canonical))
        return Screening(
            call_id=call.id,
            traits=tool.traits,
            arguments=canonical,
            refusal=None if refusal is None else _error("invalid_arguments", refusal),
        )

    def _unknown_tool(self, name: str) -> str:
        known = sorted(self._tools)
        some = ", ".join(known[:NAMES_SHOWN]) + (", …" if len(known) > NAMES_SHOWN else "")
        return f"There is no tool named {shorten(name, NAME_SHOWN)!r}. " + (f"The tools are: {some}." if known else "There are no tools.")


def _refused(call: Call, outcome: str, message: str) -> Screening:
    return Screening(call_id=call.id, traits=None, arguments="", refusal=_error(outcome, message))


def _error(outcome: str, message: str) -> Result:
    return Result(output=message, is_error=True, outcome=outcome)
