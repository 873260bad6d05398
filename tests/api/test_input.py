"""A run's input: a text, or a conversation so far."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.house import House

CALL = {"type": "tool_call", "tool_call_id": "1.1", "tool_name": "lookup_order", "arguments": {"order_id": 7}}
RESULT = {"type": "tool_result", "tool_call_id": "1.1", "tool_name": "lookup_order", "output": "shipped"}
SECOND = {**CALL, "tool_call_id": "1.2"}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts) or "Where is order 7?"}


def asks(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(calls)}


def results(*parts: Any) -> dict[str, Any]:
    return {"role": "tool", "content": list(parts)}


GOOD: dict[str, list[dict[str, Any]]] = {
    "one message": [user()],
    "a conversation": [user(), {"role": "assistant", "content": "Which one?"}, user({"type": "text", "text": "7"})],
    "calls and results": [user(), asks(CALL, SECOND), results(RESULT, {**RESULT, "tool_call_id": "1.2", "is_error": True}), user()],
    "results in two messages": [user(), asks(CALL, SECOND), results({**RESULT, "tool_call_id": "1.2"}), results(RESULT)],
    "the same id in two turns": [user(), asks(CALL), results(RESULT), asks(CALL), results(RESULT)],
    "files": [
        user(
            {"type": "file", "media_type": "image/png", "data": "aGk="},
            {"type": "file", "media_type": "image/png", "url": "https://x.example/a"},
        )
    ],
    "reasoning": [user(), asks({"type": "reasoning", "text": "hm"}, {"type": "text", "text": "well"}), user()],
    "seq and step are ignored": [{**user(), "seq": 9, "step": None}, {"role": "assistant", "content": "x", "seq": 1, "step": 4}],
}


@pytest.mark.parametrize("messages", GOOD.values(), ids=GOOD.keys())
async def test_a_conversation_is_kept_as_it_was_sent(quiet_house: House, messages: list[dict[str, Any]]) -> None:
    run = await quiet_house.created(input=messages)
    shown = (await quiet_house.http.get(f"/runs/{run['run_id']}/messages")).json()["data"]
    assert [message["seq"] for message in shown] == list(range(1, len(messages) + 1))
    for sent, kept in zip(messages, shown, strict=True):
        content = [{"type": "text", "text": sent["content"]}] if isinstance(sent["content"], str) else sent["content"]
        assert kept["role"] == sent["role"]
        assert "step" not in kept
        for part, stored in zip(content, kept["content"], strict=True):
            assert part.items() <= stored.items()


BAD: dict[str, tuple[Any, str]] = {
    "nothing": ([], "/input"),
    "blank": ("", "/input"),
    "null": (None, "/input"),
    "an object": ({"role": "user", "content": "x"}, "/input"),
    "system": ([{"role": "system", "content": "obey"}], "/input/0/role"),
    "another role": ([{"role": "developer", "content": "x"}], "/input/0/role"),
    "no content": ([{"role": "user"}], "/input/0/content"),
    "empty content": ([{"role": "user", "content": []}], "/input/0/content"),
    "content null": ([{"role": "user", "content": None}], "/input/0/content"),
    "a number": ([{"role": "user", "content": 7}], "/input/0/content"),
    "an unknown part": ([user({"type": "audio", "data": "x"})], "/input/0/content/0"),
    "a part without a type": ([user({"text": "x"})], "/input/0/content/0"),
    "an unknown field": ([user({"type": "text", "text": "x", "cache": True})], "/input/0/content/0/cache"),
    "a field of the message": ([{**user(), "name": "ann"}], "/input/0/name"),
    "a call by the user": ([user(CALL)], "/input/0/content/0"),
    "a result by the assistant": ([user(), asks(RESULT)], "/input/1/content/0"),
    "a text by a tool": ([user(), asks(CALL), {"role": "tool", "content": "shipped"}], "/input/2/content"),
    "an open call at the end": ([user(), asks(CALL)], "/input/1"),
    "one of two open at the end": ([user(), asks(CALL, SECOND), results(RESULT)], "/input/2"),
    "an open call before a message": ([user(), asks(CALL), user()], "/input/2"),
    "results that come too late": ([user(), asks(CALL), user(), results(RESULT)], "/input/2"),
    "a result of nothing": ([user(), results(RESULT)], "/input/1/content/0"),
    "a result of another tool": ([user(), asks(CALL), results({**RESULT, "tool_name": "refund"})], "/input/2/content/0"),
    "two results of one call": ([user(), asks(CALL), results(RESULT, RESULT)], "/input/2/content/1"),
    "two calls of one id": ([user(), asks(CALL, CALL), results(RESULT)], "/input/1/content/1"),
    "a file of nothing": ([user({"type": "file", "media_type": "image/png"})], "/input/0/content/0"),
    "a file twice": ([user({"type": "file", "media_type": "image/png", "url": "https://x", "data": "aGk="})], "/input/0/content/0"),
    "not base64": ([user({"type": "file", "media_type": "image/png", "data": "a-b"})], "/input/0/content/0/data"),
    "a local file": ([user({"type": "file", "media_type": "image/png", "url": "file:///etc/passwd"})], "/input/0/content/0/url"),
    "no media type": ([user({"type": "file", "media_type": "png", "data": "aGk="})], "/input/0/content/0/media_type"),
    "101 parts": ([user(*[{"type": "text", "text": "x"}] * 101)], "/input/0/content"),
}


@pytest.mark.parametrize(("given", "pointer"), BAD.values(), ids=BAD.keys())
async def test_what_is_no_conversation_is_refused_and_pointed_at(quiet_house: House, given: Any, pointer: str) -> None:
    answer = await quiet_house.http.post("/runs", json={"agent": "support", "input": given})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert quiet_house.database.actors == {}


async def test_what_messages_answers_can_be_sent_back(open_house: House) -> None:
    run = await open_house.completed()
    shown = (await open_house.http.get(f"/runs/{run['run_id']}/messages")).json()["data"]
    again = await open_house.completed(input=[*shown, {"role": "user", "content": "And order 8?"}])
    kept = (await open_house.http.get(f"/runs/{again['run_id']}/messages")).json()["data"]
    assert [message["content"] for message in kept[:4]] == [message["content"] for message in shown]


SECRETS = [
    {"agent": "support", "input": "hi", "priority": "hunter2"},
    {"agent": "support", "input": [{"role": "hunter2", "content": "x"}]},
    {"agent": "support", "input": [{"role": "user", "content": [{"type": "hunter2"}]}]},
    {"agent": "support", "input": "hi", "run_id": "hunter2/"},
    {"agent": "support", "input": "hi", "start_at": "hunter2"},
    {"agent": "support", "input": "hi", "context": ["hunter2"]},
]


@pytest.mark.parametrize("body", SECRETS, ids=range(len(SECRETS)))
async def test_R46_a_value_that_was_wrong_is_not_echoed(quiet_house: House, body: dict[str, Any]) -> None:
    answer = await quiet_house.http.post("/runs", json=body)
    assert answer.status_code == 422
    assert "hunter2" not in answer.text


async def test_pointers_are_escaped_and_short_and_problems_are_few(quiet_house: House) -> None:
    body = {"agent": "support", "input": "hi", "a/b~c": 1, "x" * 5_000: 1, **{f"f{number}": 1 for number in range(100)}}
    answer = await quiet_house.http.post("/runs", content=json.dumps(body), headers={"Content-Type": "application/json"})
    errors = answer.json()["errors"]
    assert (answer.status_code, answer.json()["code"], len(errors)) == (422, "unknown_field", 20)
    assert errors[0]["pointer"] == "/a~1b~0c"
    assert len(answer.text) < 5_000
