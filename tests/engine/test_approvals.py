"""R14, R18-R23: calls that people approve, over verdicts, edits, expiries, crashes and races."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from runward import Agent, Approval, Block, Policy, ScriptedModel, ToolContext, tool
from runward.core.errors import Conflict, Invalid, NotFound, NotPermitted
from runward.core.kernel.actor import Scope, Status
from runward.core.runs.waits import Wait
from runward.engine.callers import LOCAL, Caller, Permission
from runward.engine.letters import AnswerIn, SettlementIn, VerdictIn
from tests.engine.rig import DONE, TTL, Rig, agent, calls


class Desk:
    """A tool whose calls are approved as `needs_approval` says, and its effects."""

    def __init__(self, needs_approval: Any = None, *, name: str = "refund") -> None:
        self.ran: list[dict[str, Any]] = []

        @tool(name=name, effect="non_idempotent_write", needs_approval=needs_approval)
        async def refund(order_id: int, ctx: ToolContext) -> str:
            self.ran.append({"order_id": order_id, "key": ctx.idempotency_key, "attempt": ctx.attempt})
            return f"refunded {order_id}"

        self.tool = refund

    def agent(self, *names: str, **differing: Any) -> Agent:
        return agent(calls(*(names or ("refund",)), order_id=7), DONE, tools=[self.tool], **differing)


def status_of(rig: Rig, uid: str, approval: str) -> str:
    """How a request stands in the inbox."""
    _, closing = rig.rows(uid).approvals[approval]
    return "pending" if closing is None else closing.status


def pending(rig: Rig, uid: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rig.view(uid)["pending"]["approvals"]
    return found


async def test_R14_a_write_that_may_not_be_repeated_waits_for_a_person_and_runs_once() -> None:
    desk = Desk()
    async with Rig(desk.agent()) as rig:
        uid = await rig.run()
        assert (rig.row(uid).status, rig.row(uid).waiting_on, desk.ran) == (Status.SUSPENDED, Wait.APPROVALS, [])
        await rig.verdict(uid, True, reason="known customer")
        assert rig.row(uid).status is Status.COMPLETED
        assert desk.ran == [{"order_id": 7, "key": f"{uid}/1.1", "attempt": 1}]
        detail = json.loads(rig.rows(uid).receipts["1.1"].detail)
        assert detail["approval"].items() >= {"approved": True, "by": "local", "reason": "known customer"}.items()


@pytest.mark.parametrize(
    ("needs", "waits"),
    [
        (True, True),
        (False, False),
        (lambda arguments, ctx: arguments["order_id"] > 5, True),
        (lambda arguments, ctx: arguments["order_id"] > 10, False),
        (Approval(when=lambda arguments, ctx: False), False),
        (Approval(), True),
    ],
)
async def test_R14_flags_predicates_and_terms_say_who_has_to_be_asked(needs: Any, waits: bool) -> None:
    desk = Desk(needs)
    async with Rig(desk.agent()) as rig:
        uid = await rig.run()
        assert (rig.row(uid).status is Status.SUSPENDED, desk.ran == []) == (waits, waits)


async def test_a_predicate_that_fails_has_not_said_that_the_call_may_run() -> None:
    """I-29: any error means not approved."""

    async def broken(arguments: Any, ctx: Any) -> bool:
        raise RuntimeError("password=hunter2")

    desk = Desk(broken)
    async with Rig(desk.agent()) as rig:
        uid = await rig.run()
        assert rig.row(uid).status is Status.SUSPENDED and desk.ran == []
        assert "hunter2" not in json.dumps([json.loads(frame.data) for frame in rig.rows(uid).frames])


async def test_a_predicate_may_block_and_is_asked_once() -> None:
    """R17a: whether a call needs approval is decided when the model asks for it (I-32)."""
    asked: list[int] = []

    def blocks(arguments: Any, ctx: ToolContext) -> bool | Block:
        asked.append(arguments["order_id"])
        return Block("refunded by phone") if len(asked) == 1 else True

    desk = Desk(blocks)
    turns = [calls("refund", order_id=7), calls("refund", order_id=8), DONE]
    async with Rig(agent(*turns, tools=[desk.tool])) as rig:
        uid = await rig.run()
        assert rig.rows(uid).receipts["1.1"].outcome == "blocked"
        assert "refunded by phone" in (rig.rows(uid).receipts["1.1"].output or "")
        await rig.verdict(uid, True)
        assert asked == [7, 8] and [each["order_id"] for each in desk.ran] == [8]


async def test_R3_a_policy_asks_and_forbids() -> None:
    """R16: require_approval outranks a tool that wants none; a forbidden call fails the run before anybody is involved."""
    desk, other = Desk(False), Desk(name="charge")
    policy = Policy(require_approval=["refund"], deny_tools=["charge"])
    turns = [calls("refund", order_id=7), calls("refund", "charge", order_id=8)]
    async with Rig(agent(*turns, tools=[desk.tool, other.tool], policy=policy)) as rig:
        uid = await rig.run()
        assert len(pending(rig, uid)) == 1
        await rig.verdict(uid, True)
        error = rig.view(uid)["error"]
        assert (rig.row(uid).status, error["code"], error["details"]["tool_name"]) == (Status.FAILED, "tool_not_allowed", "charge")
        assert len(desk.ran) == 1 and other.ran == []


async def test_R19_an_absent_verdict_is_no_verdict_and_the_first_one_stands() -> None:
    desk = Desk()
    async with Rig(desk.agent()) as rig:
        uid = await rig.run()
        await rig.pass_seconds(300)
        assert rig.row(uid).status is Status.SUSPENDED
        (request,) = pending(rig, uid)
        yes, no = (VerdictIn(approval_id=request["approval_id"], approved=approved) for approved in (True, False))

        async def one(verdict: VerdictIn) -> bool | str:
            try:
                return (await rig.deliver(uid, approvals=[verdict])).items[0]["result"]
            except Conflict as error:
                return error.code

        answers = [await one(verdict) for verdict in (no, yes, no)]
        assert answers == ["accepted", "already_answered", "duplicate"]
        await rig.over(uid)
        assert desk.ran == [] and rig.row(uid).task_outcome == "denied"
        assert await one(no) == "duplicate" and await one(yes) == "already_answered", "also after the end"


async def test_R18_two_equal_calls_are_decided_one_by_one() -> None:
    """A-02: parallel requests have ids of their own, and answers in any order reach their own call."""
    desk = Desk()
    async with Rig(desk.agent("refund", "refund", "refund")) as rig:
        uid = await rig.run()
        requests = pending(rig, uid)
        assert len({request["approval_id"] for request in requests}) == 3
        for index in (2, 0):
            await rig.deliver(uid, approvals=[VerdictIn(approval_id=requests[index]["approval_id"], approved=index == 2)])
            await rig.over(uid)
            assert rig.row(uid).status is Status.SUSPENDED
        assert [each["key"] for each in desk.ran] == [f"{uid}/1.3"], "R8: a call whose own gate opened runs at once"
        await rig.verdict(uid, True)
        assert [each["key"] for each in desk.ran] == [f"{uid}/1.3", f"{uid}/1.2"]
        results = rig.results(uid)
        assert [result["tool_call_id"] for result in results] == ["1.1", "1.2", "1.3"] and results[0]["is_error"]


async def test_A24_a_verdict_never_counts_for_another_call() -> None:
    """R18: a refused call's id is good for nothing later."""
    desk = Desk()
    turns = [calls("refund", order_id=7), calls("refund", order_id=8), DONE]
    async with Rig(agent(*turns, tools=[desk.tool])) as rig:
        uid = await rig.run()
        old = pending(rig, uid)[0]["approval_id"]
        await rig.verdict(uid, False)
        with pytest.raises(Conflict) as refused:
            await rig.deliver(uid, approvals=[VerdictIn(approval_id=old, approved=True)])
        assert refused.value.code == "already_answered" and len(pending(rig, uid)) == 1 and desk.ran == []


