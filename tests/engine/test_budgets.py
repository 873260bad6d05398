"""Budgets that runs share, as the runs are driven: who waits, who stops, what goes on by itself, and what a crash leaves (R34, R35)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from runward.agents.agent import Agent
from runward.agents.contexts import RunContext, ToolContext
from runward.agents.models import ModelSettings, Reply, ScriptedModel
from runward.agents.tools import AnyTool, tool
from runward.core.budgets import NOTHING, OnExhausted, Terms
from runward.core.errors import BudgetExceeded, Invalid, Unavailable
from runward.core.kernel.actor import Status
from runward.core.runs.ledger import Amount, Rate
from runward.core.runs.waits import Wait
from runward.core.usage import Usage
from runward.core.values import replace
from runward.engine.callers import LOCAL
from runward.engine.services import UpkeepSettings
from runward.engine.upkeep import Upkeep
from runward.ports.budgets import Budget
from runward.ports.models import ModelCallError
from tests.engine.rig import TTL, Rig, agent, calls

pytestmark = pytest.mark.timeout(60)

KEY = "user:42"
SUSPENDS = OnExhausted.SUSPEND
PRICES = {"scripted:model": (Rate(input=1, output=10, cache_read=1, cache_write=1),)}


def used(reply: Reply, total: int = 60) -> Reply:
    return replace(reply, usage=Usage(input_tokens=total - 10, output_tokens=10))


@tool(effect="read")
async def look() -> str:
    """Looks."""
    return "seen"


ONE = used(Reply(text="done"))
TWO = (used(calls("look")), ONE)


def spender(*replies: Reply, **differing: Any) -> Agent:
    """Its calls reserve 76 and 112 tokens, and use 60."""
    return agent(*replies, **{"tools": [look], "model_settings": ModelSettings(max_output_tokens=50), **differing})


async def put(rig: Rig, key: str = KEY, **terms: Any) -> None:
    await rig.passing(rig.first.service.budgets.put(LOCAL, key, Terms(**terms)))


def of(rig: Rig, key: str = KEY) -> Budget:
    return rig.database.budgets["default", key]


def spent(rig: Rig, key: str = KEY) -> tuple[int, int]:
    """What is spent, and what nobody knows, in tokens; nothing is reserved."""
    account = of(rig, key).account
    assert account.reserved == NOTHING
    return account.spent(rig.database.now()).tokens, account.unknown(rig.database.now()).tokens


# -- the way of a run ----------------------------------------------------------------------------------------------------


async def test_R34_every_call_is_admitted_first_and_settled_before_the_run_ends() -> None:
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=1000)
        await put(rig, "org:acme", max_total_tokens=5000)
        uid = await rig.begin(budgets=[KEY, "org:acme"])
        await rig.until(lambda: rig.row(uid).status.ended)
        assert spent(rig) == spent(rig, "org:acme") == (120, 0)
        assert rig.view(uid)["budgets"] == [KEY, "org:acme"]
        assert rig.faults.counts["budgets.reserve"] == rig.faults.counts["budgets.close"] == 2
        assert rig.view(uid)["accounting"]["spent"]["tokens"] == 120


async def test_a_run_without_budgets_asks_nobody_and_writes_no_more_than_before() -> None:
    async with Rig(spender(*TWO)) as rig:
        uid = await rig.run()
        assert rig.view(uid)["budgets"] == []
        assert not [name for name in rig.faults.done if name.startswith("budgets.")]
        assert rig.faults.counts["commit"] <= 4
        assert "shared" not in rig.row(uid).state


async def test_a_key_that_nobody_has_made_a_budget_of_is_refused() -> None:
    async with Rig(spender(ONE)) as rig:
        await put(rig)
        with pytest.raises(Invalid) as refused:
            await rig.create(budgets=[KEY, "user:43"])
        assert refused.value.code == "unknown_budget"
        assert [(problem.pointer, problem.code) for problem in refused.value.problems] == [("/budgets/1", "unknown_budget")]
        assert not rig.database.actors


async def test_an_answer_is_no_longer_than_what_is_reserved_for_it() -> None:
    asked: list[int | None] = []

    def model(request: Any) -> Reply:
        asked.append(request.settings.max_output_tokens)
        return ONE

    async with Rig(agent(model=ScriptedModel(model))) as rig:
        await put(rig)
        await rig.run()
        await rig.run(budgets=[KEY])
    assert asked == [None, 4096]


async def test_R33_what_the_budgets_admit_is_the_prompt_as_it_is_known_before_the_call() -> None:
    """Instructions that a function gives are not known when the run is made."""

    def instructions(ctx: RunContext) -> str:
        return "x" * 300

    async with Rig(spender(ONE, instructions=instructions)) as rig:
        await put(rig, max_total_tokens=180)
        uid = await rig.run(budgets=[KEY])
        assert rig.row(uid).status is Status.COMPLETED and spent(rig) == (60, 0)
        assert [row.amount.tokens > 150 for row in rig.database.reservations.values()] == [False, True]
        await put(rig, max_total_tokens=190)
        second = await rig.run(budgets=[KEY])
        assert rig.view(second)["stop"]["details"]["budget"] == KEY and spent(rig) == (60, 0)


# -- stopped -------------------------------------------------------------------------------------------------------------


async def test_R10_a_budget_that_stops_ends_the_run_and_says_which_it_is() -> None:
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=170, window_seconds=3600)
        uid = await rig.run(budgets=[KEY])
        view = rig.view(uid)
        assert (view["status"], view["stop"]["reason"]) == ("stopped", "budget_exceeded")
        details = view["stop"]["details"]
        assert details == details | {"budget": KEY, "limit": "max_total_tokens", "remaining": {"tokens": 110}}
        assert details["resets_at"] is not None
        assert spent(rig) == (60, 0)
        assert view["steps"] == 2 and "reset-step" in rig.types(uid)
        assert not [row for row in rig.database.reservations.values() if row.waits_for]


async def test_R33_dollars_bind_no_model_that_nobody_knows_the_price_of() -> None:
    async with Rig(spender(ONE)) as rig:
        await put(rig, max_picos=10**12)
        uid = await rig.run(budgets=[KEY])
        assert (rig.view(uid)["status"], rig.view(uid)["error"]["code"]) == ("failed", "unpriced_model")
    async with Rig(spender(model=ScriptedModel(lambda request: TWO[request.step - 1], name="model")), prices=PRICES) as rig:
        await put(rig, max_picos=700)
        uid = await rig.run(budgets=[KEY])
        stopped = {"budget": KEY, "limit": "max_cost_usd", "remaining": {"tokens": None}, "resets_at": None}
        assert rig.view(uid)["stop"]["details"] == stopped
        assert of(rig).account.spent(0) == Amount(tokens=60, picos=150)
        assert "'usd'" not in str(rig.frames(uid, "data-agent")[-1])


# -- suspended -----------------------------------------------------------------------------------------------------------


async def test_R35_a_run_that_waits_for_a_budget_goes_on_by_itself_once_that_is_raised() -> None:
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=170, on_exhausted=SUSPENDS)
        uid = await rig.run(budgets=[KEY])
        view = rig.view(uid)
        assert (rig.row(uid).status, rig.row(uid).waiting_on, rig.row(uid).ready_at) == (Status.SUSPENDED, Wait.BUDGET, None)
        pending = view["pending"]["budget"]
        assert pending == pending | {"budget": KEY, "remaining": {"tokens": 110}, "due_at": None}
        why = await rig.passing(rig.first.service.whys.why(LOCAL, view["run_id"]))
        assert [(each["kind"], each["id"]) for each in why["waiting_on"]] == [("budget", KEY)]
        assert "waits_for_budget" in [reason["code"] for reason in why["reasons"]]
        began = rig.clock.monotonic()
        await put(rig, max_total_tokens=1000, on_exhausted=SUSPENDS)
        await rig.over(uid)
        assert rig.row(uid).status is Status.COMPLETED and rig.view(uid)["pending"]["budget"] is None
        assert rig.clock.monotonic() - began < 1
        assert spent(rig) == (120, 0)
        (mail,) = rig.rows(uid).mail
        assert (mail.kind, mail.ignored) == ("budget", False) and '"by":"local"' in (mail.principal or "")


async def test_R35_a_raise_that_is_not_enough_leaves_it_waiting_and_the_next_one_does_not() -> None:
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=170, on_exhausted=SUSPENDS)
        uid = await rig.run(budgets=[KEY])
        since = rig.view(uid)["pending"]["budget"]["since"]
        await put(rig, max_total_tokens=171, on_exhausted=SUSPENDS)
        await rig.pass_seconds(1)
        pending = (await rig.over(uid), rig.view(uid)["pending"]["budget"])[1]
        assert pending["remaining"] == {"tokens": 111} and pending["since"] == since
        await put(rig, max_total_tokens=200, on_exhausted=SUSPENDS)
        await rig.pass_seconds(1)
        await rig.over(uid)
        assert rig.row(uid).status is Status.COMPLETED


async def test_R35_a_raise_that_comes_while_the_run_is_about_to_suspend_is_not_lost() -> None:
    """R6: it was refused already, and has not said so yet."""
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=170, on_exhausted=SUSPENDS)
        gate = rig.faults.hold("budgets.reserve", 2, answered=True)
        uid = await rig.begin(budgets=[KEY])
        await rig.reached(gate)
        await put(rig, max_total_tokens=1000, on_exhausted=SUSPENDS)
        gate.open.set()
        await rig.over(uid)
        assert rig.row(uid).status is Status.COMPLETED


@pytest.mark.parametrize("dies_before", ["budgets.waiting", "append_mail"])
async def test_R35_a_raise_whose_process_dies_before_it_tells_the_run_is_told_by_upkeep(dies_before: str) -> None:
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=170, on_exhausted=SUSPENDS)
        uid = await rig.run(budgets=[KEY])
        keeping = Upkeep(rig.first.service.services, UpkeepSettings(), owner="one", lease_ttl=TTL)
        await rig.pass_seconds(1)
        await rig.passing(keeping.round())
        assert not rig.rows(uid).mail, "nothing was set since it was refused"
        operator = await rig.start(worker=False)
        gate = operator.faults.hold(dies_before)
        putting = asyncio.ensure_future(operator.service.budgets.put(LOCAL, KEY, Terms(max_total_tokens=1000)))
        await rig.reached(gate)
        operator.faults.down = True
        gate.open.set()
        with pytest.raises(Unavailable):
            await rig.passing(putting)
        await rig.pass_seconds(300)
        assert of(rig).account.terms.max_total_tokens == 1000
        assert rig.row(uid).status is Status.SUSPENDED, "nobody has told it"
        await rig.passing(keeping.round())
        await rig.over(uid)
        assert rig.row(uid).status is Status.COMPLETED and spent(rig) == (120, 0)
        (mail,) = rig.rows(uid).mail
        assert (mail.kind, mail.ignored) == ("budget", False) and '"by":"local"' in (mail.principal or "")
        assert "upkeep" in rig.first.telemetry.events


async def test_R39_upkeep_tells_a_run_once_that_is_on_hold_and_forgets_the_waiting_of_one_that_is_gone() -> None:
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=170, on_exhausted=SUSPENDS)
        uid, gone = await rig.run(budgets=[KEY]), await rig.run(budgets=[KEY])
        await rig.passing(rig.first.service.operations.hold_run(LOCAL, rig.row(uid).public_id, None))
        await rig.over(uid)
        del rig.database.actors[gone]
        await rig.passing(rig.first.service.services.budgets.put("default", KEY, Terms(max_total_tokens=1000), None))
        keeping = Upkeep(rig.first.service.services, UpkeepSettings(), owner="one", lease_ttl=TTL)
        for _ in range(3):
            await rig.passing(keeping.round())
            await rig.pass_seconds(60)
        assert len([mail for mail in rig.rows(uid).mail if mail.kind == "budget"]) == 1
        assert [row.holder for row in rig.database.reservations.values() if row.waits_for] == [uid]


async def test_R36_a_window_that_moves_on_lets_it_go_on_by_itself() -> None:
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=170, window_seconds=600, on_exhausted=SUSPENDS)
        uid = await rig.run(budgets=[KEY])
        row, pending = rig.row(uid), rig.view(uid)["pending"]["budget"]
        assert row.status is Status.SUSPENDED and pending["due_at"] == pending["resets_at"] is not None
        assert row.ready_at is not None and 590_000 < row.ready_at - rig.database.now() <= 610_000
        assert row.care_at is None
        await rig.passing(rig.clock.sleep(580), limit_seconds=600)
        assert rig.row(uid).leg == 1
        await rig.until(lambda: rig.row(uid).status.ended, limit_seconds=60)
        assert rig.row(uid).status is Status.COMPLETED
        assert spent(rig) == (60, 0), "the first call has left the window"


async def test_R39_a_run_on_hold_asks_no_budget_until_it_is_released() -> None:
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=170, window_seconds=600, on_exhausted=SUSPENDS)
        uid = await rig.run(budgets=[KEY])
        await rig.passing(rig.first.service.operations.hold_run(LOCAL, rig.row(uid).public_id, None))
        await rig.over(uid)
        assert (rig.row(uid).waiting_on, rig.row(uid).ready_at) == (Wait.HOLD | Wait.BUDGET, None)
        await rig.passing(rig.clock.sleep(700), limit_seconds=800)
        assert rig.row(uid).status is Status.SUSPENDED and rig.row(uid).leg == 2
        await rig.deliver(uid, release_hold=True)
        await rig.over(uid)
        assert rig.row(uid).status is Status.COMPLETED


async def test_what_others_have_only_reserved_is_looked_at_again_soon() -> None:
    async with Rig(spender(ONE)) as rig:
        await put(rig, max_total_tokens=140, on_exhausted=SUSPENDS)
        gate = rig.faults.hold("budgets.close", 1)
        first = await rig.begin(budgets=[KEY])
        await rig.reached(gate)
        second = await rig.run(budgets=[KEY])
        pending = rig.view(second)["pending"]["budget"]
        assert pending["resets_at"] is None and pending["due_at"] is not None
        gate.open.set()
        await rig.until(lambda: rig.row(first).status.ended)
        assert rig.row(second).status is Status.SUSPENDED
        await rig.until(lambda: rig.row(second).status.ended, limit_seconds=40)
        assert rig.row(second).status is Status.COMPLETED and spent(rig) == (120, 0)


@pytest.mark.parametrize("how", ["cancel", "expires"])
async def test_R37_a_run_that_waits_can_be_cancelled_and_has_its_deadline(how: str) -> None:
    """Any worker ends it, also one without the agent's code, and nobody waits under its name any more."""
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=170, on_exhausted=SUSPENDS)
        uid = await rig.run(budgets=[KEY], limits={"expires_seconds": 1000.0})
        assert [row.waits_for for row in rig.database.reservations.values() if row.waits_for] == [KEY]
        await rig.first.die()
        await rig.start(agent(ONE, name="another"))
        if how == "cancel":
            await rig.passing(rig.processes[1].service.commands.cancel_run(LOCAL, rig.row(uid).public_id, None))
        await rig.until(lambda: rig.row(uid).status.ended, limit_seconds=1100)
        assert rig.row(uid).stop_reason == ("cancelled" if how == "cancel" else "deadline")
        assert not [row for row in rig.database.reservations.values() if row.waits_for]
        assert spent(rig) == (60, 0)


