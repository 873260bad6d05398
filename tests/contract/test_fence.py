"""The gates of a leg's writes: all of a write is stored, or nothing of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from runward.core.kernel.actor import Envelope, Position, Status
from runward.core.kernel.commit import Appended, Changes, HasEnded, MailArrived, Stale, Written
from tests.contract.backends import Backend
from tests.contract.builders import (
    append,
    approval,
    approved,
    changes,
    claimed,
    face,
    frames,
    letter,
    message,
    new_actor,
    picture,
    position_of,
    receipt,
    released,
    running,
    stored,
    to,
    uid_of,
    written,
)

PARTS: dict[str, dict[str, Any]] = {
    "nothing but the state": {},
    "frames": {"frames": frames(1, 2)},
    "messages": {"messages": (message(1),)},
    "a new receipt": {"receipts": (receipt("1.2"),)},
    "a changed receipt": {"receipts": (receipt("1.1", output='"done"'),)},
    "approvals": {"approvals": (approval("ap_2"),)},
    "closings of approvals": {"approval_closings": (approved(),)},
    "applied mail": {"mail_applied": 1, "mail_ignored": (1,)},
    "closings": {"closings": (letter("approval:ap_1"),), "mail_seen": 1, "mail_applied": 2},
    "mail to others": {"mail_to": (to(2), to(3))},
    "mail to itself": {"mail_to": (to(1, "own"),)},
    "children": {"children": (new_actor(4, frames=frames(1), messages=(message(1),)),)},
    "the lease": {"release": True},
}
PARTS["everything"] = {name: part for parts in PARTS.values() for name, part in parts.items()} | {"mail_to": (to(2), to(3), to(1, "own"))}


async def scene(backend: Backend) -> Envelope:
    """Actor 1 under a lease, with a receipt, a pending approval and a letter; 2 suspended; 3 running; 4 not there."""
    await released(backend, 2)
    await running(backend.store, 3)
    envelope = await running(backend.store, 1)
    await written(backend.store, changes(envelope, receipts=(receipt("1.1"),), approvals=(approval("ap_1"),)))
    await backend.store.append_mail(append(1, "first"))
    return await stored(backend.reads, uid_of(1))


def commit_of(envelope: Envelope, part: str) -> Changes:
    status = Status.SUSPENDED if "release" in PARTS[part] else Status.RUNNING
    return changes(envelope, face_of=face(envelope, status, state='{"changed":true}', ready_at=5, care_at=6, rank=7), **PARTS[part])


@pytest.mark.parametrize("part", PARTS)
async def test_R2_a_commit_on_its_position_writes_every_part(backend: Backend, part: str) -> None:
    commit = commit_of(await scene(backend), part)
    before = await picture(backend, 1, 2, 3, 4)
    assert isinstance(await backend.store.commit(commit), Written)
    assert position_of(await stored(backend.reads, uid_of(1))) == commit.leads_to
    assert await picture(backend, 1, 2, 3, 4) != before


async def test_R2_a_commit_on_another_revision_leaves_nothing(backend: Backend) -> None:
    envelope = await scene(backend)
    await written(backend.store, changes(envelope))
    before = await picture(backend, 1, 2, 3, 4)
    for part in PARTS:
        assert await backend.store.commit(commit_of(envelope, part)) == Stale(leg=1, position=changes(envelope).leads_to), part
        assert await picture(backend, 1, 2, 3, 4) == before, part


async def test_R4a_a_commit_on_another_last_seq_leaves_nothing(backend: Backend) -> None:
    envelope = await scene(backend)
    assert isinstance(await backend.store.append_frames(envelope.uid, position_of(envelope), frames(1)), Written)
    before = await picture(backend, 1, 2, 3, 4)
    stale = Stale(leg=1, position=Position(revision=envelope.revision, last_seq=1))
    for part in PARTS:
        assert await backend.store.commit(commit_of(envelope, part)) == stale, part
        assert await picture(backend, 1, 2, 3, 4) == before, part


async def test_R6_a_commit_that_overlooks_mail_leaves_nothing(backend: Backend) -> None:
    envelope = await scene(backend)
    await backend.store.append_mail(append(1, "second", "third"))
    before = await picture(backend, 1, 2, 3, 4)
    for part in PARTS:
        assert await backend.store.commit(replace(commit_of(envelope, part), mail_seen=1)) == MailArrived(mail_received=3), part
        assert await picture(backend, 1, 2, 3, 4) == before, part


async def test_R19a_a_commit_whose_closing_lost_leaves_nothing(backend: Backend) -> None:
    envelope = await scene(backend)
    before = await picture(backend, 1, 2, 3, 4)
    for part in PARTS:
        commit = replace(commit_of(envelope, part), closings=(letter("fresh"), letter("first")), mail_seen=1, mail_applied=3)
        assert await backend.store.commit(commit) == MailArrived(mail_received=1), part
        assert await picture(backend, 1, 2, 3, 4) == before, part


async def test_a_commit_of_a_deleted_actor_leaves_nothing(backend: Backend) -> None:
    envelope = await scene(backend)
    await written(backend.store, replace(changes(envelope), face=face(envelope, Status.STOPPED), release=True))
    assert await backend.store.delete(envelope.uid)
    before = await picture(backend, 1, 2, 3, 4)
    for part in PARTS:
        assert await backend.store.commit(commit_of(envelope, part)) == Stale(leg=None, position=None), part
        assert await picture(backend, 1, 2, 3, 4) == before, part


async def test_R3_a_worker_that_lost_its_lease_changes_nothing(backend: Backend) -> None:
    envelope = await scene(backend)
    await backend.age(envelope.uid, 31_000)
    (taken,) = await claimed(backend.store, "b1", owner="worker-2")
    before = await picture(backend, 1, 2, 3, 4)
    stale = Stale(leg=2, position=position_of(taken))
    assert await backend.store.commit(commit_of(envelope, "everything")) == stale
    assert await backend.store.append_frames(envelope.uid, position_of(envelope), frames(1)) == stale
    assert await picture(backend, 1, 2, 3, 4) == before
    await written(backend.store, changes(taken))


@pytest.mark.parametrize("status", [Status.QUEUED, Status.SUSPENDED])
async def test_R3_what_no_leg_has_takes_no_write_of_a_leg(backend: Backend, status: Status) -> None:
    """Also at the very position: a worker that gave an actor back and would go on."""
    envelope = await released(backend, 1, status)
    before = await picture(backend, 1)
    stale = Stale(leg=1, position=position_of(envelope))
    for to_status in (status, Status.RUNNING, Status.COMPLETED):
        over = to_status is not Status.RUNNING
        assert await backend.store.commit(changes(envelope, face_of=face(envelope, to_status), release=over)) == stale
    assert await backend.store.append_frames(envelope.uid, position_of(envelope), frames(1)) == stale
    assert await picture(backend, 1) == before


async def test_R36_a_lapsed_lease_that_nobody_took_still_writes(backend: Backend) -> None:
    envelope = await running(backend.store)
    await backend.age(envelope.uid, 31_000)
    await written(backend.store, changes(envelope, frames=frames(1)))


async def test_R2a_a_commit_that_landed_is_found_again(backend: Backend) -> None:
    envelope = await scene(backend)
    commit = commit_of(envelope, "everything")
    await written(backend.store, commit)
    before = await picture(backend, 1, 2, 3, 4)
    assert commit.leads_to == Position(revision=envelope.revision + 1, last_seq=2)
    assert await backend.store.commit(commit) == Stale(leg=1, position=commit.leads_to)
    assert await picture(backend, 1, 2, 3, 4) == before


async def test_R2a_frames_that_landed_are_found_again(backend: Backend) -> None:
    envelope = await running(backend.store)
    follows = position_of(envelope)
    assert isinstance(await backend.store.append_frames(envelope.uid, follows, frames(1, 3)), Written)
    landed = Stale(leg=1, position=Position(revision=envelope.revision, last_seq=3))
    assert await backend.store.append_frames(envelope.uid, follows, frames(1, 3)) == landed
    assert tuple(await backend.reads.frames(envelope.uid, after=0, limit=10)) == frames(1, 3)


# -- which answer --------------------------------------------------------------------------------------------------------


async def test_R6_a_commit_without_the_gate_does_not_mind_mail(backend: Backend) -> None:
    envelope = await running(backend.store)
    await backend.store.append_mail(append(1, "k1"))
    assert (await written(backend.store, changes(envelope))).mail_received == 1


async def test_R6_a_commit_that_saw_all_mail_is_written(backend: Backend) -> None:
    envelope = await running(backend.store)
    await backend.store.append_mail(append(1, "k1", "k2"))
    await written(backend.store, changes(envelope, mail_seen=2, mail_applied=2))


async def test_R2_stale_comes_before_mail(backend: Backend) -> None:
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope))
    await backend.store.append_mail(append(1, "k1"))
    position = changes(envelope).leads_to
    assert await backend.store.commit(changes(envelope, mail_seen=0)) == Stale(leg=1, position=position)
    lost = changes(envelope, mail_seen=1, mail_applied=2, closings=(letter("k1"),))
    assert await backend.store.commit(lost) == Stale(leg=1, position=position)


# -- frames between commits ----------------------------------------------------------------------------------------------


async def test_R4a_appended_frames_move_last_seq_and_nothing_else(backend: Backend) -> None:
    envelope = await scene(backend)
    answer = await backend.store.append_frames(envelope.uid, position_of(envelope), frames(1, 3))
    assert answer == Written(mail_received=1, drain_leg=None)
    assert await stored(backend.reads, envelope.uid) == replace(envelope, last_seq=3)
    follows = Position(revision=envelope.revision, last_seq=3)
    await written(backend.store, changes(envelope, follows=follows, frames=frames(4, 2)))
    assert tuple(await backend.reads.frames(envelope.uid, after=0, limit=10)) == frames(1, 5)


@pytest.mark.parametrize("moved", ["revision", "last_seq", "gone"])
async def test_R4a_frames_on_another_position_leave_nothing(backend: Backend, moved: str) -> None:
    envelope = await running(backend.store)
    if moved == "revision":
        await written(backend.store, changes(envelope))
    elif moved == "last_seq":
        await backend.store.append_frames(envelope.uid, position_of(envelope), frames(1))
    else:
        await written(backend.store, changes(envelope, face_of=face(envelope, Status.FAILED), release=True))
        await backend.store.delete(envelope.uid)
    now = await backend.reads.get(envelope.uid)
    stale = Stale(leg=None, position=None) if now is None else Stale(leg=1, position=position_of(now))
    before = await picture(backend, 1)
    assert await backend.store.append_frames(envelope.uid, position_of(envelope), frames(1, 2)) == stale
    assert await picture(backend, 1) == before


async def test_R6_frames_do_not_mind_mail(backend: Backend) -> None:
    envelope = await running(backend.store)
    await backend.store.append_mail(append(1, "k1", "k2"))
    assert await backend.store.ask_drain(envelope.uid) == 1
    answer = await backend.store.append_frames(envelope.uid, position_of(envelope), frames(1))
    assert answer == Written(mail_received=2, drain_leg=1)


# -- many at once --------------------------------------------------------------------------------------------------------


async def test_I_11_one_of_many_commits_on_one_position_is_written(backend: Backend) -> None:
    stores = [backend.store, await backend.new_store()]
    envelope = await running(backend.store)
    await released(backend, 2)
    commits = [
        changes(
            envelope,
            face_of=face(envelope, state=f'{{"n":{n}}}'),
            frames=frames(1, 1, text=f"{n}"),
            receipts=(receipt("1.1", detail=f'{{"n":{n}}}'),),
            mail_to=(to(2, f"from-{n}"),),
        )
        for n in range(8)
    ]
    answers = await asyncio.gather(*(stores[n % 2].commit(commit) for n, commit in enumerate(commits)))
    assert Counter(type(answer) for answer in answers) == {Written: 1, Stale: 7}
    assert {answer for answer in answers if isinstance(answer, Stale)} == {Stale(leg=1, position=commits[0].leads_to)}
    (n,) = [n for n, answer in enumerate(answers) if isinstance(answer, Written)]
    assert (await stored(backend.reads, envelope.uid)).state == f'{{"n":{n}}}'
    assert tuple(await backend.reads.frames(envelope.uid, after=0, limit=10)) == commits[n].frames
    assert [row.detail for row in await backend.reads.receipts(envelope.uid)] == [f'{{"n":{n}}}']
    assert [mail.key for mail in await backend.reads.mail(uid_of(2), after=0, limit=None)] == [f"from-{n}"]


async def test_I_41_frames_of_racing_appends_are_gapless(backend: Backend) -> None:
    stores = [backend.store, await backend.new_store()]
    envelope = await running(backend.store)

    async def writer(number: int) -> None:
        position = position_of(envelope)
        for _ in range(4):
            while True:
                new = frames(position.last_seq + 1, 2, text=f"{number}")
                answer = await stores[number % 2].append_frames(envelope.uid, position, new)
                if isinstance(answer, Written):
                    position = replace(position, last_seq=position.last_seq + 2)
                    break
                assert answer.position is not None
                position = answer.position

    await asyncio.gather(*map(writer, range(4)))
    written_frames = await backend.reads.frames(envelope.uid, after=0, limit=100)
    assert [frame.seq for frame in written_frames] == list(range(1, 33))
    assert (await stored(backend.reads, envelope.uid)).last_seq == 32


async def test_I_37_mail_and_an_ending_have_one_winner(backend: Backend) -> None:
    """R6: an accepted letter is never overlooked by the commit that ends its actor."""
    other = await backend.new_store()
    for number in range(1, 16):
        envelope = await running(backend.store, number)
        ending = changes(envelope, face_of=face(envelope, Status.COMPLETED), mail_seen=0, release=True)
        writes = [backend.store.commit(ending), other.append_mail(append(number, "cancel"))]
        if number % 2:
            answers = await asyncio.gather(*writes)
        else:
            answers = list(reversed(await asyncio.gather(*reversed(writes))))
        assert answers in (
            [Written(mail_received=0, drain_leg=None), HasEnded(status=Status.COMPLETED)],
            [MailArrived(mail_received=1), Appended(seqs=(1,), status=Status.RUNNING)],
        )