async def test_R21_edited_arguments_are_checked_at_the_door_and_are_what_runs() -> None:
    desk = Desk(Approval(editable=True))
    async with Rig(desk.agent()) as rig:
        uid = await rig.run()
        with pytest.raises(Invalid) as refused:
            await rig.verdict(uid, True, edited_arguments={"order_id": "seven"})
        assert refused.value.problems[0].pointer == "/approvals/0/edited_arguments/order_id"
        await rig.verdict(uid, True, edited_arguments={"order_id": 9})
        assert [each["order_id"] for each in desk.ran] == [9]
        receipt = rig.rows(uid).receipts["1.1"]
        assert (receipt.arguments, json.loads(receipt.detail)["approval"]["requested_arguments"]) == ('{"order_id":9}', {"order_id": 7})
        assert rig.frames(uid, "tool-call")[0]["arguments"] == {"order_id": 7}, "history keeps what the model issued"


async def test_R21_what_is_not_editable_or_denied_takes_no_edit() -> None:
    for needs, approved in ((Approval(), True), (Approval(editable=True), False)):
        desk = Desk(needs)
        async with Rig(desk.agent()) as rig:
            uid = await rig.run()
            with pytest.raises(Invalid):
                await rig.verdict(uid, approved, edited_arguments={"order_id": 9})
            assert rig.rows(uid).mail == []


