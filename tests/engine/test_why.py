"""Why a run is not moving: every state it can stand in is explained, truthfully, with what to do next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runward import Guardrails, Reply, ToolContext, UnknownOutcome, ask_user, durable_wait, tool
from runward.core.errors import NotFound
from runward.core.kernel.actor import FORMAT, Scope
from runward.core.times import rfc3339
from runward.engine.callers import LOCAL, Caller, Permission
from runward.engine.deliveries import Input
from runward.engine.letters import VerdictIn
from tests.engine.rig import DONE, SETTINGS, TTL, Rig, agent, calls
from tests.engine.test_drain import Mill

Why = dict[str, Any]


async def why(rig: Rig, uid: str, caller: Caller = LOCAL, process: int = 0) -> Why:
    return await rig.passing(rig.processes[process].service.whys.why(caller, rig.row(uid).public_id))


def codes(answer: Why) -> list[str]:
    """The reasons' codes; every one says something, and what to do."""
    assert all(reason["detail"].endswith(".") and reason["next"].endswith(".") for reason in answer["reasons"]), answer
    return [reason["code"] for reason in answer["reasons"]]


def detail(answer: Why, code: str) -> str:
    return next(str(reason["detail"]) for reason in answer["reasons"] if reason["code"] == code)


# -- nobody has it ---------------------------------------------------------------------------------------------------------------


async def test_no_worker_lives() -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        answer = await why(rig, await rig.begin())
        assert (answer["status"], answer["claimable"], answer["lease"], answer["waiting_on"]) == ("queued", False, None, [])
        assert codes(answer) == ["no_worker_at_all"]


async def test_R41_no_worker_has_the_binding() -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        uid = await rig.begin()
        other = await rig.start(agent(DONE, name="other"))
        answer = await why(rig, uid)
        assert (codes(answer), answer["claimable"]) == (["no_worker_with_binding"], False)
        said = detail(answer, "no_worker_with_binding")
        assert rig.row(uid).binding in said and "agent, version" in said and other.worker.owner in said


async def test_a_worker_that_has_been_silent_for_a_lease_does_not_count() -> None:
    async with Rig(agent(DONE)) as rig:
        await rig.first.die()
        rig.faults.down = False
        uid = await rig.begin()
        assert codes(await why(rig, uid)) == ["queued"], "nobody knows yet"
        await rig.pass_seconds(TTL + 1)
        assert codes(await why(rig, uid)) == ["no_worker_at_all"]


async def test_every_slot_is_taken() -> None:
    mill = Mill()
    async with Rig(mill.agent("look"), settings=replace(SETTINGS, concurrency=1)) as rig:
        await rig.begin()
        await rig.until(lambda: bool(mill.began))
        uid = await rig.begin()
        await rig.pass_seconds(TTL)
        answer = await why(rig, uid)
        assert (codes(answer), answer["claimable"]) == (["workers_full"], True)


async def test_its_concurrency_key_is_taken() -> None:
    mill = Mill()
    async with Rig(mill.agent("look")) as rig:
        await rig.begin(concurrency_key="k")
        await rig.until(lambda: bool(mill.began))
        await rig.begin(concurrency_key="k")
        uid = await rig.begin(concurrency_key="k")
        await rig.pass_seconds(TTL)
        answer = await why(rig, uid)
        assert (codes(answer), answer["claimable"]) == (["concurrency_key_full"], False)
        said = detail(answer, "concurrency_key_full")
        assert "1 runs with its concurrency_key" in said and "1 other runs that you may see wait before" in said
        free = await rig.begin(concurrency_key="other")
        await rig.until(lambda: len(mill.began) == 2)
        assert "lease_held" in codes(await why(rig, free))


async def test_its_tenant_has_as_many_as_it_may() -> None:
    mill = Mill()
    async with Rig(mill.agent("look"), settings=replace(SETTINGS, per_tenant=1)) as rig:
        await rig.begin()
        await rig.until(lambda: bool(mill.began))
        uid = await rig.begin()
        await rig.pass_seconds(TTL)
        answer = await why(rig, uid)
        assert (codes(answer), answer["claimable"]) == (["tenant_at_limit"], False)
        assert "0 other runs that you may see wait before" in detail(answer, "tenant_at_limit")
        await rig.cancel(uid)
        await rig.over(uid)  # a caretaker needs no place


