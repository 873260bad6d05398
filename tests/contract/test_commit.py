"""`Store.commit`: what each part of a commit leaves behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runward.core.kernel.actor import FORMAT, Status
from runward.core.kernel.commit import Written
from runward.core.kernel.records import Stage
from tests.contract.backends import Backend
from tests.contract.builders import (
    BASE,
    append,
    changes,
    claimed,
    created,
    face,
    frames,
    message,
    new_actor,
    position_of,
    receipt,
    release,
    running,
    stored,
    to,
    uid_of,
    written,
)

FACE = (
    "status",
    "state",
    "format",
    "binding",
    "waiting_on",
    "stop_reason",
    "task_outcome",
    "updated_at",
    "ended_at",
    "recoveries",
)
"""What every commit writes of a face."""


async def test_R2_a_commit_moves_the_actor_one_revision_on(backend: Backend) -> None:
    before = await running(backend.store)
    said = face(before, state='{"step":2}', binding="b2", waiting_on=5, stop_reason="s", task_outcome="denied", updated_at=BASE + 77)
    said = replace(said, recoveries=3)
    commit = changes(before, face_of=said, frames=frames(1, 2))
    await written(backend.store, commit)
    after = await stored(backend.reads, before.uid)
    assert position_of(after) == commit.leads_to
    assert after == replace(before, revision=before.revision + 1, last_seq=2, **{name: getattr(said, name) for name in FACE})


async def test_R1_ready_care_and_rank_belong_to_mail_until_the_lease_is_given_back(backend: Backend) -> None:
    envelope = await running(backend.store)
    await backend.store.append_mail(append(1, "k1", care=True))
    woken = await stored(backend.reads, envelope.uid)
    assert woken.ready_at is not None and woken.care_at is not None
    await written(backend.store, changes(envelope, face_of=face(envelope, ready_at=5, care_at=6, rank=7)))
    kept = await stored(backend.reads, envelope.uid)
    assert (kept.ready_at, kept.care_at, kept.rank) == (woken.ready_at, woken.care_at, woken.rank)
    assert (kept.lease_owner, kept.lease_until) == (envelope.lease_owner, envelope.lease_until)


@pytest.mark.parametrize("status", [Status.QUEUED, Status.SUSPENDED, Status.COMPLETED, Status.STOPPED, Status.FAILED])
async def test_R2_a_release_gives_the_lease_back(backend: Backend, status: Status) -> None:
    envelope = await running(backend.store)
    assert await backend.store.ask_drain(envelope.uid) == 1
    answer = await written(backend.store, release(envelope, status, ready_at=5, care_at=6, rank=-7))
    assert answer == Written(mail_received=0, drain_leg=None)
    after = await stored(backend.reads, envelope.uid)
    assert (after.status, after.lease_owner, after.lease_until, after.drain_leg) == (status, None, None, None)
    assert (after.ready_at, after.care_at, after.rank) == (5, 6, -7)
    assert (after.leg, after.started_at) == (envelope.leg, envelope.started_at)
    assert after.ended_at == (BASE + 20 if status.ended else None)


async def test_R39_a_commit_hears_of_mail_and_drain(backend: Backend) -> None:
    envelope = await running(backend.store)
    assert await written(backend.store, changes(envelope)) == Written(mail_received=0, drain_leg=None)
    await backend.store.append_mail(append(1, "k1", "k2"))
    assert await backend.store.ask_drain(envelope.uid) == 1
    envelope = await stored(backend.reads, envelope.uid)
    assert await written(backend.store, changes(envelope)) == Written(mail_received=2, drain_leg=1)


async def test_R7_messages_are_appended(backend: Backend) -> None:
    envelope = await running(backend.store, messages=(message(1),))
    more = (message(2, role="assistant", step=1, opaque=b"sig", opaque_format="x"), message(3, role="tool", step=1))
    await written(backend.store, changes(envelope, messages=more))
    envelope = await stored(backend.reads, envelope.uid)
    await written(backend.store, changes(envelope, messages=(message(4),)))
    assert tuple(await backend.reads.messages(envelope.uid, after=0, limit=None)) == (message(1), *more, message(4))


async def test_a_receipt_is_one_row_however_often_it_changes(backend: Backend) -> None:
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope, receipts=(receipt("1.1"), receipt("1.2"))))
    done = receipt(
        "1.1",
        stage=Stage.FAILED,
        effect="read",
        attempt=2,
        arguments='{"order":8}',
        raw='{"raw":1}',
        output='"out"',
        is_error=True,
        outcome="timed_out",
        started_at=BASE + 5,
        ended_at=BASE + 6,
        detail='{"effect_certain":false}',
        format=FORMAT,
    )
    envelope = await stored(backend.reads, envelope.uid)
    await written(backend.store, changes(envelope, receipts=(done, receipt("1.3"))))
    assert list(await backend.reads.receipts(envelope.uid)) == [done, receipt("1.2"), receipt("1.3")]


async def test_applied_mail_is_stamped_with_the_revision_that_applied_it(backend: Backend) -> None:
    envelope = await running(backend.store)
    await backend.store.append_mail(append(1, "k1", "k2", "k3", "k4"))
    await written(backend.store, changes(envelope, mail_applied=1))
    envelope = await stored(backend.reads, envelope.uid)
    assert (envelope.mail_applied, envelope.mail_received) == (1, 4)
    await written(backend.store, changes(envelope, mail_applied=3, mail_ignored=(2,)))
    revision = envelope.revision
    shown = [(mail.seq, mail.applied_revision, mail.ignored) for mail in await backend.reads.mail(envelope.uid, after=0, limit=None)]
    assert shown == [(1, revision, False), (2, revision + 1, True), (3, revision + 1, False), (4, None, False)]
    assert (await stored(backend.reads, envelope.uid)).mail_applied == 3


# -- children ------------------------------------------------------------------------------------------------------------


async def test_a_child_is_not_there_for_the_letters_of_the_commit_that_creates_it(backend: Backend) -> None:
    parent = await running(backend.store)
    await written(backend.store, changes(parent, children=(new_actor(2, parent_uid=parent.uid),), mail_to=(to(2),)))
    assert (await stored(backend.reads, uid_of(2))).mail_received == 0
    assert list(await backend.reads.mail(uid_of(2), after=0, limit=None)) == []


async def test_a_commit_creates_children(backend: Backend) -> None:
    parent = await running(backend.store)
    children = tuple(
        new_actor(number, parent_uid=parent.uid, frames=frames(1, 2, text=f"{number}"), messages=(message(1),), priority=number)
        for number in (3, 2)
    )
    before = await backend.store.now()
    await written(backend.store, changes(parent, children=children))
    for child in children:
        envelope = await stored(backend.reads, child.uid)
        assert (envelope.status, envelope.revision, envelope.leg, envelope.last_seq) == (Status.QUEUED, 1, 0, 2)
        assert (envelope.parent_uid, envelope.binding, envelope.public_id) == (parent.uid, child.binding, child.public_id)
        assert envelope.ready_at is not None and envelope.ready_at >= before
        assert envelope.rank == envelope.ready_at - child.priority * 60_000
        assert tuple(await backend.reads.frames(child.uid, after=0, limit=10)) == child.frames
        assert tuple(await backend.reads.messages(child.uid, after=0, limit=None)) == child.messages
    assert [envelope.uid for envelope in await claimed(backend.store, "b2", "b3")] == [uid_of(2), uid_of(3)]


async def test_a_child_that_exists_is_left_as_it_is(backend: Backend) -> None:
    parent = await running(backend.store)
    child = new_actor(2, parent_uid=parent.uid, frames=frames(1), messages=(message(1),))
    await written(backend.store, changes(parent, children=(child,)))
    (driven,) = await claimed(backend.store, "b2", owner="worker-2")
    rows = await backend.rows()
    again = replace(child, state='{"again":true}', frames=frames(1, 2, text="again"), messages=(message(1), message(2)))
    parent = await stored(backend.reads, parent.uid)
    await written(backend.store, changes(parent, children=(again, new_actor(3))))
    assert await stored(backend.reads, child.uid) == driven
    assert tuple(await backend.reads.frames(child.uid, after=0, limit=10)) == child.frames
    assert await backend.rows() == {**rows, "actors": rows["actors"] + 1}


# -- all at once ---------------------------------------------------------------------------------------------------------


async def test_the_last_commit_of_a_leg_after_frames_of_its_own(backend: Backend) -> None:
    await created(backend.store, messages=(message(1),), frames=frames(1))
    (envelope,) = await claimed(backend.store, "b1")
    await backend.store.append_frames(envelope.uid, position_of(envelope), frames(2, 5))
    envelope = await stored(backend.reads, envelope.uid)
    last = changes(
        envelope,
        face_of=face(envelope, Status.COMPLETED, state='{"done":true}', task_outcome="resolved"),
        frames=frames(7, 3),
        messages=(message(2, role="assistant"),),
        receipts=(receipt("1.1", stage=Stage.COMPLETED),),
        mail_seen=0,
        release=True,
    )
    assert await written(backend.store, last) == Written(mail_received=0, drain_leg=None)
    after = await stored(backend.reads, envelope.uid)
    assert (after.status, after.last_seq, after.task_outcome, after.lease_owner) == (Status.COMPLETED, 9, "resolved", None)
    assert [frame.seq for frame in await backend.reads.frames(envelope.uid, after=0, limit=100)] == list(range(1, 10))
