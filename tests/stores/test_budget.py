"""What a run costs Postgres (performance, rows 8 and 9), counted in its log: model -> tool -> model -> done."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from runward.core.kernel.actor import Position, Status
from runward.core.kernel.commit import Changes, Created, Written
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.records import MessageRow, Stage
from runward.engine.clock import SystemChance
from runward.stores.sql import SqlStores
from runward.stores.sql.postgres.connections import Connections
from tests.contract.builders import claim_request, face, message, new_actor, receipt
from tests.stores.conftest import direct
from tests.support.servers import Postgres

RUNS = 60


def said(run_id: str, first: int, *types: str) -> tuple[StoredFrame, ...]:
    """Frames of about 180 bytes, no two alike."""
    return tuple(
        StoredFrame(
            seq=seq,
            data=(
                f'{{"type":"{type_}","seq":{seq},"run_id":"{run_id}","at":"2026-05-28T20:26:{seq % 60:02}.{seq * 7 % 1000:03}Z","step":1,'
                f'"tool_call_id":"1.{seq}","tool_name":"add","arguments":{{"a":{seq},"b":{seq * 31}}},"attempt":1}}'
            ).encode(),
        )
        for seq, type_ in enumerate(types, first)
    )


def text(seq: int, role: str, content: str) -> MessageRow:
    return message(seq, role=role, step=1, content=f'[{{"type":"text","text":"{content}"}}]')


def state(step: int, more: str = "") -> str:
    return f'{{"step":{step},"agent":"support","usage":{{"input_tokens":52,"output_tokens":17}},"leg_started_at":1780000000003{more}}}'


async def drive(stores: SqlStores, uid: str) -> None:
    """One run from its creation to its end, in five writes: 12 frames, 4 messages, a receipt that changes once."""
    new = new_actor(
        public_id=uid, uid=uid, binding="a" * 32, state=state(0), frames=said(uid, 1, "start"), messages=(text(1, "user", "2+2?"),)
    )
    assert await stores.store.create(new, None) == Created(uid=uid)
    claims = await stores.store.claim(claim_request("a" * 32, owner="worker-" + "1" * 25))
    (envelope,) = [taken.envelope for taken in claims.taken]
    call = receipt("1.1", tool_name="add", effect="read", detail='{"worker":"host-1234","leg":1,"failures":0,"provider_id":"call_abc"}')
    answered = face(envelope, state=state(1, f',"turn":[{{"id":"1.1","name":"add","arguments":{{"a":2,"b":2}},"worker":"{"h" * 150}"}}]'))
    first = Changes(
        uid=uid,
        follows=Position(revision=2, last_seq=1),
        face=answered,
        mail_applied=0,
        frames=said(uid, 2, "data-agent", "start-step", "tool-call", "tool-state"),
        messages=(text(2, "assistant", "I will add them."),),
        receipts=(call,),
    )
    second = Changes(
        uid=uid,
        follows=first.leads_to,
        face=replace(answered, state=state(2, ',"reservation":{"step":2,"attempt":1,"leg":1}')),
        mail_applied=0,
        frames=said(uid, 6, "tool-state", "tool-output", "finish-step", "start-step"),
        messages=(text(3, "tool", '{\\"sum\\":4}'),),
        receipts=(replace(call, stage=Stage.COMPLETED, output='{"sum":4}', ended_at=7),),
    )
    last = Changes(
        uid=uid,
        follows=second.leads_to,
        face=face(envelope, Status.COMPLETED, state=state(2, ',"text":"Two and two make four.","ended":{"status":"completed"}')),
        mail_applied=0,
        mail_seen=0,
        frames=said(uid, 10, "finish-step", "finish", "data-agent"),
        messages=(text(4, "assistant", "Two and two make four."),),
        release=True,
    )
    for commit in (first, second, last):
        assert isinstance(await stores.store.commit(commit), Written)


async def test_a_run_is_five_statements_five_commits_and_little_log(
    on_own_postgres: tuple[SqlStores, Postgres, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, _, url = on_own_postgres
    statements: Counter[str] = Counter()
    fetch = Connections.fetch

    async def counted(self: Connections, statement: Any, values: Any) -> Any:
        statements[statement.text] += 1
        return await fetch(self, statement, values)

    monkeypatch.setattr(Connections, "fetch", counted)
    uids = [SystemChance().uid() for _ in range(RUNS + 5)]
    for uid in uids[:5]:
        await drive(stores, uid)
    server = await direct(url)
    await server.execute("CREATE EXTENSION pg_walinspect")
    await server.execute("CHECKPOINT")
    statements.clear()
    start = await server.fetchval("SELECT pg_current_wal_insert_lsn()")
    for uid in uids[5:]:
        await drive(stores, uid)
    records = await server.fetch(
        'SELECT "resource_manager/record_type" AS type, count, combined_size - fpi_size AS size '
        "FROM pg_get_wal_stats($1, pg_current_wal_insert_lsn(), true) WHERE count > 0",
        start,
    )
    await server.close()
    count = {row["type"]: float(row["count"]) / RUNS for row in records}
    assert sum(statements.values()) == 5 * RUNS
    assert count["Transaction/COMMIT"] == pytest.approx(5, abs=0.2)
    assert count["Heap/HOT_UPDATE"] == pytest.approx(3, abs=0.2)  # both commits between claim and release, and the receipt
    assert count["Heap/UPDATE"] == pytest.approx(2, abs=0.2)  # claim and release
    assert sum(float(row["size"]) for row in records) / RUNS < 8_000
