"""The state of a run as stored text, and back (R41a)."""

from __future__ import annotations

from operator import is_

from pydantic import TypeAdapter

from runward.core.runs.calls import Call
from runward.core.runs.state import RunState
from runward.core.values import replace

_STATE: TypeAdapter[RunState] = TypeAdapter(RunState)
_OF_THE_LEG = {"leg", "worker", "binding", "reopened", "caretaker", "draining", "hurried", "guards_output", "terms"}


def encode(run: RunState) -> str:
    """The state as JSON text. Left out: defaults, the leg's own fields, and what the receipts keep."""
    bare = tuple(map(_bare, run.turn))
    stored = run if all(map(is_, bare, run.turn)) else replace(run, turn=bare)
    return _STATE.dump_json(stored, exclude_defaults=True, exclude=_OF_THE_LEG).decode()


def decode(text: str) -> RunState:
    """The state from its text. Raises ValueError when it is not one this version reads."""
    return _STATE.validate_json(text)


def _bare(call: Call) -> Call:
    if call.raw is None and call.result is None and call.checkpoint is None and call.settled is None:
        return call
    return replace(call, raw=None, result=None, checkpoint=None, settled=None)
