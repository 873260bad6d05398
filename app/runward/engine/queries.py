"""What a caller may read. Scopes are part of every query (R43); nothing private is shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any, Literal

from runward.core.errors import NotFound
from runward.core.ids import idempotency_key
from runward.core.kernel.actor import Envelope, Status
from runward.core.kernel.mail import Mail, MailKind
from runward.core.kernel.records import MessageRow, Receipt
from runward.core.redaction import SECRETS, Redactor, shown_arguments
from runward.core.runs import view
from runward.core.runs.state import KIND
from runward.core.times import optional_rfc3339, rfc3339
from runward.engine.callers import Caller, Permission
from runward.engine.found import readable, run_of, state_of
from runward.engine.hiding import view_hidden
from runward.engine.pages import Page, cursor_of, horizon, mark_of, opened
from runward.engine.repeats import sender_shown
from runward.engine.services import Services
from runward.engine.tail import RunGone, Subscription, Tails
from runward.engine.timing import finished_within
from runward.ports.reads import ActorQuery, Order

CONTROL = b'{"type":"data-agent"'
"""How a frame with the control state begins (encoding.py)."""

Until = Literal["suspended", "ended"]


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
        return await self.current(await self._row(caller, run_id))

    async def current(self, row: Envelope) -> RunView:
        """A row as the run it is, without what has arrived in its inbox since: that is not pending any more (R1, R23)."""
        arrived: frozenset[str] = frozenset()
        if row.mail_received > row.mail_applied and not row.status.ended:
            unapplied = await self._services.reads.mail(row.uid, after=row.mail_applied, limit=None)
            arrived = frozenset(mail.key for mail in unapplied)
        return shown(row, arrived, self._services.redactor)

    async def accounting(self, caller: Caller, run_id: str) -> dict[str, Any]:
        """What the run costs, by model. Raises NotFound."""
        return view.accounting_by_model(state_of(await self._row(caller, run_id)))

    async def wait(self, uid: str, seconds: float, until: Until) -> RunView:
        """The run once it has ended, or (`suspended`) ended or suspended; as it is after so many seconds otherwise. Raises NotFound."""
        deadline = self._services.clock.monotonic() + seconds
        try:
            async with self._tails.subscribe(uid, None) as subscription:
                while True:
                    subscription.cursor = subscription.last
                    run = await self.current(await self._got(uid))
                    left = deadline - self._services.clock.monotonic()
                    if is_over(run.status, until) or left <= 0:
                        return run
                    await self._moved(subscription, deadline)
        except RunGone:
            raise NotFound("There is no such run.") from None

    async def runs(self, caller: Caller, query: ActorQuery, cursor: str | None) -> Page:
        """A page of runs. `query.scope`, `after` and `horizon` are set here; a cursor belongs to its filters. Raises Invalid."""
        caller.require(Permission.RUNS_READ)
        mark = mark_of(caller.reads, replace(query, limit=0))
        query = replace(query, kind=KIND, scope=caller.reads, after=None if cursor is None else opened(cursor, mark))
        if query.order is not Order.NEWEST:
            query = replace(query, horizon=horizon(self._services.time))
        rows = await self._services.reads.list(replace(query, limit=query.limit + 1))
        more, rows = len(rows) > query.limit, rows[: query.limit]
        last = rows[-1] if rows and more else None
        at = None if last is None else last.ended_at if query.order is Order.ENDED else last.created_at
        following = None if last is None or at is None else cursor_of(mark, at, last.uid)
        return Page(data=[shown(row, redactor=self._services.redactor).shown for row in rows], next_cursor=following)

    async def messages(self, caller: Caller, run_id: str, *, after: int, limit: int) -> Transcript:
        """A page of the transcript, as far as the state that is read with it knows it: what came since is in the events after it."""
        row = await self._row(caller, run_id)
        run = state_of(row)
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

    async def inbox(self, caller: Caller, run_id: str, *, after: int, limit: int) -> Page:
        """What came for the run, in order, and what became of it."""
        row = await self._row(caller, run_id)
        items = await self._services.reads.mail(row.uid, after=after, limit=limit + 1)
        data = [mail_shown(item) for item in items[:limit]]
        return Page(data=data, next_cursor=str(items[limit - 1].seq) if len(items) > limit else None)

    async def place(self, caller: Caller, run_id: str) -> Envelope:
        """Where a run stands, for whoever is about to follow it. Raises NotFound."""
        return await self._row(caller, run_id)

    def subscribe(self, uid: str, after: int) -> Subscription:
        """Follows a run's journal (R44a)."""
        return self._tails.subscribe(uid, after)

    async def _row(self, caller: Caller, run_id: str) -> Envelope:
        caller.require(Permission.RUNS_READ)
        return await run_of(self._services, caller, run_id)

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


def shown(row: Envelope, arrived: Container[str] = (), redactor: Redactor = SECRETS) -> RunView:
    """An actor's row as the run it is; what a newer version wrote is shown as far as its columns tell (R41a)."""
    run = readable(row) or view.from_columns(row)
    seen = view_hidden(view.view(row, run, arrived), redactor)
    return RunView(uid=row.uid, revision=row.revision, last_seq=row.last_seq, status=row.status, shown=seen)


def is_over(status: Status, until: Until) -> bool:
    """Whether somebody who waits `until` has waited long enough."""
    return status.ended or (until == "suspended" and status is Status.SUSPENDED)


def message_shown(row: MessageRow) -> dict[str, Any]:
    """A message as `/messages` shows it: what the provider wants back stays here."""
    step = {} if row.step is None else {"step": row.step}
    return {"seq": row.seq, "role": row.role, **step, "content": json.loads(row.content)}


def mail_shown(mail: Mail) -> dict[str, Any]:
    """An item of the inbox as `/inbox` shows it."""
    state = "pending" if mail.applied_revision is None else "ignored" if mail.ignored else "applied"
    return {
        "seq": mail.seq,
        "kind": mail.kind.value,
        "data": shown_arguments(mail.data) if mail.kind is MailKind.APPROVAL else json.loads(mail.data),
        "principal": sender_shown(mail.principal),
        "received_at": rfc3339(mail.received_at),
        "state": state,
        "applied_revision": mail.applied_revision,
    }


def _dated(record: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if record is None else {**SECRETS.json(record), "at": rfc3339(record["at"])}


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
        "approval": _dated(detail.get("approval")),
        "reconciled": _dated(detail.get("reconciled")),
    }
    if raw:
        shown["raw"] = json.loads(receipt.raw or receipt.output or "null")
    return shown
