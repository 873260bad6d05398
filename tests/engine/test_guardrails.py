"""Guardrails on calls and results, and policies that a request narrows (stations 2 and 7, R35)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runward import Approval, Block, ClientTool, GuardedCall, Guardrails, Limits, Policy, Rewrite, UnknownOutcome, tool
from runward.core.errors import Invalid
from runward.core.kernel.actor import Status
from runward.engine.letters import ResultIn, SettlementIn
from tests.engine.rig import DONE, Rig, agent, calls


class Desk:
    def __init__(self, **options: Any) -> None:
        self.ran: list[int] = []

        @tool(**{"name": "look", "effect": "read", **options})
        async def look(n: int) -> dict[str, Any]:
            self.ran.append(n)
            return {"n": n, "card": "4111"}

        self.tool = look


def block(value: Any, ctx: Any) -> Block:
    return Block("not today")


def plus_one(call: GuardedCall, ctx: Any) -> Rewrite:
    return Rewrite({"n": call.arguments["n"] + 1})


def passes(value: Any, ctx: Any) -> None:
    return None


def masked(result: Any, ctx: Any) -> Rewrite:
    return Rewrite({**result, "card": "****"})


async def test_a_blocked_call_never_runs_and_the_model_reads_why() -> None:
    """R17b: it has its result, like any other."""
    desk = Desk()
    async with Rig(
        agent(calls("look", n=1), DONE, tools=[desk.tool], guardrails=Guardrails(on_tool_call=[passes, block, plus_one]))
    ) as rig:
        uid = await rig.run()
        assert desk.ran == [] and rig.rows(uid).receipts["1.1"].outcome == "blocked"
        assert rig.results(uid)[0]["output"] == "not today"
        (frame,) = rig.frames(uid, "guardrail")
        assert (frame["hook"], frame["action"], frame["name"], frame["reason"]) == ("on_tool_call", "block", "block", "not today")


async def test_rewritten_arguments_run_and_history_keeps_what_the_model_issued() -> None:
    """R17a: what runs is what is under the digest; each guardrail sees what those before it left."""
    desk = Desk()
    async with Rig(agent(calls("look", n=1), DONE, tools=[desk.tool], guardrails=Guardrails(on_tool_call=[plus_one, plus_one]))) as rig:
        uid = await rig.run()
        assert desk.ran == [3] and rig.rows(uid).receipts["1.1"].arguments == '{"n":3}'
        assert rig.frames(uid, "tool-call")[0]["arguments"] == {"n": 1}


async def test_R18_people_approve_what_guardrails_have_left() -> None:
    desk = Desk(needs_approval=Approval())
    once = Guardrails(on_tool_call=lambda call, ctx: Rewrite({"n": 100}) if call.arguments["n"] == 99 else None)
    async with Rig(agent(calls("look", n=99), DONE, tools=[desk.tool], guardrails=once)) as rig:
        uid = await rig.run()
        assert rig.view(uid)["pending"]["approvals"][0]["arguments"] == {"n": 100}
        await rig.verdict(uid, True)
        assert desk.ran == [100] and rig.row(uid).status is Status.COMPLETED


async def test_results_are_changed_only_for_the_model() -> None:
    """R12: the receipt keeps what the tool returned."""
    desk = Desk()
    async with Rig(agent(calls("look", n=1), DONE, tools=[desk.tool], guardrails=Guardrails(on_tool_result=masked))) as rig:
        uid = await rig.run()
        receipt = rig.rows(uid).receipts["1.1"]
        assert (rig.results(uid)[0]["output"]["card"], json.loads(receipt.raw or "")["card"]) == ("****", "4111")
        assert "4111" not in json.dumps(rig.frames(uid, "tool-output", "data-agent"))


async def test_R24_results_of_clients_pass_the_same_guardrails() -> None:
    pick = ClientTool(name="pick", description="Pick.", parameters={"type": "object", "properties": {}})
    async with Rig(agent(calls("pick"), DONE, tools=[pick], guardrails=Guardrails(on_tool_result=masked))) as rig:
        uid = await rig.run()
        await rig.deliver(uid, tool_results=[ResultIn(tool_call_id="1.1", output={"card": "4111"})])
        await rig.over(uid)
        assert rig.results(uid)[0]["output"] == {"card": "****"} and rig.row(uid).status is Status.COMPLETED


def fails(value: Any, ctx: Any) -> Block:
    raise RuntimeError("division by zero")


def is_no_answer(value: Any, ctx: Any) -> Any:
    return True


@pytest.mark.parametrize(
    "guardrails",
    [
        Guardrails(on_tool_call=fails),
        Guardrails(on_tool_call=is_no_answer),
        Guardrails(on_tool_call=lambda call, ctx: Rewrite("text")),
        Guardrails(on_tool_call=lambda call, ctx: Rewrite({"n": object()})),
        Guardrails(on_tool_result=fails),
        Guardrails(on_tool_result=lambda result, ctx: Rewrite(object())),
    ],
)
async def test_R9_a_guardrail_that_fails_has_let_nothing_pass(guardrails: Guardrails) -> None:
    desk = Desk()
    async with Rig(agent(calls("look", n=1), DONE, tools=[desk.tool], guardrails=guardrails)) as rig:
        uid = await rig.run()
        error = rig.view(uid)["error"]
        assert (rig.row(uid).status, error["code"]) == (Status.FAILED, "guardrail_failed") and "division" not in json.dumps(error)
        assert len(desk.ran) == bool(guardrails.on_tool_result)


async def test_R35_a_request_narrows_the_policy_and_never_widens_it() -> None:
    desk = Desk()
    strict = agent(calls("look", n=1), DONE, tools=[desk.tool], policy=Policy(deny_tools=["look"]))
    async with Rig(strict) as rig:
        uid = await rig.run(policy=Policy(allow_tools=["look"]))
        assert rig.view(uid)["error"]["code"] == "tool_not_allowed" and desk.ran == []
    async with Rig(agent(calls("look", n=1), DONE, tools=[desk.tool])) as rig:
        uid = await rig.run(policy=Policy(require_approval=["look"]))
        assert rig.row(uid).status is Status.SUSPENDED
        await rig.verdict(uid, True)
        assert desk.ran == [1]
        uid = await rig.run(policy=Policy(deny_tools=["look"]))
        assert rig.view(uid)["error"]["code"] == "tool_not_allowed"
        with pytest.raises(Invalid) as refused:
            await rig.run(policy=Policy(deny_tools=["nothing_like_it"]))
        assert refused.value.code == "unknown_tool"


def test_R35_policies_combine_to_what_both_allow() -> None:
    mine, theirs = Policy(allow_tools=["a", "b"], deny_tools=["c"]), Policy(allow_tools=["b", "d"], require_approval=["b"])
    assert mine.narrowed(theirs) == Policy(allow_tools=["b"], deny_tools=["c"], require_approval=["b"])
    assert Policy().narrowed(theirs).allow_tools == ("b", "d") and mine.narrowed(Policy()).allow_tools == ("a", "b")


async def test_R22_a_cleared_call_is_shown_to_guardrails_as_it_was_first_and_not_rewritten_twice() -> None:
    """What a person approved is what runs, once: guardrails that look again see what the model issued, so that they leave the same."""
    desk = Desk(needs_approval=Approval())
    async with Rig(agent(calls("look", n=1), DONE, tools=[desk.tool], guardrails=Guardrails(on_tool_call=plus_one))) as rig:
        uid = await rig.run()
        assert rig.view(uid)["pending"]["approvals"][0]["arguments"] == {"n": 2}
        await rig.verdict(uid, True)
        assert desk.ran == [2] and rig.row(uid).status is Status.COMPLETED and rig.rows(uid).receipts["1.1"].arguments == '{"n":2}'


async def test_R21_edited_arguments_are_shown_to_guardrails_and_what_they_leave_is_asked_for_once() -> None:
    """A person's words pass guardrails like a model's. What is left of them is another call than was approved: it is asked for anew."""
    desk = Desk(needs_approval=Approval(editable=True))
    async with Rig(agent(calls("look", n=1), DONE, tools=[desk.tool], guardrails=Guardrails(on_tool_call=plus_one))) as rig:
        uid = await rig.run()
        await rig.verdict(uid, True, edited_arguments={"n": 10})
        assert desk.ran == [] and rig.view(uid)["pending"]["approvals"][0]["arguments"] == {"n": 11}
        await rig.verdict(uid, True)
        assert desk.ran == [11] and rig.row(uid).status is Status.COMPLETED


async def test_R15_a_call_that_is_made_once_more_has_the_same_arguments() -> None:
    tried: list[int] = []

    @tool(effect="non_idempotent_write", needs_approval=False)
    async def pay(n: int) -> str:
        tried.append(n)
        if len(tried) == 1:
            raise UnknownOutcome("no answer")
        return "paid"

    async with Rig(agent(calls("pay", n=1), DONE, tools=[pay], guardrails=Guardrails(on_tool_call=plus_one))) as rig:
        uid = await rig.run()
        await rig.deliver(uid, reconcile=[SettlementIn(tool_call_id="1.1", decision="retry")])
        await rig.over(uid)
        assert tried == [2, 2] and rig.row(uid).status is Status.COMPLETED
        assert len(rig.frames(uid, "guardrail")) == 2, "it is said each time that they look"


@pytest.mark.parametrize("hook", ["on_tool_call", "on_tool_result"])
async def test_R9_a_guardrail_that_takes_too_long_has_let_nothing_pass(hook: str) -> None:
    """Whatever the run may take otherwise: a guardrail that hangs would hang it for good."""

    async def hangs(value: Any, ctx: Any) -> None:
        await rig.clock.sleep(3_600)

    desk = Desk()
    hanging = Guardrails(**{hook: [passes, hangs]})
    async with Rig(agent(calls("look", n=1), DONE, tools=[desk.tool], guardrails=hanging, limits=Limits(model_timeout_seconds=20))) as rig:
        uid = await rig.begin()
        await rig.pass_seconds(19)
        assert rig.row(uid).status is Status.RUNNING
        await rig.pass_seconds(2)
        error = rig.view(uid)["error"]
        assert (error["code"], error["message"]) == ("guardrail_failed", "The guardrails did not answer in time.")
        assert desk.ran == ([] if hook == "on_tool_call" else [1])
