"""R17c: what a request brings for author code reaches exactly that code, and is encrypted at rest; and what a worker sets up for agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel

from runward import (
    DefinitionError,
    ModelRequest,
    Reply,
    RunContext,
    ScriptedModel,
    ToolContext,
    tool,
)
from runward.core.errors import Invalid
from runward.core.kernel.actor import Status
from tests.engine.rig import DONE, Rig, agent, calls

SECRET = "a secret of the request"


class Brought(BaseModel):
    customer: str
    level: int = 1


class Spy:
    """Everything that author code and the model were shown."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self.requests: list[ModelRequest] = []

        def instructions(ctx: RunContext) -> str:
            self.seen["instructions"] = ctx.context
            return "Go on."

        @tool(effect="read")
        async def mine(ctx: ToolContext) -> str:
            self.seen["mine"] = (ctx.context, ctx.tool_context)
            return "done"

        @tool(effect="read")
        async def other(ctx: ToolContext) -> str:
            self.seen["other"] = (ctx.context, ctx.tool_context)
            return "done"

        def model(request: ModelRequest) -> Reply:
            self.requests.append(request)
            return calls("mine", "other") if request.step == 1 else DONE

        self.agent = agent(tools=[mine, other], instructions=instructions, model=ScriptedModel(model), context=Brought)


BROUGHT: dict[str, Any] = {"context": {"customer": SECRET}, "tool_context": {"mine": {"token": SECRET}}}


async def test_R17c_context_reaches_author_code_as_the_agents_model_and_tool_context_only_its_tool() -> None:
    spy = Spy()
    async with Rig(spy.agent) as rig:
        uid = await rig.run(**BROUGHT)
        brought = Brought(customer=SECRET, level=1)
        assert rig.row(uid).status is Status.COMPLETED
        assert spy.seen == {"instructions": brought, "mine": (brought, {"token": SECRET}), "other": (brought, None)}


async def test_R17c_and_never_a_model_frame_view_or_message() -> None:
    spy = Spy()
    async with Rig(spy.agent) as rig:
        uid = await rig.run(**BROUGHT)
        rows = rig.rows(uid)
        shown = [
            str(rig.view(uid)),
            *(frame.data.decode() for frame in rows.frames),
            *(message.content for message in rows.messages.values()),
        ]
        shown += [str(request) for request in spy.requests] + [str(receipt) for receipt in rows.receipts.values()] + [rows.envelope.state]
        assert not any(SECRET in text for text in shown)


@pytest.mark.parametrize("secret", [None, "one secret key"])
async def test_R17c_it_is_encrypted_at_rest_when_there_is_a_key(secret: str | None) -> None:
    spy = Spy()
    async with Rig(spy.agent, secret=secret) as rig:
        uid = await rig.run(**BROUGHT)
        stored = rig.row(uid).context or ""
        assert (SECRET in stored) is (secret is None)
        assert (SECRET in str(rig.rows(uid))) is (secret is None)


@pytest.mark.parametrize("context", [None, {}, {"customer": 7}, {"customer": "ann", "level": "high"}])
async def test_R17c_a_context_that_does_not_fit_is_refused_at_creation(context: Any) -> None:
    """Values are never echoed."""
    async with Rig(Spy().agent) as rig:
        with pytest.raises(Invalid) as refused:
            await rig.create(context=context)
        assert refused.value.code == "invalid_context"
        assert "high" not in str(refused.value) + str(refused.value.problems)
        assert rig.database.actors == {}


async def test_R17c_context_for_a_tool_that_is_not_there_is_refused() -> None:
    async with Rig(Spy().agent) as rig:
        with pytest.raises(Invalid) as refused:
            await rig.create(context=BROUGHT["context"], tool_context={"mime": {}})
        assert refused.value.code == "unknown_tool"


async def test_R17c_an_agent_without_a_model_of_context_gets_it_as_it_came() -> None:
    seen: list[Any] = []

    @tool(effect="read")
    async def look(ctx: ToolContext) -> None:
        seen.append(ctx.context)

    async with Rig(agent(calls("look"), DONE, tools=[look])) as rig:
        await rig.run(context={"a": [1, None]})
        await rig.run()
        assert seen == [{"a": [1, None]}, None]


async def test_R17c_a_context_that_a_worker_cannot_read_fails_the_run_clearly() -> None:
    """Encrypted with another key; the same for every worker that lacks the right one."""
    spy = Spy()
    async with Rig(spy.agent, secret="one secret key") as rig:
        rig.faults.refuse("claim", *range(1, 100))
        uid = await rig.begin(**BROUGHT)
        rig._secret = "another secret key"
        await rig.start()
        await rig.over(uid)
        error = rig.view(uid)["error"]
        assert (error["code"], "RUNWARD_SECRET_KEY" in error["message"]) == ("internal", True)
        assert spy.seen == {}


