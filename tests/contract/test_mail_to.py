"""Mail from one actor to others, part of the sender's commit."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from runward.core.kernel.actor import Scope, Status
from runward.core.kernel.commit import Written
from runward.core.kernel.mail import Mail, MailKind, MailTo
from tests.contract.backends import Backend
from tests.contract.builders import (
    append,
    changes,
    claimed,
    created,
    face,
    letter,
    picture,
    release,
    released,
    running,
    stored,
    to,
    uid_of,
    written,
)


async def keys(backend: Backend, number: int) -> list[tuple[int, str]]:
    """The mailbox of the test's n-th actor: number and key of each letter."""
    return [(mail.seq, mail.key) for mail in await backend.reads.mail(uid_of(number), after=0, limit=None)]


async def test_letters_to_others_arrive_in_the_order_given(backend: Backend) -> None:
    sender = await running(backend.store, 2)
    for number in (1, 3):
        await created(backend.store, number)
    await backend.store.append_mail(append(3, "first"))
    before = await backend.store.now()
    mail_to = (to(3, "b"), to(1, "z"), to(3, "a"), to(1, "y", kind=MailKind.CHILD, data='{"n":1}', principal=None), to(3, "c"))
    assert await written(backend.store, changes(sender, mail_to=mail_to)) == Written(mail_received=0, drain_leg=None)
    assert await keys(backend, 1) == [(1, "z"), (2, "y")]
    assert await keys(backend, 3) == [(1, "first"), (2, "b"), (3, "a"), (4, "c")]
    assert await keys(backend, 2) == []
    (_, child) = await backend.reads.mail(uid_of(1), after=0, limit=None)
    assert child.received_at >= before
    assert child == Mail(seq=2, kind=MailKind.CHILD, key="y", data='{"n":1}', principal=None, received_at=child.received_at)
    for number, received in ((1, 2), (3, 4)):
        assert (await stored(backend.reads, uid_of(number))).mail_received == received


async def test_letters_whose_key_is_taken_are_dropped(backend: Backend) -> None:
    sender = await running(backend.store, 1)
    await created(backend.store, 2)
    await backend.store.append_mail(append(2, "k1"))
    mail_to = (to(2, "k2", data='{"n":1}'), to(2, "k1", data='{"n":2}'), to(2, "k2", data='{"n":3}'), to(2, "k3"))
    await written(backend.store, changes(sender, mail_to=mail_to))
    assert await keys(backend, 2) == [(1, "k1"), (2, "k2"), (3, "k3")]
    mail = await backend.reads.mail(uid_of(2), after=0, limit=None)
    assert [item.data for item in mail] == [letter().data, '{"n":1}', letter().data]
    assert (await stored(backend.reads, uid_of(2))).mail_received == 3


async def test_a_recipient_that_gets_nothing_new_is_not_woken(backend: Backend) -> None:
    sender = await running(backend.store, 1)
    suspended = await released(backend, 2)
    await backend.store.append_mail(append(2, "k1", wakes=False))
    await written(backend.store, changes(sender, mail_to=(to(2, "k1"),)))
    assert await stored(backend.reads, uid_of(2)) == replace(suspended, mail_received=1)


@pytest.mark.parametrize("case", ["completed", "stopped", "gone", "of another tenant"])
async def test_letters_to_nobody_are_dropped_and_the_rest_is_written(backend: Backend, case: str) -> None:
    """R43: mail stays within a tenant."""
    sender = await running(backend.store, 1)
    await created(backend.store, 3)
    if case in ("completed", "stopped"):
        await released(backend, 2, Status(case))
    elif case == "of another tenant":
        await released(backend, 2, Status.SUSPENDED, scope=Scope(tenant="globex"))
    before = await picture(backend, 2)
    await written(backend.store, changes(sender, mail_to=(to(2, "k1"), to(3, "k1"))))
    assert (await picture(backend, 2))[1:] == before[1:]
    assert await keys(backend, 3) == [(1, "k1")]


async def test_letters_reach_other_users_of_the_tenant(backend: Backend) -> None:
    sender = await running(backend.store, 1, scope=Scope(tenant="acme", user="u1", namespace="n1"))
    await created(backend.store, 2, scope=Scope(tenant="acme", user="u2"))
    await written(backend.store, changes(sender, mail_to=(to(2, "k1"),)))
    assert await keys(backend, 2) == [(1, "k1")]


async def test_R10_a_failed_recipient_gets_its_mail_and_stays_failed(backend: Backend) -> None:
    sender = await running(backend.store, 1)
    failed = await released(backend, 2, Status.FAILED)
    await written(backend.store, changes(sender, mail_to=(to(2, "k1"),)))
    after = await stored(backend.reads, uid_of(2))
    assert (after.status, after.mail_received, after.ended_at) == (Status.FAILED, 1, failed.ended_at)
    assert await claimed(backend.store, "b2") == []


async def test_R6_a_suspended_recipient_is_woken(backend: Backend) -> None:
    sender = await running(backend.store, 1)
    suspended = await released(backend, 2, priority=3)
    before = await backend.store.now()
    await written(backend.store, changes(sender, mail_to=(to(2, "k1"), to(2, "k2"))))
    after = await stored(backend.reads, uid_of(2))
    assert after.ready_at is not None and before <= after.ready_at <= await backend.store.now()
    assert after == replace(suspended, status=Status.QUEUED, ready_at=after.ready_at, rank=after.ready_at - 3 * 60_000, mail_received=2)
    assert [envelope.uid for envelope in await claimed(backend.store, "b2")] == [uid_of(2)]


