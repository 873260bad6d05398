"""`Store.seize`: an actor is taken from its holder, whoever that is and whatever it is about to write."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from runward.core.kernel.actor import FORMAT, MAX_UNAPPLIED_MAIL, Position, Status
from runward.core.kernel.commit import Appended, KeyTaken, Stale, Written
from runward.core.kernel.mail import NEEDS_NO_AUTHOR_CODE, Mail, MailKind
from tests.contract.backends import Backend
from tests.contract.builders import (
    append,
    changes,
    claimed,
    created,
    face,
    frames,
    letter,
    picture,
    position_of,
    release,
    released,
    running,
    stored,
    uid_of,
    written,
)

TAKEOVER = letter("takeover:1", kind=MailKind.TAKEOVER, data='{"why":"stuck"}')


async def test_a_running_actor_is_taken_from_its_holder(backend: Backend) -> None:
    held = await running(backend.store, priority=1)
    await backend.store.append_mail(append(1, "k1"))
    await backend.store.ask_drain(held.uid)
    before = await backend.store.now()
    assert await backend.store.seize(held.uid, TAKEOVER, lapsed_only=False) == held.leg
    after = await stored(backend.reads, held.uid)
    assert after.ready_at is not None and before <= after.ready_at <= await backend.store.now()
    assert after == replace(
        held,
        status=Status.QUEUED,
        revision=held.revision + 1,
        lease_owner=None,
        lease_until=None,
        drain_leg=None,
        ready_at=after.ready_at,
        mail_received=2,
    )
    (_, mail) = await backend.reads.mail(held.uid, after=0, limit=None)
    assert before <= mail.received_at <= after.ready_at
    assert mail == Mail(
        seq=2,
        kind=MailKind.TAKEOVER,
        key="takeover:1",
        data='{"why":"stuck"}',
        principal='{"key":"ann"}',
        received_at=mail.received_at,
    )
    (again,) = await claimed(backend.store, "b1", owner="worker-2")
    assert (again.leg, again.recoveries) == (held.leg + 1, 0)


async def test_R3_the_holder_writes_nothing_more(backend: Backend) -> None:
    held = await running(backend.store)
    await backend.store.seize(held.uid, TAKEOVER, lapsed_only=False)
    before = await picture(backend, 1)
    stale = Stale(leg=held.leg, position=Position(revision=held.revision + 1, last_seq=0))
    assert await backend.store.commit(changes(held)) == stale
    assert await backend.store.append_frames(held.uid, position_of(held), frames(1)) == stale
    assert await picture(backend, 1) == before
    renewals = await backend.store.renewals()
    assert (await renewals.renew("worker-1", [held.uid], 1_000)).held == {}
    await renewals.close()


async def test_a_seized_actor_is_ready_now_whenever_it_was_to_be(backend: Backend) -> None:
    later = await backend.store.now() + 10**12
    await created(backend.store, ready_at=later, care_at=1)
    assert len(await claimed(backend.store)) == 1
    assert await backend.store.seize(uid_of(1), TAKEOVER, lapsed_only=False) == 1
    after = await stored(backend.reads, uid_of(1))
    assert after.ready_at is not None and after.rank == after.ready_at
    assert after.care_at == 1


async def test_R40_a_lease_that_had_run_out_counts_as_a_recovery(backend: Backend) -> None:
    held = await running(backend.store)
    before = await picture(backend, 1)
    assert await backend.store.seize(held.uid, TAKEOVER, lapsed_only=True) is None
    assert await picture(backend, 1) == before
    await backend.age(held.uid, 31_000)
    assert await backend.store.seize(held.uid, TAKEOVER, lapsed_only=True) == held.leg
    assert (await stored(backend.reads, held.uid)).recoveries == 1


async def test_R40_also_when_it_is_taken_whether_it_had_run_out_or_not(backend: Backend) -> None:
    held = await running(backend.store)
    await backend.age(held.uid, 31_000)
    assert await backend.store.seize(held.uid, TAKEOVER, lapsed_only=False) == held.leg
    assert (await stored(backend.reads, held.uid)).recoveries == 1


@pytest.mark.parametrize("condition", ["gone", "queued", "suspended", "completed", "key taken", "newer format"])
async def test_what_cannot_be_seized_is_left_as_it_is(backend: Backend, condition: str) -> None:
    if condition == "queued":
        await created(backend.store)
    elif condition in ("suspended", "completed"):
        await released(backend, 1, Status(condition))
    elif condition != "gone":
        await running(backend.store)
    if condition == "key taken":
        await backend.store.append_mail(append(1, "takeover:1"))
    if condition == "newer format":
        await backend.set_format(uid_of(1), FORMAT + 1)
    before = await picture(backend, 1)
    for lapsed_only in (True, False):
        assert await backend.store.seize(uid_of(1), TAKEOVER, lapsed_only=lapsed_only) is None
    assert await picture(backend, 1) == before


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.STOPPED, Status.FAILED])
async def test_R41_an_ended_actor_keeps_its_status_and_is_cared_for(backend: Backend, status: Status) -> None:
    """The letter has to be applied: by another caretaker."""
    held = await running(backend.store)
    await written(backend.store, changes(held, face_of=face(held, status)))
    ended = await stored(backend.reads, held.uid)
    assert await backend.store.seize(held.uid, TAKEOVER, lapsed_only=False) == held.leg
    after = await stored(backend.reads, held.uid)
    assert after.care_at is not None
    assert after == replace(
        ended, revision=ended.revision + 1, lease_owner=None, lease_until=None, mail_received=1, care_at=after.care_at, ready_at=None
    )
    (carer,) = await claimed(backend.store, "b9")
    assert (carer.status, carer.mail_received) == (status, 1)
    await written(backend.store, replace(release(carer, status), mail_applied=1, mail_seen=1))
    assert await claimed(backend.store, "b9") == []


async def test_a_full_mailbox_takes_the_letter(backend: Backend) -> None:
    """R6a: what frees a stuck actor must not wait for it to read its mail."""
    held = await running(backend.store)
    await backend.store.append_mail(append(1, *(f"k{n}" for n in range(MAX_UNAPPLIED_MAIL))))
    assert await backend.store.seize(held.uid, TAKEOVER, lapsed_only=False) == held.leg
    assert (await stored(backend.reads, held.uid)).mail_received == MAX_UNAPPLIED_MAIL + 1


async def test_one_of_many_takeovers_with_one_key_succeeds(backend: Backend) -> None:
    stores = [backend.store, await backend.new_store()]
    for number in range(1, 6):
        held = await running(backend.store, number)
        answers = await asyncio.gather(*(stores[n % 2].seize(held.uid, TAKEOVER, lapsed_only=False) for n in range(6)))
        assert sorted(answers, key=repr) == [1, *[None] * 5]
        assert (await stored(backend.reads, held.uid)).revision == held.revision + 1


async def test_a_takeover_and_a_commit_of_the_holder_have_one_winner(backend: Backend) -> None:
    """I-11: either the commit is there and the takeover follows it, or it is stale."""
    other = await backend.new_store()
    for number in range(1, 9):
        held = await running(backend.store, number)
        ending = changes(held, face_of=face(held, Status.COMPLETED), mail_seen=0, release=True)
        writes = [backend.store.commit(ending), other.seize(held.uid, TAKEOVER, lapsed_only=False)]
        answers = await asyncio.gather(*(writes if number % 2 else reversed(writes)))
        after = await stored(backend.reads, held.uid)
        if any(isinstance(answer, Written) for answer in answers):
            assert (after.status, after.mail_received, None in answers) == (Status.COMPLETED, 0, True)
        else:
            assert (after.status, after.mail_received, held.leg in answers) == (Status.QUEUED, 1, True)


async def test_a_takeover_and_mail_with_its_key_have_one_winner(backend: Backend) -> None:
    other = await backend.new_store()
    for number in range(1, 9):
        held = await running(backend.store, number)
        writes = [backend.store.seize(held.uid, TAKEOVER, lapsed_only=False), other.append_mail(append(number, "takeover:1"))]
        answers = await asyncio.gather(*(writes if number % 2 else reversed(writes)))
        seized = held.leg in answers
        assert (KeyTaken(keys=("takeover:1",)) in answers) is seized
        assert (Appended(seqs=(1,), status=Status.RUNNING) in answers) is not seized
        assert (await stored(backend.reads, held.uid)).mail_received == 1


def test_R41_any_worker_can_apply_a_takeover() -> None:
    assert MailKind.TAKEOVER in NEEDS_NO_AUTHOR_CODE
