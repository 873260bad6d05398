"""`Agent` and what it is made of: checked when made, frozen afterwards."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from pydantic import BaseModel

from runward import (
    Agent,
    Block,
    ClientTool,
    DefinitionError,
    Guardrails,
    HttpTool,
    Limits,
    ModelSettings,
    Output,
    Policy,
    Reply,
    ScriptedModel,
    ToolCall,
    Verdict,
    ask_user,
    durable_wait,
    tool,
)
from runward.agents.models import CHOSEN
from runward.agents.schemas import Schema
from runward.core.runs.calls import Effect


@tool(effect="read")
async def lookup(order_id: int) -> str:
    """Look up."""
    return "shipped"


class Shop(BaseModel):
    language: str = "en"


@asynccontextmanager
async def open_shop() -> AsyncIterator[str]:
    yield "the shop"


@asynccontextmanager
async def open_named(name: str) -> AsyncIterator[str]:
    yield name


def agent(**changes: Any) -> Agent:
    return Agent(**{"name": "support", "model": "openai:gpt-5-mini", "tools": [lookup], **changes})


def test_an_agent_keeps_what_it_was_given() -> None:
    made = agent(
        context=Shop, lifespan=open_shop, instructions=lambda ctx: "Hi", limits=Limits(max_steps=3), policy=Policy(deny_tools=["lookup"])
    )
    assert (made.name, made.version, made.tools, made.tool("lookup"), made.tool("Lookup")) == ("support", "1", (lookup,), lookup, None)
    assert made.limits.max_steps == 3 and made.policy.deny_tools == ("lookup",)


def test_an_agent_is_frozen_and_a_changed_copy_is_checked() -> None:
    made = agent()
    with pytest.raises(FrozenInstanceError):
        made.name = "other"  # type: ignore[misc]
    assert replace(made, version="2").version == "2" and replace(made, tools=[]).tools == ()
    with pytest.raises(DefinitionError, match="two tools are called"):
        replace(made, tools=[lookup, lookup])
    tools = [lookup]
    made = agent(tools=tools)
    tools.append(lookup)
    assert made.tools == (lookup,)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "my agent"}, "An agent's name is 'my agent'"),
        ({"name": ""}, "An agent's name is ''"),
        ({"version": 1}, "'support': version is 1"),
        ({"version": "1 beta"}, "version is '1 beta'"),
        ({"description": None}, "description must be a text"),
        ({"model": "gpt-5"}, "model is 'gpt-5', but has to be \"provider:model\""),
        ({"model": None}, "model is NoneType"),
        ({"fallback_models": "openai:gpt-5"}, "fallback_models must be a list"),
        ({"fallback_models": ["gpt"]}, "fallback_models is 'gpt'"),
        ({"fallback_models": [lambda ctx: "openai:x"]}, "fallback_models holds a function"),
        ({"tools": lookup}, "tools must be a list"),
        ({"tools": [lookup, lookup]}, "two tools are called 'lookup'"),
        ({"tools": [lookup.function]}, r"'lookup' is no tool\. Put @tool above it"),
        ({"policy": Policy(require_approval=["refund"])}, "its policy names the tool 'refund'"),
        ({"policy": Policy(deny_tools=["Lookup"])}, "its policy names the tool 'Lookup'"),
        ({"policy": Policy(allow_tools=["refund"])}, "its policy names the tool 'refund'"),
        ({"policy": {"deny_tools": []}}, r"policy must be made by Policy\("),
        ({"limits": {}}, r"limits must be made by Limits\("),
        ({"output": Shop}, r"output must be made by Output\("),
        ({"context": Shop()}, "context must be a Pydantic model"),
        ({"context": dict}, "context must be a Pydantic model"),
        ({"instructions": 3}, "instructions must be"),
        ({"lifespan": open_shop()}, "lifespan must be the @asynccontextmanager function itself"),
        ({"lifespan": open_named}, "lifespan must not need arguments, and needs name"),
        ({"model_settings": ModelSettings(tool_choice="refund")}, "tool_choice is 'refund'"),
        ({"accepts": ["abc"]}, "accepts holds 'abc', which is no fingerprint"),
        ({"accepts": "0" * 32}, "accepts must be a list"),
        ({"handoffs": ["my agent"]}, "handoffs is 'my agent'"),
    ],
)
def test_a_wrong_agent_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DefinitionError, match=reason):
        agent(**changes)


# -- models ------------------------------------------------------------------------------------------------------------------


def backup(request: Any) -> Reply:
    return Reply(text="backup")


class Client:
    """A model object of the author's own."""

    name = "lab:own"

    async def call(self, request: Any, on_delta: Any) -> Any:
        raise NotImplementedError


