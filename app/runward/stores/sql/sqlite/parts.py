"""What several operations do within their transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from sqlalchemy import Table, literal_column, select, update
from sqlalchemy.dialects import sqlite

from runward.core.kernel.actor import Status, rank_of
from runward.core.kernel.commit import NewActor
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.mail import Letter
from runward.core.kernel.records import ApprovalClosing, MessageRow
from runward.stores.sql.gates import STANDING, Standing, standing_of
from runward.stores.sql.journal import pack
from runward.stores.sql.rows import Values, actor_values, closing_values, letter_values, message_values
from runward.stores.sql.sqlite.connection import Session
from runward.stores.sql.statements import SQLITE, Statement, among, as_list, given
from runward.stores.sql.tables import ID, actors, approvals, frames, mail, messages


def standing(session: Session, uid: str) -> Standing | None:
    """Where an actor stands."""
    row = session.row(_standing(), {"uid": uid})
    return None if row is None else standing_of(row)


def taken_keys(session: Session, uid: str, keys: Sequence[str]) -> set[str]:
    """Those of the keys that a mailbox has."""
    return {row[0] for row in session.rows(_taken_keys(), {"uid": uid, "keys": as_list(keys, SQLITE)})} if keys else set()


def put_actor(session: Session, new: NewActor) -> None:
    """A new actor with its first rows."""
    values = actor_values(new)
    ready_at = session.now if new.ready_at is None else new.ready_at
    values |= {"ready_at": ready_at, "rank": rank_of(ready_at, new.priority), "status": Status.QUEUED.value, "revision": 1}
    values |= dict.fromkeys(("leg", "recoveries", "mail_received", "mail_applied", "waiting_on"), 0)
    values |= dict.fromkeys(("started_at", "ended_at", "cancel_requested_at", "lease_owner", "lease_until", "drain_leg", "stop_reason"))
    values |= dict.fromkeys(("key_slot", "tenant_slot"))
    session.rows(insert_into(actors), values)
    put_frames(session, new.uid, new.frames)
    put_messages(session, new.uid, new.messages)


def put_frames(session: Session, uid: str, new: Sequence[StoredFrame]) -> None:
    rows = [{"uid": uid, "seq": bundle.seq, "format": bundle.format, "data": bundle.data} for bundle in pack(new)]
    session.many(insert_into(frames), rows)


def put_messages(session: Session, uid: str, new: Iterable[MessageRow]) -> None:
    session.many(insert_into(messages), [{"uid": uid, **message_values(message)} for message in new])


def put_letters(session: Session, uid: str, letters: Iterable[Letter], *, first: int, applied: Values | None = None) -> None:
    """Letters under the numbers from `first` on; not applied yet, unless `applied` says by which revision."""
    as_applied = applied or {"applied_revision": None, "ignored": False}
    rows = [
        {"uid": uid, "seq": seq, "received_at": session.now, **letter_values(letter), **as_applied}
        for seq, letter in enumerate(letters, first)
    ]
    session.many(insert_into(mail), rows)


def close_approvals(session: Session, uid: str, closings: Iterable[ApprovalClosing]) -> None:
    """Shows pending approvals of an actor decided."""
    session.many(_close_approval(), [{"uid": uid, **values} for values in closing_values(closings)])


def woken(status: Status, rank: int, priority: int, *, now: int, reopens: bool) -> Values:
    """What changes of an actor that is made ready now: one that slept is queued, with a rank of now; one that was queued for later, too;
    one that is reopened is nobody's any more."""
    if status is Status.SUSPENDED or (reopens and status is Status.FAILED):
        nobodys = dict.fromkeys(("ended_at", "lease_owner", "lease_until"))
        return {"status": Status.QUEUED.value, "ready_at": now, "rank": rank_of(now, priority), **nobodys}
    if status is Status.QUEUED:
        return {"ready_at": now, "rank": min(rank, rank_of(now, priority))}
    return {} if status.ended else {"ready_at": now}


def change_actor(session: Session, uid: str, values: Values) -> None:
    """Sets these columns of an actor."""
    session.rows(_change_actor(tuple(sorted(values))), {"of": uid, **values})


@cache
def insert_into(table: Table) -> Statement:
    return Statement(sqlite.insert(table).values({column.name: given(column.name, column.type) for column in table.columns}), SQLITE)


@cache
def _change_actor(names: tuple[str, ...]) -> Statement:
    return Statement(
        update(actors).where(actors.c.uid == given("of", ID)).values({name: given(name, actors.c[name].type) for name in names}), SQLITE
    )


@cache
def _standing() -> Statement:
    return Statement(select(*STANDING).where(actors.c.uid == given("uid", ID)), SQLITE)


@cache
def _taken_keys() -> Statement:
    return Statement(select(mail.c.dedupe_key).where(mail.c.uid == given("uid", ID), among(mail.c.dedupe_key, "keys", SQLITE)), SQLITE)


@cache
def _close_approval() -> Statement:
    pending = (approvals.c.id == given("id", ID), approvals.c.uid == given("uid", ID), approvals.c.status == literal_column("'pending'"))
    decided = {name: given(name, approvals.c[name].type) for name in ("status", "decided_at", "decision")}
    return Statement(update(approvals).where(*pending).values(decided), SQLITE)
