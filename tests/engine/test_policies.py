"""Policies by effect and by model, in runs (station 2, R31, R35)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runward import Agent, ClientTool, Policy, Reply, ScriptedModel, tool
from runward.core.errors import Invalid
from runward.core.kernel.actor import Status
from tests.engine.rig import DONE, Rig, agent, calls

ran: list[str] = []


@tool(effect="read")
async def look() -> str:
    ran.append("look")
    return "seen"


@tool(effect="idempotent_write")
async def note() -> str:
    ran.append("note")
    return "noted"


@tool(effect="read", risk="high", permissions=["crm"])
async def profile() -> str:
    ran.append("profile")
    return "whoever"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def desk(*replies: Reply, **differing: Any) -> Agent:
    return agent(*replies, DONE, tools=[look, note, profile], **differing)


async def test_a_read_only_run_reads_and_writes_nothing() -> None:
    async with Rig(desk(calls("look"), policy=Policy.read_only())) as rig:
        assert rig.row(await rig.run()).status is Status.COMPLETED and ran == ["look"]
    async with Rig(desk(calls("look", "note"), policy=Policy.read_only())) as rig:
        uid = await rig.run()
        assert rig.view(uid)["error"]["code"] == "tool_not_allowed" and ran == ["look"], "no sibling of a forbidden call runs"


async def test_a_supervised_run_asks_a_person_before_it_writes() -> None:
    async with Rig(desk(calls("look", "note"), policy=Policy.supervised())) as rig:
        uid = await rig.run()
        assert ran == ["look"] and [each["tool_name"] for each in rig.view(uid)["pending"]["approvals"]] == ["note"]
        await rig.verdict(uid, True)
        assert ran == ["look", "note"] and rig.row(uid).status is Status.COMPLETED


async def test_a_locked_down_run_asks_before_it_reads_as_well() -> None:
    async with Rig(desk(calls("look"), policy=Policy.locked_down())) as rig:
        uid = await rig.run()
        assert ran == [] and rig.row(uid).status is Status.SUSPENDED
        await rig.verdict(uid, True)
        assert ran == ["look"]


async def test_R35_a_request_narrows_by_effect_and_its_own_tools_are_held_to_it() -> None:
    async with Rig(desk(calls("note"))) as rig:
        uid = await rig.run(policy=Policy.read_only())
        assert rig.view(uid)["error"]["code"] == "tool_not_allowed" and ran == []
    async with Rig(desk(calls("note"), policy=Policy.read_only())) as rig:
        uid = await rig.run(policy=Policy(allow_effects=["read", "idempotent_write"]))
        assert rig.view(uid)["error"]["code"] == "tool_not_allowed" and ran == [], "what it allows besides, it does not get"
    pick: dict[str, Any] = {"name": "pick", "description": "", "parameters": {"type": "object"}}
    assert ClientTool(**pick).traits.effect.value == "unclassified"
    async with Rig(desk(calls("pick"))) as rig:
        uid = await rig.run(client_tools=[pick], policy=Policy.read_only())
        assert rig.view(uid)["error"]["code"] == "tool_not_allowed", "nobody knows what the caller's program does"


@pytest.mark.parametrize("narrower", [Policy(max_risk="medium"), Policy(allow_permissions=["payments"]), Policy.locked_down()])
async def test_R35_a_request_narrows_by_risk_and_by_permission(narrower: Policy) -> None:
    async with Rig(desk(calls("look", "profile"))) as rig:
        assert rig.row(await rig.run()).status is Status.COMPLETED and ran == ["look", "profile"]
        ran.clear()
        uid = await rig.run(policy=narrower)
        error = rig.view(uid)["error"]
        assert (error["code"], error["details"]["tool_name"]) == ("tool_not_allowed", "profile") and ran == []


@pytest.mark.parametrize("asking", [Policy(approve_risk="medium"), Policy(approve_permissions=["crm"]), Policy.supervised()])
async def test_a_person_approves_what_is_risky_or_needs_a_permission(asking: Policy) -> None:
    async with Rig(desk(calls("look", "profile"), policy=asking)) as rig:
        uid = await rig.run()
        assert ran == ["look"] and [each["tool_name"] for each in rig.view(uid)["pending"]["approvals"]] == ["profile"]
        await rig.verdict(uid, True)
        assert ran == ["look", "profile"] and rig.row(uid).status is Status.COMPLETED


async def test_R22_what_the_policy_goes_by_is_looked_at_again_before_an_approved_call_runs() -> None:
    """A deployment that calls a tool riskier than before does not let through what waited for a person meanwhile."""
    held = Policy(approve_permissions=["crm"], max_risk="high")
    dearer = agent(calls("profile"), DONE, tools=[look, note, replace(profile, risk="critical")], policy=held)
    async with Rig(dearer, worker=False) as rig:
        before = await rig.start(desk(calls("profile"), policy=held))
        uid = await rig.begin()
        await rig.until(lambda: rig.row(uid).status is Status.SUSPENDED)
        await before.die()
        await rig.start()
        await rig.verdict(uid, True)
        assert rig.view(uid)["error"]["code"] == "tool_not_allowed" and ran == []


async def test_R35_a_model_outside_a_requests_policy_is_refused_at_the_door() -> None:
    async with Rig(desk(model=ScriptedModel([DONE], name="mine"))) as rig:
        with pytest.raises(Invalid) as refused:
            await rig.run(policy=Policy(allow_models=["scripted:other"]))
        assert refused.value.problems[0].pointer == "/policy/allow_models" and "scripted:mine" in refused.value.detail
        with pytest.raises(Invalid) as denied:
            await rig.run(policy=Policy(deny_models=["scripted:mine"]))
        assert denied.value.problems[0].pointer == "/policy/deny_models"
        assert rig.row(await rig.run(policy=Policy(allow_models=["scripted:mine"]))).status is Status.COMPLETED


async def test_R31_a_fallback_outside_the_policy_is_never_asked() -> None:
    down, up = ScriptedModel([Reply(error="server_error")], name="down"), ScriptedModel([DONE], name="up")
    async with Rig(desk(model=down, fallback_models=[up])) as rig:
        uid = await rig.run(policy=Policy(allow_models=["scripted:down"]))
        assert rig.row(uid).status is Status.FAILED and rig.view(uid)["failovers"] == []
        assert rig.row(await rig.run()).status is Status.COMPLETED


async def test_a_run_whose_function_chooses_a_forbidden_model_ends_clearly() -> None:
    asked: list[int] = []

    def model(request: Any) -> Reply:
        asked.append(1)
        return DONE

    script = ScriptedModel(model, name="chosen")
    choosing = Agent(
        name="agent", model=lambda ctx: "scripted:chosen", fallback_models=[script], policy=Policy(allow_models=["scripted:chosen"])
    )
    async with Rig(choosing) as rig:
        uid = await rig.run(policy=Policy(allow_models=["scripted:other"]))
        error = rig.view(uid)["error"]
        assert (error["code"], error["transient"], asked) == ("model_not_allowed", False, []) and "scripted:chosen" in error["message"]
        assert rig.row(await rig.run()).status is Status.COMPLETED and asked == [1]
