"""R42, R43: one key makes one run, whoever races; a foreign id looks like none; lists neither repeat nor miss."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from runward.core.errors import Conflict, Invalid, NotFound, NotPermitted, RunwardError, Unavailable
from runward.core.kernel.actor import FORMAT, Scope, Status
from runward.core.messages import Message, TextPart
from runward.engine.callers import LOCAL, Caller, Permission
from runward.engine.commands import NewRun, RunCreated
from runward.engine.deliveries import Input
from runward.engine.pages import HORIZON_MS
from runward.engine.repeats import Repeatable
from runward.ports.reads import ActorQuery, Order
from tests.engine.rig import DONE, SETTINGS, Rig, agent

EVERYTHING = frozenset(Permission)


def caller(tenant: str, *permissions: Permission, user: str | None = None, **differing: Any) -> Caller:
    return Caller(
        name=f"key of {tenant}", scope=Scope(tenant=tenant, user=user), permissions=frozenset(permissions) or EVERYTHING, **differing
    )


class Language(BaseModel):
    """What a run of the agent has to bring."""

    language: str


ANN, BEN = caller("acme"), caller("bolt")


def new(text: str = "hi", **differing: Any) -> NewRun:
    return replace(NewRun(agent="agent", messages=(Message(seq=0, role="user", content=(TextPart(text=text),)),)), **differing)


async def made(
    rig: Rig, by: Caller = LOCAL, *, key: str | None = None, fingerprint: str = "body", process: int = 0, **differing: Any
) -> RunCreated:
    repeatable = None if key is None else Repeatable(key=key, fingerprint=fingerprint)
    return await rig.processes[process].service.commands.create_run(by, new(**differing), repeatable)


def idle() -> Rig:
    """Two processes without workers: runs stay as they are made."""
    return Rig(agent(DONE), worker=False)


# -- creating ----------------------------------------------------------------------------------------------------------------


async def test_R42_the_same_key_and_body_is_the_same_run() -> None:
    async with idle() as rig:
        first, again = await made(rig, key="k"), await made(rig, key="k")
        assert (first.replayed, again.replayed, first.row.uid) == (False, True, again.row.uid)
        assert len(rig.database.actors) == 1


async def test_R42_however_many_race_over_two_processes() -> None:
    """I-50: no conflict while the first is under way."""
    async with idle() as rig:
        await rig.start(worker=False)
        gates = [rig.processes[number % 2].faults.hold("create", number // 2 + 1) for number in range(50)]
        racing = [asyncio.ensure_future(made(rig, key="k", process=number % 2)) for number in range(50)]
        await rig.until(lambda: all(gate.reached.is_set() for gate in gates))
        for gate in reversed(gates):
            gate.open.set()
        answers = await rig.passing(asyncio.gather(*racing))
        assert len({answer.row.uid for answer in answers}) == len(rig.database.actors) == 1
        assert [answer.replayed for answer in answers].count(False) == 1


async def test_R42_the_same_key_and_another_body_is_refused() -> None:
    async with idle() as rig:
        await made(rig, key="k")
        with pytest.raises(Invalid) as refused:
            await made(rig, key="k", fingerprint="another body")
        assert refused.value.code == "idempotency_key_reused"
        assert len(rig.database.actors) == 1


async def test_R42_a_key_is_the_callers_own() -> None:
    async with idle() as rig:
        uids = {(await made(rig, by, key="k")).row.uid for by in (ANN, BEN, caller("acme", user="ann"))}
        assert len(uids) == 3


async def test_R42_a_refused_request_leaves_no_key() -> None:
    """F-21: fix the body, keep the key."""
    async with idle() as rig:
        with pytest.raises(Invalid):
            await made(rig, key="k", agent="nobody")
        assert not (await made(rig, key="k")).replayed


async def test_R42_a_taken_run_id_without_a_known_key_is_a_conflict_and_leaves_no_key() -> None:
    async with idle() as rig:
        await made(rig, run_id="mine", key="first")
        with pytest.raises(Conflict) as refused:
            await made(rig, run_id="mine", key="k")
        assert refused.value.code == "run_exists"
        assert not (await made(rig, key="k")).replayed


async def test_R42_the_key_is_looked_at_before_the_run_id() -> None:
    async with idle() as rig:
        first = await made(rig, run_id="mine", key="k")
        again = await made(rig, run_id="mine", key="k")
        assert (again.replayed, again.row.uid) == (True, first.row.uid)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"agent": "nobody"}, "unknown_agent"),
    ({"agent_version": "9"}, "unknown_agent"),
    ({"context": {"language": 7}}, "invalid_context"),
    ({"tool_context": {"nothing": {}}}, "unknown_tool"),
]
"""What may be wrong with a request by the time it is sent again: agents, their contexts and tools change."""


@pytest.mark.parametrize(("wrong", "code"), WRONG, ids=lambda value: value if isinstance(value, str) else "-".join(value))
async def test_R42_a_known_key_is_answered_whatever_else_is_wrong_with_the_request(wrong: dict[str, Any], code: str) -> None:
    async with Rig(agent(DONE, context=Language), worker=False) as rig:
        first = await made(rig, key="k", context={"language": "en"})
        again = await made(rig, key="k", **{"context": {"language": "en"}, **wrong})
        assert (again.replayed, again.row.uid) == (True, first.row.uid)
        for key, expected in (("k", "idempotency_key_reused"), ("another", code), (None, code)):
            with pytest.raises(Invalid) as refused:
                await made(rig, key=key, fingerprint="another body", **{"context": {"language": "en"}, **wrong})
            assert refused.value.code == expected


async def test_R42_a_request_that_is_right_does_not_ask_for_its_key() -> None:
    """The creation itself looks at the key: one write, and the read of what it made."""
    async with idle() as rig:
        await made(rig, key="k")
        await made(rig, key="k")
        assert "remembered" not in rig.faults.counts


async def test_R42_run_ids_are_a_tenants_own() -> None:
    async with idle() as rig:
        uids = {(await made(rig, by, run_id="mine")).row.uid for by in (ANN, BEN)}
        assert len(uids) == 2


async def test_R42_a_key_outlives_its_run() -> None:
    """A replay that names a deleted run is told so, and never makes a second run; its run_id is free again."""
    async with Rig(agent(DONE)) as rig:
        uid = (await rig.passing(made(rig, key="k", run_id="mine"))).row.uid
        await rig.over(uid)
        await rig.passing(rig.first.service.commands.delete_run(LOCAL, "mine"))
        with pytest.raises(Conflict) as refused:
            await rig.passing(made(rig, key="k", run_id="mine"))
        assert (refused.value.code, rig.database.actors) == ("run_deleted", {})
        assert (await rig.passing(made(rig, run_id="mine"))).row.uid != uid


async def test_creating_asks_for_an_agent_that_is_there() -> None:
    """R42: by name, and by version; the one defined last is the default."""
    old, latest = agent(DONE, version="1"), agent(DONE, version="2", instructions="newer")
    async with Rig(old, latest, worker=False) as rig:
        versions = [(await made(rig, agent_version=version)).row.agent_version for version in (None, "1", "2")]
        assert versions == ["2", "1", "2"]
        for name, version in (("nobody", None), ("agent", "3")):
            with pytest.raises(Invalid) as refused:
                await made(rig, agent=name, agent_version=version)
            assert refused.value.code == "unknown_agent"


async def test_a_process_without_the_code_knows_the_agents_that_workers_published() -> None:
    """R41."""
    async with Rig(agent(DONE)) as rig:
        await rig.start(agent(DONE, name="another"), worker=False)
        created = await rig.passing(made(rig, process=1))
        assert (await rig.over(created.row.uid)).status is Status.COMPLETED


async def test_start_at_keeps_a_run_waiting_until_then() -> None:
    """R36: by the store's clock. The past means now."""
    async with Rig(agent(DONE)) as rig:
        now = rig.database.now()
        later = await rig.begin(start_at=now + 60_000)
        assert await rig.run(start_at=now - 60_000)
        await rig.pass_seconds(50)
        assert rig.row(later).leg == 0
        await rig.over(later)
        assert 60 <= rig.clock.monotonic() <= 60 + 3


