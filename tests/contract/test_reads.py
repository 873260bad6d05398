"""The reads of one actor: by public id within a scope, and its rows page by page."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from runward.core.kernel.actor import Scope
from runward.core.kernel.frames import StoredFrame
from runward.ports.reads import PAGE_BYTES, is_whole
from tests.contract.backends import Backend
from tests.contract.builders import changes, created, frames, message, receipt, running, stored, uid_of, written


async def found(backend: Backend, scope: Scope | None, public_id: str = "order-7", kind: str = "run") -> int | None:
    """The number of the actor that this scope finds."""
    envelope = await backend.reads.find(kind, scope, public_id)
    return None if envelope is None else int(envelope.uid, 16)


async def test_R43_an_actor_is_found_within_its_tenant_only(backend: Backend) -> None:
    await created(backend.store, 1, public_id="order-7")
    await created(backend.store, 2, public_id="order-7", scope=Scope(tenant="globex"))
    assert await found(backend, Scope(tenant="acme")) == 1
    assert await found(backend, Scope(tenant="globex")) == 2
    assert await found(backend, Scope(tenant="initech")) is None
    assert await found(backend, Scope(tenant="ACME")) is None
    assert await found(backend, Scope(tenant="acme"), "order-8") is None
    assert await found(backend, Scope(tenant="acme"), "Order-7") is None
    assert await found(backend, Scope(tenant="acme"), "order-_") is None
    assert await backend.reads.find("run", Scope(tenant="acme"), "order-7") == await stored(backend.reads, uid_of(1))


@pytest.mark.parametrize(
    ("scope", "sees"),
    [
        (Scope(tenant="acme"), True),
        (Scope(tenant="acme", user="u1"), True),
        (Scope(tenant="acme", namespace="n1"), True),
        (Scope(tenant="acme", user="u1", namespace="n1"), True),
        (Scope(tenant="acme", user="u2"), False),
        (Scope(tenant="acme", namespace="u1"), False),
        (Scope(tenant="acme", user="u1", namespace="n2"), False),
        (Scope(tenant="acme", user="U1"), False),
    ],
)
async def test_R43_a_user_or_namespace_narrows_what_is_found(backend: Backend, scope: Scope, sees: bool) -> None:
    await created(backend.store, 1, public_id="order-7", scope=Scope(tenant="acme", user="u1", namespace="n1"))
    assert await found(backend, scope) == (1 if sees else None)


async def test_R43_what_belongs_to_no_user_is_not_a_users(backend: Backend) -> None:
    await created(backend.store, 1, public_id="order-7")
    assert await found(backend, Scope(tenant="acme", user="u1")) is None
    assert await found(backend, Scope(tenant="acme", namespace="n1")) is None


async def test_operators_find_the_newest_of_all_tenants(backend: Backend) -> None:
    for number, created_at in ((1, 20), (2, 30), (3, 10)):
        await created(backend.store, number, public_id="order-7", scope=Scope(tenant=f"t{number}"), created_at=created_at)
    await created(backend.store, 4, public_id="other", scope=Scope(tenant="t4"), created_at=99)
    assert await found(backend, None) == 2
    await created(backend.store, 5, public_id="order-7", scope=Scope(tenant="t5"), created_at=30)
    assert await found(backend, None) == 5
    assert await found(backend, None, "nothing") is None


async def test_an_actor_is_found_by_its_kind(backend: Backend) -> None:
    await created(backend.store, 1, public_id="order-7", kind="session")
    for scope in (Scope(tenant="acme"), None):
        assert await found(backend, scope) is None
        assert await found(backend, scope, kind="session") == 1


async def test_an_actor_is_read_by_its_uid(backend: Backend) -> None:
    await created(backend.store, 1)
    assert (await stored(backend.reads, uid_of(1))).public_id == "run-1"
    assert await backend.reads.get(uid_of(2)) is None


async def test_I_42_frames_are_read_behind_a_cursor(backend: Backend) -> None:
    await created(backend.store, 1, frames=frames(1, 12))
    await created(backend.store, 2, frames=frames(1, 3, text="other"))
    everything = frames(1, 12)

    async def read(after: int, limit: int) -> tuple[StoredFrame, ...]:
        return tuple(await backend.reads.frames(uid_of(1), after=after, limit=limit))

    assert await read(0, 100) == everything
    assert await read(0, 5) == everything[:5]
    assert await read(5, 5) == everything[5:10]
    assert await read(10, 5) == everything[10:]
    assert await read(12, 5) == ()
    assert await read(10**12, 5) == ()
    assert tuple(await backend.reads.frames(uid_of(9), after=0, limit=5)) == ()


async def test_messages_are_read_behind_a_position(backend: Backend) -> None:
    messages = tuple(message(seq) for seq in range(1, 13))
    await created(backend.store, 1, messages=messages)
    await created(backend.store, 2, messages=(message(1, content="[]"),))
    assert tuple(await backend.reads.messages(uid_of(1), after=0, limit=None)) == messages
    assert tuple(await backend.reads.messages(uid_of(1), after=3, limit=4)) == messages[3:7]
    assert tuple(await backend.reads.messages(uid_of(1), after=12, limit=None)) == ()
    assert tuple(await backend.reads.messages(uid_of(9), after=0, limit=None)) == ()


async def test_receipts_are_read_in_the_models_order(backend: Backend) -> None:
    envelope = await running(backend.store, 1)
    order = ["1.1", "1.2", "1.9", "1.10", "1.11", "2.1", "9.1", "10.1", "10.2"]
    await written(backend.store, changes(envelope, receipts=tuple(map(receipt, sorted(order, reverse=True)))))
    other = await running(backend.store, 2)
    await written(backend.store, changes(other, receipts=(receipt("1.3"),)))

    async def read(**how: Any) -> list[str]:
        return [row.tool_call_id for row in await backend.reads.receipts(envelope.uid, **how)]

    assert await read() == order
    assert await read(limit=4) == order[:4]
    assert await read(after=(1, 9)) == order[3:]
    assert await read(after=(1, 11), limit=2) == ["2.1", "9.1"]
    assert await read(after=(1, 99)) == order[5:]
    assert await read(step=1) == order[:5]
    assert await read(step=1, after=(1, 2), limit=2) == ["1.9", "1.10"]
    assert await read(step=3) == []
    assert list(await backend.reads.receipts(uid_of(9))) == []


async def test_R44_a_page_of_frames_is_bounded_by_its_bytes(backend: Backend) -> None:
    """Whoever reads slowly holds one page: it may not be as large as two hundred frames can be, nor because they deflate well."""
    for number, text in ((1, random_text(100_000)), (2, "a" * 100_000)):
        uid = await created(backend.store, number, public_id=f"run-{number}", frames=frames(1, 10, text))
        seen: list[int] = []
        while True:
            page = await backend.reads.frames(uid, after=len(seen), limit=200)
            seen += [frame.seq for frame in page]
            assert sum(len(frame.data) for frame in page[:-1]) < PAGE_BYTES
            if is_whole(page, 200):
                break
            assert 0 < len(page) <= 3
        assert seen == [*range(1, 11)]
    huge = await created(backend.store, 3, public_id="huge", frames=frames(1, 2, "a" * 2_000_000))
    (first,) = await backend.reads.frames(huge, after=0, limit=200)
    assert first.seq == 1 and len(first.data) > PAGE_BYTES


def random_text(length: int) -> str:
    """A text that does not deflate."""
    return "".join(Random(7).choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=length))


async def test_R43_operators_are_told_when_several_tenants_have_a_run_of_one_id(backend: Backend) -> None:
    for number, tenant in enumerate(("globex", "acme", "initech"), 1):
        await created(backend.store, number, public_id="order-7", scope=Scope(tenant=tenant))
    await created(backend.store, 4, public_id="order-8")
    assert len(await backend.reads.tenants_with("run", "order-7")) == 2
    assert [*await backend.reads.tenants_with("run", "order-8")] == ["acme"]
    assert [*await backend.reads.tenants_with("run", "nobody's")] == [*await backend.reads.tenants_with("session", "order-7")] == []
