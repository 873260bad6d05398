"""The binding: what code must provide is in it, the rest is not (semantics, section 1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from runward import (
    Agent,
    Approval,
    ClientTool,
    Guardrails,
    Limits,
    ModelSettings,
    Output,
    Policy,
    Reply,
    ScriptedModel,
    Verdict,
    tool,
)
from runward.agents.binding import fingerprint, without_prose


class Answer(BaseModel):
    answer: int


class Context(BaseModel):
    language: str


@tool(effect="read")
def lookup(order_id: int) -> str:
    """Look up."""
    return ""


def declared(name: str = "lookup", *, effect: Any = "read", parameter: Any = int, description: str = "", **options: Any) -> Any:
    def act(order_id: Any) -> None: ...

    act.__annotations__["order_id"] = parameter
    return tool(name=name, effect=effect, description=description, **options)(act)


def guard(value: Any, ctx: Any) -> None: ...
def other_guard(value: Any, ctx: Any) -> None: ...


def verify(candidate: Any, ctx: Any) -> Verdict:
    return Verdict.verified()


BASE = Agent(
    name="support",
    version="1",
    model="openai:gpt-5-mini",
    fallback_models=["anthropic:claude-haiku-4-5"],
    tools=[declared()],
    output=Output(schema=Answer),
    guardrails=Guardrails(on_input=guard),
    handoffs=["billing"],
)

IN_IT: dict[str, dict[str, Any]] = {
    "name": {"name": "desk"},
    "version": {"version": "2"},
    "model": {"model": "openai:gpt-5"},
    "model as a function": {"model": lambda ctx: "openai:gpt-5-mini"},
    "fall-backs": {"fallback_models": []},
    "order of models": {"model": "anthropic:claude-haiku-4-5", "fallback_models": ["openai:gpt-5-mini"]},
    "a tool less": {"tools": []},
    "a tool's name": {"tools": [declared("look_up")]},
    "a tool's effect": {"tools": [declared(effect="idempotent_write")]},
    "a tool's parameters": {"tools": [declared(parameter=str)]},
    "a bound of a parameter": {"tools": [declared(parameter=Annotated[int, Field(ge=1)])]},
    "an approval": {"tools": [declared(needs_approval=True)]},
    "an approval's version": {"tools": [declared(needs_approval=Approval(version="2"))]},
    "a tool's kind": {"tools": [ClientTool(name="lookup", description="", parameters=declared().parameters)]},
    "the output": {"output": None},
    "the output's schema": {"output": Output(schema=Context)},
    "a verifier": {"output": Output(schema=Answer, verify=verify)},
    "a guardrail's name": {"guardrails": Guardrails(on_input=other_guard)},
    "a guardrail's hook": {"guardrails": Guardrails(on_output=guard)},
    "handoffs": {"handoffs": ["billing", "returns"]},
}

NOT_IN_IT: dict[str, dict[str, Any]] = {
    "limits": {"limits": Limits(max_steps=3)},
    "policy": {"policy": Policy(deny_tools=["lookup"])},
    "instructions": {"instructions": "Be kind."},
    "settings": {"model_settings": ModelSettings(temperature=1)},
    "description": {"description": "A desk."},
    "context": {"context": Context},
    "accepts": {"accepts": ["0" * 32]},
    "a tool's description": {"tools": [declared(description="Looks it up.")]},
    "a parameter's description": {"tools": [declared(parameter=Annotated[int, Field(description="The number.", examples=[7])])]},
    "a tool's time-out": {"tools": [declared(timeout_seconds=5, max_attempts=1, on_unknown="tell_model")]},
    "a projection": {"tools": [declared(to_model_output=str)]},
    "an approval's reason": {"tools": [declared(needs_approval=False)]},
}


@pytest.mark.parametrize("changes", IN_IT.values(), ids=IN_IT.keys())
def test_what_code_must_provide_changes_the_binding(changes: dict[str, Any]) -> None:
    assert fingerprint(replace(BASE, **changes)) != fingerprint(BASE)


def test_no_two_of_these_share_a_binding() -> None:
    bindings = [fingerprint(replace(BASE, **changes)) for changes in IN_IT.values()]
    assert len(set(bindings)) == len(bindings)


@pytest.mark.parametrize("changes", NOT_IN_IT.values(), ids=NOT_IN_IT.keys())
def test_what_the_run_carries_itself_does_not(changes: dict[str, Any]) -> None:
    assert fingerprint(replace(BASE, **changes)) == fingerprint(BASE)


def test_the_order_of_tools_and_parameters_does_not_matter() -> None:
    @tool(name="act", effect="read")
    def one(a: int, b: str) -> None: ...

    @tool(name="act", effect="read")
    def other(b: str, a: int) -> None: ...

    first = replace(BASE, tools=[one, lookup])
    assert fingerprint(first) == fingerprint(replace(BASE, tools=[lookup, other]))


def test_the_binding_stays_the_same_over_releases() -> None:
    """Runs in the store name it: if this value changes, runs of older versions find no worker. Change it only with `_FORMAT`."""
    model = ScriptedModel([Reply(text="x")])
    plain = Agent(name="plain", version="1", model=model, tools=[lookup], output=Output(schema={"type": "object", "title": "Answer"}))
    assert fingerprint(plain) == "688298e31cef9163aa8fd5cb2c865466"


def test_a_property_called_description_is_not_prose() -> None:
    schema = {
        "title": "Order",
        "properties": {
            "description": {"type": "string", "description": "What it is."},
            "title": {"title": "Title", "enum": ["description"]},
        },
        "$defs": {"examples": {"examples": [1], "default": {"title": "kept"}}},
        "required": ["title", "description"],
    }
    assert without_prose(schema) == {
        "properties": {"description": {"type": "string"}, "title": {"enum": ["description"]}},
        "$defs": {"examples": {"default": {"title": "kept"}}},
        "required": ["description", "title"],
    }


@given(st.text(max_size=200), st.text(max_size=50))
def test_prose_never_changes_a_binding(description: str, title: str) -> None:
    changed = declared(description=description, parameter=Annotated[int, Field(description=description, title=title)])
    assert fingerprint(replace(BASE, tools=[changed])) == fingerprint(BASE)