async def test_priority_moves_a_run_ahead_and_priorities_age() -> None:
    """R42: by a minute a point."""
    async with idle() as rig:
        order = [("low", 0), ("high", 5), ("aged", 0)]
        for name, priority in order:
            rig.clock.advance(100)
            await made(rig, run_id=name, priority=priority)
        ranked = sorted(rig.database.actors.values(), key=lambda rows: rows.envelope.rank)
        assert [rows.envelope.public_id for rows in ranked] == ["high", "low", "aged"]


async def test_limits_of_a_request_only_tighten() -> None:
    """R35."""
    from runward.core.runs import codec
    from runward.core.runs.limits import Limits, TighterLimits

    async with Rig(agent(DONE, limits=Limits(max_steps=5)), worker=False) as rig:
        for asked, got in ((3, 3), (50, 5), (None, 5)):
            created = await made(rig, limits=TighterLimits(max_steps=asked))
            assert codec.decode(created.row.state).limits.max_steps == got


# -- scopes ------------------------------------------------------------------------------------------------------------------


async def answers(rig: Rig, by: Caller, run_id: str) -> list[str]:
    """What each door answers a caller about a run: the codes of its refusals."""
    service, codes = rig.first.service, []
    for ask in (
        lambda: service.queries.run(by, run_id),
        lambda: service.queries.messages(by, run_id, after=0, limit=10),
        lambda: service.queries.receipts(by, run_id, after=(0, 0), limit=10),
        lambda: service.queries.place(by, run_id),
        lambda: service.commands.cancel_run(by, run_id, None),
        lambda: service.commands.delete_run(by, run_id),
    ):
        try:
            await ask()
            codes.append("answered")
        except RunwardError as error:
            codes.append(f"{error.code}: {error.detail}")
    return codes


