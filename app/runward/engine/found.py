"""Finds the run that a caller means."""

from __future__ import annotations

from runward.core.errors import NotFound
from runward.core.kernel.actor import Envelope
from runward.core.runs.state import KIND
from runward.engine.callers import Caller
from runward.engine.services import Services


async def run_of(services: Services, caller: Caller, run_id: str) -> Envelope:
    """Raises NotFound for what is not there, not in the caller's scope, or not what the caller's token is for: the same answer (R43)."""
    row = await services.reads.find(KIND, caller.reads, run_id)
    if row is None or not caller.reaches(row.uid):
        raise NotFound("There is no such run.")
    return row
