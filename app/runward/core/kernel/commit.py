"""One transaction of an actor, as a value, and the answers a store gives to it."""

from __future__ import annotations

from dataclasses import dataclass

from runward.core.kernel.actor import Envelope, Position, Scope, Status, rank_of
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.mail import Letter, MailTo
from runward.core.kernel.records import ApprovalClosing, ApprovalRow, MessageRow, Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """What a commit says about its actor: the state, and the columns that lists and claims read. Times are store time in milliseconds.

    `ready_at`, `care_at` and `rank` are written only by a commit that releases the lease: until then they belong to whoever appends mail.
    `recoveries` is as it was claimed, or 0 once the actor has got on (R40).
    """

    status: Status
    state: str
    format: int
    binding: str
    ready_at: int | None
    care_at: int | None
    rank: int
    waiting_on: int
    stop_reason: str | None
    task_outcome: str
    updated_at: int
    ended_at: int | None
    recoveries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """What makes a repeated request the same request (R42): `route` and the scope confine `key`, `fingerprint` digests the body."""

    scope: Scope
    route: str
    key: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewActor:
    """An actor to be created, with its first frames and messages. `ready_at` None means: now, by the store's clock."""

    uid: str
    kind: str
    format: int
    public_id: str
    scope: Scope
    ready_at: int | None
    care_at: int | None
    priority: int
    binding: str
    agent: str
    agent_version: str
    session_id: str | None
    parent_uid: str | None
    task_outcome: str
    metadata: str
    context: str | None
    state: str
    created_at: int
    frames: tuple[StoredFrame, ...]
    messages: tuple[MessageRow, ...]
    concurrency_key: str | None = None

    def as_created(self, ready_at: int) -> Envelope:
        """The row that its creation makes."""
        return Envelope(
            uid=self.uid,
            kind=self.kind,
            format=self.format,
            public_id=self.public_id,
            scope=self.scope,
            status=Status.QUEUED,
            revision=1,
            leg=0,
            recoveries=0,
            lease_owner=None,
            lease_until=None,
            drain_leg=None,
            last_seq=len(self.frames),
            mail_received=0,
            mail_applied=0,
            ready_at=ready_at,
            care_at=self.care_at,
            rank=rank_of(ready_at, self.priority),
            priority=self.priority,
            binding=self.binding,
            agent=self.agent,
            agent_version=self.agent_version,
            session_id=self.session_id,
            parent_uid=self.parent_uid,
            waiting_on=0,
            stop_reason=None,
            task_outcome=self.task_outcome,
            metadata=self.metadata,
            context=self.context,
            state=self.state,
            created_at=self.created_at,
            updated_at=self.created_at,
            started_at=None,
            ended_at=None,
            cancel_requested_at=None,
            concurrency_key=self.concurrency_key,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """One commit of a leg: all of it is written, or nothing is (R2).

    - `follows` is the gate: the stored revision and `last_seq` must be exactly these. The commit makes them `revision + 1` and
      `last_seq + len(frames)`; `frames` are numbered accordingly.
    - `mail_seen` is the gate of R6: when it is set and the mailbox has received more, nothing is written and the answer is `MailArrived`.
      Closings need it.
    - `mail_applied` is the position up to which mail is applied by this commit; those rows are stamped with the new revision, and those
      in `mail_ignored` as having had no use any more (R6a).
    - `closings` are letters the actor puts into its own mailbox and applies at once: the service itself closes a wait (R19a). They are
      numbered right behind `mail_seen`, and `mail_applied` counts them in.
    - `approval_closings` close pending approvals of this actor, also those that the same commit opens.
    - `mail_to` goes to other actors of the same tenant; `children` are created unless they exist.
    - `release` gives the lease back.
    """

    uid: str
    follows: Position
    face: Face
    mail_applied: int
    mail_ignored: tuple[int, ...] = ()
    mail_seen: int | None = None
    frames: tuple[StoredFrame, ...] = ()
    messages: tuple[MessageRow, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    approvals: tuple[ApprovalRow, ...] = ()
    approval_closings: tuple[ApprovalClosing, ...] = ()
    closings: tuple[Letter, ...] = ()
    mail_to: tuple[MailTo, ...] = ()
    children: tuple[NewActor, ...] = ()
    release: bool = False

    @property
    def leads_to(self) -> Position:
        """The position the stored actor is at once this is written."""
        return Position(revision=self.follows.revision + 1, last_seq=self.follows.last_seq + len(self.frames))


# -- answers: a lost race is a typed answer, not an exception ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """It is durable. `mail_received` and `drain_leg` are what is stored now: how a leg hears of news without asking."""

    mail_received: int
    drain_leg: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """Nothing was written: somebody else has the actor, or it is gone. Shows where it stands, None when it does not exist."""

    leg: int | None
    position: Position | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MailArrived:
    """Nothing was written: the mailbox holds mail the leg has not applied."""

    mail_received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """The actor is durable and ready."""

    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The idempotency key is known for the same body: this is the actor it made."""

    uid: str
    public_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReused:
    """The idempotency key is known for another body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedIsGone:
    """The idempotency key is known for the same body, and the actor it made was deleted."""

    public_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicIdTaken:
    """Another actor of the tenant has this public id. No key was remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """An actor this worker drives from now on. `recovered` says that its last lease ran out."""

    envelope: Envelope
    recovered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a claim took, and the store's clock in milliseconds when it did."""

    taken: tuple[Claimed, ...]
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The letters are in the mailbox, under these numbers, durable. `status` is the actor's status now."""

    seqs: tuple[int, ...]
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class HasEnded:
    """Nothing was written: the actor has ended, and one of the letters may not come after the end."""

    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTaken:
    """Nothing was written: a letter's key is in the mailbox already. `keys` are those."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxFull:
    """Nothing was written: too many unapplied letters (R6a)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionMoved:
    """Nothing was written: the caller expected another revision."""

    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotThere:
    """There is no such actor."""


CommitAnswer = Written | Stale | MailArrived
CreateAnswer = Created | Replayed | KeyReused | CreatedIsGone | PublicIdTaken
AppendAnswer = Appended | HasEnded | KeyTaken | InboxFull | RevisionMoved | NotThere
