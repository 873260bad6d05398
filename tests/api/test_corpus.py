"""The hostile corpus on SQLite and Postgres side by side: the same answer from both, and nothing stored by either."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from runward.api import openapi
from runward.core.ids import is_id
from tests.api.corpus import BODIES, CURSORS, HEADERS, IDS, JSON, MALFORMED, PLACES, QUERIES, RUN
from tests.api.desk import CHARGE, PICK, asked_id, desk
from tests.api.house import House, house

Both = tuple[House, House]


@pytest.fixture
async def both(both_urls: tuple[str, str]) -> AsyncIterator[Both]:
    """The same service on both databases, without a worker."""
    async with opened(both_urls) as made:
        yield made
        assert [each.heard.problems for each in made] == [[], []]


@asynccontextmanager
async def opened(urls: tuple[str, str], **options: Any) -> AsyncIterator[Both]:
    async with house(worker=False, url=urls[0], **options) as file, house(worker=False, url=urls[1], **options) as server:
        yield file, server


async def alike(both: Both, method: str, path: str, **request: Any) -> httpx.Response:
    """Sends the same to both, and returns what both have answered."""
    url = httpx.URL("http://localhost").copy_with(raw_path=path.encode())
    one, other = await asyncio.gather(*(each.http.request(method, url, **request) for each in both))
    assert told(one) == told(other), (method, path, one.text, other.text)
    return one


def told(answer: httpx.Response) -> tuple[int, Any, Mapping[str, str]]:
    """All of an answer but what is of this one request."""
    headers = {name: value for name, value in answer.headers.items() if name not in ("x-request-id", "location")}
    shown = answer.json() if answer.status_code >= 400 and answer.content else None
    if shown is not None:
        assert answer.headers["content-type"] == "application/problem+json"
        assert shown.pop("instance") == f"urn:runward:request:{answer.headers['x-request-id']}"
        assert shown["status"] == answer.status_code
        answer.content.decode("utf-8")
    return answer.status_code, shown, headers if shown is not None else {}


async def test_R46_hostile_bodies_are_answered_alike_and_store_nothing(both: Both) -> None:
    for name, (body, status, code) in BODIES.items():
        answer = await alike(both, "POST", "/runs", content=body, headers=JSON)
        assert (answer.status_code, answer.json()["code"]) == (status, code), name
    for each in both:
        assert (await each.http.get("/runs")).json()["data"] == []


async def test_R46_hostile_headers_are_answered_alike(both: Both) -> None:
    for name, (headers, body, status) in HEADERS.items():
        answer = await alike(both, "POST", "/runs", content=body, headers=headers)
        assert answer.status_code == status, name


async def test_R46_no_call_takes_what_is_malformed(both: Both) -> None:
    """Every call of the OpenAPI document that has a body: the reader comes before whatever the call is about."""
    asked = 0
    for path, item in openapi.document()["paths"].items():
        for method in [method for method, operation in item.items() if "requestBody" in operation]:
            address = re.sub(r"\{\w+\}", "nobody", path)
            for name, (body, status, code) in MALFORMED.items():
                answer = await alike(both, method.upper(), address, content=body, headers=JSON)
                assert (answer.status_code, answer.json()["code"]) == (status, code), (path, name)
                asked += 1
            answer = await alike(both, method.upper(), address, json={"surprise": 1})
            assert answer.status_code == 422
            assert {"pointer": "/surprise", "code": "unknown_field"}.items() <= answer.json()["errors"][-1].items(), path
            assert (await alike(both, method.upper(), address, content=b"{}")).json()["code"] == "unsupported_media_type"
    assert asked > 10 * len(MALFORMED)


async def test_F_12_an_id_has_one_spelling_everywhere(both: Both) -> None:
    """Every address of the OpenAPI document with an id in it. A budget's key is none: programs escape its colons (`test_budgets.py`)."""
    for each in both:
        await each.created(run_id="run-1")
    for path, item in openapi.document()["paths"].items():
        for method in item if "{" in path and "{key}" not in path else ():
            for id in IDS:
                answer = await alike(both, method.upper(), re.sub(r"\{\w+\}", id, path))
                read_first = "requestBody" in item[method] and is_id(id)
                assert answer.status_code == 404 or (read_first and answer.json()["code"] == "unsupported_media_type"), (path, id)
    assert (await alike(both, "GET", "/runs/run-1")).status_code == 200


async def test_F_17_queries_and_cursors_are_answered_alike(both: Both) -> None:
    for each in both:
        await each.created(run_id="run-1")
    for query in QUERIES:
        assert (await alike(both, "GET", f"/runs?{query}")).status_code == 422, query
    for path in ("/runs", "/approvals", "/ops/leases", "/ops/stale", "/ops/unclaimable"):
        for cursor in CURSORS:
            assert (await alike(both, "GET", f"{path}?{httpx.QueryParams(cursor=cursor)}")).json()["code"] == "invalid_cursor", cursor
    for part in ("messages", "receipts", "inbox"):
        for cursor in CURSORS:
            answer = await alike(both, "GET", f"/runs/run-1/{part}?{httpx.QueryParams(cursor=cursor)}")
            assert answer.json()["code"] == "invalid_cursor", (part, cursor)


async def test_F_24_what_is_no_place_in_a_stream_is_refused_alike(both: Both) -> None:
    for each in both:
        await each.created(run_id="run-1")
    for place in [*PLACES, "999"]:
        answer = await alike(both, "GET", "/runs/run-1/events", headers=[(b"Last-Event-ID", place.encode())])
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor"), place
    twice = await alike(both, "GET", "/runs/run-1/events", headers=[(b"Last-Event-ID", b"1"), (b"Last-Event-ID", b"1")])
    assert twice.json()["code"] == "invalid_cursor"


