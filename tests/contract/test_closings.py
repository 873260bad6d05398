"""Closings: the service itself takes the key of a wait, in the commit that applies it (R19a)."""

from __future__ import annotations

import asyncio

from runward.core.kernel.actor import Status
from runward.core.kernel.commit import Appended, KeyTaken, MailArrived, Written
from runward.core.kernel.mail import Mail, MailKind
from tests.contract.backends import Backend
from tests.contract.builders import append, changes, face, letter, running, stored, to, written


async def test_R19a_a_closing_is_mail_that_is_applied_at_once(backend: Backend) -> None:
    envelope = await running(backend.store)
    await backend.store.append_mail(append(1, "k1"))
    before = await backend.store.now()
    closings = (letter("timer:1.1", kind=MailKind.CHILD, data='{"at":1}', principal=None), letter("client:1.2", kind=MailKind.CLIENT))
    answer = await written(backend.store, changes(envelope, closings=closings, mail_seen=1, mail_applied=3, mail_ignored=(3,)))
    assert answer.mail_received == 3
    revision = envelope.revision + 1
    _, timer, client = await backend.reads.mail(envelope.uid, after=0, limit=None)
    assert before <= timer.received_at <= await backend.store.now()
    assert timer == Mail(
        seq=2,
        kind=MailKind.CHILD,
        key="timer:1.1",
        data='{"at":1}',
        principal=None,
        received_at=timer.received_at,
        applied_revision=revision,
    )
    assert (client.seq, client.key, client.applied_revision, client.ignored) == (3, "client:1.2", revision, True)
    after = await stored(backend.reads, envelope.uid)
    assert (after.mail_received, after.mail_applied) == (3, 3)


async def test_R19a_a_closed_wait_takes_no_answer_any_more(backend: Backend) -> None:
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope, closings=(letter("approval:ap_1"),), mail_seen=0, mail_applied=1))
    assert await backend.store.append_mail(append(1, "approval:ap_1")) == KeyTaken(keys=("approval:ap_1",))
    assert await backend.store.append_mail(append(1, "approval:ap_2")) == Appended(seqs=(2,), status=Status.RUNNING)


async def test_R19a_a_key_that_was_applied_before_is_taken_too(backend: Backend) -> None:
    envelope = await running(backend.store)
    await backend.store.append_mail(append(1, "approval:ap_1"))
    await written(backend.store, changes(envelope, mail_seen=1, mail_applied=1))
    envelope = await stored(backend.reads, envelope.uid)
    lost = changes(envelope, closings=(letter("approval:ap_1"),), mail_seen=1, mail_applied=2)
    assert await backend.store.commit(lost) == MailArrived(mail_received=1)


async def test_closings_and_letters_to_itself_and_others_in_one_commit(backend: Backend) -> None:
    envelope = await running(backend.store)
    await running(backend.store, 2)
    commit = changes(
        envelope,
        closings=(letter("c1"), letter("c2")),
        mail_to=(to(1, "own"), to(2, "theirs"), to(1, "c1")),
        mail_seen=0,
        mail_applied=2,
    )
    assert await written(backend.store, commit) == Written(mail_received=3, drain_leg=None)
    own = await backend.reads.mail(envelope.uid, after=0, limit=None)
    assert [(mail.seq, mail.key, mail.applied_revision) for mail in own] == [
        (1, "c1", envelope.revision + 1),
        (2, "c2", envelope.revision + 1),
        (3, "own", None),
    ]
    after = await stored(backend.reads, envelope.uid)
    assert (after.mail_received, after.mail_applied, after.revision) == (3, 2, envelope.revision + 1)


async def test_R19a_an_expiry_and_a_verdict_have_one_winner(backend: Backend) -> None:
    other = await backend.new_store()
    for number in range(1, 11):
        envelope = await running(backend.store, number)
        expiry = changes(
            envelope,
            face_of=face(envelope, state='{"expired":true}'),
            closings=(letter("approval:ap_1", data='{"expired":true}'),),
            mail_seen=0,
            mail_applied=1,
        )
        verdict = append(number, "approval:ap_1")
        if number % 2:
            committed, appended = await asyncio.gather(backend.store.commit(expiry), other.append_mail(verdict))
        else:
            appended, committed = await asyncio.gather(other.append_mail(verdict), backend.store.commit(expiry))
        (mail,) = await backend.reads.mail(envelope.uid, after=0, limit=None)
        if isinstance(committed, Written):
            assert appended == KeyTaken(keys=("approval:ap_1",))
            assert mail.data == '{"expired":true}'
        else:
            assert (committed, appended) == (MailArrived(mail_received=1), Appended(seqs=(1,), status=Status.RUNNING))
            assert mail.data != '{"expired":true}'