@pytest.mark.parametrize(("on_expiry", "status"), [("deny", Status.COMPLETED), ("stop", Status.STOPPED)])
async def test_R20_a_request_expires_by_itself_also_where_nobody_has_the_code(on_expiry: Any, status: Status) -> None:
    """I-34: no request has to arrive, and the worker that is there needs no author code for it (R41)."""
    desk = Desk(Approval(expires_seconds=60, on_expiry=on_expiry))
    async with Rig(desk.agent()) as rig:
        uid = await rig.run()
        approval = pending(rig, uid)[0]["approval_id"]
        await rig.first.die()
        other = await rig.start(agent(DONE, name="other"))
        await rig.pass_seconds(61)
        await rig.until(lambda: rig.row(uid).status is not Status.RUNNING and rig.row(uid).lease_owner is None)
        assert status_of(rig, uid, approval) == "expired"
        verdict = VerdictIn(approval_id=approval, approved=True)
        with pytest.raises(Conflict) as refused:
            await rig.passing(other.service.approvals.decide(LOCAL, verdict))
        assert refused.value.code == "approval_expired"
        await rig.start()
        row = await rig.over(uid)
        assert (row.status, desk.ran) == (status, [])
        assert rig.rows(uid).receipts["1.1"].outcome == "expired"
        if status is Status.STOPPED:
            assert row.stop_reason == "approval_expired"
        else:
            assert row.task_outcome == "denied"


async def test_R20_a_verdict_is_too_late_from_the_moment_it_expires() -> None:
    """F-49: by the store's time, though nobody has closed the request yet."""
    desk = Desk(Approval(expires_seconds=60))
    async with Rig(desk.agent()) as rig:
        uid = await rig.run()
        (request,) = pending(rig, uid)
        await rig.first.die()
        api = await rig.start(worker=False)
        rig.clock.advance(60)
        verdict = VerdictIn(approval_id=request["approval_id"], approved=True)
        with pytest.raises(Conflict) as refused:
            await rig.passing(api.service.approvals.decide(LOCAL, verdict))
        assert refused.value.code == "approval_expired" and rig.rows(uid).mail == []


async def test_R22_an_approved_call_is_looked_at_again_and_another_version_asks_anew() -> None:
    def refund_of(version: str) -> Any:
        @tool(effect="non_idempotent_write", needs_approval=Approval(version=version))
        async def refund(order_id: int) -> str:
            ran.append(version)
            return "refunded"

        return refund

    ran: list[str] = []
    old = agent(calls("refund", order_id=7), DONE, tools=[refund_of("1")])
    new = replace(old, tools=[refund_of("2")])
    async with Rig(old) as rig:
        uid = await rig.run()
        (first,) = pending(rig, uid)
        accepting = replace(new, accepts=[rig.row(uid).binding])
        await rig.first.die()
        api = await rig.start(worker=False)
        verdict = VerdictIn(approval_id=first["approval_id"], approved=True)
        await rig.passing(api.service.approvals.decide(LOCAL, verdict))
        await rig.start(accepting)
        await rig.over(uid)
        (second,) = pending(rig, uid)
        assert second["approval_id"] != first["approval_id"] and ran == []
        await rig.passing(api.service.approvals.decide(LOCAL, VerdictIn(approval_id=second["approval_id"], approved=True)))
        await rig.over(uid)
        assert ran == ["2"]