def test_models_have_names_of_their_own() -> None:
    scripts = [
        ScriptedModel([Reply(text="a")]),
        ScriptedModel([Reply(text="b")]),
        ScriptedModel(backup),
        ScriptedModel(lambda request: Reply()),
    ]
    made = agent(model="openai:gpt-5-mini", fallback_models=[*scripts, Client(), ScriptedModel([], name="spare")])
    assert list(made.models) == [
        "openai:gpt-5-mini", "scripted:script", "scripted:script-2", "scripted:backup", "scripted:lambda", "lab:own", "scripted:spare",
    ]  # fmt: skip
    assert made.models["scripted:script-2"] is scripts[1]
    assert list(agent(model=lambda ctx: "openai:gpt-5-mini").models) == [CHOSEN]


@pytest.mark.parametrize("script", ["hello", None, [Reply(), "hello"], 3])
def test_a_script_is_replies_or_a_function(script: Any) -> None:
    with pytest.raises(DefinitionError, match="a list of Reply, or a function"):
        ScriptedModel(script)


def test_a_name_of_a_scripted_model_has_no_spaces() -> None:
    with pytest.raises(DefinitionError, match="ScriptedModel's name"):
        ScriptedModel([], name="my model")


@pytest.mark.parametrize("fields", [{"finish": "done"}, {"error": "boom"}, {"chunk_delay_seconds": -1}], ids=str)
def test_a_reply_out_of_range_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=r"Reply\."):
        Reply(**fields)


def test_a_reply_keeps_its_calls() -> None:
    reply = Reply(tool_calls=[ToolCall("lookup", {"order_id": 7}), ToolCall("lookup", "{broken", id="call_1")])
    assert [call.arguments for call in reply.tool_calls] == [{"order_id": 7}, "{broken"]


@pytest.mark.parametrize(
    "fields", [{"temperature": -1}, {"temperature": float("nan")}, {"max_output_tokens": 0}, {"tool_choice": ""}], ids=str
)
def test_model_settings_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=r"ModelSettings\."):
        ModelSettings(**fields)


# -- output, policy, guardrails -------------------------------------------------------------------------------------------------


def test_an_output_is_a_model_or_a_schema() -> None:
    assert Output(schema=Shop).json_schema["properties"]["language"]["type"] == "string"
    assert Output(schema={"type": "object"}).json_schema == {"type": "object"}
    for fields in (
        {"schema": {"type": "objekt"}},
        {"schema": dict},
        {"schema": Shop, "mode": "strict"},
        {"schema": Shop, "name": "my answer"},
    ):
        with pytest.raises(DefinitionError, match="Output"):
            Output(**fields)
    with pytest.raises(DefinitionError, match=r"Output\.verify"):
        Output(schema=Shop, verify="yes")  # type: ignore[arg-type]


def test_verdicts_are_made_by_name() -> None:
    assert (Verdict.verified().kind, Verdict.rejected("too short").message, Verdict.inconclusive("no idea").kind) == (
        "verified",
        "too short",
        "inconclusive",
    )


def test_a_policy_holds_lists_of_names() -> None:
    assert Policy(allow_tools=["a"], deny_tools=["b"], require_approval=["c"]).tools == ("a", "b", "c")
    for fields in ({"deny_tools": "refund"}, {"allow_models": [3]}):
        with pytest.raises(DefinitionError, match=r"Policy\."):
            Policy(**fields)


def test_guardrails_are_one_function_or_several() -> None:
    def no_gifts(call: Any, ctx: Any) -> Block | None:
        return None

    assert Guardrails(on_tool_call=no_gifts, on_output=[no_gifts, no_gifts]).names() == {
        "on_tool_call": ["no_gifts"],
        "on_output": ["no_gifts", "no_gifts"],
    }
    with pytest.raises(DefinitionError, match=r"Guardrails\.on_input"):
        Guardrails(on_input=["no_gifts"])  # type: ignore[list-item]


# -- other kinds of tools ---------------------------------------------------------------------------------------------------------


def test_a_client_tool_is_declared() -> None:
    pick = ClientTool(
        name="pick_file", description="Pick.", parameters={"type": "object"}, output_schema={"type": "object"}, expires_seconds=60
    )
    assert (pick.kind, pick.approval, pick.traits.effect) == ("client", None, Effect.UNCLASSIFIED)
    with pytest.raises(DefinitionError, match="expires_seconds"):
        replace(pick, expires_seconds=0)
    with pytest.raises(DefinitionError, match=r'parameters must be a JSON Schema with "type": "object"'):
        replace(pick, parameters={"type": "string"})


NO_PLACE = {"type": "object", "properties": {"sku": {"type": "string"}}}
STOCK: dict[str, Any] = {
    "name": "stock",
    "description": "How many?",
    "url": "https://erp.internal/stock/{sku}",
    "parameters": {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]},
}


