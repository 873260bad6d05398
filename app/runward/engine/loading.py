"""How a leg begins: with the run as it is stored, and the fact that somebody took it."""

from __future__ import annotations

from runward.core.kernel.actor import Envelope
from runward.core.kernel.commit import Claimed
from runward.core.runs import codec
from runward.core.runs.facts import LegStarted
from runward.core.runs.ledger import CallTerms
from runward.core.runs.receipts import with_results
from runward.core.runs.state import RunState
from runward.engine.hold import Hold
from runward.engine.patience import patiently
from runward.engine.performer import Performer
from runward.engine.services import Services


async def loaded(row: Envelope, services: Services, hold: Hold) -> RunState | None:
    """The run, with what its calls returned, were answered or saved, which is on their receipts. None when nobody can read its state.

    Raises LeaseLost.
    """
    try:
        run = codec.decode(row.state)
    except ValueError as error:
        services.telemetry.problem("state_unreadable", error, uid=row.uid)
        return None
    if not any(call.attempt or not call.open for call in run.turn):
        return run
    receipts = await patiently(lambda: services.reads.receipts(row.uid, step=run.step), hold=hold, clock=services.clock)
    return with_results(run, receipts)


def leg_started(claimed: Claimed, run: RunState, performer: Performer | None, *, at: int, worker: str, max_recoveries: int) -> LegStarted:
    """The first fact of a leg. Without a performer it is a caretaker's."""
    row = claimed.envelope
    return LegStarted(
        at=at,
        leg=row.leg,
        worker=worker,
        binding=row.binding,
        reopened=run.status.ended and not row.status.ended,
        recovered=claimed.recovered,
        last_write_at=row.updated_at,
        exhausted=claimed.recovered and row.recoveries > max_recoveries,
        caretaker=performer is None,
        guards_output=performer is not None and performer.guards_output,
        terms=CallTerms() if performer is None else performer.terms(run),
    )