async def test_a_budget_that_is_gone_keeps_the_run_waiting_until_it_is_made_again() -> None:
    async with Rig(spender(ONE)) as rig:
        await put(rig)
        rig.faults.refuse("claim", 1, 2, 3)
        uid = await rig.begin(budgets=[KEY])
        rig.database.budgets.clear()
        await rig.over(uid)
        pending = rig.view(uid)["pending"]["budget"]
        assert (pending["limit"], pending["remaining"]) == (None, {"tokens": None}) and pending["due_at"] is not None
        await put(rig)
        await rig.until(lambda: rig.row(uid).status.ended)
        assert rig.row(uid).status is Status.COMPLETED


# -- failures ------------------------------------------------------------------------------------------------------------


async def test_a_call_that_is_not_billed_gives_back_what_was_reserved_and_one_that_may_be_does_not() -> None:
    fails = [
        ModelCallError("server", "away", transient=True, billed=False),
        ModelCallError("timeout", "silent", transient=True, billed=True),
    ]

    def model(request: Any) -> Reply:
        if fails:
            raise fails.pop(0)
        return ONE

    async with Rig(spender(model=ScriptedModel(model))) as rig:
        await put(rig, max_total_tokens=1000)
        uid = await rig.run(budgets=[KEY])
        assert rig.row(uid).status is Status.COMPLETED
        known, unknown = spent(rig)
        assert known == 60 and 50 < unknown < 100
        assert len(rig.database.reservations) == 3


