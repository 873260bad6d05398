"""How the databases find what an operation needs: by an index, whatever else is stored (performance, rows 15 and 16)."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from runward.ports.reads import ActorQuery, ApprovalQuery, Order
from runward.stores.sql import SqlStores, lists, queries
from runward.stores.sql.postgres import claim, crowd, leases, mailbox, pruning
from runward.stores.sql.postgres.address import address_of
from runward.stores.sql.sqlite import claim as sqlite_claim
from runward.stores.sql.sqlite import leases as sqlite_leases
from runward.stores.sql.statements import POSTGRES, SQLITE, Statement
from runward.stores.sql.urls import parsed
from tests.contract.builders import BASE, TENANT, claim_request, created, running, uid_of
from tests.stores.conftest import opened, url_of

SLEEPERS = 20_000

ASLEEP = """
    INSERT INTO actors (uid, created_at, kind, public_id, tenant, agent, agent_version, priority, metadata, state, updated_at, revision,
        last_seq, mail_received, mail_applied, waiting_on, format, task_outcome, binding, status, leg, recoveries, ready_at, care_at, rank)
    SELECT {uid}, {now} - n, 'run', 'sleeper-' || n, 'acme', 'support', '1', 0, '{{}}', '{{}}', {now}, 3, 0, 0, 0, 1, 1,
        'in_progress', 'b1', 'suspended', 1, 0, CASE WHEN n % 2 = 0 THEN {now} + 6100000 + n * 1000 END,
        CASE WHEN n % 3 = 0 THEN {now} + 1000000 + n * 1000 END, CASE WHEN n % 2 = 0 THEN {now} + 6100000 + n * 1000 ELSE {now} END
    FROM {series}
"""
"""Actors of a binding that wait for a time, for a deadline, or for somebody."""

CLAIM = {
    "owner": "worker-1",
    "bindings": ["b1", "b2"],
    "limit": 32,
    "overdue": 16,
    "candidates": 96,
    "suspects": 1,
    "ttl": 30_000,
    "delay": 2_000,
    "max_recoveries": 5,
    "per_key": 1,
    "tenant": "acme",
    "start_binding": ["b1", "b2"],
    "start_tenant": ["a", "a"],
    "start_key": ["a", "a"],
    "after_tenant": "",
    "after_key": "",
    "key": "",
    "takes_slots": True,
    "turn_uid": [uid_of(1)],
    "turn_place": [0],
    "turn_key_slot": [1],
    "turn_tenant_slot": [1],
    "in_lane": 36,
    "window": 33,
    "key_slot": None,
    "tenant_slot": None,
}


# -- Postgres ------------------------------------------------------------------------------------------------------------


async def fill(connection: asyncpg.Connection[asyncpg.Record], now: int) -> None:
    series = f"generate_series(1, {SLEEPERS}) AS n"
    await connection.execute(ASLEEP.format(uid="'f' || lpad(n::text, 31, '0')", now=now, series=series))
    await connection.execute("ANALYZE actors")


def literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return f"'{{{','.join(map(str, value))}}}'"
    return str(value).lower() if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"


async def plan(connection: asyncpg.Connection[asyncpg.Record], statement: Statement, values: dict[str, Any]) -> dict[str, Any]:
    """The plan that every execution of a statement uses, and what it read this time. The statement's changes are undone."""
    await connection.execute(f"PREPARE planned AS {statement.text}")
    arguments = ", ".join(map(literal, statement.arguments(values)))
    transaction = connection.transaction()
    await transaction.start()
    try:
        explained = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE planned({arguments})")
    finally:
        await transaction.rollback()
        await connection.execute("DEALLOCATE planned")
    found: dict[str, Any] = json.loads(explained)[0]["Plan"]
    return found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


def reads_little(plan: dict[str, Any]) -> None:
    """Tables are read by plain index scans, that find what they look for at once."""
    for node in nodes(plan):
        if "Relation Name" in node and node["Node Type"] != "ModifyTable":
            assert node["Node Type"] in ("Index Scan", "Index Only Scan"), node
            assert node.get("Rows Removed by Filter", 0) <= 5, node
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 400


@pytest.fixture
async def planner(migrated_url: str) -> AsyncIterator[tuple[SqlStores, asyncpg.Connection[asyncpg.Record]]]:
    """Opened stores, and a connection like theirs."""
    stores = await opened(migrated_url)
    connection = await address_of(parsed(migrated_url), command_seconds=60).connect()
    yield stores, connection
    await connection.close()
    await stores.store.close()