async def test_R43_a_foreign_run_and_none_are_indistinguishable() -> None:
    async with idle() as rig:
        mine = (await made(rig, ANN, run_id="mine", user="ann")).row
        strangers = (BEN, caller("acme", user="ben"), replace(ANN, scope=Scope(tenant="acme", namespace="other")))
        for stranger in strangers:
            assert (
                await answers(rig, stranger, "mine") == await answers(rig, stranger, "nothing") == ["not_found: There is no such run."] * 6
            )
        assert rig.row(mine.uid) == mine and rig.rows(mine.uid).mail == []


async def test_R43_an_operator_reads_every_tenant_unless_narrowed() -> None:
    async with idle() as rig:
        for by in (ANN, BEN):
            await made(rig, by)
        operator = caller("ops", operator=True)
        queries = rig.first.service.queries
        assert len((await queries.runs(operator, ActorQuery(kind="run", scope=None), None)).data) == 2
        narrowed = replace(operator, narrowed=True, scope=Scope(tenant="acme"))
        assert len((await queries.runs(narrowed, ActorQuery(kind="run", scope=None), None)).data) == 1


async def test_R43_a_scope_that_would_be_left_is_refused() -> None:
    async with idle() as rig:
        with pytest.raises(NotPermitted):
            await made(rig, caller("acme", user="ann"), user="ben")
        assert (await made(rig, caller("acme", user="ann"))).row.scope.user == "ann"


@pytest.mark.parametrize("permission", [Permission.RUNS_READ, Permission.OPS, Permission.APPROVALS_DECIDE])
async def test_R43_writing_needs_its_permission(permission: Permission) -> None:
    async with idle() as rig:
        await made(rig, ANN, run_id="mine")
        reader = caller("acme", permission)
        commands = rig.first.service.commands
        for ask in (made(rig, reader), commands.cancel_run(reader, "mine", None), commands.delete_run(reader, "mine")):
            with pytest.raises(NotPermitted):
                await ask
        with pytest.raises(NotPermitted):
            await rig.first.service.queries.run(caller("acme", Permission.RUNS_WRITE), "mine")


