"""Requests for approval: opened by commits, closed by commits and by mail, and listed as the inbox shows them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from runward.core.kernel.actor import Scope, Status
from runward.core.kernel.commit import Appended, HasEnded, MailArrived, Stale
from runward.ports.reads import ApprovalQuery, Order, Place, StoredApproval
from tests.contract.backends import Backend
from tests.contract.builders import (
    BASE,
    TENANT,
    append,
    approval,
    approvals_of,
    approved,
    changes,
    created,
    face,
    letter,
    release,
    running,
    stored,
    uid_of,
    written,
)


def shown(id: str = "ap_1", status: str = "pending", **differing: Any) -> StoredApproval:
    row = StoredApproval(
        id=id,
        uid=uid_of(1),
        run_id="run-1",
        scope=TENANT,
        agent="support",
        tool="refund",
        status=status,
        created_at=BASE + 1,
        expires_at=None,
        data='{"order":7}',
        decided_at=None,
        decision=None,
    )
    if status != "pending":
        row = replace(row, decided_at=BASE + 2, decision='{"by":"ann"}')
    return replace(row, **differing)


async def test_a_request_for_approval_is_shown_pending_until_it_is_closed(backend: Backend) -> None:
    envelope = await running(backend.store)
    rows = (approval("ap_1"), approval("ap_2", expires_at=BASE + 9))
    await written(backend.store, changes(envelope, approvals=rows))
    assert list(await approvals_of(backend.reads, envelope.uid)) == [shown("ap_1"), shown("ap_2", expires_at=BASE + 9)]
    envelope = await stored(backend.reads, envelope.uid)
    await written(backend.store, changes(envelope, approval_closings=(approved("ap_2", status="expired"),)))
    assert list(await approvals_of(backend.reads, envelope.uid)) == [shown("ap_1"), shown("ap_2", "expired", expires_at=BASE + 9)]


async def test_R19_a_decided_approval_stays_as_it_was_decided(backend: Backend) -> None:
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope, approvals=(approval("ap_1"),)))
    await backend.store.append_mail(append(1, "approval:ap_1", closings=(approved("ap_1"),)))
    envelope = await stored(backend.reads, envelope.uid)
    late = approved("ap_1", status="cancelled", decided_at=BASE + 99, decision='{"by":"nobody"}')
    await written(backend.store, changes(envelope, approval_closings=(late,)))
    assert list(await approvals_of(backend.reads, envelope.uid)) == [shown("ap_1", "approved")]


async def test_an_approval_may_be_closed_by_the_commit_that_opens_it(backend: Backend) -> None:
    """As when a cancel is applied together with the answer that asked for it."""
    envelope = await running(backend.store)
    commit = changes(envelope, approvals=(approval("ap_1"), approval("ap_2")), approval_closings=(approved("ap_2", status="cancelled"),))
    await written(backend.store, commit)
    assert list(await approvals_of(backend.reads, envelope.uid)) == [shown("ap_1"), shown("ap_2", "cancelled")]


async def test_I_55_an_actor_closes_its_own_approvals_only(backend: Backend) -> None:
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope, approvals=(approval("ap_1"),)))
    other = await running(backend.store, 2)
    await written(backend.store, changes(other, approval_closings=(approved("ap_1"),)))
    await backend.store.append_mail(append(2, "k1", closings=(approved("ap_1"),)))
    assert list(await approvals_of(backend.reads, envelope.uid)) == [shown("ap_1")]


async def test_an_ending_commit_closes_what_is_still_open(backend: Backend) -> None:
    """R37: a run that is over waits for nobody; what was decided before stays as it was decided."""
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope, approvals=(approval("ap_1"), approval("ap_2"))))
    await backend.store.append_mail(append(1, "approval:ap_1", closings=(approved("ap_1"),)))
    envelope = await stored(backend.reads, envelope.uid)
    closings = tuple(approved(id, status="cancelled") for id in ("ap_1", "ap_2"))
    ending = changes(
        envelope, face_of=face(envelope, Status.STOPPED), approval_closings=closings, mail_seen=1, mail_applied=1, release=True
    )
    await written(backend.store, ending)
    assert list(await approvals_of(backend.reads, envelope.uid)) == [shown("ap_1", "approved"), shown("ap_2", "cancelled")]


async def test_R19_of_two_closings_in_one_write_the_first_counts(backend: Backend) -> None:
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope, approvals=(approval("ap_1"),)))
    twice = (approved("ap_1"), approved("ap_1", status="denied", decided_at=BASE + 7))
    await backend.store.append_mail(append(1, "k1", closings=twice))
    assert list(await approvals_of(backend.reads, envelope.uid)) == [shown("ap_1", "approved")]


@pytest.mark.parametrize("refusal", ["ended", "taken", "stale", "overlooked"])
async def test_R23_a_write_that_is_refused_decides_nothing(backend: Backend, refusal: str) -> None:
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope, approvals=(approval("ap_1"),)))
    now = await stored(backend.reads, envelope.uid)
    closings = (approved("ap_1"),)
    if refusal == "ended":
        await written(backend.store, release(now, Status.FAILED))
        answer: object = await backend.store.append_mail(append(1, "k1", closings=closings))
        assert answer == HasEnded(status=Status.FAILED)
    elif refusal == "stale":
        assert isinstance(await backend.store.commit(changes(envelope, approval_closings=closings)), Stale)
    else:
        await backend.store.append_mail(append(1, "approval:ap_1"))
        lost = changes(now, approval_closings=closings, mail_seen=0 if refusal == "overlooked" else 1)
        if refusal == "taken":
            lost = replace(lost, closings=(letter("approval:ap_1"),), mail_applied=2)
        assert await backend.store.commit(lost) == MailArrived(mail_received=1)
    assert list(await approvals_of(backend.reads, envelope.uid)) == [shown("ap_1")]


async def test_R19_a_verdict_and_an_expiry_that_race_show_what_the_mailbox_says(backend: Backend) -> None:
    other = await backend.new_store()
    for number in range(1, 9):
        envelope = await running(backend.store, number)
        id = f"ap_{number}"
        await written(backend.store, changes(envelope, approvals=(approval(id),)))
        envelope = await stored(backend.reads, envelope.uid)
        key = f"approval:{id}"
        expiry = changes(
            envelope, approval_closings=(approved(id, status="expired"),), closings=(letter(key),), mail_seen=0, mail_applied=1
        )
        writes = [backend.store.commit(expiry), other.append_mail(append(number, key, closings=(approved(id),)))]
        answers = await asyncio.gather(*(writes if number % 2 else reversed(writes)))
        verdict_won = any(isinstance(answer, Appended) for answer in answers)
        (row,) = await approvals_of(backend.reads, envelope.uid)
        assert row.status == ("approved" if verdict_won else "expired")


# -- one of them ---------------------------------------------------------------------------------------------------------


async def test_R43_a_request_is_found_by_its_id_within_its_scope(backend: Backend) -> None:
    scope = Scope(tenant="acme", user="u1", namespace="n1")
    envelope = await running(backend.store, scope=scope)
    await written(backend.store, changes(envelope, approvals=(approval("ap_1"), approval("ap_2"))))
    for allowed in (None, scope, TENANT, Scope(tenant="acme", user="u1"), Scope(tenant="acme", namespace="n1")):
        assert await backend.reads.approval(allowed, "ap_1") == shown(scope=scope), allowed
    for foreign in (Scope(tenant="globex"), Scope(tenant="acme", user="u2"), Scope(tenant="acme", user="u1", namespace="n2")):
        assert await backend.reads.approval(foreign, "ap_1") is None, foreign
    assert await backend.reads.approval(None, "ap_9") is None


async def test_an_approval_goes_with_its_actor(backend: Backend) -> None:
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope, approvals=(approval(),), face_of=face(envelope, Status.STOPPED), release=True))
    assert await backend.store.delete(envelope.uid)
    assert await backend.reads.approval(None, "ap_1") is None
    assert list(await backend.reads.approvals(ApprovalQuery(scope=None))) == []
    assert (await backend.rows())["approvals"] == 0


# -- the inbox -----------------------------------------------------------------------------------------------------------


async def listed(backend: Backend, **query: Any) -> list[str]:
    """The ids of a list, in its order."""
    asked = replace(ApprovalQuery(scope=TENANT, order=Order.OLDEST), **query)
    return [found.id for found in await backend.reads.approvals(asked)]


async def pages(backend: Backend, query: ApprovalQuery) -> list[list[str]]:
    """A whole list, page by page, as a caller with a cursor walks it."""
    walked = []
    while page := await backend.reads.approvals(query):
        walked.append([found.id for found in page])
        query = replace(query, after=Place(at=page[-1].created_at, uid=page[-1].id))
    return walked


async def inbox(backend: Backend) -> None:
    """Five requests that differ in everything a list filters by."""
    actors: list[tuple[int, dict[str, Any], list[tuple[str, dict[str, Any]]]]] = [
        (1, {}, [("a", {"created_at": 30}), ("b", {"created_at": 10, "tool": "ship"})]),
        (2, {"agent": "sales", "scope": Scope(tenant="acme", user="u1")}, [("c", {"created_at": 20}), ("d", {"created_at": 30})]),
        (3, {"scope": Scope(tenant="globex", user="u1"), "public_id": "run-1"}, [("e", {"created_at": 10})]),
    ]
    for number, differing, rows in actors:
        envelope = await running(backend.store, number, **differing)
        await written(backend.store, changes(envelope, approvals=tuple(approval(id, **values) for id, values in rows)))
    await backend.store.append_mail(append(1, "k1", closings=(approved("b", status="denied"),)))
    await backend.store.append_mail(append(2, "k1", closings=(approved("d"),)))


FILTERS: list[tuple[dict[str, Any], str]] = [
    ({}, "bcad"),
    ({"order": Order.NEWEST}, "dacb"),
    ({"limit": 2}, "bc"),
    ({"scope": None}, "becad"),
    ({"scope": Scope(tenant="globex")}, "e"),
    ({"scope": Scope(tenant="acme", user="u1")}, "cd"),
    ({"scope": Scope(tenant="acme", namespace="n1")}, ""),
    ({"scope": Scope(tenant="initech")}, ""),
    ({"statuses": ["pending"]}, "ca"),
    ({"statuses": ["pending"], "order": Order.NEWEST}, "ac"),
    ({"statuses": ["pending"], "scope": None}, "eca"),
    ({"statuses": ["approved", "denied"]}, "bd"),
    ({"statuses": ["expired"]}, ""),
    ({"run_id": "run-1"}, "ba"),
    ({"run_id": "run-1", "scope": None}, "bea"),
    ({"run_id": "run-1", "scope": Scope(tenant="acme", user="u1")}, ""),
    ({"run_id": "run-%"}, ""),
    ({"agent": "sales"}, "cd"),
    ({"tool": "ship"}, "b"),
    ({"tool": "refund", "statuses": ["pending"]}, "ca"),
    ({"user": "u1"}, "cd"),
    ({"user": "u1", "scope": None}, "ecd"),
    ({"user": "u2", "scope": Scope(tenant="acme", user="u1")}, ""),
    ({"created_after": 20}, "cad"),
    ({"horizon": 20}, "bc"),
    ({"horizon": 20, "order": Order.NEWEST}, "dacb"),
    ({"after": Place(at=30, uid="a")}, "d"),
    ({"after": Place(at=30, uid="a"), "order": Order.NEWEST}, "cb"),
]
"""A query, and what of the inbox it shows."""


async def test_R43_the_inbox_is_filtered_within_a_scope(backend: Backend) -> None:
    await inbox(backend)
    assert ApprovalQuery(scope=None).order is Order.NEWEST
    for query, expected in FILTERS:
        assert "".join(await listed(backend, **query)) == expected, query


async def test_R43_pages_of_the_inbox_neither_repeat_nor_miss(backend: Backend) -> None:
    """Requests of one commit have one time: their ids decide."""
    envelope = await running(backend.store)
    await written(backend.store, changes(envelope, approvals=tuple(approval(f"ap_{n}", created_at=n // 3) for n in range(8))))
    query = ApprovalQuery(scope=TENANT, limit=3)
    ids = [f"ap_{n}" for n in range(8)]
    assert await pages(backend, replace(query, order=Order.OLDEST)) == [ids[:3], ids[3:6], ids[6:]]
    assert await pages(backend, query) == [ids[:4:-1], ids[4:1:-1], ids[1::-1]]
    first = await backend.reads.approvals(query)
    await backend.store.append_mail(append(1, "k1", closings=(approved("ap_7"), approved("ap_4"))))
    rest = await pages(backend, replace(query, after=Place(at=first[-1].created_at, uid=first[-1].id)))
    assert rest == [["ap_4", "ap_3", "ap_2"], ["ap_1", "ap_0"]]


async def test_a_row_of_the_inbox_says_whose_it_is(backend: Backend) -> None:
    scope = Scope(tenant="acme", user="u1", namespace="n1")
    envelope = await running(backend.store, 4, scope=scope, agent="sales", public_id="mine")
    await written(backend.store, changes(envelope, approvals=(approval(expires_at=BASE + 9),)))
    await created(backend.store, 5)
    (row,) = await backend.reads.approvals(ApprovalQuery(scope=TENANT))
    assert row == shown(uid=uid_of(4), run_id="mine", scope=scope, agent="sales", expires_at=BASE + 9)
    await backend.store.append_mail(append(4, "k1", closings=(approved(),)))
    (row,) = await backend.reads.approvals(ApprovalQuery(scope=TENANT))
    assert (row.status, row.decided_at, row.decision) == ("approved", BASE + 2, '{"by":"ann"}')
