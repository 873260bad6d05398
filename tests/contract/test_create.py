"""`Store.create`: one actor per key, whole, ready when it should be."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from runward.core.kernel.actor import Scope, Status
from runward.core.kernel.commit import Created, CreatedIsGone, KeyReused, PublicIdTaken, Replayed
from tests.contract.backends import Backend
from tests.contract.builders import (
    BASE,
    claimed,
    created,
    frames,
    idempotency_key,
    message,
    new_actor,
    picture,
    release,
    released,
    stored,
    uid_of,
    written,
)


async def test_a_new_actor_is_queued_and_ready_now(backend: Backend) -> None:
    before = await backend.store.now()
    new = new_actor(
        scope=Scope(tenant="acme", user="u1", namespace="n1"),
        priority=3,
        session_id="s1",
        parent_uid=uid_of(9),
        metadata='{"ticket":"T-9"}',
        context='{"language":"en"}',
        state='{"step":0}',
        task_outcome="in_progress",
    )
    assert await backend.store.create(new, None) == Created(uid=new.uid)
    after = await backend.store.now()
    envelope = await stored(backend.reads, new.uid)
    assert envelope.ready_at is not None and before <= envelope.ready_at <= after
    assert envelope.rank == envelope.ready_at - 3 * 60_000
    for name in ("uid", "kind", "format", "public_id", "scope", "priority", "binding", "agent", "agent_version"):
        assert getattr(envelope, name) == getattr(new, name), name
    for name in ("session_id", "parent_uid", "metadata", "context", "state", "task_outcome", "created_at", "care_at"):
        assert getattr(envelope, name) == getattr(new, name), name
    assert (envelope.status, envelope.revision, envelope.leg, envelope.recoveries) == (Status.QUEUED, 1, 0, 0)
    assert (envelope.last_seq, envelope.mail_received, envelope.mail_applied, envelope.waiting_on) == (0, 0, 0, 0)
    assert (envelope.lease_owner, envelope.lease_until, envelope.drain_leg) == (None, None, None)
    assert (envelope.updated_at, envelope.started_at, envelope.ended_at) == (new.created_at, None, None)
    assert (envelope.stop_reason, envelope.cancel_requested_at) == (None, None)


async def test_a_new_actor_may_be_ready_later_and_due_for_care(backend: Backend) -> None:
    later = await backend.store.now() + 100_000
    await created(backend.store, ready_at=later, care_at=later + 5, priority=-2)
    envelope = await stored(backend.reads, uid_of(1))
    assert (envelope.ready_at, envelope.care_at, envelope.rank) == (later, later + 5, later + 120_000)
    assert await claimed(backend.store, "b1") == []


async def test_a_new_actor_comes_with_its_first_frames_and_messages(backend: Backend) -> None:
    messages = (message(1), message(2, role="assistant", step=1, opaque=b"\x00\xff", opaque_format="anthropic"))
    await created(backend.store, frames=frames(1, 3), messages=messages)
    assert (await stored(backend.reads, uid_of(1))).last_seq == 3
    assert tuple(await backend.reads.frames(uid_of(1), after=0, limit=10)) == frames(1, 3)
    assert tuple(await backend.reads.messages(uid_of(1), after=0, limit=None)) == messages


async def test_R42_a_key_is_remembered_without_creating_anything(backend: Backend) -> None:
    """Scope, route and key make a key; what else the creation would meet does not matter."""
    key = idempotency_key(scope=Scope(tenant="acme", user="u1"))
    assert await backend.reads.remembered(key) is None
    assert await backend.store.create(new_actor(1), key) == Created(uid=uid_of(1))
    assert await backend.reads.remembered(key) == Replayed(uid=uid_of(1), public_id="run-1")
    assert await backend.reads.remembered(replace(key, fingerprint="f2")) == KeyReused()
    others = ({"scope": Scope(tenant="acme")}, {"scope": Scope(tenant="acme", namespace="u1")}, {"route": "POST /x"}, {"key": "K"})
    assert [await backend.reads.remembered(replace(key, **other)) for other in others] == [None] * 4
    (envelope,) = await claimed(backend.store, "b1")
    await written(backend.store, release(envelope, Status.FAILED))
    assert await backend.store.delete(uid_of(1))
    assert await backend.reads.remembered(key) == CreatedIsGone(public_id="run-1")
    assert await backend.reads.remembered(replace(key, fingerprint="f2")) == KeyReused()


async def test_R42_the_same_key_and_body_is_the_same_actor(backend: Backend) -> None:
    key = idempotency_key()
    assert await backend.store.create(new_actor(1, frames=frames(1)), key) == Created(uid=uid_of(1))
    before = await picture(backend, 1, 2)
    assert await backend.store.create(new_actor(2, frames=frames(1)), key) == Replayed(uid=uid_of(1), public_id="run-1")
    assert await picture(backend, 1, 2) == before


async def test_R42_however_many_race_one_key_makes_one_actor(backend: Backend) -> None:
    stores = [backend.store, await backend.new_store()]
    key = idempotency_key()
    answers = await asyncio.gather(*(stores[n % 2].create(new_actor(n, public_id=f"r{n}", frames=frames(1)), key) for n in range(1, 21)))
    (made,) = [answer for answer in answers if isinstance(answer, Created)]
    winner = await stored(backend.reads, made.uid)
    assert [answer for answer in answers if answer != made] == [Replayed(uid=made.uid, public_id=winner.public_id)] * 19
    assert await backend.rows() == {**dict.fromkeys(await backend.rows(), 0), "actors": 1, "frames": 1, "idempotency_keys": 1}


async def test_R2a_a_creation_sent_again_is_the_same_actor(backend: Backend) -> None:
    new = new_actor(1, frames=frames(1), messages=(message(1),))
    assert await backend.store.create(new, None) == Created(uid=new.uid)
    await claimed(backend.store, "b1")
    before = await picture(backend, 1)
    assert await backend.store.create(new, None) == Created(uid=new.uid)
    assert await picture(backend, 1) == before
    keyed = new_actor(2, frames=frames(1))
    assert await backend.store.create(keyed, idempotency_key()) == Created(uid=keyed.uid)
    assert await backend.store.create(keyed, idempotency_key()) == Replayed(uid=keyed.uid, public_id="run-2")


async def test_R42_the_same_key_with_another_body_is_refused(backend: Backend) -> None:
    await backend.store.create(new_actor(1), idempotency_key())
    before = await picture(backend, 1, 2)
    assert await backend.store.create(new_actor(2), idempotency_key(fingerprint="f2")) == KeyReused()
    assert await picture(backend, 1, 2) == before


async def test_R42_racing_bodies_under_one_key_make_one_actor(backend: Backend) -> None:
    stores = [backend.store, await backend.new_store()]
    racing = (stores[n % 2].create(new_actor(n), idempotency_key(fingerprint=f"f{n}")) for n in range(1, 11))
    answers = await asyncio.gather(*racing)
    assert Counter(type(answer) for answer in answers) == {Created: 1, KeyReused: 9}
    assert (await backend.rows())["actors"] == 1


async def test_R42_a_key_outlives_its_actor_and_never_makes_a_second_one(backend: Backend) -> None:
    await backend.store.create(new_actor(1), idempotency_key())
    (envelope,) = await claimed(backend.store, "b1")
    await written(backend.store, release(envelope, Status.COMPLETED))
    assert await backend.store.delete(envelope.uid)
    assert await backend.store.create(new_actor(2), idempotency_key()) == CreatedIsGone(public_id="run-1")
    assert await backend.store.create(new_actor(3), idempotency_key(fingerprint="f2")) == KeyReused()
    assert (await backend.rows())["actors"] == 0


async def test_R42_a_taken_public_id_leaves_no_key_and_no_actor(backend: Backend) -> None:
    await created(backend.store, 1, public_id="order-7")
    before = await picture(backend, 1, 2)
    assert await backend.store.create(new_actor(2, public_id="order-7", frames=frames(1)), idempotency_key()) == PublicIdTaken()
    assert await picture(backend, 1, 2) == before
    assert await backend.store.create(new_actor(3), idempotency_key(fingerprint="f2")) == Created(uid=uid_of(3))


async def test_R42_the_key_is_looked_at_before_the_public_id(backend: Backend) -> None:
    key = idempotency_key()
    await backend.store.create(new_actor(1, public_id="order-7"), key)
    assert await backend.store.create(new_actor(2, public_id="order-7"), key) == Replayed(uid=uid_of(1), public_id="order-7")
    assert await backend.store.create(new_actor(3, public_id="order-7"), replace(key, fingerprint="f2")) == KeyReused()


@pytest.mark.parametrize(
    "other",
    [
        {"scope": Scope(tenant="globex")},
        {"scope": Scope(tenant="acme", user="u1")},
        {"scope": Scope(tenant="acme", namespace="u1")},
        {"route": "POST /sessions"},
        {"key": "K"},
    ],
)
async def test_R42_keys_of_another_scope_or_route_are_other_keys(backend: Backend, other: dict[str, Any]) -> None:
    await backend.store.create(new_actor(1), idempotency_key())
    assert await backend.store.create(new_actor(2), idempotency_key(**other)) == Created(uid=uid_of(2))
    assert await backend.store.create(new_actor(3), idempotency_key(**other)) == Replayed(uid=uid_of(2), public_id="run-2")


async def test_racing_for_one_public_id_makes_one_actor(backend: Backend) -> None:
    stores = [backend.store, await backend.new_store()]
    answers = await asyncio.gather(
        *(stores[n % 2].create(new_actor(n, public_id="order-7", frames=frames(1)), idempotency_key(f"k{n}")) for n in range(1, 11))
    )
    assert Counter(type(answer) for answer in answers) == {Created: 1, PublicIdTaken: 9}
    rows = await backend.rows()
    assert (rows["actors"], rows["frames"], rows["idempotency_keys"]) == (1, 1, 1)


async def test_a_public_id_is_unique_per_tenant_and_free_again_after_deletion(backend: Backend) -> None:
    await created(backend.store, 1, public_id="order-7")
    await created(backend.store, 2, public_id="order-7", scope=Scope(tenant="globex"))
    await released(backend, 3, Status.STOPPED, public_id="order-8")
    assert await backend.store.create(new_actor(4, public_id="order-8"), None) == PublicIdTaken()
    assert await backend.store.delete(uid_of(3))
    assert await backend.store.create(new_actor(4, public_id="order-8"), None) == Created(uid=uid_of(4))


async def test_I_23_what_was_created_is_there_for_every_process(backend: Backend) -> None:
    await created(backend.store, 1, created_at=BASE)
    other = await backend.new_store()
    assert [envelope.uid for envelope in await claimed(other, "b1")] == [uid_of(1)]
