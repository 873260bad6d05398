"""Putting letters into a mailbox from outside."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import asyncpg
from sqlalchemy import CTE, ColumnElement, Integer, case, func, insert, literal_column, null, or_, select, true, update

from runward.core.errors import Unavailable
from runward.core.kernel.actor import MAX_UNAPPLIED_MAIL, Status
from runward.core.kernel.commit import AppendAnswer, Appended
from runward.ports.store import Append
from runward.stores.guards import check_letters, check_text
from runward.stores.sql.expressions import FAILED, FALSE, QUEUED, SUSPENDED, is_ended, rank_of
from runward.stores.sql.gates import append_refusal
from runward.stores.sql.postgres.commit import standing, taken_keys
from runward.stores.sql.postgres.connections import ATTEMPTS, Connections
from runward.stores.sql.postgres.parts import CLOSING, LETTER, clock, close_approvals, holds_any_key, unnested
from runward.stores.sql.rows import Values, closing_values, in_columns, letter_values
from runward.stores.sql.statements import POSTGRES, Statement, given, given_array
from runward.stores.sql.tables import ID, actors, mail


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Which parts an append has."""

    wakes: bool
    reopens: bool
    care: bool
    may_be_ended: bool
    marks_cancel: bool
    closings: bool
    expects: bool


async def append_mail(connections: Connections, append: Append) -> AppendAnswer:
    """`Store.append_mail`."""
    check_letters(append.letters)
    check_text(append.closings)
    statement, values = _append_mail(_shape(append)), _values(append)
    for _ in range(ATTEMPTS):
        try:
            rows = await connections.fetch(statement, values)
        except asyncpg.UniqueViolationError:  # somebody took one of the keys just now: nothing was written, and the next read shows it
            rows = []
        if rows:
            first = rows[0]["mail_received"] - len(append.letters) + 1
            return Appended(seqs=tuple(range(first, first + len(append.letters))), status=Status(rows[0]["status"]))
        now = await standing(connections, append.uid)
        refusal = append_refusal(append, now, await taken_keys(connections, append.uid, [letter.key for letter in append.letters]))
        if refusal is not None:
            return refusal
    raise Unavailable("The mailbox changes too fast.")


def _shape(append: Append) -> Shape:
    return Shape(
        wakes=append.wakes,
        reopens=append.reopens,
        care=append.care,
        may_be_ended=append.may_be_ended,
        marks_cancel=append.marks_cancel,
        closings=bool(append.closings),
        expects=append.expected_revision is not None,
    )


def _values(append: Append) -> Values:
    rows = [{"place": place, **letter_values(letter)} for place, letter in enumerate(append.letters, 1)]
    values = {"uid": append.uid, "count": len(rows), "revision": append.expected_revision, **in_columns(rows, "letter", ("place", *LETTER))}
    return values | in_columns(closing_values(append.closings), "closing", CLOSING)


@cache
def _append_mail(shape: Shape) -> Statement:
    """The row is updated where the gates hold, as it is once it can be had; the letters are numbered from what the update made of it. A key
    that was taken after the statement began breaks the mailbox's constraint, and undoes all of it."""
    now, count = clock(), given("count", Integer())
    me = (
        update(actors)
        .where(*_gates(shape, count))
        .values(_changed(shape, now, count))
        .returning(actors.c.uid, actors.c.mail_received, actors.c.status)
        .cte("me")
    )
    closed = [close_approvals(me)] if shape.closings else []
    return Statement(select(me.c.mail_received, me.c.status).add_cte(put_letters(me, now), *closed), POSTGRES)


def put_letters(me: CTE, now: CTE) -> CTE:
    """Inserts the given letters, as the last ones of what the gate's actor has received now."""
    letters = unnested("letter", {"place": Integer(), **LETTER})
    columns = {"uid": me.c.uid, "seq": me.c.mail_received - given("count", Integer()) + letters.c.place, "received_at": now.c.now}
    columns |= {name: letters.c[name] for name in LETTER} | {"ignored": FALSE}
    source = select(*columns.values()).select_from(me.join(now, true()).join(letters, true()))
    return insert(mail).from_select(list(columns), source).cte("put_letters")


def _gates(shape: Shape, count: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    room = literal_column(str(MAX_UNAPPLIED_MAIL), Integer)
    gates: list[ColumnElement[bool]] = [
        actors.c.uid == given("uid", ID),
        ~holds_any_key(actors.c.uid, given_array("letter_dedupe_key", ID)),
    ]
    if not shape.marks_cancel:
        gates.append(actors.c.mail_received - actors.c.mail_applied + count <= room)
    if shape.reopens:
        gates.append(or_(~is_ended(actors.c.status), actors.c.status == FAILED))
    elif not shape.may_be_ended:
        gates.append(~is_ended(actors.c.status))
    if shape.expects:
        gates.append(actors.c.revision == given("revision", Integer()))
    return gates


def _changed(shape: Shape, clock: CTE, count: ColumnElement[Any]) -> dict[str, Any]:
    now = select(clock.c.now).scalar_subquery()
    changed: dict[str, Any] = {"mail_received": actors.c.mail_received + count}
    if shape.wakes:
        changed |= woken(now, reopens=shape.reopens)
    if shape.care:
        changed["care_at"] = now
    if shape.marks_cancel:
        changed["cancel_requested_at"] = func.coalesce(actors.c.cancel_requested_at, now)
    return changed


def woken(now: ColumnElement[Any], *, reopens: bool) -> dict[str, Any]:
    """The columns of an actor that is made ready now: one that slept is queued, with a rank of now; one that was queued for later, too; one
    that is reopened is nobody's any more."""
    status = actors.c.status
    failed, wakes = status == FAILED, status == SUSPENDED
    if reopens:
        wakes = or_(wakes, failed)
    ready = or_(wakes, ~is_ended(status))
    rank = rank_of(now, actors.c.priority)
    changed = {
        "status": case((wakes, QUEUED), else_=status),
        "ready_at": case((ready, now), else_=actors.c.ready_at),
        "rank": case((wakes, rank), (status == QUEUED, func.least(actors.c.rank, rank)), else_=actors.c.rank),
    }
    if reopens:
        changed |= {name: case((failed, null()), else_=actors.c[name]) for name in ("ended_at", "lease_owner", "lease_until")}
    return changed