async def test_R23_a_decided_request_never_shows_as_pending_and_says_who_decided() -> None:
    desk = Desk()
    async with Rig(desk.agent()) as rig:
        uid = await rig.run()
        await rig.first.die()
        api = await rig.start(worker=False)
        (request,) = pending(rig, uid)
        caller = replace(LOCAL, name="key_1", address="192.0.2.7")
        verdict = VerdictIn(approval_id=request["approval_id"], approved=False, reason="too much", decided_by="ada")
        shown = await rig.passing(api.service.approvals.decide(caller, verdict))
        assert (shown["status"], shown["decided_by"], shown["reason"]) == ("denied", "ada", "too much")
        run = await rig.passing(api.service.queries.run(LOCAL, rig.row(uid).public_id))
        assert run.shown["pending"]["approvals"] == [] and run.status is Status.QUEUED
        (item,) = (await rig.passing(api.service.queries.inbox(LOCAL, rig.row(uid).public_id, after=0, limit=10))).data
        assert (item["state"], item["principal"]) == ("pending", {"by": "key_1", "from": "192.0.2.7"})
        await rig.start()
        await rig.over(uid)
        assert "too much" in json.dumps(rig.results(uid)) and desk.ran == []


async def test_R12_after_a_verdict_a_crash_neither_asks_nor_runs_again() -> None:
    """The crash matrix: after a verdict was recorded, before and after the approved call started."""
    desk = Desk()
    model = ScriptedModel([calls("refund", order_id=7), DONE])
    async with Rig(agent(model=model, tools=[desk.tool])) as rig:
        uid = await rig.run()
        gate = rig.faults.hold("commit")
        await rig.deliver(uid, approvals=[VerdictIn(approval_id=pending(rig, uid)[0]["approval_id"], approved=True)])
        await rig.reached(gate)
        await rig.first.die()
        gate.open.set()
        await rig.start()
        await rig.pass_seconds(TTL * 2)
        await rig.over(uid)
        assert rig.row(uid).status is Status.COMPLETED and len(desk.ran) == 1
        assert len(rig.frames(uid, "tool-approval-request")) == 1


async def test_R6_a_verdict_that_meets_the_suspending_commit_is_not_lost() -> None:
    """Two of them: what arrives while the run is still pausing counts."""
    desk = Desk()
    async with Rig(desk.agent("refund", "refund")) as rig:
        uid = await rig.begin()
        await rig.until(lambda: len(pending(rig, uid)) == 2)
        gate = rig.faults.hold("commit")
        await rig.deliver(uid, approvals=[VerdictIn(approval_id=pending(rig, uid)[0]["approval_id"], approved=True)])
        gate.open.set()
        await rig.over(uid)
        assert len(desk.ran) == 1
        await rig.verdict(uid, True)
        assert len(desk.ran) == 2 and rig.row(uid).status is Status.COMPLETED


async def test_R37_a_cancel_outranks_a_verdict_that_came_before_it() -> None:
    desk = Desk()
    async with Rig(desk.agent()) as rig:
        uid = await rig.run()
        await rig.first.die()
        api = await rig.start(worker=False)
        (request,) = pending(rig, uid)
        await rig.passing(api.service.approvals.decide(LOCAL, VerdictIn(approval_id=request["approval_id"], approved=True)))
        await rig.passing(api.service.commands.cancel_run(LOCAL, rig.row(uid).public_id, None))
        await rig.start()
        row = await rig.over(uid)
        assert (row.stop_reason, desk.ran) == ("cancelled", [])
        assert [(mail.kind.value, mail.ignored) for mail in rig.rows(uid).mail] == [("approval", True), ("cancel", False)]
        calls_shown = rig.view(uid)["stop"]["details"]["calls"]
        assert calls_shown == [{"tool_call_id": "1.1", "tool_name": "refund", "state": "not_started"}]