def test_an_http_tool_is_declared() -> None:
    stock = HttpTool(**STOCK, headers={"Authorization": "Bearer ${ERP_TOKEN}"}, effect="read")
    assert (stock.kind, stock.approval, stock.traits.effect) == ("http", None, Effect.READ)
    assert HttpTool(**STOCK).approval is not None and HttpTool(**STOCK, needs_approval=False).approval is None
    assert "ERP_TOKEN" not in repr(stock) and "erp.internal" not in repr(stock)
    given = {"X-Key": "k"}
    copied = HttpTool(**STOCK, headers=given)
    given["X-Key"] = "another"
    assert copied.headers == {"X-Key": "k"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"url": "ftp://erp/stock"}, "url must begin with http"),
        ({"url": "https:///stock"}, "url must begin with http"),
        ({"url": 7}, "url must begin with http"),
        ({"url": "https://erp/a b"}, "url must begin with http"),
        ({"url": "https://erp/\r\nX: 1"}, "url must begin with http"),
        ({"url": "https://erp/#x"}, "url must begin with http"),
        ({"url": "https://erp\\@evil/"}, "url must begin with http"),
        ({"url": "https://erp/" + "a" * 5_000}, "url must begin with http"),
        ({"url": "https://ann:s3cr3t@erp/stock"}, "must not have a user in it; put credentials in headers"),
        ({"url": "https://{sku}.erp/"}, "must name its host outright"),
        ({"url": "https://erp:{sku}/"}, "must name its host outright"),
        ({"url": "https://${HOST}/"}, "must name its host outright"),
        ({"url": "https://erp/{sku"}, "a brace without its other half"),
        ({"url": "https://erp/sku}"}, "a brace without its other half"),
        ({"url": "https://erp/${1}"}, "not the name of an environment variable"),
        ({"url": "https://erp/${KEY"}, "not the name of an environment variable"),
        ({"url": "https://erp/a/../b"}, "`.` or `..`"),
        ({"url": "https://erp/a/%2e%2E/b"}, "`.` or `..`"),
        ({"url": "https://erp.internal/{article}"}, "url needs `article`"),
        ({"parameters": {"type": "object", "properties": {"sku": {"type": "string"}}}}, "url needs `sku`"),
        ({"url": "https://erp.internal/{sku}?sku=1&{sku}=2"}, "name what is in its query outright"),
        ({"url": "https://erp.internal/?sku=1", "parameters": NO_PLACE}, "`sku` in its query, and so has its parameters"),
        ({"url": "https://erp.internal/?s%6bu=1", "parameters": NO_PLACE}, "`sku` in its query, and so has its parameters"),
        ({"method": "FETCH"}, "method must be one of"),
        ({"method": ["GET"]}, "method must be one of"),
        ({"headers": ["a"]}, "headers must be"),
        ({"headers": {"a": 1}}, "headers must be"),
        ({"headers": {"X Key": "k"}}, "not the name of a header"),
        ({"headers": {"": "k"}}, "not the name of a header"),
        ({"headers": {"X-Key\r\nHost": "k"}}, "not the name of a header"),
        ({"headers": {"X-Key": "s3cr3t\r\nHost: evil"}}, "the header X-Key must be printable"),
        ({"headers": {"X-Key": "s3cr3t "}}, "the header X-Key must be printable"),
        ({"headers": {"X-Key": "s3cr3t\u00e9"}}, "the header X-Key must be printable"),
        ({"headers": {"X-Key": "${s3cr3t-key}"}}, "the header X-Key has a"),
        ({"headers": {"X-Key": "${KEY"}}, "the header X-Key has a"),
        ({"headers": {"Host": "evil"}}, "the service's own"),
        ({"headers": {"content-LENGTH": "3"}}, "the service's own"),
        ({"headers": {"Idempotency-Key": "3"}}, "the service's own"),
        ({"headers": {"X-Key": "a", "x-key": "b"}}, "a name twice"),
        ({"effect": "reads"}, "effect is 'reads'"),
    ],
)
def test_a_wrong_http_tool_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DefinitionError, match=re.escape(reason)) as error:
        HttpTool(**{**STOCK, **changes})
    assert "s3cr3t" not in str(error.value)


def test_questions_and_timers_have_their_schemas() -> None:
    question, wait = Schema(ask_user.parameters, of="ask_user"), Schema(durable_wait.parameters, of="durable_wait")
    assert question.fits({"question": "Which?", "choices": ["a", "b"], "allows_free_text": False}) and not question.fits({"question": ""})
    assert (
        wait.fits({"seconds": 1})
        and wait.fits({"seconds": 365 * 86400})
        and not wait.fits({"seconds": 0.5})
        and not wait.fits({"seconds": 4e7})
    )
    assert (ask_user.kind, durable_wait.kind, ask_user.approval) == ("builtin", "builtin", None)
    assert replace(ask_user, expires_seconds=60).expires_seconds == 60
    with pytest.raises(DefinitionError, match="expires_seconds"):
        replace(durable_wait, expires_seconds=-1)
