"""Actors, commits and letters as tests want them: valid, and different only in what a test names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runward.core.kernel.actor import FORMAT, Envelope, Position, Scope, Status
from runward.core.kernel.commit import Changes, Created, Face, IdempotencyKey, NewActor, Written
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.mail import Letter, Mail, MailKind, MailTo
from runward.core.kernel.records import ApprovalClosing, ApprovalRow, MessageRow, Receipt, Stage
from runward.ports.reads import ApprovalQuery, Reads, StoredApproval
from runward.ports.store import Append, ClaimRequest, Store
from tests.contract.backends import Backend

BASE = 1_699_000_000_000
"""A time before every test, in milliseconds."""

TENANT = Scope(tenant="acme")


def uid_of(number: int) -> str:
    """The uid of the test's n-th actor; they sort by their numbers."""
    return f"{number:032x}"


def new_actor(number: int = 1, **differing: Any) -> NewActor:
    """The test's n-th actor. Each has a binding of its own, `b<number>`, so that a claim can name one."""
    new = NewActor(
        uid=uid_of(number),
        kind="run",
        format=FORMAT,
        public_id=f"run-{number}",
        scope=TENANT,
        ready_at=None,
        care_at=None,
        priority=0,
        binding=f"b{number}",
        agent="support",
        agent_version="1",
        session_id=None,
        parent_uid=None,
        task_outcome="in_progress",
        metadata="{}",
        context=None,
        state="{}",
        created_at=BASE + number,
        frames=(),
        messages=(),
    )
    return replace(new, **differing)


def idempotency_key(key: str = "k", **differing: Any) -> IdempotencyKey:
    return replace(IdempotencyKey(scope=TENANT, route="POST /runs", key=key, fingerprint="f1"), **differing)


def claim_request(*bindings: str, **differing: Any) -> ClaimRequest:
    request = ClaimRequest(
        owner="worker-1", bindings=bindings, limit=100, overdue=50, suspects=100, ttl_ms=30_000, recovery_delay_ms=2_000, max_recoveries=5
    )
    return replace(request, **differing)


def frames(first: int, count: int = 1, text: str = "a") -> tuple[StoredFrame, ...]:
    return tuple(StoredFrame(seq=seq, data=f'{{"seq":{seq},"text":"{text}"}}'.encode()) for seq in range(first, first + count))


def message(seq: int, **differing: Any) -> MessageRow:
    return replace(MessageRow(seq=seq, role="user", step=None, content='[{"type":"text","text":"hi"}]', format=FORMAT), **differing)


def receipt(tool_call_id: str = "1.1", **differing: Any) -> Receipt:
    """A receipt of the call `<step>.<position>`."""
    step, position = tool_call_id.split(".")
    made = Receipt(
        tool_call_id=tool_call_id,
        step=int(step),
        position=int(position),
        tool_name="refund",
        stage=Stage.EXECUTING,
        effect="unclassified",
        attempt=1,
        arguments='{"order":7}',
        raw=None,
        output=None,
        is_error=False,
        outcome=None,
        started_at=BASE + 1,
        ended_at=None,
        detail="{}",
        format=FORMAT,
    )
    return replace(made, **differing)


def approval(id: str = "ap_1", **differing: Any) -> ApprovalRow:
    return replace(ApprovalRow(id=id, tool="refund", created_at=BASE + 1, expires_at=None, data='{"order":7}'), **differing)


def approved(id: str = "ap_1", **differing: Any) -> ApprovalClosing:
    return replace(ApprovalClosing(id=id, status="approved", decided_at=BASE + 2, decision='{"by":"ann"}'), **differing)


def letter(key: str = "k1", **differing: Any) -> Letter:
    return replace(Letter(kind=MailKind.STEER, key=key, data='{"text":"go on"}', principal='{"key":"ann"}'), **differing)


def to(number: int, key: str = "k1", **differing: Any) -> MailTo:
    """A letter for the test's n-th actor."""
    return MailTo(uid=uid_of(number), letter=letter(key, **differing))


def append(number: int = 1, *keys: str, **differing: Any) -> Append:
    """Letters with these keys for the test's n-th actor."""
    return replace(Append(uid=uid_of(number), letters=tuple(letter(key) for key in keys)), **differing)