async def test_a_run_on_hold_gives_back_what_was_reserved_for_its_next_call() -> None:
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=1000)
        gate = rig.faults.hold("budgets.reserve", 1, answered=True)
        uid = await rig.begin(budgets=[KEY])
        await rig.reached(gate)
        await rig.passing(rig.first.service.operations.hold_run(LOCAL, rig.row(uid).public_id, None))
        gate.open.set()
        await rig.over(uid)
        assert (rig.row(uid).status, rig.row(uid).waiting_on) == (Status.SUSPENDED, Wait.HOLD)
        assert spent(rig) == (0, 0)
        await rig.deliver(uid, release_hold=True)
        await rig.until(lambda: rig.row(uid).status.ended)
        assert spent(rig) == (120, 0)


# -- crashes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answered", [False, True], ids=["before it is reserved", "before the call"])
async def test_R33_a_crash_around_the_reservation_leaves_nothing_reserved_for_ever(answered: bool) -> None:
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=1000)
        gate = rig.faults.hold("budgets.reserve", 1, answered=answered)
        uid = await rig.begin(budgets=[KEY])
        await rig.reached(gate)
        await rig.first.die()
        assert (of(rig).account.reserved != NOTHING) is answered
        await rig.start()
        await rig.until(lambda: rig.row(uid).status.ended, limit_seconds=10 * TTL)
        known, unknown = spent(rig)
        assert known == 120, "the run went on"
        assert (unknown > 50) is answered, "nobody knows whether the call was made; what was never reserved counts nothing"


