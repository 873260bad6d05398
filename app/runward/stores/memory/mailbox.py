"""Putting letters into a mailbox, and waking its owner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from runward.core.kernel.actor import MAX_UNAPPLIED_MAIL, Envelope, Status, rank_of
from runward.core.kernel.commit import AppendAnswer, Appended, HasEnded, InboxFull, KeyTaken, NotThere, RevisionMoved
from runward.core.kernel.mail import Letter, Mail
from runward.core.kernel.records import ApprovalClosing
from runward.ports.store import Append
from runward.stores.guards import check_letters, check_text
from runward.stores.memory.database import MemoryDatabase, Rows


def append_mail(database: MemoryDatabase, append: Append) -> AppendAnswer:
    """`Store.append_mail`."""
    check_letters(append.letters)
    check_text(append.closings)
    rows = database.actors.get(append.uid)
    if rows is None:
        return NotThere()
    refusal = _refusal(rows, append)
    if refusal is not None:
        return refusal
    now = database.now()
    seqs = put_letters(rows, append.letters, now=now)
    close_approvals(rows, append.closings)
    envelope = replace(rows.envelope, mail_received=len(rows.mail))
    if append.wakes:
        envelope = woken(envelope, now=now, reopens=append.reopens)
    if append.care:
        envelope = replace(envelope, care_at=now)
    if append.marks_cancel and envelope.cancel_requested_at is None:
        envelope = replace(envelope, cancel_requested_at=now)
    database.put(envelope)
    return Appended(seqs=seqs, status=envelope.status)


def _refusal(rows: Rows, append: Append) -> AppendAnswer | None:
    envelope = rows.envelope
    accepts = envelope.status is Status.FAILED if append.reopens else append.may_be_ended
    if envelope.status.ended and not accepts:
        return HasEnded(status=envelope.status)
    taken = tuple(letter.key for letter in append.letters if letter.key in rows.mail_seqs)
    if taken:
        return KeyTaken(keys=taken)
    if not append.marks_cancel and envelope.mail_received - envelope.mail_applied + len(append.letters) > MAX_UNAPPLIED_MAIL:
        return InboxFull()
    if append.expected_revision not in (None, envelope.revision):
        return RevisionMoved(revision=envelope.revision)
    return None


def put_letters(rows: Rows, letters: Sequence[Letter], *, now: int) -> tuple[int, ...]:
    """Numbers letters and puts them behind the mail that is there. The envelope is left to the caller."""
    first = len(rows.mail) + 1
    for seq, letter in enumerate(letters, first):
        rows.mail.append(Mail(seq=seq, kind=letter.kind, key=letter.key, data=letter.data, principal=letter.principal, received_at=now))
        rows.mail_seqs[letter.key] = seq
    return tuple(range(first, first + len(letters)))


def stamp_applied(rows: Rows, *, upto: int, revision: int, ignored: Iterable[int]) -> None:
    """Marks the mail behind what was applied before, up to a position, as applied by a revision."""
    useless = frozenset(ignored)
    for index in range(rows.envelope.mail_applied, upto):
        mail = rows.mail[index]
        rows.mail[index] = replace(mail, applied_revision=revision, ignored=mail.seq in useless)


def deliver(database: MemoryDatabase, uid: str, letters: Sequence[Letter], *, tenant: str, now: int) -> None:
    """Mail from another actor's commit, or its own: what cannot be delivered is dropped."""
    rows = database.actors.get(uid)
    if rows is None or rows.envelope.scope.tenant != tenant or rows.envelope.status in (Status.COMPLETED, Status.STOPPED):
        return
    new: dict[str, Letter] = {}
    for letter in letters:
        if letter.key not in rows.mail_seqs:
            new.setdefault(letter.key, letter)
    if new:
        put_letters(rows, tuple(new.values()), now=now)
        database.put(woken(replace(rows.envelope, mail_received=len(rows.mail)), now=now, reopens=False))


def close_approvals(rows: Rows, closings: Iterable[ApprovalClosing]) -> None:
    """Shows decided approvals; one that is decided stays as it is."""
    for closing in closings:
        approval, decided = rows.approvals.get(closing.id, (None, None))
        if approval is not None and decided is None:
            rows.approvals[closing.id] = (approval, closing)


def woken(envelope: Envelope, *, now: int, reopens: bool) -> Envelope:
    """The actor ready now, and queued with a rank of now when it was suspended, queued for later, or failed and to be reopened: then it is
    nobody's any more."""
    rank = rank_of(now, envelope.priority)
    if envelope.status is Status.SUSPENDED or (reopens and envelope.status is Status.FAILED):
        return replace(envelope, status=Status.QUEUED, ready_at=now, rank=rank, ended_at=None, lease_owner=None, lease_until=None)
    if envelope.status is Status.QUEUED:
        return replace(envelope, ready_at=now, rank=min(envelope.rank, rank))
    return envelope if envelope.status.ended else replace(envelope, ready_at=now)
