"""Requests for approval across runs: listed, read, decided once."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from runward.core.ids import canonical_json, digest
from runward.core.times import from_rfc3339
from tests.api.desk import REFUND, Desk, asked_id, desk
from tests.api.house import until
from tests.api.test_inputs import problems, refused, verdict


async def decide(made: Desk, id: str, approved: bool, **more: Any) -> httpx.Response:
    return await made.http.post(f"/approvals/{id}", json={"approved": approved, **more})


async def listed(made: Desk, **query: Any) -> list[str]:
    return [item["approval_id"] for item in (await made.http.get("/approvals", params=query)).json()["data"]]


async def test_a_request_shows_exactly_what_will_run_and_then_what_was_decided(open_desk: Desk) -> None:
    run = await open_desk.waiting(REFUND)
    address = f"/approvals/{asked_id(run)}"
    shown = (await open_desk.http.get(address)).json()
    assert (shown["status"], shown["run_id"], shown["tool_name"], shown["tool_call_id"]) == ("pending", run["run_id"], "refund", "1.1")
    assert shown["arguments"] == {"order_id": 7, "amount": 5}
    assert shown["arguments_digest"] == digest(canonical_json(shown["arguments"]))
    assert shown["links"] == {"self": address, "run": f"/runs/{run['run_id']}"}
    decided = await decide(open_desk, asked_id(run), True, reason="known", decided_by="ann")
    assert decided.status_code == 200
    told = {"status": "approved", "decided_by": "ann", "reason": "known"}
    assert told.items() <= decided.json().items()
    assert decided.json() == {**shown, **told, "decided_at": decided.json()["decided_at"]}
    assert (await open_desk.http.get(address)).json() == decided.json()
    assert (await open_desk.over(run))["text"] == "refunded"


async def test_the_inbox_is_filtered_and_paged(open_desk: Desk) -> None:
    runs = [await open_desk.waiting(REFUND) for _ in range(3)]
    ids = [asked_id(run) for run in runs]
    assert await listed(open_desk) == ids[::-1]
    page = (await open_desk.http.get("/approvals", params={"limit": 2})).json()
    rest = (await open_desk.http.get("/approvals", params={"limit": 2, "cursor": page["next_cursor"]})).json()
    assert ([item["approval_id"] for item in page["data"] + rest["data"]], rest["next_cursor"]) == (ids[::-1], None)
    foreign = await open_desk.http.get("/approvals", params={"status": "denied", "cursor": page["next_cursor"]})
    assert refused(foreign) == (400, "invalid_cursor")
    await decide(open_desk, ids[0], False)
    assert await listed(open_desk, status="pending") == [ids[2], ids[1]]
    assert await listed(open_desk, status=["denied", "expired"]) == [ids[0]]
    assert await listed(open_desk, run_id=runs[1]["run_id"]) == [ids[1]]
    assert await listed(open_desk, agent="desk", tool="refund") == ids[::-1]
    assert await listed(open_desk, tool="discount") == await listed(open_desk, user="ann") == await listed(open_desk, agent="other") == []
    assert await listed(open_desk, order="created_at") == []  # ascending pages wait until nothing can come before them any more


@pytest.mark.parametrize("query", ["status=done", "order=ended_at", "limit=0", "created_after=now", "approved=true", "run_id=a&run_id=b"])
async def test_a_query_of_the_inbox_is_read_strictly(open_desk: Desk, query: str) -> None:
    assert (await open_desk.http.get(f"/approvals?{query}")).status_code == 422


async def test_F_46_of_two_verdicts_at_once_one_counts(open_desk: Desk) -> None:
    for number in range(200):
        open_desk.effects.clear()
        run = await open_desk.waiting(REFUND)
        order = (True, False) if number % 2 else (False, True)
        answers = await asyncio.gather(*(decide(open_desk, asked_id(run), approved) for approved in order))
        statuses = [answer.status_code for answer in answers]
        assert sorted(statuses) == [200, 409]
        winner, loser = answers[statuses.index(200)].json(), answers[statuses.index(409)].json()
        assert (loser["code"], loser["recorded"]["status"]) == ("already_answered", winner["status"])
        run = await open_desk.over(run)
        assert (len(open_desk.effects), run["task_outcome"]) == ((1, "resolved") if winner["status"] == "approved" else (0, "denied"))


async def test_A_21_many_verdicts_at_both_addresses_run_the_call_once_and_old_ones_revive_nothing(open_desk: Desk) -> None:
    run = await open_desk.waiting(REFUND)
    id = asked_id(run)
    posts = [decide(open_desk, id, True) if number % 2 else open_desk.post(run, "approvals", verdict(id)) for number in range(12)]
    assert {answer.status_code for answer in await asyncio.gather(*posts)} == {200, 202}
    run = await open_desk.over(run)
    assert open_desk.effects == [("refund", 7)]
    assert (await decide(open_desk, id, True)).status_code == 200
    assert refused(await decide(open_desk, id, False)) == (409, "already_answered")
    assert (await open_desk.http.get(f"/runs/{run['run_id']}")).json() == run


async def test_F_48_a_verdict_counts_for_its_own_call_alone(open_desk: Desk) -> None:
    """The right call under another id, the right id in another run, and ids that nobody gave out."""
    run, twin = await open_desk.waiting(REFUND), await open_desk.waiting(REFUND)
    assert asked_id(run) != asked_id(twin)
    answer = await open_desk.post(run, "approvals", verdict(asked_id(twin)))
    assert problems(answer, 409) == [("/approvals/0", "not_pending")]
    for id in ("ap_" + "0" * 40, "1.1", asked_id(run).upper(), asked_id(run)[:-1]):
        assert refused(await decide(open_desk, id, True)) == (404, "not_found")
        assert refused(await open_desk.post(run, "approvals", verdict(id))) == (409, "not_pending")
    for each in (run, twin):
        assert (await open_desk.http.get(f"/runs/{each['run_id']}")).json() == each
    assert open_desk.effects == []


async def test_A_02_three_calls_at_once_have_three_requests_and_each_verdict_finds_its_own(open_desk: Desk) -> None:
    calls = [["refund", {"order_id": number, "amount": 5}] for number in (1, 2, 3)]
    run = await open_desk.waiting([{"calls": calls}, {"text": "all"}])
    ids = [asked_id(run, number) for number in range(3)]
    assert len(set(ids)) == 3
    for number, approved in ((2, True), (0, False), (1, True)):
        assert (await decide(open_desk, ids[number], approved)).status_code == 200
    assert (await open_desk.over(run))["text"] == "all"
    assert sorted(open_desk.effects) == [("refund", 2), ("refund", 3)]
    told = [part.is_error for part in open_desk.asked[-1].messages[-1].content]  # type: ignore[union-attr]
    assert told == [True, False, False]


async def test_A_16_two_calls_alike_take_a_verdict_each(open_desk: Desk) -> None:
    run = await open_desk.waiting([{"calls": [["refund", {"order_id": 7, "amount": 5}]] * 2}, {"text": "both"}])
    assert (await decide(open_desk, asked_id(run), True)).status_code == 200
    run = await open_desk.over(run, "suspended")
    assert (len(run["pending"]["approvals"]), open_desk.effects) == (1, [("refund", 7)])


async def test_A_24_an_old_verdict_is_not_one_on_what_waits_now(open_desk: Desk) -> None:
    again = [{"calls": [["refund", {"order_id": 7, "amount": 5}]]}] * 2
    run = await open_desk.waiting([*again, {"text": "done"}])
    old = asked_id(run)
    await decide(open_desk, old, False)
    run = await open_desk.over(run, "suspended")
    assert asked_id(run) != old
    assert refused(await open_desk.post(run, "approvals", verdict(old, True))) == (409, "already_answered")
    assert refused(await decide(open_desk, old, True)) == (409, "already_answered")
    assert (await open_desk.http.get(f"/runs/{run['run_id']}")).json() == run
    assert open_desk.effects == []


async def test_A_37_what_was_approved_is_what_runs_after_a_crash_and_the_model_is_not_asked_again() -> None:
    async with desk() as made:
        run = await made.waiting(REFUND)
        asked = len(made.asked)
        await made.house.service.kill_worker()
        assert (await decide(made, asked_id(run), True)).status_code == 200
        assert (await made.over(run))["text"] == "refunded"
        assert made.effects == [("refund", 7)]
        assert len(made.asked) == asked + 1


async def test_F_49_a_verdict_after_the_expiry_is_410_and_the_run_goes_on_by_itself(open_desk: Desk) -> None:
    run = await open_desk.waiting([{"calls": [["brief", {"order_id": 7}]]}, {"text": "went on"}])
    id = asked_id(run)
    assert (await open_desk.over(run))["text"] == "went on"
    assert refused(await decide(open_desk, id, True)) == (410, "approval_expired")
    assert refused(await open_desk.post(run, "approvals", verdict(id))) == (409, "run_ended")
    assert (await open_desk.http.get(f"/approvals/{id}")).json()["status"] == "expired"
    assert open_desk.effects == []


async def test_F_49_nobody_s_verdict_counts_after_the_expiry_also_while_no_worker_has_noticed() -> None:
    async with desk() as made:
        run = await made.waiting([{"calls": [["brief", {"order_id": 7}]]}, {"text": "went on"}])
        await made.house.service.drain()
        id = asked_id(run)
        stored = (await made.http.get(f"/approvals/{id}")).json()
        assert stored["status"] == "pending"
        await passed(made, stored["expires_at"])
        assert refused(await decide(made, id, True)) == (410, "approval_expired")
        assert refused(await made.post(run, "approvals", verdict(id))) == (409, "not_pending")


async def passed(made: Desk, moment: str) -> None:
    """Returns once it is later than this on the store's clock."""
    at = from_rfc3339(moment)
    assert at is not None
    await until(lambda: made.house.service.services.time.now() > at)


