"""Policies of requests, and what guardrails leave to be read, over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runward import Agent, Guardrails, Policy, Reply, ScriptedModel, redact
from tests.api.house import House, house

CARD = "4111 1111 1111 1111"
GUARDED = Agent(
    name="guarded",
    model=ScriptedModel([Reply(text=f"your card is {CARD}")], name="mine"),
    fallback_models=[ScriptedModel([Reply(text="x")], name="other")],
    guardrails=Guardrails(on_input=redact("card"), on_output=redact("card")),
    policy=Policy(allow_effects=["read"]),
)


@pytest.mark.parametrize(
    ("policy", "pointer", "code"),
    [
        ({"allow_models": ["scripted:other"]}, "/policy/allow_models", "invalid_value"),
        ({"allow_models": []}, "/policy/allow_models", "invalid_value"),
        ({"allow_models": [""]}, "/policy/allow_models/0", "invalid_value"),
        ({"deny_models": ["scripted:mine"]}, "/policy/deny_models", "invalid_value"),
        ({"max_risk": "extreme"}, "/policy/max_risk", "invalid_value"),
        ({"approve_risk": 2}, "/policy/approve_risk", "invalid_value"),
        ({"allow_permissions": [""]}, "/policy/allow_permissions/0", "invalid_value"),
        ({"allow_effects": ["reads"]}, "/policy/allow_effects/0", "invalid_value"),
        ({"approve_effects": "read"}, "/policy/approve_effects", "invalid_value"),
        ({"max_depth": 1}, "/policy/max_depth", "unknown_field"),
    ],
)
async def test_R35_a_policy_that_cannot_be_kept_is_refused_at_the_door(policy: Any, pointer: str, code: str) -> None:
    async with house(agents=(GUARDED,), worker=False) as made:
        answer = await made.http.post("/runs", json={"agent": "guarded", "input": "hi", "policy": policy})
        assert answer.status_code == 422, answer.text
        assert [(each["pointer"], each["code"]) for each in answer.json()["errors"]] == [(pointer, code)]
        assert (await made.http.get("/runs")).json()["data"] == []


async def test_R35_a_policy_that_allows_the_agents_model_is_taken() -> None:
    async with house(agents=(GUARDED,)) as made:
        policy = {"allow_models": ["scripted:mine"], "allow_effects": ["read"], "approve_effects": ["read"]}
        run = await made.completed(agent="guarded", policy=policy)
        assert run["model"] == "scripted:mine"


async def test_what_guardrails_rewrote_is_nowhere_in_the_api() -> None:
    async with house(agents=(GUARDED,)) as made:
        run = await made.completed(agent="guarded", input=f"charge {CARD}")
        assert run["text"] == "your card is [redacted card]"
        messages = (await made.http.get(f"/runs/{run['run_id']}/messages")).json()["data"]
        assert [message["content"][0]["text"] for message in messages] == ["charge [redacted card]", "your card is [redacted card]"]
        events = (await made.http.get(f"/runs/{run['run_id']}/events")).text
        assert CARD not in events and CARD not in json.dumps(run) and events.count('"type":"guardrail"') == 2


async def test_the_manifest_names_guardrails_and_shows_the_policy(open_house: House) -> None:
    async with house(agents=(GUARDED,), worker=False) as made:
        shown = (await made.http.get("/agents/guarded")).json()
        assert shown["guardrails"] == {"on_input": ["redact"], "on_output": ["redact"]} and shown["warnings"] == []
        assert shown["policy"]["allow_effects"] == ["read"] and shown["policy"]["max_depth"] is None
    plain = (await open_house.http.get("/agents/support")).json()
    assert plain["guardrails"] == {}
