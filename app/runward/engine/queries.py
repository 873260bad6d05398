"""What a caller may read. Scopes are part of every query (R43); nothing private is shown."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from runward.core.errors import Invalid, NotFound
from runward.core.ids import canonical_json, digest, idempotency_key, is_id
from runward.core.kernel.actor import Envelope, Status
from runward.core.kernel.records import MessageRow, Receipt
from runward.core.runs import codec, view
from runward.core.runs.state import KIND
from runward.core.times import optional_rfc3339
from runward.engine.callers import Caller, Permission
from runward.engine.services import Services
from runward.engine.tail import RunGone, Subscription, Tails
from runward.engine.timing import finished_within
from runward.ports.reads import ActorQuery, Order, Place

HORIZON_MS = 5_000
"""Ascending pages show only what happened this long ago, so that a saved cursor never steps over a commit in flight."""

MAX_TIME = 2**62
"""Beyond any time there is, and still a number that every store takes."""

CONTROL = b'{"type":"data-agent"'
"""How a frame with the control state begins (encoding.py)."""

Until = Literal["suspended", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a list, and the cursor of the next; None when this was the last."""

    data: Sequence[dict[str, Any]]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript(Page):
    """A page of messages. `events_after` is the seq before the first frame that is not in the transcript yet."""

    events_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as it is shown, with its revision (the ETag) and status."""

    uid: str
    revision: int
    last_seq: int
    status: Status
    shown: dict[str, Any]


class Queries:
    """The reads of the service."""

    def __init__(self, services: Services, tails: Tails) -> None:
        self._services = services
        self._tails = tails

    async def run(self, caller: Caller, run_id: str) -> RunView:
        """Raises NotFound for what is not there or not the caller's: the same answer."""
        return shown(await self._row(caller, run_id))

    async def wait(self, uid: str, seconds: float, until: Until) -> RunView:
        """The run once it has ended, or (`suspended`) ended or suspended; as it is after so many seconds otherwise. Raises NotFound."""
        deadline = self._services.clock.monotonic() + seconds
        try:
            async with self._tails.subscribe(uid, 0) as subscription:
                while True:
                    subscription.cursor = subscription.last
                    run = shown(await self._got(uid))
                    left = deadline - self._services.clock.monotonic()
                    if is_over(run.status, until) or left <= 0:
                        return run
                    await self._moved(subscription, deadline)
        except RunGone:
            raise NotFound("There is no such run.") from None

    async def runs(self, caller: Caller, query: ActorQuery, cursor: str | None) -> Page:
        """A page of runs. `query.scope`, `after` and `horizon` are set here; a cursor belongs to its filters. Raises Invalid."""
        caller.require(Permission.RUNS_READ)
        mark = digest(canonical_json([str(part) for part in (caller.reads, replace(query, limit=0))]))[:16]
        query = replace(query, kind=KIND, scope=caller.reads, after=None if cursor is None else _opened(cursor, mark))
        if query.order is not Order.NEWEST:
            query = replace(query, horizon=self._services.time.now() - HORIZON_MS)
        rows = await self._services.reads.list(replace(query, limit=query.limit + 1))
        more, rows = len(rows) > query.limit, rows[: query.limit]
        last = rows[-1] if rows and more else None
        at = None if last is None else last.ended_at if query.order is Order.ENDED else last.created_at
        following = None if last is None or at is None else _cursor(mark, at, last.uid)
        return Page(data=[shown(row).shown for row in rows], next_cursor=following)

    async def messages(self, caller: Caller, run_id: str, *, after: int, limit: int) -> Transcript:
        """A page of the transcript, as far as the state that is read with it knows it: what came since is in the events after it."""
        row = await self._row(caller, run_id)
        run = codec.decode(row.state)
        read = await self._services.reads.messages(row.uid, after=after, limit=limit + 1)
        rows = [message for message in read if message.seq <= run.messages]
        data = [message_shown(message) for message in rows[:limit]]
        following = str(rows[limit - 1].seq) if len(rows) > limit else None
        return Transcript(data=data, next_cursor=following, events_after=run.events_after)

    async def receipts(self, caller: Caller, run_id: str, *, after: tuple[int, int], limit: int) -> Page:
        """Tool receipts in the model's order. Raw results only for callers with `ops`."""
        row = await self._row(caller, run_id)
        rows = await self._services.reads.receipts(row.uid, after=after, limit=limit + 1)
        raw = Permission.OPS in caller.permissions
        data = [receipt_shown(row.uid, receipt, raw=raw) for receipt in rows[:limit]]
        return Page(data=data, next_cursor=rows[limit - 1].tool_call_id if len(rows) > limit else None)

    async def place(self, caller: Caller, run_id: str) -> Envelope:
        """Where a run stands, for whoever is about to follow it. Raises NotFound."""
        return await self._row(caller, run_id)

    def subscribe(self, uid: str, after: int) -> Subscription:
        """Follows a run's journal (R44a)."""
        return self._tails.subscribe(uid, after)

    async def _row(self, caller: Caller, run_id: str) -> Envelope:
        caller.require(Permission.RUNS_READ)
        row = await self._services.reads.find(KIND, caller.reads, run_id)
        if row is None:
            raise NotFound("There is no such run.")
        return row

    async def _got(self, uid: str) -> Envelope:
        row = await self._services.reads.get(uid)
        if row is None:
            raise NotFound("There is no such run.")
        return row

    async def _moved(self, subscription: Subscription, deadline: float) -> None:
        """Returns once the run has said where it stands, which it does whenever a leg begins or is over; or at the deadline."""
        while (left := deadline - self._services.clock.monotonic()) > 0:
            waiting = asyncio.ensure_future(subscription.next())
            try:
                if not await finished_within(self._services.clock, waiting, left):
                    return
                if any(frame.data.startswith(CONTROL) for frame in waiting.result()):
                    return
            finally:
                waiting.cancel()


