"""A leg's writes: commits, and frames between them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import groupby

from sqlalchemy import Integer, update
from sqlalchemy.dialects import sqlite

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import Position, Status
from runward.core.kernel.commit import Changes, CommitAnswer, Stale, Written
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.mail import Letter
from runward.stores.sql.gates import Standing, commit_refusal, is_writable, letters_to_send, stale
from runward.stores.sql.rows import Values, approval_values, changed_values, receipt_values
from runward.stores.sql.sqlite.connection import Session
from runward.stores.sql.sqlite.parts import (
    change_actor,
    close_approvals,
    insert_into,
    put_actor,
    put_frames,
    put_letters,
    put_messages,
    standing,
    taken_keys,
    woken,
)
from runward.stores.sql.statements import SQLITE, Statement, among, as_list, given
from runward.stores.sql.tables import ID, actors, approvals, columns, mail, receipts

_FACE = columns(
    actors, "status state format binding waiting_on stop_reason task_outcome updated_at ended_at recoveries mail_applied revision last_seq"
)
_RELEASED = ("ready_at", "care_at", "rank")


def commit(session: Session, changes: Changes) -> CommitAnswer:
    """`Store.commit`."""
    stored = standing(session, changes.uid)
    refusal = commit_refusal(changes, stored, taken_keys(session, changes.uid, [letter.key for letter in changes.closings]))
    if refusal is not None or stored is None:
        return refusal or stale(stored)
    try:
        return _written(session, changes, stored)
    except sqlite3.IntegrityError as error:
        raise InvariantViolated("a message or an approval is inserted once, and a child's public id is its own") from error


def append_frames(session: Session, uid: str, follows: Position, new: Sequence[StoredFrame]) -> Written | Stale:
    """`Store.append_frames`."""
    stored = standing(session, uid)
    if not is_writable(stored, follows):
        return stale(stored)
    change_actor(session, uid, {"last_seq": follows.last_seq + len(new)})
    put_frames(session, uid, new)
    return Written(mail_received=stored.mail_received, drain_leg=stored.drain_leg)


def _written(session: Session, changes: Changes, stored: Standing) -> Written:
    uid, revision = changes.uid, changes.leads_to.revision
    received = stored.mail_received + len(changes.closings)
    face = _face(changes)
    change_actor(session, uid, {**face, "mail_received": received})
    if changes.closings:
        put_letters(session, uid, changes.closings, first=stored.mail_received + 1)
    if changes.mail_applied > stored.mail_applied:
        applied = {"uid": uid, "before": stored.mail_applied, "upto": changes.mail_applied, "revision": revision}
        session.rows(_stamp(), applied | {"useless": as_list(changes.mail_ignored, SQLITE)})
    put_frames(session, uid, changes.frames)
    put_messages(session, uid, changes.messages)
    session.many(_put_receipt(), [{"uid": uid, **receipt_values(receipt)} for receipt in changes.receipts])
    _put_approvals(session, changes, stored)
    close_approvals(session, uid, changes.approval_closings)
    for recipient, letters in groupby(letters_to_send(changes), key=lambda item: item.uid):
        number = _deliver(session, recipient, [item.letter for item in letters], tenant=stored.tenant)
        received = number if recipient == uid and number is not None else received
    for child in changes.children:
        if standing(session, child.uid) is None:
            put_actor(session, child)
    return Written(mail_received=received, drain_leg=None if changes.release else stored.drain_leg)


def _face(changes: Changes) -> Values:
    """What the commit makes of its actor's columns."""
    values = changed_values(changes)
    face = {name: values[f"to_{name}"] for name in (column.name for column in _FACE)}
    if changes.release:
        face |= {name: values[f"to_{name}"] for name in _RELEASED} | {"lease_owner": None, "lease_until": None, "drain_leg": None}
    return face


def _put_approvals(session: Session, changes: Changes, stored: Standing) -> None:
    whose = {"uid": changes.uid, "tenant": stored.tenant, "user_id": stored.user_id, "namespace": stored.namespace, "agent": stored.agent}
    session.many(insert_into(approvals), [whose | values for values in approval_values(changes)])


def _deliver(session: Session, uid: str, letters: Sequence[Letter], *, tenant: str) -> int | None:
    """Puts letters into the mailbox of an actor that takes them, and wakes it: the number of the last one, None when none was taken.

    The row is read after the sender's own was written: a letter for itself meets what the commit made of it.
    """
    stored = standing(session, uid)
    if stored is None or stored.tenant != tenant or stored.status in (Status.COMPLETED, Status.STOPPED):
        return None
    taken = taken_keys(session, uid, [letter.key for letter in letters])
    new = [letter for letter in letters if letter.key not in taken]
    if not new:
        return None
    put_letters(session, uid, new, first=stored.mail_received + 1)
    received = stored.mail_received + len(new)
    wakes = woken(stored.status, stored.rank, stored.priority, now=session.now, reopens=False)
    change_actor(session, uid, {"mail_received": received, **wakes})
    return received


@cache
def _stamp() -> Statement:
    numbers = Integer()
    applied = (mail.c.uid == given("uid", ID), mail.c.seq > given("before", numbers), mail.c.seq <= given("upto", numbers))
    useless = among(mail.c.seq, "useless", SQLITE)
    return Statement(update(mail).where(*applied).values(applied_revision=given("revision", numbers), ignored=useless), SQLITE)


@cache
def _put_receipt() -> Statement:
    new = sqlite.insert(receipts).values({column.name: given(column.name, column.type) for column in receipts.columns})
    key = [column.name for column in receipts.primary_key]
    changed = {column.name: new.excluded[column.name] for column in receipts.columns if column.name not in key}
    return Statement(new.on_conflict_do_update(index_elements=key, set_=changed), SQLITE)