async def test_its_place_in_the_queue_counts_what_the_caller_may_see() -> None:
    other = Caller(name="other", scope=Scope(tenant="other"), permissions=frozenset(Permission))
    async with Rig(agent(DONE)) as rig:
        await rig.first.die()
        rig.faults.down = False
        await rig.begin()
        uid = await rig.begin()
        await rig.begin()
        urgent = await rig.begin(priority=100)
        assert "behind 2 other" in detail(await why(rig, uid), "queued")
        assert "behind 0 other" in detail(await why(rig, urgent), "queued")
        with pytest.raises(NotFound):
            await why(rig, uid, other)


async def test_it_is_to_start_later() -> None:
    async with Rig(agent(DONE)) as rig:
        at = rig.database.now() + 60_000
        uid = await rig.begin(start_at=at)
        answer = await why(rig, uid)
        assert (codes(answer), answer["claimable"]) == (["starts_later"], False)
        assert rfc3339(at) in detail(answer, "starts_later")
        assert answer["since"] == rig.view(uid)["created_at"]


async def test_R41a_its_format_is_too_new() -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        uid = await rig.begin()
        rig.database.put(replace(rig.row(uid), format=FORMAT + 1, state="from tomorrow"))
        answer = await why(rig, uid)
        assert (codes(answer), answer["claimable"]) == (["format_too_new"], False)


async def test_R37_a_cancel_that_nobody_has_applied() -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        uid = await rig.begin()
        await rig.cancel(uid)
        assert codes(await why(rig, uid)) == ["cancel_requested", "inbox_unapplied", "no_worker_at_all"]


# -- somebody has it -------------------------------------------------------------------------------------------------------------


async def test_a_model_call_is_under_way() -> None:
    mill = Mill()
    async with Rig(agent(model=mill, tools=mill.tools)) as rig:
        uid = await rig.begin()
        await rig.until(lambda: mill.began == ["model 1/1"])
        answer = await why(rig, uid)
        assert codes(answer) == ["lease_held", "model_call_under_way"]
        assert answer["lease"] == {"worker": rig.first.worker.owner, "expires_at": rfc3339(rig.row(uid).lease_until or 0)}
        assert rig.first.worker.owner in detail(answer, "lease_held") and not answer["claimable"]


async def test_a_tool_runs_and_the_leg_was_asked_to_go() -> None:
    mill = Mill()
    async with Rig(mill.agent("pay", "look")) as rig:
        uid = await rig.begin()
        await rig.until(lambda: len(mill.began) == 2)
        await rig.passing(rig.first.service.operations.drain_run(LOCAL, rig.row(uid).public_id))
        answer = await why(rig, uid)
        assert codes(answer) == ["lease_held", "draining", "tool_running", "tool_running"]
        assert "Call 1.1 of pay, attempt 1" in detail(answer, "tool_running")


async def test_it_waits_to_ask_the_model_again() -> None:
    async with Rig(agent(Reply(error="server_error"))) as rig:
        uid = await rig.begin()
        await rig.until(lambda: len(rig.frames(uid, "start-step")) == 3)
        answer = await why(rig, uid)
        assert codes(answer) == ["lease_held", "model_backoff"]


async def test_a_tool_waits_to_be_tried_again() -> None:
    @tool(effect="read")
    async def stumble(ctx: ToolContext) -> str:
        raise RuntimeError("broken")

    async with Rig(agent(calls("stumble"), tools=[stumble])) as rig:
        uid = await rig.begin()
        await rig.until(lambda: '"failures":2' in rig.row(uid).state)
        assert codes(await why(rig, uid)) == ["lease_held", "tool_backoff"]


async def test_R40_its_worker_died_and_it_is_a_suspect() -> None:
    mill = Mill()
    async with Rig(mill.agent("look"), settings=replace(SETTINGS, recovery_delay=60.0)) as rig:
        await rig.start(worker=False)
        uid = await rig.begin()
        await rig.until(lambda: bool(mill.began))
        owner = rig.first.worker.owner
        await rig.first.die()
        answer = await why(rig, uid, process=1)
        assert codes(answer)[0] == "lease_held", "until it runs out nobody can know"
        await rig.pass_seconds(2 * TTL)
        answer = await why(rig, uid, process=1)
        assert codes(answer) == ["lease_lapsed", "no_worker_at_all"]
        assert owner in detail(answer, "lease_lapsed")
        second = await rig.start()
        await rig.until(lambda: rig.row(uid).recoveries == 1)
        await second.die()
        await rig.start()
        await rig.pass_seconds(TTL + 1)
        answer = await why(rig, uid, process=1)
        assert (codes(answer), answer["claimable"]) == (["lease_lapsed", "suspect_delay"], False)
        until = rfc3339((rig.row(uid).lease_until or 0) + 60_000)
        assert until in detail(answer, "suspect_delay")
        await rig.until(lambda: rig.row(uid).recoveries == 2)
        assert rig.database.now() >= (rig.row(uid).lease_until or 0) - round(TTL * 1000)