async def test_R33_a_crash_between_call_and_settlement_settles_once_afterwards() -> None:
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=1000)
        gate = rig.faults.hold("budgets.close", 1)
        uid = await rig.begin(budgets=[KEY])
        await rig.reached(gate)
        await rig.first.die()
        await rig.start()
        await rig.until(lambda: rig.row(uid).status.ended, limit_seconds=10 * TTL)
        assert rig.row(uid).status is Status.COMPLETED and spent(rig) == (120, 0)


async def test_R2a_a_settlement_whose_answer_was_lost_is_told_again_and_counts_once() -> None:
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=1000)
        rig.faults.lose("budgets.close", 1, 2)
        rig.faults.lose("budgets.reserve", 1)
        uid = await rig.begin(budgets=[KEY])
        await rig.until(lambda: rig.row(uid).status.ended)
        assert rig.row(uid).status is Status.COMPLETED and spent(rig) == (120, 0)
        assert rig.faults.counts["budgets.reserve"] == 3


async def test_R3_a_worker_that_was_paused_reserves_nothing_any_more() -> None:
    """Its reservation arrives when another leg has closed it, long ago."""
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=1000)
        gate = rig.faults.hold("budgets.reserve", 1)
        uid = await rig.begin(budgets=[KEY])
        await rig.reached(gate)
        rig.first.loses(uid)
        await rig.start()
        await rig.until(lambda: rig.row(uid).status.ended, limit_seconds=10 * TTL)
        gate.open.set()
        await rig.pass_seconds(1)
        assert spent(rig) == (120, 0)


