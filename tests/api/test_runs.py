"""Runs over HTTP: creating, waiting, listing, reading, cancelling, deleting."""

from __future__ import annotations

import asyncio

import pytest

from runward.core.kernel.actor import Status
from tests.api.house import House, served, until
from tests.api.puppet import Puppet, state


async def test_create_answers_202_with_location_and_etag(open_house: House) -> None:
    answer = await open_house.http.post("/runs", json={"agent": "support", "input": "Where is order 7?", "metadata": {"ticket": "T-9"}})
    run = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/runs/{run['run_id']}" == run["links"]["self"]
    assert answer.headers["etag"] == f'"{run["revision"]}"'
    assert answer.headers["cache-control"] == "no-store"
    assert (run["status"], run["metadata"]) == ("queued", {"ticket": "T-9"})
    assert "idempotent-replayed" not in answer.headers and "preference-applied" not in answer.headers


async def test_prefer_wait_answers_200_with_the_run_that_ended(open_house: House) -> None:
    answer = await open_house.http.post("/runs", json={"agent": "support", "input": "?"}, headers={"Prefer": "respond-async, wait=20"})
    assert (answer.status_code, answer.headers["preference-applied"]) == (200, "wait=20")
    assert (answer.json()["status"], answer.json()["text"]) == ("completed", "It has shipped.")


async def test_prefer_wait_that_was_too_short_answers_202_with_retry_after(quiet_house: House) -> None:
    answer = await quiet_house.http.post("/runs", json={"agent": "support", "input": "?"}, headers={"Prefer": "wait=1"})
    assert (answer.status_code, answer.headers["retry-after"], answer.json()["status"]) == (202, "1", "queued")


async def test_a_wait_ends_when_the_process_is_closing(quiet_house: House) -> None:
    waiting = asyncio.ensure_future(quiet_house.http.post("/runs", json={"agent": "support", "input": "?"}, headers={"Prefer": "wait=60"}))
    await until(lambda: quiet_house.service.tails.watching == 1)
    quiet_house.door.closing.set()
    assert (await waiting).status_code == 202
    assert quiet_house.service.tails.watching == 0


async def test_a_caller_who_leaves_ends_the_wait(quiet_house: House) -> None:
    run = await quiet_house.created()
    async with served(quiet_house) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /runs/{run['run_id']}?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await until(lambda: quiet_house.service.tails.watching == 1)
        writer.close()
        await until(lambda: quiet_house.service.tails.watching == 0, seconds=3)