# -- it waits --------------------------------------------------------------------------------------------------------------------


async def test_R8_everything_that_it_waits_for_is_named() -> None:
    @tool(effect="non_idempotent_write")
    async def pay() -> str:
        return "paid"

    @tool(effect="non_idempotent_write", needs_approval=False)
    async def lose() -> str:
        raise UnknownOutcome("nobody answered")

    replies = Reply(
        tool_calls=[
            *calls("pay").tool_calls,
            *calls("lose").tool_calls,
            *calls("ask_user", question="Which one?").tool_calls,
            *calls("durable_wait", seconds=3600).tool_calls,
        ]
    )
    async with Rig(agent(replies, DONE, tools=[pay, lose, ask_user, durable_wait])) as rig:
        uid = await rig.run()
        answer = await why(rig, uid)
        assert codes(answer) == ["waits_for_approval", "waits_for_question", "waits_for_timer", "waits_for_unknown_effect"]
        (approval,) = rig.view(uid)["pending"]["approvals"]
        waiting = {item["kind"]: item for item in answer["waiting_on"]}
        assert waiting["approval"] == {"kind": "approval", "id": approval["approval_id"], "since": approval["created_at"]}
        assert waiting["timer"]["due_at"] == rig.view(uid)["pending"]["timers"][0]["due_at"]
        assert waiting["unknown_effect"]["id"] == "1.2"
        assert waiting["question"]["id"] == rig.view(uid)["pending"]["questions"][0]["question_id"]
        assert (answer["status"], answer["claimable"]) == ("suspended", False)


async def test_R23_what_has_arrived_is_not_waited_for_any_more() -> None:
    @tool(effect="non_idempotent_write")
    async def pay() -> str:
        return "paid"

    async with Rig(agent(calls("pay"), DONE, tools=[pay])) as rig:
        uid = await rig.run()
        await rig.first.die()
        rig.faults.down = False
        (request,) = rig.view(uid)["pending"]["approvals"]
        verdict = Input(approvals=(VerdictIn(approval_id=request["approval_id"], approved=True),))
        await rig.passing(rig.first.service.deliveries.deliver(LOCAL, rig.row(uid).public_id, verdict))
        await rig.pass_seconds(TTL + 1)
        answer = await why(rig, uid)
        assert (answer["waiting_on"], codes(answer)) == ([], ["inbox_unapplied", "no_worker_at_all"])


async def test_R39_it_is_parked() -> None:
    async with Rig(agent(DONE), worker=False) as rig:
        uid = await rig.begin()
        await rig.passing(rig.first.service.operations.hold_run(LOCAL, rig.row(uid).public_id, None))
        await rig.start()
        await rig.over(uid)
        answer = await why(rig, uid)
        assert codes(answer) == ["waits_for_hold"]
        assert "release_hold" in answer["reasons"][0]["next"]


async def test_it_has_ended() -> None:
    async with Rig(agent(Reply(error="server_error"), name="failing"), agent(DONE)) as rig:
        done, failed = await rig.run(), await rig.run("failing")
        assert codes(await why(rig, done)) == codes(await why(rig, failed)) == ["ended"]
        assert "retry_failed" in (await why(rig, failed))["reasons"][0]["next"]
        assert "retry_failed" not in (await why(rig, done))["reasons"][0]["next"]
        assert (await why(rig, done))["since"] == rig.view(done)["ended_at"]


@pytest.mark.parametrize(("hook", "what"), [("on_input", "the input"), ("on_output", "the answer of step 1")])
async def test_guardrails_look_at_it(hook: str, what: str) -> None:
    entered: list[int] = []

    async def waits(value: Any, ctx: Any) -> None:
        entered.append(1)
        await rig.clock.sleep(200)

    rig = Rig(agent(DONE, guardrails=Guardrails(**{hook: waits})))
    async with rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(entered))
        await rig.pass_seconds(1)
        answer = await why(rig, uid)
        assert codes(answer) == ["lease_held", "guarding"] and what in detail(answer, "guarding")
