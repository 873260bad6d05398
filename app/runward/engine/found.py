"""Finds the run that a caller means, and reads its state where this version can (R41a)."""

from __future__ import annotations

from runward.core.errors import Conflict, NotFound, Unavailable
from runward.core.kernel.actor import FORMAT, Envelope
from runward.core.runs import codec
from runward.core.runs.state import KIND, RunState
from runward.engine.callers import Caller
from runward.engine.services import Services


async def run_of(services: Services, caller: Caller, run_id: str) -> Envelope:
    """Raises NotFound for what is not there, not in the caller's scope, or not what the caller's token is for: the same answer (R43).

    A run's id is unique in its tenant. Raises Conflict where an operator names one that several tenants have: none of them is meant.
    """
    if caller.reads is None and len(await services.reads.tenants_with(KIND, run_id)) > 1:
        raise Conflict("Several tenants have a run of this id. Say whose you mean: ?tenant=<name>", code="ambiguous_run")
    row = await services.reads.find(KIND, caller.reads, run_id)
    if row is None or not caller.reaches(row.uid):
        raise NotFound("There is no such run.")
    return row


def readable(row: Envelope) -> RunState | None:
    """The run's state; None where a newer version wrote it: then its columns are all that this one knows."""
    return codec.decode(row.state) if row.format <= FORMAT else None


def state_of(row: Envelope) -> RunState:
    """The run's state, for whoever has to decide by it. Raises Unavailable where a newer version wrote it."""
    run = readable(row)
    if run is None:
        raise Unavailable("A newer version of the service wrote this run's state. Ask a process of that version.")
    return run
