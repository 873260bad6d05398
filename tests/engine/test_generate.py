"""`ctx.generate`: model calls of tools, verifiers and guardrails, inside the run's ledger, bounds and cancel (R33)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from runward.agents.contexts import RunContext, ToolContext
from runward.agents.models import Reply, ScriptedModel
from runward.agents.output import Output, Verdict
from runward.agents.rules import GuardedCall, Guardrails, Policy
from runward.agents.tools import tool
from runward.core.errors import BudgetExceeded
from runward.core.kernel.actor import Status
from runward.core.runs.answers import CIRCUIT_OPEN
from runward.core.runs.limits import Limits
from runward.core.usage import Usage
from runward.engine.call_host import LegCallHost
from runward.engine.callers import LOCAL
from runward.ports.models import ModelCallError, ModelRequest
from tests.engine.rig import DONE, Rig, agent, breathe, calls

pytestmark = pytest.mark.timeout(60)

SMALL = Usage(input_tokens=10, output_tokens=5)


class Title(BaseModel):
    """A title."""

    title: str


def scripted(*replies: Reply, generate: Reply | Callable[[ModelRequest], Reply | Awaitable[Reply]]) -> ScriptedModel:
    return ScriptedModel(list(replies), generate=generate)


async def asked_by(work: Any, generate: Any, *, limits: Limits | None = None) -> Rig:
    """A run of an agent whose only call goes to this tool; it has ended."""
    made = agent(tools=[work], model=scripted(calls("work"), DONE, generate=generate), limits=limits or Limits())
    async with Rig(made) as rig:
        uid = await rig.run()
        assert uid in rig.database.actors
        return rig


def only(rig: Rig) -> str:
    (uid,) = rig.database.actors
    return uid


async def test_R33_a_tool_asks_a_model_and_it_counts() -> None:
    requests: list[ModelRequest] = []

    def answers(request: ModelRequest) -> Reply:
        requests.append(request)
        return Reply(text="A teapot", usage=SMALL)

    @tool(effect="read")
    async def work(ctx: ToolContext) -> str:
        return await ctx.generate("A title for a pot")

    rig = await asked_by(work, answers)
    run = rig.view(only(rig))
    assert rig.results(only(rig))[0]["output"] == "A teapot" and run["status"] == "completed"
    assert run["usage"]["model_calls"] == 3 and run["accounting"]["spent"]["tokens"] == run["usage"]["total_tokens"]
    (request,) = requests
    assert (request.purpose, request.messages[0].text, request.tools, request.step) == ("generate", "A title for a pot", (), 1)
    assert request.settings.max_output_tokens is None
    assert len(rig.frames(only(rig), "usage")) == 3


async def test_R33_a_call_is_durable_before_it_is_made() -> None:
    stored: list[int] = []

    @tool(effect="read")
    async def work(ctx: ToolContext) -> str:
        return await ctx.generate("hi")

    def answers(request: ModelRequest) -> Reply:
        stored.append(rig.view(only(rig))["accounting"]["reserved"]["tokens"])
        return DONE

    made = agent(tools=[work], model=scripted(calls("work"), DONE, generate=answers))
    async with Rig(made) as rig:
        await rig.run()
    assert stored == [4_096 + 1]


async def test_an_answer_can_have_a_type() -> None:
    @tool(effect="read")
    async def work(ctx: ToolContext) -> list[Any]:
        typed = await ctx.generate("A title", output=Title)
        plain = await ctx.generate("A title", output={"type": "object", "required": ["title"]})
        return [typed.title, plain]

    rig = await asked_by(work, Reply(text='{"title": "Teapot"}'))
    assert rig.results(only(rig))[0]["output"] == ["Teapot", {"title": "Teapot"}]


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(text='{"name": "x"}'), "bad_response"),
        (Reply(text="nothing", finish="refusal"), "content_filter"),
        (Reply(error="rate_limited"), "rate_limited"),
        (Reply(text="half", error="disconnect_mid_stream"), "network"),
    ],
    ids=["type", "refusal", "limited", "broken off"],
)
async def test_no_answer_is_an_error_of_the_authors_own(reply: Reply, kind: str) -> None:
    @tool(effect="read")
    async def work(ctx: ToolContext) -> str:
        try:
            return str(await ctx.generate("A title", output=Title))
        except ModelCallError as error:
            return error.kind

    rig = await asked_by(work, reply)
    shown = rig.view(only(rig))
    assert rig.results(only(rig))[0]["output"] == kind and shown["status"] == "completed"
    assert (shown["accounting"]["unknown"]["tokens"] > 0) == (kind == "network")


async def test_other_models_are_asked_by_name() -> None:
    @tool(effect="read")
    async def work(ctx: ToolContext) -> str:
        with pytest.raises(ModelCallError, match=r"ctx\.generate"):
            await ctx.generate("hi")
        return await ctx.generate("hi", model="scripted:backup")

    backup = ScriptedModel([], name="backup", generate=Reply(text="from the backup", usage=SMALL))
    made = agent(calls("work"), DONE, tools=[work], fallback_models=[backup])
    async with Rig(made) as rig:
        uid = await rig.run()
        assert rig.results(uid)[0]["output"] == "from the backup"
        shown = await rig.first.service.queries.accounting(LOCAL, rig.row(uid).public_id)
        assert {each["model"]: each["usage"]["model_calls"] for each in shown["by_model"]} == {"scripted:script": 3, "scripted:backup": 1}


async def test_a_tool_in_a_thread_asks_on_the_runs_own_loop() -> None:
    @tool(effect="read")
    def work(ctx: ToolContext) -> str:
        return asyncio.run(ctx.generate("hi"))

    rig = await asked_by(work, Reply(text="from a thread"))
    assert rig.results(only(rig))[0]["output"] == "from a thread"


# -- bounds ------------------------------------------------------------------------------------------------------------------


async def test_R33_parallel_tools_share_what_is_left() -> None:
    outcomes: list[str] = []

    @tool(effect="read")
    async def work(ctx: ToolContext) -> str:
        try:
            outcomes.append(await ctx.generate("hi"))
        except BudgetExceeded as error:
            outcomes.append(error.code)
        return outcomes[-1]

    def answers(request: ModelRequest) -> Reply:
        return Reply(text="ok", usage=Usage(input_tokens=1, output_tokens=request.settings.max_output_tokens or 0))

    spends = Reply(tool_calls=calls("work", "work", "work").tool_calls, usage=SMALL)
    made = agent(tools=[work], model=scripted(spends, DONE, generate=answers), limits=Limits(max_total_tokens=15 + 4_097 + 4_097 + 10))
    async with Rig(made) as rig:
        run = rig.view(await rig.run())
        assert sorted(outcomes) == ["budget_exceeded", "ok", "ok"] and run["stop"]["reason"] == "budget_exceeded"
        assert run["accounting"]["committed"]["tokens"] == 15 + 4_097 + 4_097


async def test_R33_a_refused_call_stops_the_run_at_the_next_boundary() -> None:
    errors: list[str] = []

    @tool(effect="read")
    async def work(ctx: ToolContext) -> str:
        try:
            return await ctx.generate("x" * 3_000)
        except BudgetExceeded as error:
            errors.append(error.code)
            return "a title of my own"

    rig = await asked_by(work, DONE, limits=Limits(max_total_tokens=500))
    run = rig.view(only(rig))
    assert errors == ["budget_exceeded"] and (run["status"], run["stop"]["reason"]) == ("stopped", "budget_exceeded")
    assert rig.results(only(rig))[0]["output"] == "a title of my own" and run["usage"]["model_calls"] == 1


async def test_R33_what_is_left_goes_with_the_request() -> None:
    allowed: list[int | None] = []

    def answers(request: ModelRequest) -> Reply:
        allowed.append(request.settings.max_output_tokens)
        return Reply(text="half", finish="length")

    @tool(effect="read")
    async def work(ctx: ToolContext) -> str:
        return await ctx.generate("hi")

    rig = await asked_by(work, answers, limits=Limits(max_total_tokens=500))
    assert allowed[0] is not None and allowed[0] < 500 and rig.view(only(rig))["stop"]["reason"] == "budget_exceeded"


async def test_R33_a_verifier_that_cannot_ask_stops_the_run_for_that() -> None:
    async def check(candidate: Any, ctx: RunContext) -> Verdict:
        return Verdict.verified() if await ctx.generate("x" * 30_000) else Verdict.rejected("no")

    typed = Output(schema=Title, verify=check)
    made = agent(model=scripted(Reply(text='{"title": "x"}'), generate=DONE), output=typed, limits=Limits(max_total_tokens=5_000))
    async with Rig(made) as rig:
        assert rig.view(await rig.run())["stop"]["reason"] == "budget_exceeded"


@pytest.mark.parametrize("who", ["tool", "verifier", "guardrail", "instructions"])
async def test_a_model_that_the_policy_does_not_allow_is_not_asked_and_fails_the_run(who: str) -> None:
    async def asks(*given: Any) -> Any:
        return await given[-1].generate("hi", model="openai:gpt-5-mini")

    @tool(effect="read")
    async def work(ctx: ToolContext) -> str:
        return "" if who != "tool" else await asks(ctx)

    parts: dict[str, dict[str, Any]] = {
        "tool": {},
        "guardrail": {"guardrails": Guardrails(on_tool_call=asks)},
        "verifier": {"output": Output(schema={"type": "object"}, verify=asks)},
        "instructions": {"instructions": asks},
    }
    first = Reply(text="{}") if who == "verifier" else calls("work")
    made = agent(
        model=scripted(first, DONE, generate=DONE),
        tools=[] if who == "verifier" else [work],
        policy=Policy(allow_models=["scripted:script"]),
        **parts[who],
    )
    async with Rig(made) as rig:
        run = rig.view(await rig.run())
        assert (run["status"], run["error"]["code"]) == ("failed", "model_not_allowed")
        assert run["accounting"]["unknown"]["tokens"] == run["accounting"]["reserved"]["tokens"] == 0


async def test_R30_a_model_that_keeps_failing_is_left_alone_by_tools_as_well() -> None:
    asked: list[ModelRequest] = []

    def answers(request: ModelRequest) -> Reply:
        asked.append(request)
        return Reply(error="server_error")

    @tool(effect="read", timeout_seconds=500)
    async def work(ctx: ToolContext) -> list[str]:
        kinds = []
        for _ in range(9):
            with pytest.raises(ModelCallError) as failed:
                await ctx.generate("hi", model="scripted:backup")
            kinds.append(failed.value.kind)
        return kinds

    backup = ScriptedModel([], name="backup", generate=answers)
    async with Rig(agent(calls("work"), DONE, tools=[work], fallback_models=[backup])) as rig:
        uid = await rig.run()
        kinds = rig.results(uid)[0]["output"]
        assert kinds == ["server_error"] * len(asked) + [CIRCUIT_OPEN] * (9 - len(asked)) and 1 < len(asked) < 9
        shown = rig.view(uid)
        assert shown["usage"]["model_calls"] == 2 + len(asked), "what was not let through was not sent"
        assert shown["accounting"]["committed"] == shown["accounting"]["spent"]


# -- who else asks -----------------------------------------------------------------------------------------------------------


async def test_verifiers_guardrails_and_instructions_ask_too() -> None:
    asked: list[str] = []

    def answers(request: ModelRequest) -> Reply:
        asked.append(request.messages[0].text)
        return Reply(text="yes", usage=SMALL)

    async def check(candidate: Any, ctx: RunContext) -> Verdict:
        return Verdict.verified() if await ctx.generate("right?") == "yes" else Verdict.rejected("no")

    async def guard(call: GuardedCall, ctx: RunContext) -> None:
        await ctx.generate("safe?")

    async def instructions(ctx: RunContext) -> str:
        return await ctx.generate("how?")

    @tool(effect="read")
    async def work() -> str:
        return "done"

    made = agent(
        tools=[work],
        model=scripted(calls("work"), DONE, Reply(text='{"title": "x"}'), generate=answers),
        output=Output(schema=Title, verify=check),
        guardrails=Guardrails(on_tool_call=guard),
        instructions=instructions,
    )
    async with Rig(made) as rig:
        uid = await rig.run()
        run = rig.view(uid)
        assert run["status"] == "completed", run["error"]
        assert asked == ["how?", "safe?", "how?", "how?", "right?"]
        assert run["usage"]["model_calls"] == 8 and run["accounting"]["reserved"]["tokens"] == 0
        assert run["accounting"]["unknown"]["tokens"] == 0


# -- cancel and crashes --------------------------------------------------------------------------------------------------------


async def test_R38_a_cancel_does_not_wait_for_a_model_that_a_tool_asked() -> None:
    begun, heard = asyncio.Event(), []

    def answers(request: ModelRequest) -> Reply:
        begun.set()
        return Reply(text="a b", chunk_delay_seconds=50)

    @tool(effect="read")
    async def work(ctx: ToolContext) -> str:
        try:
            return await ctx.generate("hi")
        except ModelCallError as error:
            heard.append(error.kind)
            raise

    made = agent(tools=[work], model=scripted(calls("work"), DONE, generate=answers))
    async with Rig(made) as rig:
        uid = await rig.begin()
        await rig.until(begun.is_set)
        at = rig.clock.monotonic()
        await rig.cancel(uid)
        row = await rig.over(uid)
        assert row.status is Status.STOPPED and heard == ["cancelled"] and rig.clock.monotonic() - at < 1
        accounting = rig.view(uid)["accounting"]
        assert accounting["unknown"]["tokens"] == 4_097 and accounting["reserved"]["tokens"] == 0


async def test_R33_a_call_lost_with_its_worker_stays_unknown() -> None:
    asked = 0

    def answers(request: ModelRequest) -> Reply:
        nonlocal asked
        asked += 1
        return Reply(text="a b", chunk_delay_seconds=100) if asked == 1 else Reply(text="again", usage=SMALL)

    @tool(effect="read")
    async def work(ctx: ToolContext) -> str:
        return await ctx.generate("hi")

    made = agent(tools=[work], model=scripted(calls("work"), DONE, generate=answers))
    async with Rig(made, worker=False) as rig:
        uid = await rig.begin()
        doomed = await rig.start()
        await rig.until(lambda: asked == 1)
        await doomed.die()
        await rig.start()
        await rig.over(uid)
        assert rig.view(uid)["accounting"]["unknown"]["tokens"] == 4_097 and rig.results(uid)[0]["output"] == "again"


@pytest.mark.parametrize("who", ["guardrail", "verifier", "instructions"])
@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_R38_whoever_asks_is_broken_off_at_a_cancel_and_at_the_deadline(who: str, how: str) -> None:
    begun = asyncio.Event()

    def answers(request: ModelRequest) -> Reply:
        begun.set()
        return Reply(text="a b", chunk_delay_seconds=50)

    async def asks(*given: Any) -> Any:
        await given[-1].generate("hi")

    @tool(effect="read")
    async def work() -> str:
        return "done"

    parts: dict[str, dict[str, Any]] = {
        "guardrail": {"guardrails": Guardrails(on_tool_call=asks)},
        "verifier": {"output": Output(schema={"type": "object"}, verify=asks)},
        "instructions": {"instructions": asks},
    }
    first = Reply(text="{}") if who == "verifier" else calls("work")
    tools = [] if who == "verifier" else [work]
    made = agent(model=scripted(first, DONE, generate=answers), tools=tools, limits=Limits(timeout_seconds=20), **parts[who])
    async with Rig(made) as rig:
        uid = await rig.begin()
        await rig.until(begun.is_set)
        at = rig.clock.monotonic()
        if how == "cancel":
            await rig.cancel(uid)
        await rig.over(uid)
        run, accounting = rig.view(uid), rig.view(uid)["accounting"]
        assert run["stop"]["reason"] == ("cancelled" if how == "cancel" else "deadline")
        assert rig.clock.monotonic() - at < (1 if how == "cancel" else 21)
        assert (accounting["unknown"]["tokens"], accounting["reserved"]["tokens"]) == (4_097, 0)
        await rig.pass_seconds(120)
        assert rig.view(uid) == run, "nothing of it comes later"


async def test_R35a_the_deadline_does_not_wait_for_a_model_that_a_tool_asked() -> None:
    heard = []

    @tool(effect="read", timeout_seconds=500)
    async def work(ctx: ToolContext) -> str:
        try:
            return await ctx.generate("hi")
        except ModelCallError as error:
            heard.append(error.kind)
            raise

    made = agent(
        tools=[work],
        model=scripted(calls("work"), DONE, generate=Reply(text="a b", chunk_delay_seconds=50)),
        limits=Limits(timeout_seconds=10),
    )
    async with Rig(made) as rig:
        uid = await rig.begin()
        at = rig.clock.monotonic()
        await rig.over(uid)
        assert rig.view(uid)["stop"]["reason"] == "deadline" and heard == ["cancelled"] and rig.clock.monotonic() - at < 12


async def test_a_model_call_of_a_tool_keeps_to_the_time_outs_of_the_run() -> None:
    @tool(effect="read", timeout_seconds=500)
    async def work(ctx: ToolContext) -> str:
        try:
            return await ctx.generate("hi")
        except ModelCallError as error:
            return error.kind

    made = agent(
        tools=[work],
        model=scripted(calls("work"), DONE, generate=Reply(text="a b", chunk_delay_seconds=50)),
        limits=Limits(first_event_timeout_seconds=3),
    )
    async with Rig(made) as rig:
        uid = await rig.run()
        assert rig.results(uid)[0]["output"] == "timeout" and rig.view(uid)["accounting"]["unknown"]["tokens"] == 4_097


async def test_R4_what_is_said_of_its_usage_is_durable_with_it() -> None:
    """A usage frame says what the run has used in all: a crash must not take that back."""
    asked, answered = 0, asyncio.Event()

    def answers(request: ModelRequest) -> Reply:
        nonlocal asked
        asked += 1
        return Reply(text="ok", usage=SMALL)

    @tool(effect="read", timeout_seconds=500)
    async def work(ctx: ToolContext) -> str:
        await ctx.generate("hi")
        if asked == 1:
            answered.set()
            await asyncio.Event().wait()
        return "ok"

    made = agent(tools=[work], model=scripted(calls("work"), DONE, generate=answers))
    async with Rig(made, worker=False) as rig:
        uid = await rig.begin()
        doomed = await rig.start()
        await rig.until(answered.is_set)
        await rig.until(lambda: len(rig.frames(uid, "usage")) == 2)
        told = rig.frames(uid, "usage")[-1]["total_usage"]["total_tokens"]
        assert rig.view(uid)["usage"]["total_tokens"] == told
        await doomed.die()
        await rig.start()
        await rig.over(uid)
        shown = rig.view(uid)
        assert shown["accounting"]["unknown"]["tokens"] == 0 and shown["usage"]["model_calls"] == 4
        totals = [frame["total_usage"]["total_tokens"] for frame in rig.frames(uid, "usage")]
        assert totals == sorted(totals) and totals[-1] == shown["usage"]["total_tokens"]


async def test_R33_instructions_that_asked_a_model_count_before_the_first_call() -> None:
    """What their own call used says nothing about how long the prompt is."""
    requests: list[ModelRequest] = []

    async def instructions(ctx: RunContext) -> str:
        return await ctx.generate("how?") + "Be brief. " * 2_000

    def script(request: ModelRequest) -> Reply:
        requests.append(request)
        return DONE

    model = ScriptedModel(script, generate=Reply(text="So. ", usage=SMALL))
    async with Rig(agent(model=model, instructions=instructions, limits=Limits(max_total_tokens=5_800))) as rig:
        run = rig.view(await rig.run())
        assert run["stop"]["reason"] == "budget_exceeded" and run["stop"]["details"]["needed_tokens"] > 5_800 and requests == []


async def test_nothing_is_asked_for_a_call_that_was_told_to_stop_while_its_reservation_became_durable() -> None:
    asked: list[ModelRequest] = []

    def answers(request: ModelRequest) -> Reply:
        asked.append(request)
        return DONE

    @tool(effect="read")
    async def work(ctx: ToolContext) -> str:
        asking = asyncio.ensure_future(ctx.generate("hi"))
        await asyncio.sleep(0)
        assert isinstance(ctx.host, LegCallHost)
        ctx.host.cancel()
        with pytest.raises(ModelCallError) as told:
            await asking
        return told.value.kind

    rig = await asked_by(work, answers)
    shown = rig.view(only(rig))
    assert rig.results(only(rig))[0]["output"] == "cancelled" and asked == [] and shown["usage"]["model_calls"] == 2
    assert shown["accounting"]["committed"] == shown["accounting"]["spent"]


async def test_a_thread_that_outlives_its_run_is_not_left_waiting() -> None:
    """Python cannot stop a thread; what it asks for later is refused at once, also through a context that it has kept."""
    kept: list[RunContext] = []

    async def instructions(ctx: RunContext) -> str:
        kept.append(ctx)
        return "Go on."

    async with Rig(agent(model=scripted(DONE, generate=DONE), instructions=instructions)) as rig:
        uid = await rig.run()
        with pytest.raises(asyncio.CancelledError):
            await kept[0].generate("hi")
        assert rig.view(uid)["usage"]["model_calls"] == 1


async def test_a_call_that_is_over_asks_no_more() -> None:
    kept: list[ToolContext] = []

    @tool(effect="read")
    async def work(ctx: ToolContext) -> str:
        kept.append(ctx)
        return "ok"

    rig = await asked_by(work, DONE)
    with pytest.raises(RuntimeError, match="over"):
        await kept[0].generate("hi")
    await breathe()
    assert rig.view(only(rig))["usage"]["model_calls"] == 2