async def test_an_ending_takes_open_requests_with_it() -> None:
    """R37: cancelled, in the inbox too."""
    desk = Desk()
    async with Rig(desk.agent()) as rig:
        uid = await rig.run()
        approval = pending(rig, uid)[0]["approval_id"]
        await rig.cancel(uid)
        await rig.over(uid)
        assert status_of(rig, uid, approval) == "cancelled"
        with pytest.raises(Conflict) as refused:
            await rig.passing(rig.first.service.approvals.decide(LOCAL, VerdictIn(approval_id=approval, approved=True)))
        assert refused.value.code == "run_ended"


async def test_R43_another_tenant_sees_no_request_and_decides_none() -> None:
    desk = Desk()
    stranger = replace(LOCAL, scope=Scope(tenant="globex"))
    reader = replace(LOCAL, permissions=frozenset({Permission.RUNS_READ, Permission.RUNS_WRITE}))
    async with Rig(desk.agent()) as rig:
        uid = await rig.run()
        approval = pending(rig, uid)[0]["approval_id"]
        verdict = VerdictIn(approval_id=approval, approved=True)
        for caller, error in ((stranger, NotFound), (reader, NotPermitted)):
            with pytest.raises(error):
                await rig.passing(rig.first.service.approvals.decide(caller, verdict))
        assert rig.rows(uid).mail == [] and desk.ran == []


async def test_R23_of_a_request_with_everything_in_it_each_part_needs_its_own_permission() -> None:
    desk = Desk()
    writer = replace(LOCAL, permissions=frozenset({Permission.RUNS_READ, Permission.RUNS_WRITE}))
    decider = replace(LOCAL, permissions=frozenset({Permission.RUNS_READ, Permission.APPROVALS_DECIDE}))
    async with Rig(desk.agent()) as rig:
        uid = await rig.run()
        verdict = VerdictIn(approval_id=pending(rig, uid)[0]["approval_id"], approved=True)
        settlement = SettlementIn(tool_call_id="1.1", decision="retry")
        answer = AnswerIn(question_id="1.1.1", answer="yes")
        given: list[tuple[Caller, dict[str, Any]]] = [
            (writer, {"approvals": [verdict]}),
            (writer, {"reconcile": [settlement]}),
            (decider, {"answers": [answer]}),
            (decider, {"approvals": [verdict], "release_hold": True}),
            (decider, {"retry_failed": True}),
        ]
        for caller, parts in given:
            with pytest.raises(NotPermitted):
                await rig.deliver(uid, by=caller, **parts)
        assert rig.rows(uid).mail == [] and desk.ran == []


@pytest.mark.parametrize("yes", [True, False])
async def test_A21_twenty_verdicts_at_once_run_the_call_once(yes: bool) -> None:
    """F-46: one wins, all the others hear the same of it."""
    desk = Desk()
    async with Rig(desk.agent()) as rig:
        uid = await rig.run()
        approval = pending(rig, uid)[0]["approval_id"]

        async def decide(approved: bool) -> str:
            try:
                verdict = VerdictIn(approval_id=approval, approved=approved)
                return str((await rig.first.service.approvals.decide(LOCAL, verdict))["status"])
            except Conflict as error:
                return error.code

        answers = await rig.passing(asyncio.gather(*(decide(yes == (index % 2 == 0)) for index in range(20))))
        await rig.over(uid)
        winner = {answer for answer in answers if answer != "already_answered"}
        assert len(winner) == 1 and answers.count("already_answered") == 10
        assert len(desk.ran) == (1 if winner == {"approved"} else 0)


async def test_R21_nobody_edits_a_call_into_what_its_predicate_blocks() -> None:
    """The model could not have asked for it either."""

    def over(arguments: Any, ctx: ToolContext) -> bool | Block:
        return Block("never 666") if arguments["order_id"] == 666 else True

    desk = Desk(Approval(when=over, editable=True))
    async with Rig(desk.agent()) as rig:
        uid = await rig.run()
        await rig.verdict(uid, True, edited_arguments={"order_id": 666})
        assert (rig.row(uid).status, desk.ran) == (Status.COMPLETED, [])
        assert (rig.rows(uid).receipts["1.1"].outcome, rig.results(uid)[0]["output"]) == ("blocked", "never 666")
