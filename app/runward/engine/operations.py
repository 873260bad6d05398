"""What operators ask of runs: give them back, park them, cancel many at once. Each is checked, and durable when a method returns.

What they ask of processes and leases is in `oversight`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from runward.core.errors import Conflict, NotFound, Throttled, Unavailable
from runward.core.ids import canonical_json
from runward.core.kernel.actor import Envelope, Status
from runward.core.kernel.commit import Appended, HasEnded, InboxFull, KeyTaken
from runward.core.kernel.mail import Letter, MailKind, hold_key
from runward.core.runs.inputs import with_holds
from runward.core.runs.state import KIND
from runward.engine.callers import Caller, Permission
from runward.engine.commands import Commands
from runward.engine.found import run_of, state_of
from runward.engine.pages import cursor_of, mark_of, opened
from runward.engine.services import Services
from runward.ports.bus import Hint, Topic
from runward.ports.reads import ActorQuery, Order
from runward.ports.store import Append

MOST_TRIES = 16
"""How often a hold looks again because something else was faster."""
AT_ONCE = 8
"""How many runs of one request are written to at a time: it must not keep others from the store."""
_FINAL = (Status.COMPLETED, Status.STOPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAnswer:
    """`accepted`: the run will be given back, or parked. Else nobody drove it, and nothing was stored (R39)."""

    row: Envelope
    accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A run that one request for many could not do anything with, and the code of why."""

    run_id: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyCancelled:
    """What became of a request to cancel many. `next_cursor` is where the next page begins; None when this was the last."""

    matched: int
    accepted: int
    already_ended: int
    failed: Sequence[Failed]
    next_cursor: str | None


class Operations:
    """What operators ask of runs."""

    def __init__(self, services: Services, commands: Commands) -> None:
        self._services = services
        self._commands = commands

    async def drain_run(self, caller: Caller, run_id: str) -> DrainAnswer:
        """Asks the leg that drives a run to give it back at the next boundary (R39). Raises NotFound."""
        caller.require(Permission.RUNS_WRITE)
        row = await self._found(caller, run_id)
        leg = await self._services.store.ask_drain(row.uid)
        if leg is None:
            return DrainAnswer(row=await self._got(row.uid), accepted=False)
        self._services.bus.publish((Hint(Topic.MAIL, row.uid),))
        return DrainAnswer(row=await self._got(row.uid), accepted=True)

    async def hold_run(self, caller: Caller, run_id: str, reason: str | None) -> DrainAnswer:
        """Parks a run, whatever it is doing, at the next boundary; one that is parked stays so. Released by `Input.release_hold`.

        Raises NotFound, Conflict (`run_ended`) and Throttled.
        """
        caller.require(Permission.RUNS_WRITE)
        row = await self._found(caller, run_id)
        for _ in range(MOST_TRIES):
            held = with_holds(state_of(row), await self._services.reads.mail(row.uid, after=row.mail_applied, limit=None))
            if held.hold is not None and not row.status.ended:
                return DrainAnswer(row=row, accepted=True)
            data = canonical_json({"reason": reason} if reason is not None else {})
            letter = Letter(kind=MailKind.HOLD, key=hold_key(held.releases), data=data, principal=caller.principal)
            match await self._services.store.append_mail(Append(uid=row.uid, letters=(letter,), care=True)):
                case Appended():
                    self._services.bus.publish((Hint(Topic.MAIL, row.uid), Hint(Topic.READY, row.uid)))
                    return DrainAnswer(row=await self._got(row.uid), accepted=True)
                case KeyTaken():
                    row = await self._got(row.uid)
                case HasEnded():
                    raise Conflict("The run has ended: there is nothing to park.", code="run_ended")
                case InboxFull():
                    raise Throttled("The run's inbox is full. Try again once it has worked through it.")
                case _:
                    raise _no_such_run()
        raise Unavailable("The run changes faster than it could be parked. Send it again.")

    async def cancel_listed(
        self, caller: Caller, query: ActorQuery, cursor: str | None, reason: str | None, *, dry_run: bool
    ) -> ManyCancelled:
        """Cancels a page of the runs that a filter matches, newest first, and says what became of them. Those made after the first page was
        asked for are not among them. Raises Invalid for a cursor of another filter."""
        caller.require(Permission.RUNS_WRITE)
        mark = mark_of("cancel", caller.reads, replace(query, limit=0))
        query = replace(query, kind=KIND, scope=caller.reads, order=Order.NEWEST, after=None if cursor is None else opened(cursor, mark))
        rows = await self._services.reads.list(replace(query, limit=query.limit + 1))
        more, rows = len(rows) > query.limit, rows[: query.limit]
        following = cursor_of(mark, rows[-1].created_at, rows[-1].uid) if rows and more else None
        return replace(await self._cancel(caller, rows, reason, dry_run=dry_run), next_cursor=following)

    async def cancel_named(self, caller: Caller, run_ids: Sequence[str], reason: str | None, *, dry_run: bool) -> ManyCancelled:
        """The same for runs by their ids; those that are not there, or not the caller's, are not matched."""
        caller.require(Permission.RUNS_WRITE)
        rows: list[Envelope] = []
        for run_id in dict.fromkeys(run_ids):
            with suppress(NotFound):  # what is not there, or not the caller's, is not matched
                rows.append(await run_of(self._services, caller, run_id))
        return await self._cancel(caller, rows, reason, dry_run=dry_run)

    # -- parts -------------------------------------------------------------------------------------------------------------

    async def _cancel(self, caller: Caller, rows: Sequence[Envelope], reason: str | None, *, dry_run: bool) -> ManyCancelled:
        ended = [row for row in rows if row.status.ended and (dry_run or row.status in _FINAL)]
        wanted = [] if dry_run else [row for row in rows if row.status not in _FINAL]
        outcomes: list[str] = []
        for start in range(0, len(wanted), AT_ONCE):
            outcomes += await asyncio.gather(*(self._cancel_one(caller, row, reason) for row in wanted[start : start + AT_ONCE]))
        return ManyCancelled(
            matched=len(rows),
            accepted=outcomes.count("accepted"),
            already_ended=len(ended) + outcomes.count("run_ended"),
            failed=[
                Failed(run_id=row.public_id, code=code)
                for row, code in zip(wanted, outcomes, strict=True)
                if code not in ("accepted", "run_ended")
            ],
            next_cursor=None,
        )

    async def _cancel_one(self, caller: Caller, row: Envelope, reason: str | None) -> str:
        """`accepted`, or the code of why not."""
        match await self._commands.send_cancel(caller, row.uid, reason):
            case Appended() | KeyTaken():
                return "accepted"
            case HasEnded():
                return "run_ended"
            case _:
                return "not_found"

    async def _found(self, caller: Caller, run_id: str) -> Envelope:
        return await run_of(self._services, caller, run_id)

    async def _got(self, uid: str) -> Envelope:
        row = await self._services.reads.get(uid)
        if row is None:
            raise _no_such_run()
        return row


def _no_such_run() -> NotFound:
    return NotFound("There is no such run.")