async def test_R42_the_same_key_and_body_answer_with_the_same_run(open_house: House) -> None:
    body = b'{"agent":"support","input":"hi","metadata":{"a":1,"b":2}}'
    reordered = b'{"metadata": {"b": 2, "a": 1}, "input": "hi", "agent": "support"}'
    headers = {"Idempotency-Key": "order-7", "Content-Type": "application/json"}
    answers = await asyncio.gather(*[open_house.http.post("/runs", content=body, headers=headers) for _ in range(10)])
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [202]
    again = await open_house.http.post("/runs", content=reordered, headers={**headers, "Prefer": "wait=5", "Accept": "application/json"})
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    other = await open_house.http.post("/runs", content=body.replace(b"hi", b"ho"), headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


async def test_R42_a_refused_request_remembers_no_key(open_house: House) -> None:
    headers = {"Idempotency-Key": "k"}
    assert (await open_house.http.post("/runs", json={"agent": "nobody", "input": "hi"}, headers=headers)).status_code == 422
    assert (await open_house.http.post("/runs", json={"agent": "support", "input": "hi"}, headers=headers)).status_code == 202


async def test_R42_a_key_outlives_its_run(open_house: House) -> None:
    body, headers = {"agent": "support", "input": "hi"}, {"Idempotency-Key": "k", "Prefer": "wait=20"}
    run = (await open_house.http.post("/runs", json=body, headers=headers)).json()
    assert (await open_house.http.delete(f"/runs/{run['run_id']}")).status_code == 204
    again = await open_house.http.post("/runs", json=body, headers=headers)
    assert (again.status_code, again.json()["code"]) == (410, "run_deleted")


@pytest.mark.parametrize("key", ["", " ", "two words", "ü", "x" * 256, "tab\there"])
async def test_a_key_that_is_none_is_refused(open_house: House, key: str) -> None:
    answer = await open_house.http.post("/runs", json={"agent": "support", "input": "hi"}, headers={b"Idempotency-Key": key.encode()})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_idempotency_key")


async def test_two_keys_are_refused(open_house: House) -> None:
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "a"), ("Content-Type", "application/json")]
    answer = await open_house.http.post("/runs", content=b'{"agent":"support","input":"hi"}', headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_idempotency_key")


async def test_a_run_id_that_is_taken_is_a_conflict(open_house: House) -> None:
    await open_house.created(run_id="order-7")
    answer = await open_house.http.post("/runs", json={"agent": "support", "input": "hi", "run_id": "order-7"})
    assert (answer.status_code, answer.json()["code"]) == (409, "run_exists")


async def test_every_field_of_a_request_arrives(quiet_house: House) -> None:
    run = await quiet_house.created(
        agent_version="1",
        run_id="r-1",
        scope={"user": "u42", "namespace": "shop"},
        context={"language": "en"},
        tool_context={"lookup_order": {"region": "eu"}},
        limits={"max_steps": 3, "timeout_seconds": 600, "expires_seconds": 1.5},
        priority=-100,
        start_at="2030-01-31T12:00:00.250+02:00",
        metadata={"nested": {"deep": [1, 2.5, None, "x"]}},
    )
    assert (run["run_id"], run["scope"]) == ("r-1", {"tenant": "default", "user": "u42", "namespace": "shop"})
    row = await quiet_house.service.services.reads.find("run", None, "r-1")
    assert row is not None
    assert (row.priority, row.ready_at, row.care_at) == (-100, 1_896_084_000_250, row.created_at + 1_500)
    assert run["metadata"] == {"nested": {"deep": [1, 2.5, None, "x"]}}
    assert row.context is not None and '"region":"eu"' in row.context and "region" not in str(run)


async def test_get_waits_until_the_run_is_over(open_house: House) -> None:
    run = await open_house.created()
    answer = await open_house.http.get(f"/runs/{run['run_id']}", params={"wait": 20})
    assert answer.json()["status"] == "completed"
    assert answer.headers["etag"] == f'"{answer.json()["revision"]}"'


async def test_get_waits_for_the_end_where_it_is_asked_to(quiet_house: House) -> None:
    run = await quiet_house.created()
    puppet = await Puppet.claim(quiet_house, run["run_id"])
    address = f"/runs/{run['run_id']}"
    until_ended = asyncio.ensure_future(quiet_house.http.get(address, params={"wait": 20, "until": "ended"}))
    await puppet.say(state("suspended"), status=Status.SUSPENDED)
    assert (await quiet_house.http.get(address, params={"wait": 20})).json()["status"] == "suspended"
    assert not until_ended.done()
    until_ended.cancel()


async def test_pages_have_every_run_once_and_a_cursor_belongs_to_its_filter(open_house: House) -> None:
    made = [(await open_house.completed(metadata={"batch": "b"}))["run_id"] for _ in range(7)]
    await open_house.completed()
    seen, cursor = [], None
    while True:
        params: dict[str, str | int] = {"limit": 3, "metadata.batch": "b", **({"cursor": cursor} if cursor else {})}
        page = (await open_house.http.get("/runs", params=params)).json()
        seen += [run["run_id"] for run in page["data"]]
        if page["next_cursor"] is None:
            break
        cursor = page["next_cursor"]
    assert seen == made[::-1]
    foreign = await open_house.http.get("/runs", params={"limit": 3, "cursor": cursor})
    assert (foreign.status_code, foreign.json()["code"]) == (400, "invalid_cursor")


async def test_filters_that_repeat_are_alternatives(open_house: House) -> None:
    done = (await open_house.completed())["run_id"]
    stuck = (await open_house.created("stuck"))["run_id"]

    async def found(query: str) -> set[str]:
        answer = await open_house.http.get(f"/runs?{query}")
        assert answer.status_code == 200, answer.text
        return {run["run_id"] for run in answer.json()["data"]}

    assert await found("status=completed&status=failed") == {done}
    assert await found("status=completed&status=running&status=queued") == {done, stuck}
    assert await found("agent=stuck") == {stuck}
    assert await found("waiting_on=approvals") == set()
    assert await found("cancel_requested=true") == set()
    assert await found("created_after=2000-01-01T00:00:00Z&created_before=2100-01-01T00:00:00Z&task_outcome=resolved") == {done}


async def test_cancel_is_accepted_until_the_run_has_ended(open_house: House) -> None:
    run = await open_house.created("stuck")
    address = f"/runs/{run['run_id']}"
    answer = await open_house.http.post(f"{address}/cancel", json={"reason": "user left"}, headers={"Prefer": "wait=20"})
    assert (answer.status_code, answer.json()["outcome"], answer.headers["preference-applied"]) == (202, "accepted", "wait=20")
    assert (answer.json()["run"]["status"], answer.json()["run"]["stop"]["reason"]) == ("stopped", "cancelled")
    again = await open_house.http.post(f"{address}/cancel")
    assert (again.status_code, again.json()["outcome"]) == (200, "already_ended")


async def test_cancel_needs_no_body_and_no_content_type(quiet_house: House) -> None:
    run = await quiet_house.created()
    for body in (b"", b"{}"):
        headers = {"Content-Type": "application/json"} if body else {}
        answer = await quiet_house.http.post(f"/runs/{run['run_id']}/cancel", content=body, headers=headers)
        assert (answer.status_code, answer.json()["outcome"]) == (202, "accepted")
        assert answer.json()["run"]["cancel_requested_at"] is not None


async def test_only_a_run_that_has_ended_is_deleted(open_house: House) -> None:
    stuck = await open_house.created("stuck")
    answer = await open_house.http.delete(f"/runs/{stuck['run_id']}")
    assert (answer.status_code, answer.json()["code"]) == (409, "run_not_ended")
    run = await open_house.completed()
    answer = await open_house.http.delete(f"/runs/{run['run_id']}")
    assert (answer.status_code, answer.content) == (204, b"")
    for path in ("", "/events", "/messages", "/receipts"):
        assert (await open_house.http.get(f"/runs/{run['run_id']}{path}")).status_code == 404
    assert (await open_house.http.delete(f"/runs/{run['run_id']}")).status_code == 404