# -- warnings ------------------------------------------------------------------------------------------------------------


async def test_the_run_that_crosses_the_mark_warns_once() -> None:
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=200, warn_at=50)
        first = await rig.begin(budgets=[KEY])
        await rig.until(lambda: rig.row(first).status.ended)
        warning = {"code": "budget_warning", "message": f"The budget {KEY} is nearly used up."}
        assert [frame | warning for frame in rig.frames(first, "warning")] == rig.frames(first, "warning") != []
        assert len(rig.frames(first, "warning")) == 1 and rig.types(first)[-1] == "data-agent"
        second = await rig.begin(budgets=[KEY])
        await rig.until(lambda: rig.row(second).status.ended)
        assert rig.frames(second, "warning") == []


async def test_a_crash_after_a_crossing_does_not_warn_twice() -> None:
    async with Rig(spender(*TWO)) as rig:
        await put(rig, max_total_tokens=200, warn_at=30)
        gate = rig.faults.hold("budgets.close", 1, answered=True)
        uid = await rig.begin(budgets=[KEY])
        await rig.reached(gate)
        await rig.first.die()
        await rig.start()
        await rig.until(lambda: rig.row(uid).status.ended, limit_seconds=10 * TTL)
        assert len(rig.frames(uid, "warning")) == 1


# -- model calls of the agent's own code ---------------------------------------------------------------------------------------


def asker(generate: Any, *, tools: Sequence[AnyTool], **differing: Any) -> Agent:
    script = ScriptedModel(list(TWO), generate=generate)
    return agent(model=script, tools=tools, **{"model_settings": ModelSettings(max_output_tokens=50), **differing})


@tool(effect="read", name="look")
async def look_by_asking(ctx: ToolContext) -> str:
    """Looks, and asks a model what it has seen."""
    try:
        return await ctx.generate("What is it?")
    except BudgetExceeded as error:
        return error.code