Planner = tuple[SqlStores, asyncpg.Connection]


@pytest.mark.parametrize("grown", [False, True], ids=["planned while it was small", "planned when it was large"])
async def test_a_claim_does_not_look_at_sleepers(planner: Planner, grown: bool) -> None:
    stores, connection = planner
    for number in (1, 2):
        await created(stores.store, number)
    if grown:
        await fill(connection, await stores.store.now())
    for statement in (claim._claim(looks=False), claim._claim(looks=True), crowd.look(), claim._take()):
        reads_little(await plan(connection, statement, CLAIM))
    claims = await stores.store.claim(claim_request("b1", "b2"))
    assert sorted(taken.envelope.uid for taken in claims.taken) == [uid_of(1), uid_of(2)]


async def test_tables_are_joined_row_by_row_whatever_the_planner_guesses(planner: Planner) -> None:
    """It cannot know how few rows an array or a limit stands for, and guesses thousands: enough to read all of a large table instead."""
    stores, connection = planner
    await fill(connection, await stores.store.now())
    explained = await connection.fetchval("EXPLAIN (FORMAT JSON) SELECT b.state FROM actors AS a JOIN actors AS b ON b.uid = a.parent_uid")
    used = {node["Node Type"] for node in nodes(json.loads(explained)[0]["Plan"])}
    assert "Nested Loop" in used and used.isdisjoint({"Hash Join", "Merge Join"})


async def test_every_hot_statement_finds_its_rows_by_an_index(planner: Planner) -> None:
    stores, connection = planner
    uid = (await running(stores.store)).uid
    await fill(connection, await stores.store.now())
    shape = mailbox.Shape(wakes=True, reopens=False, care=True, may_be_ended=False, marks_cancel=True, closings=False, expects=False)
    letter = {f"letter_{name}": [name] for name in ("kind", "dedupe_key", "data", "principal")}
    statements: list[tuple[Statement, dict[str, Any]]] = [
        (leases.renew_statement(), {"owner": "worker-1", "uids": [uid, uid_of(2)], "ttl": 1000}),
        (leases._ask_drain(), {"uid": uid}),
        (leases._disown(), {"owner": "worker-1", "lost_uid": [uid], "lost_leg": [1]}),
        (leases._seize(lapsed_only=True), {"uid": uid, "count": 1, "letter_place": [1], **letter}),
        (queries.owned(POSTGRES), {"owner": "worker-1"}),
        (lists.held(POSTGRES, None, lapsed_for_ms=0, after=None, limit=10), {}),
        (queries.remembered(POSTGRES), {"scope": "s", "route": "r", "key": "k"}),
        (pruning._delete(), {"uid": uid}),
        (pruning._prune(), {"before": BASE, "limit": 10}),
        (pruning._prune_keys(), {"before": BASE, "limit": 10}),
        (mailbox._append_mail(shape), {"uid": uid, "count": 1, "letter_place": [1], **letter}),
        (queries.heads(POSTGRES), {"uids": [uid, uid_of(2)]}),
        (queries.get(POSTGRES), {"uid": uid}),
        (queries.find(POSTGRES, tenant=True, user=False, namespace=False), {"kind": "run", "public_id": "run-1", "tenant": "acme"}),
        (queries.find(POSTGRES, tenant=False, user=False, namespace=False), {"kind": "run", "public_id": "run-1"}),
        (queries.frames_after(POSTGRES), {"uid": uid, "after": 0, "limit": 10}),
        (queries.messages_after(POSTGRES), {"uid": uid, "after": 0, "limit": 10}),
        (queries.mail_by_key(POSTGRES), {"uid": uid, "keys": ["a", "b"]}),
        (queries.receipts_after(POSTGRES, one_step=True), {"uid": uid, "step": 1, "after_step": 0, "after_position": 0, "limit": 10}),
    ]
    for statement, values in statements:
        reads_little(await plan(connection, statement, values))
    for page in (ActorQuery(kind="run", scope=TENANT, limit=20), ActorQuery(kind="run", scope=TENANT, limit=20, order=Order.OLDEST)):
        reads_little(await plan(connection, lists.listed(POSTGRES, page), {}))


INBOX = """
    INSERT INTO approvals (id, uid, created_at, tenant, agent, tool, data, status)
    SELECT {id}, {uid}, {now} - n, 'acme', 'support', 'refund', '{{}}', CASE WHEN n % 4000 = 0 THEN 'pending' ELSE 'approved' END
    FROM {series}
"""
"""Requests for approval of the sleepers, five of them pending."""

