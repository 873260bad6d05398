"""Putting letters into a mailbox from outside."""

from __future__ import annotations

from runward.core.kernel.actor import Status
from runward.core.kernel.commit import AppendAnswer, Appended
from runward.ports.store import Append
from runward.stores.sql.gates import append_refusal
from runward.stores.sql.rows import Values
from runward.stores.sql.sqlite.connection import Session
from runward.stores.sql.sqlite.parts import change_actor, close_approvals, put_letters, standing, taken_keys, woken


def append_mail(session: Session, append: Append) -> AppendAnswer:
    """`Store.append_mail`."""
    stored = standing(session, append.uid)
    refusal = append_refusal(append, stored, taken_keys(session, append.uid, [letter.key for letter in append.letters]))
    if refusal is not None:
        return refusal
    assert stored is not None
    first = stored.mail_received + 1
    put_letters(session, append.uid, append.letters, first=first)
    changed: Values = {"mail_received": stored.mail_received + len(append.letters)}
    if append.wakes:
        changed |= woken(stored.status, stored.rank, stored.priority, now=session.now, reopens=append.reopens)
    if append.care:
        changed["care_at"] = session.now
    if append.marks_cancel and stored.cancel_requested_at is None:
        changed["cancel_requested_at"] = session.now
    change_actor(session, append.uid, changed)
    close_approvals(session, append.uid, append.closings)
    status = Status(changed.get("status", stored.status))
    return Appended(seqs=tuple(range(first, first + len(append.letters))), status=status)