async def test_R34_calls_of_tools_are_admitted_and_settled_as_well() -> None:
    held: list[int] = []

    def answers(request: Any) -> Reply:
        held.append(of(rig).account.reserved.tokens)
        return used(Reply(text="a pot"), 40)

    async with Rig(asker(answers, tools=[look_by_asking])) as rig:
        await put(rig, max_total_tokens=1000, warn_at=10)
        uid = await rig.run(budgets=[KEY])
        assert rig.results(uid)[0]["output"] == "a pot" and held == [54]
        assert spent(rig) == (60 + 40 + 60, 0)
        assert rig.faults.counts["budgets.reserve"] == rig.faults.counts["budgets.close"] == 3
        assert len(rig.frames(uid, "warning")) == 1


@pytest.mark.parametrize("on_exhausted", OnExhausted)
async def test_R34_a_budget_that_refuses_a_call_of_a_tool_holds_nothing_of_it(on_exhausted: OnExhausted) -> None:
    """What becomes of the run is seen at its own next call, which may be smaller."""
    asked: list[Any] = []

    def answers(request: Any) -> Reply:
        asked.append(request)
        return ONE

    async with Rig(asker(answers, tools=[look_by_asking])) as rig:
        await put(rig, max_total_tokens=100, on_exhausted=on_exhausted)
        uid = await rig.run(budgets=[KEY])
        assert asked == [] and spent(rig) == (60, 0)
        stopped = on_exhausted is OnExhausted.STOP
        assert rig.row(uid).status is (Status.STOPPED if stopped else Status.SUSPENDED)


async def test_R34_a_call_of_a_tool_that_dies_with_its_worker_is_unknown_to_its_budgets() -> None:
    asked = 0

    def answers(request: Any) -> Reply:
        nonlocal asked
        asked += 1
        return Reply(text="a b", chunk_delay_seconds=100) if asked == 1 else used(Reply(text="again"), 40)

    async with Rig(asker(answers, tools=[look_by_asking]), worker=False) as rig:
        await put(rig, max_total_tokens=1000)
        uid = await rig.begin(budgets=[KEY])
        doomed = await rig.start()
        await rig.until(lambda: asked == 1)
        await doomed.die()
        await rig.start()
        await rig.over(uid)
        assert rig.results(uid)[0]["output"] == "again" and spent(rig) == (60 + 40 + 60, 54)
        assert rig.view(uid)["accounting"]["unknown"]["tokens"] == 54


@tool(effect="read")
async def title(ctx: ToolContext) -> str:
    """Asks a model."""
    return str(await ctx.generate("A title for a pot"))


def asking(work: Any, generate: Any = None) -> Agent:
    """Its tool asks a model, which reserves 56 tokens, between two calls of its own, and each of the three uses 60."""
    model = ScriptedModel([used(calls(work.name)), ONE], generate=generate or used(Reply(text="A teapot")))
    return spender(model=model, tools=[work])


async def test_R37_a_run_that_ends_in_such_a_call_leaves_nothing_reserved() -> None:
    asked = asyncio.Event()

    async def never(request: Any) -> Reply:
        asked.set()
        await asyncio.Event().wait()
        return ONE

    async with Rig(asking(title, never)) as rig:
        await put(rig, max_total_tokens=1000)
        uid = await rig.begin(budgets=[KEY])
        await rig.until(asked.is_set)
        await rig.cancel(uid)
        await rig.until(lambda: rig.row(uid).status.ended)
        known, unknown = spent(rig)
        assert rig.row(uid).stop_reason == "cancelled" and known == 60 and 50 < unknown < 70


async def test_R33_what_code_still_asks_when_the_run_ends_is_settled_as_unknown_first() -> None:
    """It went on without anybody waiting for it: nobody is going to hear of it."""
    asked, still = asyncio.Event(), set[asyncio.Task[Any]]()

    async def never(request: Any) -> Reply:
        asked.set()
        await asyncio.Event().wait()
        return ONE

    def instructions(ctx: RunContext) -> str:
        if not still:
            still.add(asyncio.ensure_future(ctx.generate("A title")))
        return "Be brief."

    async def model(request: Any) -> Reply:
        await asked.wait()
        return ONE

    async with Rig(spender(model=ScriptedModel(model, generate=never), instructions=instructions)) as rig:
        await put(rig, max_total_tokens=1000)
        uid = await rig.run(budgets=[KEY])
        known, unknown = spent(rig)
        assert rig.row(uid).status is Status.COMPLETED and known == 60 and 50 < unknown < 70
        for task in still:
            task.cancel()