PENDING = ApprovalQuery(scope=TENANT, statuses=("pending",), limit=20)
INBOX_PAGES = (
    PENDING,
    replace(PENDING, order=Order.OLDEST),
    replace(PENDING, scope=None),
    replace(PENDING, statuses=()),
    replace(PENDING, run_id="sleeper-4000"),
    replace(PENDING, run_id="sleeper-4000", statuses=()),
)


async def test_an_inbox_is_found_by_what_is_asked_for(planner: Planner) -> None:
    """Pending ones among many decided ones, the newest of all, and those of one run."""
    stores, connection = planner
    now = await stores.store.now()
    await fill(connection, now)
    series = f"generate_series(1, {SLEEPERS}) AS n"
    await connection.execute(INBOX.format(id="'ap_' || n", uid="'f' || lpad(n::text, 31, '0')", now=now, series=series))
    await connection.execute("ANALYZE approvals")
    for page in INBOX_PAGES:
        reads_little(await plan(connection, lists.listed_approvals(POSTGRES, page), {}))
    one = queries.approval(POSTGRES, tenant=True, user=False, namespace=False)
    reads_little(await plan(connection, one, {"id": "ap_7", "tenant": "acme"}))


# -- SQLite --------------------------------------------------------------------------------------------------------------


SQLITE_READS = (
    sqlite_claim._ready,
    sqlite_claim._any_overdue,
    sqlite_claim._overdue,
    sqlite_claim._hides,
    sqlite_claim._walk,
    sqlite_claim._in_lane,
)


def explained(connection: sqlite3.Connection, statement: Statement, values: dict[str, Any]) -> list[str]:
    return [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {statement.text}", statement.arguments(values))]


async def test_sqlite_does_not_look_at_sleepers(file: Path) -> None:
    stores = await opened(url_of(file))
    for number in (1, 2):
        await created(stores.store, number)
    now = await stores.store.now()
    connection = sqlite3.connect(file)
    numbers = f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {SLEEPERS}) SELECT n FROM s)"
    connection.execute(ASLEEP.format(uid="printf('f%031d', n)", now=now, series=numbers))
    connection.commit()
    values = {**CLAIM, "now": now, "binding": "b1", "bindings": '["b1"]', "until": 1, "uid": "x", "recovered": 0, "uids": '["a"]'}
    for build in (*SQLITE_READS, sqlite_claim._take_one, sqlite_claim._take_all):
        steps = explained(connection, build(), values)
        assert any(step.startswith(("SEARCH actors USING INDEX", "SEARCH actors USING COVERING INDEX")) for step in steps), steps
        assert not any(step.startswith("SCAN actors") for step in steps), steps
    for statement in (queries.get(SQLITE), queries.heads(SQLITE), sqlite_leases._renew()):
        assert not any(step.startswith("SCAN actors") for step in explained(connection, statement, values))
    steps_read = await asyncio.to_thread(count_steps, file, values)
    assert steps_read < 2_000
    connection.close()
    claims = await stores.store.claim(claim_request("b1", "b2"))
    assert sorted(taken.envelope.uid for taken in claims.taken) == [uid_of(1), uid_of(2)]
    await stores.store.close()


async def test_sqlite_does_not_read_a_whole_inbox(file: Path) -> None:
    stores = await opened(url_of(file))
    now = await stores.store.now()
    connection = sqlite3.connect(file)
    numbers = f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {SLEEPERS}) SELECT n FROM s)"
    connection.execute(ASLEEP.format(uid="printf('f%031d', n)", now=now, series=numbers))
    connection.execute(INBOX.format(id="'ap_' || n", uid="printf('f%031d', n)", now=now, series=numbers))
    connection.commit()
    for page in INBOX_PAGES:
        statement = lists.listed_approvals(SQLITE, page)
        assert await asyncio.to_thread(steps_of, file, [(statement, {})]) < 5_000, explained(connection, statement, {})
    connection.close()
    await stores.store.close()


def count_steps(file: Path, values: dict[str, Any]) -> int:
    """How many instructions of SQLite's machine the candidates of a claim cost."""
    return steps_of(file, [(build(), values) for build in SQLITE_READS])


def steps_of(file: Path, statements: Sequence[tuple[Statement, dict[str, Any]]]) -> int:
    """How many instructions of SQLite's machine some statements cost, to the hundred."""
    connection = sqlite3.connect(file)
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 100
        return 0

    connection.set_progress_handler(step, 100)
    for statement, values in statements:
        connection.execute(statement.text, statement.arguments(values)).fetchall()
    connection.close()
    return steps
