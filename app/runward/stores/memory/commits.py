"""Commits of a leg, and the frames it appends between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import Envelope, Position
from runward.core.kernel.commit import Changes, CommitAnswer, MailArrived, NewActor, Stale, Written
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.mail import Letter, MailTo
from runward.stores.guards import check_changes, check_numbers
from runward.stores.memory.database import MemoryDatabase, Rows, is_writable, position_of
from runward.stores.memory.mailbox import close_approvals, deliver, put_letters, stamp_applied


def commit(database: MemoryDatabase, changes: Changes) -> CommitAnswer:
    """`Store.commit`."""
    check_changes(changes)
    rows = database.actors.get(changes.uid)
    if rows is None or not is_writable(rows.envelope, changes.follows):
        return _stale(rows)
    envelope = rows.envelope
    if changes.mail_seen is not None and envelope.mail_received > changes.mail_seen:
        return MailArrived(mail_received=envelope.mail_received)
    if any(letter.key in rows.mail_seqs for letter in changes.closings):
        return MailArrived(mail_received=envelope.mail_received)
    _check_against(rows, changes)
    _check_children(database, envelope, changes.children)
    now = database.now()
    _write_records(rows, changes, now=now)
    database.put(_changed(envelope, changes, mail_received=len(rows.mail)))
    for uid, letters in _by_recipient(changes.mail_to):
        deliver(database, uid, letters, tenant=envelope.scope.tenant, now=now)
    for child in changes.children:
        if child.uid not in database.actors:
            add_actor(database, child, now=now)
    return Written(mail_received=rows.envelope.mail_received, drain_leg=rows.envelope.drain_leg)


def append_frames(database: MemoryDatabase, uid: str, follows: Position, frames: Sequence[StoredFrame]) -> Written | Stale:
    """`Store.append_frames`."""
    check_numbers(follows.last_seq, frames)
    rows = database.actors.get(uid)
    if rows is None or not is_writable(rows.envelope, follows):
        return _stale(rows)
    rows.frames.extend(frames)
    database.put(replace(rows.envelope, last_seq=len(rows.frames)))
    return Written(mail_received=rows.envelope.mail_received, drain_leg=rows.envelope.drain_leg)


def add_actor(database: MemoryDatabase, new: NewActor, *, now: int) -> None:
    """A new actor with its first rows."""
    ready_at = now if new.ready_at is None else new.ready_at
    envelope = new.as_created(ready_at)
    database.add(Rows(envelope, frames=list(new.frames), messages={message.seq: message for message in new.messages}))


def _stale(rows: Rows | None) -> Stale:
    if rows is None:
        return Stale(leg=None, position=None)
    return Stale(leg=rows.envelope.leg, position=position_of(rows.envelope))


def _check_against(rows: Rows, changes: Changes) -> None:
    """Refuses what no key of a database would let in, and what may never happen to a stored actor (R49)."""
    envelope = rows.envelope
    if envelope.status.ended and changes.face.status is not envelope.status:
        raise InvariantViolated(f"an actor that is {envelope.status} would become {changes.face.status}")
    if not envelope.mail_applied <= changes.mail_applied <= envelope.mail_received + len(changes.closings):
        raise InvariantViolated(f"mail {changes.mail_applied} applied, of {envelope.mail_received}, behind {envelope.mail_applied}")
    if any(message.seq in rows.messages for message in changes.messages) or any(
        approval.id in rows.approvals for approval in changes.approvals
    ):
        raise InvariantViolated("a message or an approval is inserted once and never again")


def _check_children(database: MemoryDatabase, parent: Envelope, children: Iterable[NewActor]) -> None:
    for child in children:
        if child.scope.tenant != parent.scope.tenant:
            raise InvariantViolated("a child is of its parent's tenant")
        if database.public_ids.get((child.scope.tenant, child.public_id), child.uid) != child.uid:
            raise InvariantViolated("another actor of the tenant has a child's public id")


def _write_records(rows: Rows, changes: Changes, *, now: int) -> None:
    revision = changes.leads_to.revision
    put_letters(rows, changes.closings, now=now)
    stamp_applied(rows, upto=changes.mail_applied, revision=revision, ignored=changes.mail_ignored)
    rows.frames.extend(changes.frames)
    rows.messages.update((message.seq, message) for message in changes.messages)
    rows.receipts.update((receipt.tool_call_id, receipt) for receipt in changes.receipts)
    rows.approvals.update((approval.id, (approval, None)) for approval in changes.approvals)
    close_approvals(rows, changes.approval_closings)


def _changed(envelope: Envelope, changes: Changes, *, mail_received: int) -> Envelope:
    face, position = changes.face, changes.leads_to
    changed = replace(
        envelope,
        revision=position.revision,
        last_seq=position.last_seq,
        mail_received=mail_received,
        mail_applied=changes.mail_applied,
        status=face.status,
        state=face.state,
        format=face.format,
        binding=face.binding,
        waiting_on=face.waiting_on,
        stop_reason=face.stop_reason,
        task_outcome=face.task_outcome,
        updated_at=face.updated_at,
        ended_at=face.ended_at,
        recoveries=face.recoveries,
    )
    if not changes.release:
        return changed
    return replace(
        changed, lease_owner=None, lease_until=None, drain_leg=None, ready_at=face.ready_at, care_at=face.care_at, rank=face.rank
    )


def _by_recipient(mail_to: Iterable[MailTo]) -> list[tuple[str, list[Letter]]]:
    """Letters by recipient, recipients in uid order, a recipient's letters in the order given."""
    letters: dict[str, list[Letter]] = {}
    for mail in mail_to:
        letters.setdefault(mail.uid, []).append(mail.letter)
    return sorted(letters.items())
