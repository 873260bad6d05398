"""`Store.append_mail`: letters from outside, all or none, in order, and the waking of their reader."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from runward.core.kernel.actor import MAX_UNAPPLIED_MAIL, Status
from runward.core.kernel.commit import Appended, HasEnded, InboxFull, KeyTaken, NotThere, RevisionMoved, Stale
from runward.core.kernel.mail import Mail, MailKind
from tests.contract.backends import Backend
from tests.contract.builders import (
    append,
    approval,
    approvals_of,
    approved,
    changes,
    claimed,
    created,
    face,
    frames,
    letter,
    next_millisecond,
    picture,
    position_of,
    release,
    released,
    running,
    stored,
    uid_of,
    written,
)

ENDED = [Status.COMPLETED, Status.STOPPED, Status.FAILED]


# -- the mailbox ---------------------------------------------------------------------------------------------------------


async def test_R6_letters_are_numbered_in_order(backend: Backend) -> None:
    await created(backend.store)
    before = await backend.store.now()
    assert await backend.store.append_mail(append(1, "b", "a")) == Appended(seqs=(1, 2), status=Status.QUEUED)
    silent = letter("c", kind=MailKind.CHILD, data='{"x":1}', principal=None)
    assert await backend.store.append_mail(append(1, letters=(silent,))) == Appended(seqs=(3,), status=Status.QUEUED)
    first, second, third = await backend.reads.mail(uid_of(1), after=0, limit=None)
    assert before <= first.received_at <= third.received_at <= await backend.store.now()
    steer = Mail(seq=1, kind=MailKind.STEER, key="b", data='{"text":"go on"}', principal='{"key":"ann"}', received_at=first.received_at)
    assert (first, second) == (steer, replace(steer, seq=2, key="a"))
    assert third == Mail(seq=3, kind=MailKind.CHILD, key="c", data='{"x":1}', principal=None, received_at=third.received_at)
    assert (await stored(backend.reads, uid_of(1))).mail_received == 3


async def test_R6_letters_that_race_are_numbered_without_gaps(backend: Backend) -> None:
    stores = [backend.store, await backend.new_store()]
    await created(backend.store)
    answers = await asyncio.gather(*(stores[n % 2].append_mail(append(1, f"{n}.1", f"{n}.2")) for n in range(20)))
    seqs = []
    for n, answer in enumerate(answers):
        assert isinstance(answer, Appended)
        assert answer.seqs == (answer.seqs[0], answer.seqs[0] + 1)
        seqs += [(seq, f"{n}.{place}") for place, seq in enumerate(answer.seqs, 1)]
    mail = await backend.reads.mail(uid_of(1), after=0, limit=None)
    assert [(item.seq, item.key) for item in mail] == sorted(seqs)
    assert [item.seq for item in mail] == list(range(1, 41))
    assert (await stored(backend.reads, uid_of(1))).mail_received == 40


async def test_R19a_a_taken_key_refuses_all_letters(backend: Backend) -> None:
    await created(backend.store)
    await backend.store.append_mail(append(1, "k1", "k2"))
    before = await picture(backend, 1)
    answer = await backend.store.append_mail(append(1, "k0", "k2", "k1", marks_cancel=True, care=True))
    assert isinstance(answer, KeyTaken) and set(answer.keys) == {"k1", "k2"}
    assert await picture(backend, 1) == before


async def test_R19a_a_key_is_taken_in_one_mailbox_only(backend: Backend) -> None:
    await created(backend.store, 1)
    await created(backend.store, 2)
    for number in (1, 2):
        assert await backend.store.append_mail(append(number, "k1")) == Appended(seqs=(1,), status=Status.QUEUED)


async def test_R19a_one_of_many_takes_a_key(backend: Backend) -> None:
    stores = [backend.store, await backend.new_store()]
    await created(backend.store)
    letters = [letter("approval:ap_1", data=f'{{"n":{n}}}') for n in range(10)]
    answers = await asyncio.gather(*(stores[n % 2].append_mail(append(1, letters=(item,))) for n, item in enumerate(letters)))
    (n,) = [n for n, answer in enumerate(answers) if answer == Appended(seqs=(1,), status=Status.QUEUED)]
    assert [answer for answer in answers if answer == KeyTaken(keys=("approval:ap_1",))] == [KeyTaken(keys=("approval:ap_1",))] * 9
    (mail,) = await backend.reads.mail(uid_of(1), after=0, limit=None)
    assert mail.data == f'{{"n":{n}}}'


async def test_R6a_so_many_letters_may_wait(backend: Backend) -> None:
    envelope = await running(backend.store)
    keys = [f"k{n}" for n in range(MAX_UNAPPLIED_MAIL)]
    assert isinstance(await backend.store.append_mail(append(1, *keys[:-1])), Appended)
    before = await picture(backend, 1)
    assert await backend.store.append_mail(append(1, "one", "two")) == InboxFull()
    assert await picture(backend, 1) == before
    assert isinstance(await backend.store.append_mail(append(1, keys[-1])), Appended)
    assert await backend.store.append_mail(append(1, "one")) == InboxFull()
    await written(backend.store, changes(envelope, mail_applied=2))
    assert await backend.store.append_mail(append(1, "one", "two")) == Appended(
        seqs=(MAX_UNAPPLIED_MAIL + 1, MAX_UNAPPLIED_MAIL + 2), status=Status.RUNNING
    )


async def test_R37_a_full_mailbox_takes_a_cancel(backend: Backend) -> None:
    """R6a: what ends a flood must not wait for it to pass."""
    await running(backend.store)
    await backend.store.append_mail(append(1, *(f"k{n}" for n in range(MAX_UNAPPLIED_MAIL))))
    assert await backend.store.append_mail(append(1, "cancel", marks_cancel=True)) == Appended(
        seqs=(MAX_UNAPPLIED_MAIL + 1,), status=Status.RUNNING
    )
    assert await backend.store.append_mail(append(1, "cancel", marks_cancel=True)) == KeyTaken(keys=("cancel",))


async def test_R1_mail_touches_neither_revision_nor_journal(backend: Backend) -> None:
    envelope = await running(backend.store)
    await backend.store.append_mail(append(1, "k1", marks_cancel=True, care=True))
    after = await stored(backend.reads, envelope.uid)
    moved = {name: getattr(after, name) for name in ("mail_received", "ready_at", "care_at", "cancel_requested_at")}
    assert after == replace(envelope, **moved)
    assert None not in moved.values() and moved["mail_received"] == 1
    await written(backend.store, changes(envelope))


# -- waking --------------------------------------------------------------------------------------------------------------


async def test_R6_mail_wakes_a_suspended_actor_with_a_rank_of_now(backend: Backend) -> None:
    suspended = await released(backend, 1, priority=2)
    before = await backend.store.now()
    assert await backend.store.append_mail(append(1, "k1")) == Appended(seqs=(1,), status=Status.QUEUED)
    after = await stored(backend.reads, uid_of(1))
    assert after.ready_at is not None and before <= after.ready_at <= await backend.store.now()
    assert after == replace(
        suspended, status=Status.QUEUED, ready_at=after.ready_at, rank=after.ready_at - 2 * 60_000, mail_received=1, care_at=None
    )
    assert [envelope.uid for envelope in await claimed(backend.store, "b1")] == [uid_of(1)]


async def test_R6_mail_makes_a_queued_actor_ready_now(backend: Backend) -> None:
    await created(backend.store, ready_at=await backend.store.now() + 100_000)
    assert await backend.store.append_mail(append(1, "cancel")) == Appended(seqs=(1,), status=Status.QUEUED)
    after = await stored(backend.reads, uid_of(1))
    assert after.ready_at is not None and after.rank == after.ready_at
    assert [envelope.uid for envelope in await claimed(backend.store, "b1")] == [uid_of(1)]


async def test_R6_mail_leaves_the_rank_of_an_actor_that_is_ready_already(backend: Backend) -> None:
    await created(backend.store, ready_at=await backend.store.now() - 100_000)
    before = await stored(backend.reads, uid_of(1))
    await backend.store.append_mail(append(1, "k1"))
    assert (await stored(backend.reads, uid_of(1))).rank == before.rank


async def test_R6_mail_leaves_a_running_actor_with_its_holder(backend: Backend) -> None:
    envelope = await running(backend.store)
    assert await backend.store.append_mail(append(1, "k1")) == Appended(seqs=(1,), status=Status.RUNNING)
    after = await stored(backend.reads, uid_of(1))
    assert (after.status, after.lease_owner, after.lease_until, after.leg) == (
        Status.RUNNING,
        envelope.lease_owner,
        envelope.lease_until,
        envelope.leg,
    )


async def test_mail_may_come_without_waking(backend: Backend) -> None:
    suspended = await released(backend, 1)
    assert await backend.store.append_mail(append(1, "k1", wakes=False)) == Appended(seqs=(1,), status=Status.SUSPENDED)
    assert await stored(backend.reads, uid_of(1)) == replace(suspended, mail_received=1)
    assert await claimed(backend.store, "b1") == []


async def test_R41_care_makes_an_actor_anybodys_business_now(backend: Backend) -> None:
    await released(backend, 1, face={"care_at": await backend.store.now() + 100_000})
    await backend.store.append_mail(append(1, "k1"))
    assert await claimed(backend.store, "b2") == []
    await backend.store.append_mail(append(1, "cancel", care=True))
    assert [envelope.uid for envelope in await claimed(backend.store, "b2")] == [uid_of(1)]


async def test_R37_a_cancel_is_marked_once(backend: Backend) -> None:
    await created(backend.store)
    await backend.store.append_mail(append(1, "k1"))
    assert (await stored(backend.reads, uid_of(1))).cancel_requested_at is None
    before = await backend.store.now()
    await backend.store.append_mail(append(1, "cancel", marks_cancel=True))
    marked = (await stored(backend.reads, uid_of(1))).cancel_requested_at
    assert marked is not None and before <= marked <= await backend.store.now()
    await next_millisecond(backend.store)
    await backend.store.append_mail(append(1, "again", marks_cancel=True))
    assert (await stored(backend.reads, uid_of(1))).cancel_requested_at == marked


async def test_R23_a_verdict_shows_at_once(backend: Backend) -> None:
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope, approvals=(approval("ap_1"), approval("ap_2"))))
    await backend.store.append_mail(append(1, "approval:ap_1", closings=(approved("ap_1"),)))
    statuses = {row.id: (row.status, row.decided_at, row.decision) for row in await approvals_of(backend.reads, uid_of(1))}
    assert statuses == {"ap_1": ("approved", approved().decided_at, approved().decision), "ap_2": ("pending", None, None)}


async def test_R19_the_first_verdict_stays_on_show(backend: Backend) -> None:
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope, approvals=(approval("ap_1"),)))
    await backend.store.append_mail(append(1, "approval:ap_1", closings=(approved("ap_1"),)))
    before = await picture(backend, 1)
    denied = approved("ap_1", status="denied", decision='{"by":"bob"}')
    assert await backend.store.append_mail(append(1, "approval:ap_1", closings=(denied,))) == KeyTaken(keys=("approval:ap_1",))
    assert await picture(backend, 1) == before


# -- the end -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ENDED)
async def test_R6_mail_is_refused_after_the_end(backend: Backend, status: Status) -> None:
    await released(backend, 1, status)
    before = await picture(backend, 1)
    letters = append(1, "k1", marks_cancel=True, care=True)
    assert await backend.store.append_mail(letters) == HasEnded(status=status)
    assert await picture(backend, 1) == before


@pytest.mark.parametrize("status", ENDED)
async def test_R10_what_may_come_after_the_end_leaves_the_status(backend: Backend, status: Status) -> None:
    ended = await released(backend, 1, status)
    assert await backend.store.append_mail(append(1, "k1", may_be_ended=True)) == Appended(seqs=(1,), status=status)
    after = await stored(backend.reads, uid_of(1))
    assert (after.status, after.ended_at, after.mail_received, after.revision) == (status, ended.ended_at, 1, ended.revision)
    assert await claimed(backend.store, "b1") == []
    await backend.store.append_mail(append(1, "k2", may_be_ended=True, care=True))
    (envelope,) = await claimed(backend.store, "b2")
    assert (envelope.uid, envelope.status) == (uid_of(1), status)


async def test_R10_a_retry_reopens_what_failed(backend: Backend) -> None:
    failed = await released(backend, 1, Status.FAILED, priority=1)
    before = await backend.store.now()
    retry = append(1, "retry:3", reopens=True)
    assert await backend.store.append_mail(retry) == Appended(seqs=(1,), status=Status.QUEUED)
    after = await stored(backend.reads, uid_of(1))
    assert after.ready_at is not None and before <= after.ready_at
    assert after == replace(
        failed, status=Status.QUEUED, ready_at=after.ready_at, rank=after.ready_at - 60_000, mail_received=1, ended_at=None
    )
    (envelope,) = await claimed(backend.store, "b1")
    assert (envelope.status, envelope.started_at) == (Status.RUNNING, failed.started_at)


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.STOPPED])
async def test_R10_a_retry_reopens_nothing_else(backend: Backend, status: Status) -> None:
    await released(backend, 1, status)
    before = await picture(backend, 1)
    for may_be_ended in (False, True):
        retry = append(1, "retry:3", reopens=True, may_be_ended=may_be_ended)
        assert await backend.store.append_mail(retry) == HasEnded(status=status)
    assert await picture(backend, 1) == before


async def test_a_retry_of_what_has_not_ended_is_mail_like_any_other(backend: Backend) -> None:
    await released(backend, 1)
    assert await backend.store.append_mail(append(1, "retry:3", reopens=True)) == Appended(seqs=(1,), status=Status.QUEUED)


async def test_R10_many_retries_reopen_once(backend: Backend) -> None:
    stores = [backend.store, await backend.new_store()]
    await released(backend, 1, Status.FAILED)
    answers = await asyncio.gather(*(stores[n % 2].append_mail(append(1, "retry:3", reopens=True)) for n in range(6)))
    assert sorted(answers, key=repr) == [Appended(seqs=(1,), status=Status.QUEUED)] + [KeyTaken(keys=("retry:3",))] * 5


async def test_R10_a_retry_is_not_lost_on_a_caretaker(backend: Backend) -> None:
    """To the caretaker of a failed actor it is over, whatever its mail says: the next leg is told that it was reopened."""
    await released(backend, 1, Status.FAILED, face={"care_at": 1})
    (carer,) = await claimed(backend.store, "b9", owner="worker-9")
    retry = append(1, "retry:3", reopens=True)
    assert await backend.store.append_mail(retry) == Appended(seqs=(1,), status=Status.QUEUED)
    reopened = await stored(backend.reads, uid_of(1))
    assert (reopened.lease_owner, reopened.lease_until, reopened.ended_at) == (None, None, None)
    assert (reopened.revision, reopened.leg) == (carer.revision, carer.leg)
    before = await picture(backend, 1)
    stale = Stale(leg=carer.leg, position=position_of(carer))
    for seen, applied in ((None, 0), (0, 0), (1, 1)):
        done = replace(release(carer, Status.FAILED), mail_seen=seen, mail_applied=applied)
        assert await backend.store.commit(done) == stale
    assert await backend.store.append_frames(carer.uid, position_of(carer), frames(1)) == stale
    renewals = await backend.store.renewals()
    assert (await renewals.renew("worker-9", [carer.uid], 1_000)).held == {}
    await renewals.close()
    assert await picture(backend, 1) == before
    (again,) = await claimed(backend.store, "b1")
    assert (again.status, again.leg, again.recoveries) == (Status.RUNNING, carer.leg + 1, 0)


async def test_R10_mail_that_reopens_nothing_leaves_a_caretaker_alone(backend: Backend) -> None:
    await released(backend, 1, Status.FAILED, face={"care_at": 1})
    (carer,) = await claimed(backend.store, "b9")
    await backend.store.append_mail(append(1, "k1", may_be_ended=True, care=True))
    await written(backend.store, replace(release(carer, Status.FAILED), mail_seen=1, mail_applied=1))


async def test_R10_a_retry_of_a_running_actor_leaves_it_with_its_holder(backend: Backend) -> None:
    held = await running(backend.store)
    await backend.store.append_mail(append(1, "retry:3", reopens=True))
    after = await stored(backend.reads, held.uid)
    assert (after.lease_owner, after.lease_until) == (held.lease_owner, held.lease_until)
    await written(backend.store, changes(held))


async def test_R10_a_letter_of_a_retry_may_expect_a_revision_and_close_approvals(backend: Backend) -> None:
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope, approvals=(approval("ap_1"),)))
    await written(backend.store, release(await stored(backend.reads, envelope.uid), Status.FAILED))
    failed = await stored(backend.reads, envelope.uid)
    closing = approved("ap_1")
    early = append(1, "retry:3", reopens=True, closings=(closing,), expected_revision=failed.revision - 1)
    before = await picture(backend, 1)
    assert await backend.store.append_mail(early) == RevisionMoved(revision=failed.revision)
    assert await picture(backend, 1) == before
    assert await backend.store.append_mail(replace(early, expected_revision=failed.revision)) == Appended(seqs=(1,), status=Status.QUEUED)
    assert [row.status for row in await approvals_of(backend.reads, envelope.uid)] == ["approved"]


# -- refusals ------------------------------------------------------------------------------------------------------------


async def test_mail_for_nobody(backend: Backend) -> None:
    before = await backend.rows()
    assert await backend.store.append_mail(append(1, "k1")) == NotThere()
    assert await backend.rows() == before


async def test_mail_may_expect_a_revision(backend: Backend) -> None:
    envelope = await running(backend.store)
    before = await picture(backend, 1)
    expecting = append(1, "k1", expected_revision=1, marks_cancel=True)
    assert await backend.store.append_mail(expecting) == RevisionMoved(revision=envelope.revision)
    assert await picture(backend, 1) == before
    expecting = append(1, "k1", expected_revision=envelope.revision)
    assert await backend.store.append_mail(expecting) == Appended(seqs=(1,), status=Status.RUNNING)


async def test_the_first_of_several_refusals_is_answered(backend: Backend) -> None:
    envelope = await running(backend.store)
    await backend.store.append_mail(append(1, *(f"k{n}" for n in range(MAX_UNAPPLIED_MAIL))))
    assert await backend.store.append_mail(append(1, "k1", expected_revision=1)) == KeyTaken(keys=("k1",))
    assert await backend.store.append_mail(append(1, "new", expected_revision=1)) == InboxFull()
    ending = changes(envelope, face_of=face(envelope, Status.STOPPED), release=True)
    await written(backend.store, ending)
    assert await backend.store.append_mail(append(1, "k1", expected_revision=1)) == HasEnded(status=Status.STOPPED)


# -- reading it ----------------------------------------------------------------------------------------------------------


async def test_mail_is_read_by_position_and_by_key(backend: Backend) -> None:
    await created(backend.store, 1)
    await created(backend.store, 2)
    await backend.store.append_mail(append(1, *(f"k{n}" for n in range(1, 6))))
    await backend.store.append_mail(append(2, "k1", "other"))
    mail = await backend.reads.mail(uid_of(1), after=0, limit=None)
    assert list(await backend.reads.mail(uid_of(1), after=2, limit=2)) == list(mail[2:4])
    assert list(await backend.reads.mail(uid_of(1), after=5, limit=None)) == []
    assert list(await backend.reads.mail(uid_of(9), after=0, limit=None)) == []
    assert await backend.reads.mail_by_key(uid_of(1), ["k4", "k2", "none", "other"]) == {"k4": mail[3], "k2": mail[1]}
    assert await backend.reads.mail_by_key(uid_of(1), []) == {}