async def test_R6_a_running_recipient_hears_of_it_with_its_next_write(backend: Backend) -> None:
    sender = await running(backend.store, 1)
    recipient = await running(backend.store, 2, owner="worker-2")
    await written(backend.store, changes(sender, mail_to=(to(2, "k1"),)))
    after = await stored(backend.reads, uid_of(2))
    assert after == replace(recipient, mail_received=1, ready_at=after.ready_at)
    assert await written(backend.store, changes(recipient)) == Written(mail_received=1, drain_leg=None)


# -- to itself -----------------------------------------------------------------------------------------------------------


async def test_R6_a_letter_to_itself_wakes_an_actor_that_suspends(backend: Backend) -> None:
    envelope = await running(backend.store, 1, priority=1)
    commit = replace(release(envelope, state='{"asleep":true}'), mail_to=(to(1, "own"),), mail_seen=0)
    before = await backend.store.now()
    assert await written(backend.store, commit) == Written(mail_received=1, drain_leg=None)
    after = await stored(backend.reads, uid_of(1))
    assert (after.status, after.state, after.lease_owner, after.mail_received) == (Status.QUEUED, '{"asleep":true}', None, 1)
    assert after.ready_at is not None and after.ready_at >= before and after.rank == after.ready_at - 60_000
    assert [envelope.uid for envelope in await claimed(backend.store, "b1")] == [uid_of(1)]


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.STOPPED])
async def test_a_letter_to_itself_is_dropped_by_an_actor_that_ends(backend: Backend, status: Status) -> None:
    envelope = await running(backend.store, 1)
    commit = replace(release(envelope, status), mail_to=(to(1, "own"),))
    assert await written(backend.store, commit) == Written(mail_received=0, drain_leg=None)
    after = await stored(backend.reads, uid_of(1))
    assert (after.status, after.mail_received) == (status, 0)
    assert await keys(backend, 1) == []


async def test_an_actor_writes_to_itself_and_to_others_at_once(backend: Backend) -> None:
    envelope = await running(backend.store, 2)
    for number in (1, 3):
        await released(backend, number)
    mail_to = (to(3, "k1"), to(2, "k1"), to(1, "k1"), to(2, "k2"), to(3, "k2"))
    commit = changes(envelope, face_of=face(envelope, state='{"n":1}'), mail_to=mail_to)
    assert await written(backend.store, commit) == Written(mail_received=2, drain_leg=None)
    for number in (1, 2, 3):
        expected = [(1, "k1")] if number == 1 else [(1, "k1"), (2, "k2")]
        assert await keys(backend, number) == expected
    own = await stored(backend.reads, uid_of(2))
    assert (own.state, own.mail_received, own.mail_applied, own.status) == ('{"n":1}', 2, 0, Status.RUNNING)
    assert {(await stored(backend.reads, uid_of(number))).status for number in (1, 3)} == {Status.QUEUED}


# -- many at once --------------------------------------------------------------------------------------------------------


async def test_R6_letters_of_many_senders_are_numbered_without_gaps(backend: Backend) -> None:
    stores = [backend.store, await backend.new_store()]
    senders = [await running(backend.store, number) for number in range(2, 10)]
    await released(backend, 1)
    commits = [changes(sender, mail_to=tuple(to(1, f"{sender.uid}.{n}") for n in range(4))) for sender in senders]
    outside = [append(1, f"outside-{n}") for n in range(4)]
    await asyncio.gather(
        *(written(stores[n % 2], commit) for n, commit in enumerate(commits)),
        *(stores[n % 2].append_mail(item) for n, item in enumerate(outside)),
    )
    mailbox = await keys(backend, 1)
    assert [seq for seq, _ in mailbox] == list(range(1, 37))
    for sender in senders:
        mine = [seq for seq, key in mailbox if key.startswith(sender.uid)]
        assert mine == list(range(mine[0], mine[0] + 4))
    assert (await stored(backend.reads, uid_of(1))).mail_received == 36


async def test_actors_that_write_to_each_other_do_not_deadlock(backend: Backend) -> None:
    stores = [backend.store, await backend.new_store()]
    actors = [await running(backend.store, number) for number in range(1, 7)]

    async def talk(me: int) -> None:
        envelope = actors[me]
        for n in range(5):
            others = [MailTo(uid=actor.uid, letter=letter(f"{me}.{n}")) for actor in (actors[me:] + actors[:me])[::-1]]
            commit = changes(envelope, mail_to=tuple(others))
            await written(stores[me % 2], commit)
            envelope = replace(envelope, revision=envelope.revision + 1)

    await asyncio.gather(*map(talk, range(6)))
    everything = sorted(f"{me}.{n}" for me in range(6) for n in range(5))
    for number in range(1, 7):
        mailbox = await keys(backend, number)
        assert [seq for seq, _ in mailbox] == list(range(1, 31))
        assert sorted(key for _, key in mailbox) == everything
