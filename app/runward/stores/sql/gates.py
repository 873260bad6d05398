"""Why a write is refused, decided from the row as it is stored. SQLite asks before it writes; Postgres, whose statements gate themselves,
asks afterwards which gate was shut."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import DRIVEN, MAX_UNAPPLIED_MAIL, Position, Status
from runward.core.kernel.commit import (
    AppendAnswer,
    Changes,
    CreatedIsGone,
    HasEnded,
    IdempotencyKey,
    InboxFull,
    KeyReused,
    KeyTaken,
    MailArrived,
    NotThere,
    Replayed,
    RevisionMoved,
    Stale,
)
from runward.core.kernel.mail import MailTo
from runward.ports.store import Append
from runward.stores.sql.rows import Row
from runward.stores.sql.tables import actors, columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What gates look at."""

    tenant: str
    user_id: str | None
    namespace: str | None
    agent: str
    status: Status
    position: Position
    leg: int
    mail_received: int
    mail_applied: int
    drain_leg: int | None
    priority: int
    rank: int
    cancel_requested_at: int | None


STANDING: Final = columns(
    actors,
    "tenant user_id namespace agent status revision last_seq leg mail_received mail_applied drain_leg priority rank cancel_requested_at",
)


def standing_of(row: Row) -> Standing:
    tenant, user, namespace, agent, status, revision, last_seq, leg, mail_received, mail_applied, drain_leg, priority, rank, cancel = row
    return Standing(
        tenant=tenant,
        user_id=user,
        namespace=namespace,
        agent=agent,
        status=Status(status),
        position=Position(revision=revision, last_seq=last_seq),
        leg=leg,
        mail_received=mail_received,
        mail_applied=mail_applied,
        drain_leg=drain_leg,
        priority=priority,
        rank=rank,
        cancel_requested_at=cancel,
    )


def is_writable(standing: Standing | None, follows: Position) -> TypeGuard[Standing]:
    """Whether a leg has the actor, and it stands where the leg's write says."""
    return standing is not None and standing.position == follows and standing.status in DRIVEN


def stale(standing: Standing | None) -> Stale:
    return Stale(leg=None, position=None) if standing is None else Stale(leg=standing.leg, position=standing.position)


def known_key(key: IdempotencyKey, row: Row) -> Replayed | KeyReused | CreatedIsGone:
    """What a remembered key says of a creation. The row is of `queries.remembered`."""
    fingerprint, uid, public_id, found = row
    if fingerprint != key.fingerprint:
        return KeyReused()
    return CreatedIsGone(public_id=public_id) if found is None else Replayed(uid=uid, public_id=public_id)


def commit_refusal(changes: Changes, standing: Standing | None, taken: Collection[Any]) -> Stale | MailArrived | None:
    """Why a commit is not written; None: nothing speaks against it. `taken` are those of its closings' keys that the mailbox has.

    Raises InvariantViolated for what may never happen to a stored actor (R49).
    """
    if not is_writable(standing, changes.follows):
        return stale(standing)
    if changes.mail_seen is not None and standing.mail_received > changes.mail_seen:
        return MailArrived(mail_received=standing.mail_received)
    if taken:
        return MailArrived(mail_received=standing.mail_received)
    if standing.status.ended and changes.face.status is not standing.status:
        raise InvariantViolated(f"an actor that is {standing.status} would become {changes.face.status}")
    if not standing.mail_applied <= changes.mail_applied <= standing.mail_received + len(changes.closings):
        raise InvariantViolated(f"mail {changes.mail_applied} applied, of {standing.mail_received}, behind {standing.mail_applied}")
    if any(child.scope.tenant != standing.tenant for child in changes.children):
        raise InvariantViolated("a child is of its parent's tenant")
    return None


def append_refusal(append: Append, standing: Standing | None, taken: Collection[str]) -> AppendAnswer | None:
    """Why letters are not put into a mailbox; None: nothing speaks against it. `taken` are those of their keys that it has."""
    if standing is None:
        return NotThere()
    accepts = standing.status is Status.FAILED if append.reopens else append.may_be_ended
    if standing.status.ended and not accepts:
        return HasEnded(status=standing.status)
    if taken:
        return KeyTaken(keys=tuple(letter.key for letter in append.letters if letter.key in taken))
    if not append.marks_cancel and standing.mail_received - standing.mail_applied + len(append.letters) > MAX_UNAPPLIED_MAIL:
        return InboxFull()
    if append.expected_revision not in (None, standing.position.revision):
        return RevisionMoved(revision=standing.position.revision)
    return None


def letters_to_send(changes: Changes) -> list[MailTo]:
    """A commit's letters by recipient, recipients in uid order, a recipient's letters in the order given, each key once.

    A letter for itself meets the status that the commit gives it: an actor that is over for good gets none.
    """
    over = changes.face.status in (Status.COMPLETED, Status.STOPPED)
    seen = {(changes.uid, closing.key) for closing in changes.closings}
    letters = []
    for mail in sorted(changes.mail_to, key=lambda mail: mail.uid):
        key = (mail.uid, mail.letter.key)
        if key not in seen and not (over and mail.uid == changes.uid):
            seen.add(key)
            letters.append(mail)
    return letters