def shown(row: Envelope) -> RunView:
    """An actor's row as the run it is."""
    run = codec.decode(row.state)
    return RunView(uid=row.uid, revision=row.revision, last_seq=row.last_seq, status=row.status, shown=view.view(row, run))


def is_over(status: Status, until: Until) -> bool:
    """Whether somebody who waits `until` has waited long enough."""
    return status.ended or (until == "suspended" and status is Status.SUSPENDED)


def message_shown(row: MessageRow) -> dict[str, Any]:
    """A message as `/messages` shows it: what the provider wants back stays here."""
    step = {} if row.step is None else {"step": row.step}
    return {"seq": row.seq, "role": row.role, **step, "content": json.loads(row.content)}


def receipt_shown(uid: str, receipt: Receipt, *, raw: bool) -> dict[str, Any]:
    """A receipt as `/receipts` shows it."""
    detail = json.loads(receipt.detail)
    shown = {
        "step": receipt.step,
        "tool_call_id": receipt.tool_call_id,
        "tool_name": receipt.tool_name,
        "stage": receipt.stage.value,
        "effect": receipt.effect,
        "attempt": receipt.attempt,
        "idempotency_key": idempotency_key(uid, receipt.tool_call_id),
        "started_at": optional_rfc3339(receipt.started_at),
        "ended_at": optional_rfc3339(receipt.ended_at),
        "is_error": receipt.is_error,
        "outcome": receipt.outcome,
        "effect_certain": detail["effect_certain"],
    }
    if raw:
        shown["raw"] = json.loads(receipt.raw or receipt.output or "null")
    return shown


# -- cursors: opaque, and bound to the filter they came from -----------------------------------------------------------------


def _cursor(mark: str, at: int, uid: str) -> str:
    return base64.urlsafe_b64encode(canonical_json([mark, at, uid]).encode()).decode().rstrip("=")


def _opened(cursor: str, mark: str) -> Place:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found, at, uid = json.loads(text)
    except (ValueError, TypeError, binascii.Error, RecursionError):
        raise _bad_cursor() from None
    if found != mark or type(at) is not int or abs(at) > MAX_TIME or not isinstance(uid, str) or not is_id(uid):
        raise _bad_cursor()
    return Place(at=at, uid=uid)


def _bad_cursor() -> Invalid:
    return Invalid("This cursor is not one of this list with these filters.", code="invalid_cursor")
