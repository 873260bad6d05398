"""Agents by name, version and binding; manifests; and what this version does not run yet."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pydantic import BaseModel

from runward import (
    Agent,
    DefinitionError,
    HttpTool,
    Output,
    Policy,
    Reply,
    ScriptedModel,
    ToolContext,
    tool,
)
from runward.agents.binding import fingerprint
from runward.agents.limitations import unsupported
from runward.agents.manifest import manifest
from runward.agents.registry import Registry


@tool(effect="read")
def lookup(order_id: int) -> str:
    """Look up."""
    return ""


@tool(effect="non_idempotent_write", needs_approval=lambda arguments, ctx: True)
def refund(order_id: int) -> str:
    """Refund."""
    return ""


class Context(BaseModel):
    language: str


V1 = Agent(name="support", version="1", model=ScriptedModel([Reply(text="one")]), tools=[lookup])
V2 = replace(V1, version="2", accepts=[fingerprint(V1)])


# -- the registry ----------------------------------------------------------------------------------------------------------------


def test_the_version_defined_last_is_the_default() -> None:
    registry = Registry([V1, V2, Agent(name="echo", model="openai:gpt-5")])
    found = registry.find("support")
    assert found is not None and found.agent is V2 and found.place == 1
    older = registry.find("support", "1")
    assert older is not None and older.agent is V1
    assert registry.find("support", "3") is None and registry.find("Support") is None and registry.find("echo", "1") is not None
    assert [entry.agent.name for entry in registry.agents] == ["support", "support", "echo"]


def test_R41_a_binding_is_served_by_its_own_version_first_and_by_who_accepts_it() -> None:
    alone = Registry([V2])
    assert alone.serving(fingerprint(V1)) is alone.find("support") and set(alone.bindings) == {fingerprint(V1), fingerprint(V2)}
    both = Registry([V2, V1])
    assert both.serving(fingerprint(V1)) is both.find("support", "1")
    assert both.serving("0" * 32) is None


def test_two_that_accept_the_same_are_refused() -> None:
    with pytest.raises(DefinitionError, match=r"'support' version '2' and 'support' version '3' both accept"):
        Registry([V2, replace(V2, version="3")])


def test_the_same_name_and_version_with_another_binding_is_refused() -> None:
    with pytest.raises(DefinitionError, match="'support' version '1' is defined twice"):
        Registry([V1, replace(V1, tools=[])])
    assert len(Registry([V1, V1, replace(V1, instructions="Other words.")]).agents) == 1


def test_a_handoff_to_nobody_is_refused() -> None:
    with pytest.raises(DefinitionError, match="hands over to 'billing'"):
        Registry([replace(V1, handoffs=["billing"])])
    Registry([replace(V1, handoffs=["billing"]), Agent(name="billing", model="openai:gpt-5")])


# -- manifests ---------------------------------------------------------------------------------------------------------------------


def test_a_manifest_says_what_callers_need_and_nothing_secret() -> None:
    http = HttpTool(
        name="stock", description="How many?", url="https://erp.internal/stock", headers={"Authorization": "Bearer s3cr3t"}, effect="read"
    )
    made = replace(V1, tools=[lookup, refund, http], context=Context, instructions="Our margin is 40%.", output=Output(schema=Context))
    shown = manifest(made).to_json()
    assert json.loads(json.dumps(shown)) == shown | {key: list(shown[key]) for key in ("models", "tools", "accepts", "warnings")}
    assert (shown["name"], shown["version"], shown["fingerprint"], shown["models"]) == (
        "support",
        "1",
        fingerprint(made),
        ("scripted:script",),
    )
    assert [(each["name"], each["kind"], each["effect"], each["needs_approval"]) for each in shown["tools"]] == [
        ("lookup", "function", "read", "never"),
        ("refund", "function", "non_idempotent_write", "sometimes"),
        ("stock", "http", "read", "never"),
    ]
    assert shown["context_schema"]["required"] == ["language"] and shown["output_schema"]["required"] == ["language"]
    assert shown["limits"]["max_steps"] == 20
    assert "s3cr3t" not in json.dumps(shown) and "margin" not in json.dumps(shown) and "erp.internal" not in json.dumps(shown)


def test_a_policy_shows_in_the_manifest() -> None:
    shown = manifest(replace(V1, policy=Policy(require_approval=["lookup"])))
    assert shown.tools[0].needs_approval == "always"


# -- what this version does not run ---------------------------------------------------------------------------------------------------


def test_a_plain_agent_has_no_warnings() -> None:
    @tool(effect="non_idempotent_write", needs_approval=False, on_unknown="tell_model", to_model_output=str)
    async def charge(order_id: int, ctx: ToolContext) -> str:
        return ""

    stock = HttpTool(name="stock", description="", url="https://erp.internal/")
    assert unsupported(replace(V1, tools=[lookup, charge, stock])) == () and manifest(V1).warnings == ()


def test_declarations_without_effect_yet_are_warned_about() -> None:
    made = replace(V1, handoffs=["support"])
    warnings = " ".join(unsupported(made))
    assert "handoffs" in warnings