def position_of(envelope: Envelope) -> Position:
    return Position(revision=envelope.revision, last_seq=envelope.last_seq)


def face(envelope: Envelope, status: Status = Status.RUNNING, **differing: Any) -> Face:
    """What a commit says of an actor when it changes nothing but the status."""
    made = Face(
        status=status,
        state=envelope.state,
        format=envelope.format,
        binding=envelope.binding,
        ready_at=None,
        care_at=None,
        rank=envelope.rank,
        waiting_on=0,
        stop_reason=None,
        task_outcome=envelope.task_outcome,
        updated_at=BASE + 10,
        ended_at=BASE + 20 if status.ended else None,
        recoveries=envelope.recoveries,
    )
    return replace(made, **differing)


def changes(envelope: Envelope, *, face_of: Face | None = None, **differing: Any) -> Changes:
    """A commit that follows an envelope as it was read, and changes nothing but what is named."""
    made = Changes(uid=envelope.uid, follows=position_of(envelope), face=face_of or face(envelope), mail_applied=envelope.mail_applied)
    return replace(made, **differing)


def release(envelope: Envelope, status: Status = Status.SUSPENDED, **differing: Any) -> Changes:
    """A commit that gives the lease back with this status; what is named goes to the face."""
    return changes(envelope, face_of=face(envelope, status, **differing), release=True)


# -- actors in a certain condition ---------------------------------------------------------------------------------------


async def created(store: Store, number: int = 1, **differing: Any) -> str:
    """A new actor's uid."""
    answer = await store.create(new_actor(number, **differing), None)
    assert answer == Created(uid=uid_of(number))
    return uid_of(number)


async def claimed(store: Store, *bindings: str, **differing: Any) -> list[Envelope]:
    """What a claim takes, by uid."""
    claims = await store.claim(claim_request(*bindings, **differing))
    return sorted((taken.envelope for taken in claims.taken), key=lambda envelope: envelope.uid)


async def running(store: Store, number: int = 1, *, owner: str = "worker-1", **differing: Any) -> Envelope:
    """A new actor under a lease."""
    await created(store, number, **differing)
    (envelope,) = await claimed(store, differing.get("binding", f"b{number}"), owner=owner)
    return envelope


async def written(store: Store, commit: Changes) -> Written:
    """Writes a commit that has to succeed."""
    answer = await store.commit(commit)
    assert isinstance(answer, Written)
    return answer


async def released(
    backend: Backend, number: int = 1, status: Status = Status.SUSPENDED, *, face: Mapping[str, Any] | None = None, **differing: Any
) -> Envelope:
    """An actor that was driven and given back with this status, not ready."""
    envelope = await running(backend.store, number, **differing)
    await written(backend.store, release(envelope, status, **(face or {})))
    return await stored(backend.reads, envelope.uid)


async def next_millisecond(store: Store) -> None:
    """Returns once the store's clock shows another time than now."""
    now = await store.now()
    while await store.now() == now:
        pass


async def stored(reads: Reads, uid: str) -> Envelope:
    """The actor as it stands."""
    envelope = await reads.get(uid)
    assert envelope is not None
    return envelope


async def approvals_of(reads: Reads, uid: str) -> Sequence[StoredApproval]:
    """The requests for approval of an actor, by id."""
    found = await reads.approvals(ApprovalQuery(scope=None, limit=10_000))
    return sorted((approval for approval in found if approval.uid == uid), key=lambda approval: approval.id)


async def picture(backend: Backend, *numbers: int) -> Sequence[object]:
    """Everything there is of some actors, and how many rows there are in all: equal pictures, nothing was written."""
    shown: list[object] = [await backend.rows()]
    for uid in map(uid_of, numbers):
        reads = backend.reads
        rows: tuple[
            Envelope | None, Sequence[StoredFrame], Sequence[MessageRow], Sequence[Receipt], Sequence[Mail], Sequence[StoredApproval]
        ] = (
            await reads.get(uid),
            await reads.frames(uid, after=0, limit=10_000),
            await reads.messages(uid, after=0, limit=None),
            await reads.receipts(uid),
            await reads.mail(uid, after=0, limit=None),
            await approvals_of(reads, uid),
        )
        shown.extend(list(part) if isinstance(part, Sequence) else part for part in rows)
    return shown