async def test_R21_edited_arguments_are_checked_and_are_what_runs(open_desk: Desk) -> None:
    run = await open_desk.waiting([{"calls": [["discount", {"order_id": 7, "percent": 90}]]}, {"text": "given"}])
    shown = (await open_desk.http.get(f"/approvals/{asked_id(run)}")).json()
    assert (shown["editable"], shown["request_reason"]) == (True, "Discounts are dear.")
    assert shown["arguments_schema"]["properties"].keys() == {"order_id", "percent"}
    bad = await decide(open_desk, asked_id(run), True, edited_arguments={"order_id": 7, "percent": "lots"})
    assert problems(bad, 422) == [("/edited_arguments/percent", "invalid_value")]
    denied = await decide(open_desk, asked_id(run), False, edited_arguments={"order_id": 7, "percent": 1})
    assert refused(denied) == (422, "invalid_value")
    edit = {"order_id": 7, "percent": 10}
    good = await decide(open_desk, asked_id(run), True, edited_arguments=edit)
    assert (good.status_code, good.json()["edited_arguments"], good.json()["arguments"]["percent"]) == (200, edit, 90)
    assert (await decide(open_desk, asked_id(run), True, edited_arguments=edit)).status_code == 200
    assert refused(await decide(open_desk, asked_id(run), True)) == (409, "already_answered")
    await open_desk.over(run)
    assert open_desk.effects == [("discount", 10)]
    fixed = await open_desk.waiting(REFUND)
    assert refused(await decide(open_desk, asked_id(fixed), True, edited_arguments={"order_id": 1, "amount": 1})) == (422, "invalid_value")


NO_VERDICTS = [{}, {"approved": None}, {"approved": "yes"}, {"approved": 1}, {"approve": True}, [], None, {"approved": True, "x": 1}]


@pytest.mark.parametrize("body", NO_VERDICTS)
async def test_I_29_what_is_no_verdict_decides_nothing(open_desk: Desk, body: Any) -> None:
    run = await open_desk.waiting(REFUND)
    answer = await open_desk.http.post(f"/approvals/{asked_id(run)}", json=body)
    assert answer.status_code in (400, 415, 422)
    assert (await open_desk.http.get(f"/runs/{run['run_id']}")).json() == run


async def test_a_request_of_a_cancelled_run_is_closed(open_desk: Desk) -> None:
    run = await open_desk.waiting(REFUND)
    await open_desk.http.post(f"/runs/{run['run_id']}/cancel", headers={"Prefer": "wait=20"})
    assert (await open_desk.http.get(f"/approvals/{asked_id(run)}")).json()["status"] == "cancelled"
    assert refused(await decide(open_desk, asked_id(run), True)) == (409, "run_ended")
    assert await listed(open_desk, status="pending") == []