async def test_raw_results_are_for_operators_of_the_service_alone() -> None:
    """R43."""
    from runward import tool
    from tests.engine.rig import calls

    @tool(effect="read", to_model_output=lambda result: "shown")
    async def look() -> str:
        return "raw"

    async with Rig(agent(calls("look"), DONE, tools=[look])) as rig:
        uid = await rig.run()
        for by, raw in ((LOCAL, "raw"), (caller("default", Permission.RUNS_READ), None)):
            page = await rig.passing(rig.first.service.queries.receipts(by, uid, after=(0, 0), limit=10))
            assert page.data[0].get("raw") == raw


# -- lists -------------------------------------------------------------------------------------------------------------------


async def pages(rig: Rig, query: ActorQuery, by: Caller = LOCAL) -> list[list[str]]:
    """Every page of a list, by run id."""
    found: list[list[str]] = []
    cursor = None
    while True:
        page = await rig.first.service.queries.runs(by, query, cursor)
        found.append([run["run_id"] for run in page.data])
        if page.next_cursor is None:
            return found
        cursor = page.next_cursor


async def test_R43_pages_neither_repeat_nor_miss() -> None:
    """Also of runs made in the same millisecond, and while newer ones come."""
    async with idle() as rig:
        for number in range(7):
            await made(rig, run_id=f"run-{number}")
        everything = [f"run-{number}" for number in range(7)]
        newest = await pages(rig, ActorQuery(kind="run", scope=None, limit=3))
        assert [len(page) for page in newest] == [3, 3, 1]
        assert sorted(run for page in newest for run in page) == everything
        first = await rig.first.service.queries.runs(LOCAL, ActorQuery(kind="run", scope=None, limit=3), None)
        rig.clock.advance(1)
        await made(rig, run_id="newer")
        second = await rig.first.service.queries.runs(LOCAL, ActorQuery(kind="run", scope=None, limit=3), first.next_cursor)
        assert [run["run_id"] for run in second.data] == newest[1]


async def test_R43_ascending_lists_show_only_what_no_commit_in_flight_can_come_before() -> None:
    async with idle() as rig:
        await made(rig, run_id="old")
        rig.clock.advance(HORIZON_MS / 1_000 + 1)
        await made(rig, run_id="young")
        assert await pages(rig, ActorQuery(kind="run", scope=None, order=Order.OLDEST)) == [["old"]]
        rig.clock.advance(HORIZON_MS / 1_000 + 1)
        assert await pages(rig, ActorQuery(kind="run", scope=None, order=Order.OLDEST)) == [["old", "young"]]


@pytest.mark.parametrize("cursor", ["", "x", "é", "eyJhIjoxfQ", "W10", "WzEsMiwzXQ", "a" * 10_000])
async def test_R43_a_cursor_that_is_not_one_of_this_list_is_refused(cursor: str) -> None:
    async with idle() as rig:
        with pytest.raises(Invalid) as refused:
            await rig.first.service.queries.runs(LOCAL, ActorQuery(kind="run", scope=None), cursor)
        assert refused.value.code == "invalid_cursor"


async def test_R43_a_cursor_belongs_to_its_filters_and_its_caller() -> None:
    async with idle() as rig:
        for number in range(3):
            for by in (ANN, BEN):
                await made(rig, by, run_id=f"run-{number}")
        queries, query = rig.first.service.queries, ActorQuery(kind="run", scope=None, limit=1)
        cursor = (await queries.runs(ANN, query, None)).next_cursor
        assert cursor is not None
        for by, other in ((BEN, query), (ANN, replace(query, agent="another")), (ANN, replace(query, order=Order.OLDEST))):
            with pytest.raises(Invalid):
                await queries.runs(by, other, cursor)
        assert len((await queries.runs(ANN, replace(query, limit=50), cursor)).data) == 2, "the size of a page may change"