async def test_F_72_what_is_syntax_to_a_database_is_text_in_a_filter(both: Both) -> None:
    for each in both:
        await each.created(
            run_id="run-1", scope={"user": "a_b%c"}, metadata={"k": "x%_'\"\\", "$.k": "v", "a.b": "'; DROP TABLE actors;--"}
        )
    found = {"user": "a_b%c", "metadata.k": "x%_'\"\\", "metadata.$.k": "v", "metadata.a.b": "'; DROP TABLE actors;--"}
    for name, value in found.items():
        for wanted, count in ((value, 1), ("%", 0), ("_____", 0), (value + "'", 0), (f"{value}' OR '1'='1", 0), ("*", 0)):
            answer = await alike(both, "GET", f"/runs?{httpx.QueryParams({name: wanted})}")
            assert (answer.status_code, len(answer.json()["data"])) == (200, count), (name, wanted)
    for tool in ("%", "refund' OR '1'='1", "_"):
        assert (await alike(both, "GET", f"/approvals?{httpx.QueryParams(tool=tool)}")).json()["data"] == []


async def test_F_06_numbers_come_back_as_they_were_from_both(both: Both) -> None:
    text = '{"a":9007199254740993,"b":9223372036854775807,"c":-9223372036854775808,"d":1,"e":1.0,"f":-0.0,"g":1e+22,"h":0.1}'
    for each in both:
        answer = await each.http.post("/runs", content=RUN % f',"run_id":"n","metadata":{text}'.encode(), headers=JSON)
        assert answer.status_code == 202
    shown = [(await each.http.get("/runs/n")).text.split('"metadata":', 1)[1].split("}", 1)[0] for each in both]
    assert shown[0] == shown[1]
    for part in ("9007199254740993", "9223372036854775807", '"d":1,', '"e":1.0,', '"f":-0.0,', '"h":0.1'):
        assert part in shown[0] + ","


async def test_F_05_arguments_keep_one_digest_over_stores_and_restarts(both_urls: tuple[str, str]) -> None:
    amounts = [1, 1.0, -0.0, 1e22, 2**53 + 1, 0.1]
    digests: list[list[tuple[str, Any]]] = []
    for url in both_urls:
        async with desk(url=url) as first:
            asked = [
                asked_id(await first.waiting([{"calls": [["refund", {"order_id": 7, "amount": amount}]]}, {"text": "done"}]))
                for amount in amounts
            ]
            before = [(await first.http.get(f"/approvals/{id}")).json() for id in asked]
        async with desk(url=url) as second:
            after = [(await second.http.get(f"/approvals/{id}")).json() for id in asked]
        assert after == before
        digests.append([(shown["arguments_digest"], json.dumps(shown["arguments"])) for shown in after])
    assert digests[0] == digests[1]
    assert len({digest for digest, _ in digests[0]}) == len(amounts), "1 and 1.0 are two amounts"


async def test_F_51_results_that_no_store_keeps_are_refused_alike_and_the_first_good_one_stays(both_urls: tuple[str, str]) -> None:
    answers: list[list[tuple[int, str]]] = []
    bad = [
        rb'"\u0000"',
        rb'{"path":"\u0000"}',
        rb'{"path":"\ud800"}',
        b'{"path":NaN}',
        b'{"path":"a","path":"b"}',
        b"[" * 5_000,
        b'{"path":1}',
    ]
    for url in both_urls:
        async with desk(url=url) as made:
            run = await made.waiting(PICK)
            path, told = f"/runs/{run['run_id']}/tool-results", []
            for output in [*bad, b'{"path":"/a"}', b'{"path":"/a"}', b'{"path":"/b"}']:
                body = b'{"tool_results":[{"tool_call_id":"1.1","output":' + output + b"}]}"
                answer = await made.http.post(path, content=body, headers=JSON)
                said = answer.json().get("code") or answer.json()["items"][0]["result"]
                told.append((answer.status_code, said))
                if answer.status_code == 202 and said == "accepted":
                    await made.over(run)
            answers.append(told)
    assert answers[0] == answers[1]
    assert [status for status, _ in answers[0]] == [422, 422, 422, 422, 400, 422, 422, 202, 202, 409]
    assert [said for _, said in answers[0]][-3:] == ["accepted", "duplicate", "already_answered"]


async def test_F_57_settlements_are_answered_alike(both_urls: tuple[str, str]) -> None:
    sent = [
        {"tool_call_id": "9.9", "decision": "retry"},
        {"tool_call_id": "1.1", "decision": "result"},
        {"tool_call_id": "1.1", "decision": "maybe"},
        {"tool_call_id": "1.1", "decision": "result", "output": "charged"},
        {"tool_call_id": "1.1", "decision": "result", "output": "charged"},
        {"tool_call_id": "1.1", "decision": "error", "output": "no"},
    ]
    answers = []
    for url in both_urls:
        async with desk(url=url) as made:
            run = await made.waiting(CHARGE)
            told = []
            for item in sent:
                answer = await made.post(run, "reconcile", {"reconcile": [item]})
                told.append((answer.status_code, answer.json().get("code") or answer.json()["items"][0]["result"]))
            answers.append(told)
    assert answers[0] == answers[1]
    assert answers[0][0][0] == 409
    assert (202, "accepted") in answers[0] and (202, "duplicate") in answers[0] and answers[0][-1][0] == 409
