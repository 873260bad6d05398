"""`Reads.list`: every filter, every order, and pages that neither repeat nor miss anything (R43)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from runward.core.kernel.actor import Envelope, Scope, Status
from runward.ports.reads import ActorQuery, Order, Place
from tests.contract.backends import Backend
from tests.contract.builders import TENANT, append, claimed, created, released, running, uid_of


async def listed(backend: Backend, **query: Any) -> list[int]:
    """The numbers of the actors of a list, in its order."""
    asked = replace(ActorQuery(kind="run", scope=TENANT, order=Order.OLDEST), **query)
    return [int(envelope.uid, 16) for envelope in await backend.reads.list(asked)]


async def pages(backend: Backend, query: ActorQuery) -> list[list[int]]:
    """A whole list, page by page, as a caller with a cursor walks it."""
    walked = []
    while page := await backend.reads.list(query):
        walked.append([int(envelope.uid, 16) for envelope in page])
        query = replace(query, after=place_of(page[-1], query.order))
    return walked


def place_of(envelope: Envelope, order: Order) -> Place:
    at = envelope.ended_at if order is Order.ENDED else envelope.created_at
    assert at is not None
    return Place(at=at, uid=envelope.uid)


# -- orders and pages ----------------------------------------------------------------------------------------------------


async def test_R43_lists_run_over_their_time_and_uid(backend: Backend) -> None:
    for number, created_at, ended_at in ((1, 30, 50), (2, 10, 70), (3, 20, 50), (4, 10, None), (5, 10, 60)):
        if ended_at is None:
            await created(backend.store, number, created_at=created_at)
        else:
            await released(backend, number, Status.STOPPED, created_at=created_at, face={"ended_at": ended_at})
    query = ActorQuery(kind="run", scope=TENANT)
    assert query.order is Order.NEWEST
    assert await pages(backend, query) == [[1, 3, 5, 4, 2]]
    assert await pages(backend, replace(query, limit=2)) == [[1, 3], [5, 4], [2]]
    assert await pages(backend, replace(query, order=Order.OLDEST, limit=2)) == [[2, 4], [5, 3], [1]]
    assert await pages(backend, replace(query, order=Order.ENDED, limit=3)) == [[1, 3, 5], [2]]
    assert await pages(backend, replace(query, order=Order.ENDED, limit=1)) == [[1], [3], [5], [2]]


async def test_R43_pages_neither_repeat_nor_miss_while_actors_are_added(backend: Backend) -> None:
    for number in range(1, 13):
        await created(backend.store, number, created_at=1_000 + number // 3)
    newest = ActorQuery(kind="run", scope=TENANT, limit=3)
    oldest = replace(newest, order=Order.OLDEST)
    walked: dict[Order, list[int]] = {Order.NEWEST: [], Order.OLDEST: []}
    added = 12
    for query in (newest, oldest):
        while page := await backend.reads.list(query):
            walked[query.order] += [int(envelope.uid, 16) for envelope in page]
            query = replace(query, after=place_of(page[-1], query.order))  # noqa: PLW2901
            if added < 24:
                added += 1
                await created(backend.store, added, created_at=1_000 + added // 3)
    assert walked[Order.NEWEST] == list(range(12, 0, -1))
    assert walked[Order.OLDEST] == list(range(1, 25))


async def test_R43_pages_do_not_move_when_actors_change(backend: Backend) -> None:
    for number in range(1, 7):
        await created(backend.store, number)
    query = ActorQuery(kind="run", scope=TENANT, limit=2)
    first = await backend.reads.list(query)
    await backend.store.append_mail(append(6, "k1"))
    await claimed(backend.store, "b3", "b4", "b5")
    rest = await pages(backend, replace(query, after=place_of(first[-1], query.order)))
    assert [int(envelope.uid, 16) for envelope in first] == [6, 5]
    assert rest == [[4, 3], [2, 1]]


async def test_R43_an_actor_may_be_gone_when_the_next_page_is_read(backend: Backend) -> None:
    for number in range(1, 5):
        await released(backend, number, Status.STOPPED)
    query = ActorQuery(kind="run", scope=TENANT, limit=2, order=Order.OLDEST)
    first = await backend.reads.list(query)
    assert await backend.store.delete(uid_of(2))
    assert await pages(backend, replace(query, after=place_of(first[-1], query.order))) == [[3, 4]]


async def test_ascending_lists_leave_out_what_happened_after_the_horizon(backend: Backend) -> None:
    for number in (1, 2, 3):
        await released(backend, number, Status.STOPPED, created_at=10 * number, face={"ended_at": 100 - 10 * number})
    assert await listed(backend, horizon=20) == [1, 2]
    assert await listed(backend, horizon=19) == [1]
    assert await listed(backend, horizon=9) == []
    assert await listed(backend, order=Order.ENDED, horizon=80) == [3, 2]
    assert await listed(backend, order=Order.ENDED, horizon=79) == [3]


async def test_a_page_is_read_beside_writes(backend: Backend) -> None:
    """Reads block nobody and see each write wholly or not at all."""
    other = await backend.new_store()

    async def write() -> None:
        for number in range(1, 21):
            await created(other, number)

    async def read() -> list[int]:
        seen = [len(await listed(backend)) for _ in range(20)]
        assert seen == sorted(seen)
        return seen

    await asyncio.gather(write(), read())
    assert len(await listed(backend)) == 20


# -- scopes --------------------------------------------------------------------------------------------------------------


async def test_R43_a_list_shows_what_its_scope_may_see(backend: Backend) -> None:
    scopes = {
        1: Scope(tenant="acme"),
        2: Scope(tenant="acme", user="u1"),
        3: Scope(tenant="acme", user="u1", namespace="n1"),
        4: Scope(tenant="acme", user="u2", namespace="n1"),
        5: Scope(tenant="globex", user="u1", namespace="n1"),
    }
    for number, scope in scopes.items():
        await created(backend.store, number, scope=scope)
    assert await listed(backend, scope=Scope(tenant="acme")) == [1, 2, 3, 4]
    assert await listed(backend, scope=Scope(tenant="acme", user="u1")) == [2, 3]
    assert await listed(backend, scope=Scope(tenant="acme", namespace="n1")) == [3, 4]
    assert await listed(backend, scope=Scope(tenant="acme", user="u1", namespace="n1")) == [3]
    assert await listed(backend, scope=Scope(tenant="initech")) == []
    assert await listed(backend, scope=None) == [1, 2, 3, 4, 5]
    assert await listed(backend, user="u1") == [2, 3]
    assert await listed(backend, namespace="n1") == [3, 4]
    assert await listed(backend, scope=None, user="u1", namespace="n1") == [3, 5]
    assert await listed(backend, scope=Scope(tenant="acme", user="u1"), user="u2") == []


async def test_a_list_is_of_one_kind(backend: Backend) -> None:
    await created(backend.store, 1)
    await created(backend.store, 2, kind="session")
    assert await listed(backend) == [1]
    assert await listed(backend, kind="session") == [2]
    assert await listed(backend, kind="sess%") == []


# -- filters -------------------------------------------------------------------------------------------------------------


async def gallery(backend: Backend) -> None:
    """Seven actors that differ in everything a list filters by."""
    await created(backend.store, 1, created_at=100, agent="sales", agent_version="2")
    await running(backend.store, 2, created_at=200)
    await released(backend, 3, created_at=300, face={"waiting_on": 0b101, "updated_at": 3_000})
    await released(backend, 4, created_at=400, face={"waiting_on": 0b010, "updated_at": 4_000})
    await released(backend, 5, Status.COMPLETED, created_at=500, face={"ended_at": 5_500, "task_outcome": "resolved"})
    await released(
        backend, 6, Status.STOPPED, created_at=600, face={"ended_at": 5_600, "stop_reason": "deadline", "task_outcome": "failed"}
    )
    await released(backend, 7, Status.FAILED, created_at=700, face={"ended_at": 5_700, "task_outcome": "failed"})
    await backend.store.append_mail(append(2, "cancel", marks_cancel=True))


FILTERS: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [1, 2, 3, 4, 5, 6, 7]),
    ({"limit": 3}, [1, 2, 3]),
    ({"statuses": [Status.SUSPENDED]}, [3, 4]),
    ({"statuses": [Status.QUEUED, Status.RUNNING, Status.FAILED]}, [1, 2, 7]),
    ({"waiting_on": 0b001}, [3]),
    ({"waiting_on": 0b110}, [3, 4]),
    ({"waiting_on": 0b1000}, []),
    ({"agent": "sales"}, [1]),
    ({"agent": "sal%"}, []),
    ({"agent": "Sales"}, []),
    ({"agent": "support", "agent_version": "1", "limit": 2}, [2, 3]),
    ({"agent_version": "2"}, [1]),
    ({"agent": "sales", "agent_version": "1"}, []),
    ({"stop_reason": "deadline"}, [6]),
    ({"task_outcome": "failed"}, [6, 7]),
    ({"task_outcome": "in_progress"}, [1, 2, 3, 4]),
    ({"cancel_requested": True}, [2]),
    ({"cancel_requested": False}, [1, 3, 4, 5, 6, 7]),
    ({"created_after": 300}, [3, 4, 5, 6, 7]),
    ({"created_before": 300}, [1, 2]),
    ({"created_after": 200, "created_before": 201}, [2]),
    ({"ended_after": 5_600}, [6, 7]),
    ({"ended_before": 5_600}, [5]),
    ({"ended_after": 5_501, "ended_before": 5_700}, [6]),
    ({"updated_before": 3_000}, [1, 2]),
    ({"updated_before": 3_001}, [1, 2, 3]),
    ({"statuses": [Status.SUSPENDED], "waiting_on": 0b010, "created_after": 1, "updated_before": 5_000}, [4]),
    ({"order": Order.NEWEST, "statuses": [Status.COMPLETED, Status.STOPPED]}, [6, 5]),
    ({"order": Order.ENDED, "task_outcome": "failed"}, [6, 7]),
    ({"order": Order.ENDED, "statuses": [Status.QUEUED]}, []),
    ({"after": Place(at=400, uid=uid_of(4)), "task_outcome": "failed"}, [6, 7]),
]
"""A query, and what of the gallery it shows."""


async def test_a_list_is_filtered(backend: Backend) -> None:
    await gallery(backend)
    for query, expected in FILTERS:
        assert await listed(backend, **query) == expected, query


METADATA = [
    '{"ticket":"T-9","n":1,"nothing":null,"yes":true,"list":["T-9"],"inner":{"ticket":"T-1"}}',
    '{"ticket":"T-10","n":"1","nothing":"null","yes":"true","list":"[\\"T-9\\"]"}',
    '{"a.b":"dot","a\\"b":"quote","$":"dollar","ключ":"значение","":"empty","a\'b":"apostrophe","%":"percent","0":"zero","a b":"blank"}',
    '{"a":{"b":"dot"},"line":"a\\nb","empty":"","snow":"\\u2603","path":"$.ticket"}',
]


BY_METADATA: list[tuple[dict[str, str], list[int]]] = [
    ({"ticket": "T-9"}, [1]),
    ({"ticket": "T-9", "n": "1"}, []),
    ({"ticket": "T-10", "n": "1"}, [2]),
    ({"n": "1"}, [2]),
    ({"nothing": "null"}, [2]),
    ({"yes": "true"}, [2]),
    ({"list": '["T-9"]'}, [2]),
    ({"ticket": "T-1"}, []),
    ({"inner": "T-1"}, []),
    ({"inner.ticket": "T-1"}, []),
    ({"a.b": "dot"}, [3]),
    ({'a"b': "quote"}, [3]),
    ({"$": "dollar"}, [3]),
    ({"ключ": "значение"}, [3]),
    ({"": "empty"}, [3]),
    ({"a'b": "apostrophe"}, [3]),
    ({"%": "percent"}, [3]),
    ({"0": "zero"}, [3]),
    ({"a b": "blank"}, [3]),
    ({"line": "a\nb"}, [4]),
    ({"empty": ""}, [4]),
    ({"snow": "☃"}, [4]),
    ({"missing": ""}, []),
    ({"TICKET": "T-9"}, []),
    ({}, [1, 2, 3, 4]),
]


async def test_a_list_is_filtered_by_metadata(backend: Backend) -> None:
    for number, text in enumerate(METADATA, 1):
        await created(backend.store, number, metadata=text)
    for metadata, expected in BY_METADATA:
        assert await listed(backend, metadata=metadata) == expected, metadata
