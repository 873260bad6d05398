"""Budgets of runs as they are driven: who is told what, and what a crash leaves (R33)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from runward.agents.agent import Agent
from runward.agents.contexts import RunContext
from runward.agents.models import ModelSettings, Reply, ScriptedModel
from runward.agents.tools import tool
from runward.core.errors import Invalid
from runward.core.runs.ledger import Rate, Rates
from runward.core.runs.limits import Limits
from runward.core.usage import Usage
from runward.engine.callers import LOCAL
from runward.ports.models import ModelRequest
from tests.engine.rig import DONE, Rig, agent, calls

pytestmark = pytest.mark.timeout(60)

PRICES: Mapping[str, Rates] = {"scripted:model": (Rate(input=1_000_000, output=10_000_000, cache_read=100_000, cache_write=1_000_000),)}
"""USD 1 and 10 for a million tokens."""


class Asked:
    """A model that keeps the requests it gets."""

    def __init__(self, *replies: Reply) -> None:
        self.requests: list[ModelRequest] = []
        self._replies = replies

    def model(self, request: ModelRequest) -> Reply:
        self.requests.append(request)
        return self._replies[request.step - 1]

    def agent(self, **differing: Any) -> Agent:
        return agent(model=ScriptedModel(self.model), **differing)

    @property
    def allowed(self) -> list[int | None]:
        return [request.settings.max_output_tokens for request in self.requests]


@tool(effect="read")
async def look() -> str:
    """Looks."""
    return "seen"


def accounting(rig: Rig, uid: str) -> dict[str, Any]:
    shown: dict[str, Any] = rig.view(uid)["accounting"]
    return shown


async def test_R33_a_plain_run_shows_what_it_spent_and_asks_for_no_shorter_answers() -> None:
    asked = Asked(calls("look"), DONE)
    async with Rig(asked.agent(tools=[look])) as rig:
        uid = await rig.run()
        shown = accounting(rig, uid)
        assert shown["spent"]["tokens"] == rig.view(uid)["usage"]["total_tokens"] > 0 == shown["reserved"]["tokens"]
        assert shown["committed"] == shown["spent"] and shown["unpriced_calls"] == 2
        assert asked.allowed == [None, None]
        assert rig.faults.counts["commit"] == 3, "the answer with its call's mark, the outcome with the next reservation, the end"


async def test_R33_what_is_left_goes_with_the_request_and_the_answer_is_cut_off_by_it() -> None:
    asked = Asked(Reply(text="half", finish="length"))
    async with Rig(asked.agent(instructions="Be brief.", limits=Limits(max_total_tokens=100))) as rig:
        uid = await rig.run()
        assert rig.view(uid)["stop"]["reason"] == "budget_exceeded" and rig.view(uid)["text"] == "half"
        (allowed,) = asked.allowed
        assert allowed is not None and 80 <= allowed < 100


async def test_R33_a_settled_agent_is_not_cut() -> None:
    asked = Asked(DONE)
    async with Rig(asked.agent(model_settings=ModelSettings(max_output_tokens=50), limits=Limits(max_total_tokens=10_000))) as rig:
        await rig.run()
        assert asked.allowed == [50]


async def test_R33_instructions_that_a_function_gives_count_before_the_first_call() -> None:
    asked = Asked(DONE)

    def instructions(ctx: RunContext) -> str:
        return "Be brief. " * 300

    async with Rig(asked.agent(instructions=instructions, limits=Limits(max_total_tokens=200))) as rig:
        uid = await rig.run()
        stop = rig.view(uid)["stop"]
        assert stop["reason"] == "budget_exceeded" and stop["details"]["needed_tokens"] > 1_000
        assert asked.requests == [] and accounting(rig, uid)["committed"]["tokens"] == 0


async def test_R33_instructions_and_tools_are_in_the_first_reservation() -> None:
    async with Rig(agent(DONE, instructions="x" * 300, tools=[look]), worker=False) as rig:
        uid = await rig.begin(text="y" * 30)
        prompt = accounting(rig, uid)["reserved"]["tokens"] - 4_096
        assert 110 < prompt < 200, "100 of instructions, 10 of input, and the tool"


async def test_R35_a_request_tightens_the_bound_of_its_agent() -> None:
    async with Rig(agent(DONE, limits=Limits(max_total_tokens=10_000))) as rig:
        uid = await rig.run(limits={"max_total_tokens": 1})
        assert rig.view(uid)["stop"]["details"]["bound_tokens"] == 1
        assert rig.view(await rig.run(limits={"max_total_tokens": 10**9}))["status"] == "completed"


async def test_R33_the_run_ends_before_a_call_it_cannot_afford() -> None:
    spends = Reply(tool_calls=calls("look").tool_calls, usage=Usage(input_tokens=900, output_tokens=10))
    asked = Asked(spends, DONE)
    async with Rig(asked.agent(tools=[look], limits=Limits(max_total_tokens=1_000))) as rig:
        uid = await rig.run()
        assert rig.view(uid)["stop"]["reason"] == "budget_exceeded" and len(asked.requests) == 1
        assert [result["output"] for result in rig.results(uid)] == ["seen"]
        assert accounting(rig, uid)["committed"]["tokens"] == 910


async def test_R33_a_crash_in_the_model_call_leaves_its_reservation_unknown() -> None:
    asked = Asked(Reply(text="a b", chunk_delay_seconds=100))
    async with Rig(asked.agent(limits=Limits(max_total_tokens=10_000)), worker=False) as rig:
        uid = await rig.begin()
        doomed = await rig.start()
        await rig.until(lambda: len(asked.requests) == 1)
        reserved = accounting(rig, uid)["reserved"]
        assert reserved["tokens"] > 4_000
        await doomed.die()
        await rig.start()
        await rig.until(lambda: len(asked.requests) == 2)
        await rig.cancel(uid)
        await rig.over(uid)
        shown = accounting(rig, uid)
        assert shown["unknown"]["tokens"] >= 2 * reserved["tokens"] and shown["spent"]["tokens"] == 0


async def test_R33_a_call_that_no_run_could_afford_was_not_made_by_a_worker_that_died() -> None:
    """Its bound does not even hold the prompt: nothing of it is unknown, whoever has had the run."""
    asked = Asked(DONE)
    async with Rig(asked.agent(instructions="x" * 3_000), worker=False) as rig:
        uid = await rig.begin(limits={"max_total_tokens": 500})
        doomed = rig.process()
        gate = doomed.faults.hold("commit")
        await doomed.service.start()
        await rig.reached(gate)
        await doomed.die()
        await rig.start()
        row = await rig.over(uid)
        assert row.leg == 2 and rig.view(uid)["stop"]["reason"] == "budget_exceeded" and asked.requests == []
        assert accounting(rig, uid)["committed"]["tokens"] == 0


async def test_R35_bounds_that_are_raised_before_the_first_leg_are_those_that_count() -> None:
    asked = Asked(DONE)
    async with Rig(asked.agent(instructions="x" * 3_000), worker=False) as rig:
        uid = await rig.begin(limits={"max_total_tokens": 500})
        raised = rig.first.service.rebinding.raise_limits(LOCAL, rig.row(uid).public_id, {"max_total_tokens": 9_000}, None)
        await rig.passing(raised)
        await rig.start()
        await rig.over(uid)
        assert rig.view(uid)["status"] == "completed" and len(asked.requests) == 1
        assert [frame["attempt"] for frame in rig.frames(uid, "start-step")] == [1]


async def test_R33_a_worker_that_wants_longer_answers_reserves_them_first() -> None:
    """Whoever created the run knew of shorter ones."""
    reserved: list[int] = []

    def model(request: ModelRequest) -> Reply:
        (uid,) = rig.database.actors
        reserved.append(accounting(rig, uid)["reserved"]["tokens"])
        reserved.append(request.settings.max_output_tokens or 0)
        return DONE

    def made(answer: int) -> Agent:
        return agent(
            model=ScriptedModel(model), model_settings=ModelSettings(max_output_tokens=answer), limits=Limits(max_total_tokens=9_000)
        )

    async with Rig(made(50), worker=False) as rig:
        uid = await rig.begin()
        before = accounting(rig, uid)["reserved"]["tokens"]
        await rig.start(made(500))
        await rig.over(uid)
        assert reserved == [before + 450, 500]


# -- dollars -----------------------------------------------------------------------------------------------------------------


async def test_R33_a_bound_in_dollars_needs_a_price() -> None:
    async with Rig(agent(DONE)) as rig:
        with pytest.raises(Invalid, match="RUNWARD_PRICES") as refused:
            await rig.begin(limits={"max_cost_usd": "0.50"})
        assert refused.value.code == "unpriced_model" and not rig.database.actors


async def test_R33_fall_backs_need_a_price_too() -> None:
    backup = ScriptedModel([DONE], name="backup")
    async with Rig(Asked(DONE).agent(fallback_models=[backup]), prices=PRICES) as rig:
        with pytest.raises(Invalid, match="scripted:backup"):
            await rig.begin(limits={"max_cost_usd": "0.50"})


async def test_R33_dollars_bound_a_run() -> None:
    asked = Asked(Reply(text="short", usage=Usage(input_tokens=10, output_tokens=3)))
    async with Rig(asked.agent(), prices=PRICES) as rig:
        uid = await rig.run(limits={"max_cost_usd": "0.001"})
        assert accounting(rig, uid)["spent"] == {"tokens": 13, "usd": "0.00004"}
        assert asked.allowed[0] is not None and 90 <= asked.allowed[0] < 100
        shown = await rig.first.service.queries.accounting(LOCAL, rig.row(uid).public_id)
        assert shown["limits"] == {"max_total_tokens": None, "max_cost_usd": "0.001"}
        assert [(each["model"], each["spent"]["usd"]) for each in shown["by_model"]] == [("scripted:model", "0.00004")]


async def test_R33_a_model_chosen_in_the_first_leg_is_reserved_at_its_price() -> None:
    def choose(ctx: RunContext) -> str:
        return "scripted:model"

    asked = Asked(Reply(text="short", usage=Usage(input_tokens=10, output_tokens=3)))
    made = agent(model=choose, fallback_models=[ScriptedModel(asked.model)], limits=Limits(max_cost_usd="0.001"))
    async with Rig(made, prices=PRICES) as rig:
        uid = await rig.run()
        assert accounting(rig, uid)["spent"]["usd"] == "0.00004"
        assert asked.allowed[0] is not None and asked.allowed[0] < 100


# -- what is said ------------------------------------------------------------------------------------------------------------


async def test_R33_usage_is_said_with_each_answer_and_never_a_price() -> None:
    async with Rig(Asked(calls("look"), DONE).agent(tools=[look]), prices=PRICES) as rig:
        uid = await rig.run()
        first, second = rig.frames(uid, "usage")
        total = rig.view(uid)["usage"]
        assert second["total_usage"] == total and total["total_tokens"] == first["usage"]["total_tokens"] + second["usage"]["total_tokens"]
        assert not [frame for frame in rig.frames(uid) if "usd" in str(frame) or "accounting" in str(frame)]