async def test_what_a_tools_context_tells_of_its_run() -> None:
    """R17: which run of which agent, whose, where it stands, until when."""
    seen: list[ToolContext] = []

    @tool(effect="read")
    async def look(ctx: ToolContext) -> None:
        seen.append(ctx)

    async with Rig(agent(calls("look"), DONE, tools=[look], version="7")) as rig:
        uid = await rig.run(text="hello", user="ann", namespace="n", run_id="run-1", limits={"expires_seconds": 60.0})
        (ctx,) = seen
        assert (ctx.run_id, ctx.agent, ctx.agent_version, ctx.step, ctx.attempt) == ("run-1", "agent", "7", 1, 1)
        assert (ctx.scope.tenant, ctx.scope.user, ctx.scope.namespace) == ("default", "ann", "n")
        assert (ctx.tool_call_id, ctx.idempotency_key) == ("1.1", f"{uid}/1.1")
        assert [(message.role, message.text) for message in ctx.messages] == [("user", "hello"), ("assistant", "")]
        assert ctx.deadline is not None and ctx.deadline.timestamp() == rig.row(uid).created_at / 1_000 + 60
        assert (ctx.cancelled, ctx.checkpoint, ctx.answers) == (False, None, ())


# -- lifespans ---------------------------------------------------------------------------------------------------------------


class Shop:
    """A lifespan that notes when it is entered and left."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.seen: list[Any] = []

        @asynccontextmanager
        async def open_shop() -> AsyncIterator[str]:
            self.log.append("entered")
            yield "the shop"
            self.log.append("left")

        @tool(effect="read")
        async def look(ctx: ToolContext) -> None:
            self.log.append("used")
            self.seen.append(ctx.resources)

        self.lifespan = open_shop
        self.tool = look

    def agent(self, name: str) -> Any:
        return agent(calls("look"), DONE, tools=[self.tool], name=name, lifespan=self.lifespan)


async def test_a_lifespan_is_entered_once_per_worker_before_it_claims_and_left_after_its_drain() -> None:
    """R41: shared by agents that name the same one."""
    shop = Shop()
    async with Rig(shop.agent("one"), shop.agent("two"), worker=False) as rig:
        uid = await rig.begin("one") if (await rig.first.service.catalog.all()) else ""
        process = await rig.start()
        await rig.over(uid)
        await rig.over(await rig.begin("two"))
        assert shop.log == ["entered", "used", "used"]
        await rig.passing(process.service.stop())
        assert shop.log == ["entered", "used", "used", "left"]
        assert shop.seen == ["the shop"] * 2


async def test_resources_of_a_test_stand_in_for_a_lifespan() -> None:
    """R41: it is not entered."""
    shop = Shop()
    async with Rig(shop.agent("agent"), resources={shop.lifespan: "a fake shop"}) as rig:
        await rig.run()
        assert (shop.log, shop.seen) == (["used"], ["a fake shop"])


async def test_a_process_without_a_worker_enters_no_lifespan() -> None:
    shop = Shop()
    async with Rig(shop.agent("agent"), worker=False) as rig:
        assert [listed.name for listed in await rig.first.service.catalog.all()] == ["agent"]
        assert shop.log == []


async def test_a_lifespan_that_fails_stops_the_start() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        if SECRET:
            raise RuntimeError("sk-secret")
        yield

    async with Rig(agent(DONE), worker=False) as rig:
        process = rig.process(agent(DONE, lifespan=broken))
        with pytest.raises(DefinitionError, match=r"broken.*agent.*RuntimeError") as stopped:
            await rig.passing(process.service.start())
        assert "secret" not in str(stopped.value)
        rig.processes.remove(process)
        await process.service.tails.stop()


# -- not built yet -----------------------------------------------------------------------------------------------------------


async def test_a_plain_answer_is_json_all_the_way() -> None:
    """R47: what author code was given as JSON comes back as it was."""
    seen: list[Any] = []

    @tool(effect="read")
    async def look(ctx: ToolContext) -> None:
        seen.append(ctx.tool_context)
        await asyncio.sleep(0)

    value = {"text": "é\u2028\U0001f600", "n": 2**53 + 1, "f": 1.5, "deep": [[{}]]}
    async with Rig(agent(calls("look"), DONE, tools=[look]), secret="one secret key") as rig:
        await rig.run(tool_context={"look": value})
        assert seen == [value] and json.dumps(seen[0]) == json.dumps(value)