# -- waiting -----------------------------------------------------------------------------------------------------------------


async def test_waiting_ends_with_the_run() -> None:
    """R5: at once, by the hint that the end is durable; or, when every hint is lost, a poll later."""
    for mute in (False, True):
        async with Rig(agent(replace(DONE, text="one two", chunk_delay_seconds=1))) as rig:
            waiting_room = await rig.start(worker=False)
            rig.bus.mute = mute
            uid = await rig.begin()
            view = await rig.passing(waiting_room.service.queries.wait(uid, 60, "ended"))
            assert (view.status, view.shown["text"]) == (Status.COMPLETED, "one two")
            assert 2 <= rig.clock.monotonic() <= (2.1 if not mute else 2 + 2 * SETTINGS.poll_with_bus)


async def test_waiting_costs_the_store_nothing_while_the_run_talks() -> None:
    """R44: the row is read when the run has said where it stands, not with every word."""
    async with Rig(agent(replace(DONE, text="one two three four five six", chunk_delay_seconds=1))) as rig:
        uid = await rig.begin()
        reads = rig.faults.counts["get"]
        view = await rig.passing(rig.first.service.queries.wait(uid, 60, "ended"))
        assert view.status is Status.COMPLETED
        assert rig.faults.counts["get"] - reads <= 3


async def test_waiting_gives_up_in_time() -> None:
    async with idle() as rig:
        uid = (await made(rig)).row.uid
        view = await rig.passing(rig.first.service.queries.wait(uid, 7, "suspended"))
        assert view.status is Status.QUEUED and rig.clock.monotonic() == pytest.approx(7, abs=0.1)
        assert rig.first.service.tails.watching == 0


async def test_waiting_for_a_run_that_is_deleted_says_so() -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        uid = (await made(rig)).row.uid
        waiting = asyncio.ensure_future(rig.first.service.queries.wait(uid, 60, "ended"))
        await rig.pass_seconds(1)
        rig.database.remove(uid)
        with pytest.raises(NotFound):
            await rig.passing(waiting)


async def test_only_an_ended_run_that_nobody_holds_can_be_deleted() -> None:
    """R45: whole."""
    async with Rig(agent(replace(DONE, text="one two", chunk_delay_seconds=1))) as rig:
        uid = await rig.begin(run_id="mine")
        with pytest.raises(Conflict) as refused:
            await rig.passing(rig.first.service.commands.delete_run(LOCAL, "mine"))
        assert refused.value.code == "run_not_ended"
        await rig.over(uid)
        await rig.passing(rig.first.service.commands.delete_run(LOCAL, "mine"))
        assert rig.database.actors == {}
        with pytest.raises(NotFound):
            await rig.passing(rig.first.service.commands.delete_run(LOCAL, "mine"))


async def test_R41a_a_run_of_a_newer_version_is_shown_by_its_columns_and_left_as_it_is() -> None:
    """In lists too; what would have to read its state sends the caller to a process of that version."""
    async with Rig(agent(DONE), worker=False) as rig:
        uid = await rig.begin()
        rig.rows(uid).envelope = replace(rig.row(uid), format=FORMAT + 1, state='{"of": "tomorrow"}')
        before, name = rig.row(uid), rig.row(uid).public_id
        service = rig.first.service
        run = await rig.passing(service.queries.run(LOCAL, name))
        page = await rig.passing(service.queries.runs(LOCAL, ActorQuery(kind="run", scope=None), None))
        assert run.shown == page.data[0] and (run.shown["status"], run.shown["agent"], run.shown["text"]) == ("queued", "agent", None)
        for asked in (
            service.queries.messages(LOCAL, name, after=0, limit=10),
            service.deliveries.deliver(LOCAL, name, Input(release_hold=True)),
            service.operations.hold_run(LOCAL, name, None),
        ):
            with pytest.raises(Unavailable):
                await rig.passing(asked)
        assert rig.row(uid) == before and rig.rows(uid).mail == []
