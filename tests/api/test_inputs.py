"""What is sent to a run: every item with what becomes of it, and one bad item refuses all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from runward.stores.memory import mailbox
from tests.api.desk import ASK, CHARGE, PICK, REFUND, Desk, asked_id, desk
from tests.api.house import House
from tests.api.puppet import Puppet

JSON = {"Content-Type": "application/json"}


def problems(answer: httpx.Response, status: int) -> list[tuple[str, str]]:
    """Pointer and code of each item of a refusal."""
    assert answer.status_code == status, answer.text
    return [(item["pointer"], item["code"]) for item in answer.json()["errors"]]


def refused(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def verdict(id: str, approved: bool = True, **more: Any) -> dict[str, Any]:
    return {"approvals": [{"approval_id": id, "approved": approved, **more}]}


def result(id: str, output: Any, **more: Any) -> dict[str, Any]:
    return {"tool_results": [{"tool_call_id": id, "output": output, **more}]}


def settled(decision: str, id: str = "1.1", **more: Any) -> dict[str, Any]:
    return {"reconcile": [{"tool_call_id": id, "decision": decision, **more}]}


# -- what is taken -------------------------------------------------------------------------------------------------------


async def test_a_verdict_is_durable_when_it_is_answered_and_not_pending_any_more(open_desk: Desk) -> None:
    run = await open_desk.waiting(REFUND)
    answer = await open_desk.post(run, "approvals", verdict(asked_id(run), reason="known", decided_by="ann"))
    assert answer.status_code == 202
    assert answer.json()["items"] == [{"approval_id": asked_id(run), "result": "accepted"}]
    assert answer.json()["run"]["pending"]["approvals"] == []
    assert (await open_desk.over(run))["text"] == "refunded"
    assert open_desk.effects == [("refund", 7)]
    (receipt,) = (await open_desk.http.get(f"/runs/{run['run_id']}/receipts")).json()["data"]
    assert {key: value for key, value in receipt["approval"].items() if key != "at"} == {
        "approval_id": asked_id(run),
        "approved": True,
        "by": "ann",
        "reason": "known",
    }


async def test_what_has_arrived_is_not_pending_while_nobody_drives_the_run() -> None:
    async with desk() as made:
        run = await made.waiting(REFUND)
        await made.house.service.drain()
        answered = (await made.post(run, "approvals", verdict(asked_id(run)))).json()["run"]
        assert (answered["status"], answered["pending"]["approvals"], answered["revision"]) == ("queued", [], run["revision"])
        assert (await made.http.get(f"/runs/{run['run_id']}")).json() == answered
        (mail,) = (await made.http.get(f"/runs/{run['run_id']}/inbox")).json()["data"]
        assert (mail["state"], mail["applied_revision"]) == ("pending", None)


async def test_results_answers_and_settlements_are_taken(open_desk: Desk) -> None:
    everything: list[tuple[list[Any], str, Any, str]] = [
        (PICK, "tool-results", result("1.1", {"path": "report.pdf"}), "picked"),
        (PICK, "tool-results", result("1.1", "no permission", is_error=True), "picked"),
        (ASK, "answers", {"answers": [{"question_id": "1.1.1", "answer": "blue"}]}, "asked"),
        (ASK, "answers", {"answers": [{"question_id": "1.1.1", "declined": True}]}, "asked"),
        (CHARGE, "reconcile", settled("result", output="charged 7", note="found"), "charged"),
    ]
    for turns, path, body, text in everything:
        open_desk.effects.clear()
        run = await open_desk.waiting(turns)
        answer = await open_desk.post(run, path, body)
        assert answer.status_code == 202, answer.text
        assert [item["result"] for item in answer.json()["items"]] == ["accepted"]
        assert (await open_desk.over(run))["text"] == text


SETTLEMENTS: list[tuple[str, dict[str, Any], str | None, int]] = [
    ("retry", {}, None, 2),
    ("result", {"output": None}, "reconciled", 1),
    ("error", {"note": "it bounced"}, "failed", 1),
]


@pytest.mark.parametrize(("decision", "more", "outcome", "count"), SETTLEMENTS, ids=[decision for decision, *_ in SETTLEMENTS])
async def test_R15_each_way_to_settle_an_effect(
    open_desk: Desk, decision: str, more: dict[str, Any], outcome: str | None, count: int
) -> None:
    run = await open_desk.waiting(CHARGE)
    assert (await open_desk.post(run, "reconcile", settled(decision, **more))).status_code == 202
    run = await open_desk.over(run)
    (receipt,) = (await open_desk.http.get(f"/runs/{run['run_id']}/receipts")).json()["data"]
    assert (receipt["outcome"], receipt["reconciled"]["decision"], len(open_desk.effects)) == (outcome, decision, count)


async def test_R15_evidence_is_wanted_looked_at_and_kept(open_desk: Desk) -> None:
    run = await open_desk.waiting([{"calls": [["wire", {"order_id": 7}]]}, {"text": "wired"}])
    assert run["pending"]["unknown_effects"][0]["evidence_required"] is True
    assert problems(await open_desk.post(run, "reconcile", settled("result", output="x")), 422) == [
        ("/reconcile/0/evidence", "invalid_value")
    ]
    assert (await open_desk.post(run, "reconcile", settled("result", output="x", evidence={"operation_id": "no"}))).status_code == 202
    await until_refused(open_desk, run)
    proven = settled("result", output="x", evidence={"operation_id": "ch_7", "proof": {"ledger": [1]}})
    assert (await open_desk.post(run, "reconcile", proven)).status_code == 202
    assert (await open_desk.over(run))["text"] == "wired"
    (receipt,) = (await open_desk.http.get(f"/runs/{run['run_id']}/receipts")).json()["data"]
    assert receipt["reconciled"]["evidence"] == {"operation_id": "ch_7", "proof": {"ledger": [1]}}


async def until_refused(made: Desk, run: dict[str, Any]) -> None:
    """Returns once the run waits again and says that the evidence did not hold."""
    async with asyncio.timeout(10):
        while True:
            seen = (await made.http.get(f"/runs/{run['run_id']}", params={"wait": 5})).json()
            if seen["pending"]["unknown_effects"] and seen["pending"]["unknown_effects"][0]["evidence_refused"]:
                return


async def test_resume_takes_everything_at_once_or_nothing(open_desk: Desk) -> None:
    calls = [["refund", {"order_id": 1, "amount": 5}], ["pick_file", {}], ["ask_user", {"question": "Which?"}], ["charge", {"order_id": 2}]]
    run = await open_desk.waiting([{"calls": calls}, {"text": "all of it"}])
    body = {
        **verdict(asked_id(run)),
        **result("1.2", {"path": "a"}),
        "answers": [{"question_id": "1.3.1", "answer": "any"}],
        **settled("result", "1.4", output="charged"),
    }
    moved = await open_desk.post(run, "resume", {**body, "expected_revision": run["revision"] + 1})
    assert (refused(moved), moved.json()["recorded"]) == ((409, "revision_conflict"), {"revision": run["revision"]})
    one_bad = await open_desk.post(run, "resume", {**body, **result("1.2", {"file": "a"})})
    assert problems(one_bad, 422) == [("/tool_results/0/output/path", "invalid_value")]
    assert (await open_desk.http.get(f"/runs/{run['run_id']}")).json() == run
    answer = await open_desk.post(run, "resume", {**body, "expected_revision": run["revision"]})
    assert [item["result"] for item in answer.json()["items"]] == ["accepted"] * 4
    assert (await open_desk.over(run))["text"] == "all of it"
    assert sorted(open_desk.effects) == [("charge", 2), ("refund", 1)]


async def test_A_22_one_client_call_is_answered_and_the_others_wait_on(open_desk: Desk) -> None:
    run = await open_desk.waiting([{"calls": [["pick_file", {}]] * 3}, {"text": "all"}])
    await open_desk.post(run, "tool-results", result("1.2", {"path": "b"}))
    run = await open_desk.over(run, "suspended")
    assert [call["tool_call_id"] for call in run["pending"]["client_calls"]] == ["1.1", "1.3"]
    assert len(open_desk.asked) == 1


async def test_R10_a_failed_run_is_tried_again(open_desk: Desk) -> None:
    open_desk.broken = True
    run = await open_desk.run(PICK)
    assert (run["status"], run["error"]["transient"]) == ("failed", True)
    open_desk.broken = False
    answer = await open_desk.post(run, "resume", {"retry_failed": True})
    assert (answer.status_code, answer.json()["items"]) == (202, [{"input": "retry_failed", "result": "accepted"}])
    run = await open_desk.over(run, "suspended")
    assert (run["status"], run["error"], run["ended_at"]) == ("suspended", None, None)
    again = await open_desk.post(run, "resume", {"retry_failed": True})
    assert again.json()["items"] == [{"input": "retry_failed", "result": "ignored"}]
    await open_desk.post(run, "tool-results", result("1.1", {"path": "a"}))
    assert (await open_desk.over(run))["status"] == "completed"
    assert problems(await open_desk.post(run, "resume", {"retry_failed": True}), 409) == [("/retry_failed", "not_transient")]


async def test_a_run_that_nobody_holds_ignores_its_release(open_desk: Desk) -> None:
    run = await open_desk.waiting(REFUND)
    answer = await open_desk.post(run, "resume", {"release_hold": True})
    assert answer.json()["items"] == [{"input": "release_hold", "result": "ignored"}]
    await open_desk.post(run, "approvals", verdict(asked_id(run)))
    await open_desk.over(run)
    assert problems(await open_desk.post(run, "resume", {"release_hold": True}), 409) == [("/release_hold", "run_ended")]


async def test_R10_an_empty_resume_of_an_ended_run_answers_how_it_ended(open_desk: Desk) -> None:
    run = await open_desk.waiting(REFUND)
    for body in ({}, {"expected_revision": run["revision"]}, {"retry_failed": False, "release_hold": False}, {"approvals": None}):
        assert refused(await open_desk.post(run, "resume", body)) == (422, "invalid_value")
    await open_desk.post(run, "approvals", verdict(asked_id(run), False))
    run = await open_desk.over(run)
    asked = len(open_desk.asked)
    answer = await open_desk.post(run, "resume", {})
    assert (answer.status_code, answer.json()) == (202, {"run": run, "items": []})
    assert refused(await open_desk.post(run, "resume", {"expected_revision": run["revision"] + 1})) == (409, "revision_conflict")
    assert len(open_desk.asked) == asked


# -- repetitions and races -----------------------------------------------------------------------------------------------


async def test_F_47_a_repeated_input_is_a_duplicate_also_after_the_end(open_desk: Desk) -> None:
    run = await open_desk.waiting(REFUND)
    id = asked_id(run)
    for number in range(10):
        key = {"Idempotency-Key": f"key-{number % 2}"} if number % 3 else {}
        answer = await open_desk.post(run, "approvals", verdict(id, reason=f"for reason {number}"), **key)
        assert (answer.status_code, answer.json()["items"][0]["result"]) == (202, "duplicate" if number else "accepted")
        if number == 5:
            await open_desk.over(run)
    run = await open_desk.over(run)
    other = await open_desk.post(run, "approvals", verdict(id, False))
    assert (problems(other, 409), other.json()["code"]) == ([("/approvals/0", "already_answered")], "already_answered")
    recorded = other.json()["errors"][0]["recorded"]
    assert (recorded["approved"], recorded["reason"], recorded["received_at"][-1]) == (True, "for reason 0", "Z")
    assert open_desk.effects == [("refund", 7)]
    assert (await open_desk.http.get(f"/runs/{run['run_id']}")).json() == run


async def test_F_51_client_results(open_desk: Desk) -> None:
    """A wrong call, a wrong form, twice, another content the second time, an error, and far too much."""
    run = await open_desk.waiting(PICK)
    assert problems(await open_desk.post(run, "tool-results", result("9.9", {"path": "x"})), 409) == [("/tool_results/0", "not_pending")]
    wrong = await open_desk.post(run, "tool-results", result("1.1", {"path": 7}))
    assert problems(wrong, 422) == [("/tool_results/0/output/path", "invalid_value")]
    async with httpx.AsyncClient(transport=open_desk.http._transport, base_url="http://localhost") as plain:
        much = await plain.post(f"/runs/{run['run_id']}/tool-results", content=b'"' + b"x" * 50_000_000 + b'"', headers=JSON)
    assert refused(much) == (413, "body_too_large")
    assert (await open_desk.http.get(f"/runs/{run['run_id']}")).json() == run
    first = await open_desk.post(run, "tool-results", result("1.1", {"path": "a", "size": 1}))
    again = await open_desk.post(run, "tool-results", result("1.1", {"size": 1, "path": "a"}))
    assert [answer.json()["items"][0]["result"] for answer in (first, again)] == ["accepted", "duplicate"]
    for other in ({"path": "b"}, {"path": "a", "size": 1.0}):
        answer = await open_desk.post(run, "tool-results", result("1.1", other))
        assert problems(answer, 409) == [("/tool_results/0", "already_answered")]
    error = await open_desk.post(run, "tool-results", result("1.1", {"path": "a", "size": 1}, is_error=True))
    assert refused(error) == (409, "already_answered")
    await open_desk.over(run)
    told = open_desk.asked[-1].messages[-1].content[0]
    assert told.output == {"path": "a", "size": 1}  # type: ignore[union-attr]


async def test_F_52_a_client_result_counts_while_the_run_is_busy(quiet_house: House) -> None:
    """A call that waits is answered while a worker has the run; a call that does not is refused all the same."""
    run = await quiet_house.created()
    held = await Puppet.claim(quiet_house, run["run_id"])
    answer = await quiet_house.http.post(f"/runs/{held.run_id}/tool-results", json=result("1.1", "early"))
    assert problems(answer, 409) == [("/tool_results/0", "not_pending")]
    async with desk() as made:
        calls = [["pick_file", {}], ["refund", {"order_id": 1, "amount": 1}]]
        waiting = await made.waiting([{"calls": calls}, {"text": "both"}])
        await made.house.service.drain()
        busy = await made.post(waiting, "approvals", verdict(asked_id(waiting)))
        assert busy.json()["run"]["status"] == "queued"
        assert (await made.post(waiting, "tool-results", result("1.1", {"path": "a"}))).status_code == 202


async def test_F_57_reconciliation(open_desk: Desk) -> None:
    """Of what is not unknown, of a wrong call, twice, without its result, and once more otherwise."""
    waiting = await open_desk.waiting(REFUND)
    for id in ("1.1", "9.9"):
        forged = await open_desk.post(waiting, "reconcile", settled("result", id, output="forged"))
        assert problems(forged, 409) == [("/reconcile/0", "not_pending")]
    run = await open_desk.waiting(CHARGE)
    both = {"reconcile": [*settled("retry")["reconcile"], *settled("result", output="x")["reconcile"]]}
    assert problems(await open_desk.post(run, "reconcile", both), 422) == [("/reconcile/1/tool_call_id", "invalid_value")]
    assert (await open_desk.http.get(f"/runs/{run['run_id']}")).json() == run
    became = [
        (await open_desk.post(run, "reconcile", body)).status_code
        for body in (settled("result", output="x"), settled("result", output="x", note="again"), settled("error"), settled("retry"))
    ]
    assert became == [202, 202, 409, 409]
    assert open_desk.effects == [("charge", 7)]


async def test_F_57_of_many_settlements_one_counts(open_desk: Desk) -> None:
    run = await open_desk.waiting(CHARGE)
    bodies = [settled("result", output=f"charge {number % 4}") for number in range(20)]
    answers = await asyncio.gather(*(open_desk.post(run, "reconcile", body) for body in bodies))
    results = [answer.json()["items"][0]["result"] if answer.status_code == 202 else refused(answer) for answer in answers]
    assert results.count("accepted") == 1
    winner = bodies[results.index("accepted")]
    for body, became in zip(bodies, results, strict=True):
        assert became == (
            "accepted" if body is bodies[results.index("accepted")] else "duplicate" if body == winner else (409, "already_answered")
        )
    run = await open_desk.over(run)
    assert open_desk.asked[-1].messages[-1].content[0].output == winner["reconcile"][0]["output"]  # type: ignore[union-attr]
    assert len(open_desk.effects) == 1


async def test_A_15_a_call_that_waits_is_never_taken_for_approved(open_desk: Desk) -> None:
    """Nothing but a verdict lets it run: no other input, no history that ends in it, no repeated request."""
    run = await open_desk.waiting(REFUND)
    for path, body in (("tool-results", result("1.1", "x")), ("answers", {"answers": [{"question_id": "1.1.1", "answer": "yes"}]})):
        assert refused(await open_desk.post(run, path, body)) == (409, "not_pending")
    call = {"type": "tool_call", "tool_call_id": "1.1", "tool_name": "refund", "arguments": {"order_id": 7, "amount": 5}}
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [call]}, {"role": "user", "content": "go on"}]
    answer = await open_desk.http.post("/runs", json={"agent": "desk", "input": history})
    assert refused(answer) == (422, "invalid_value")
    assert (await open_desk.http.get(f"/runs/{run['run_id']}")).json() == run
    assert open_desk.effects == []


async def test_A_27_one_approval_gives_the_model_one_result(open_desk: Desk) -> None:
    run = await open_desk.waiting(REFUND)
    await asyncio.gather(*(open_desk.post(run, "approvals", verdict(asked_id(run))) for _ in range(5)))
    await open_desk.over(run)
    seen = [part for message in open_desk.asked[-1].messages for part in message.content]
    assert [part.type for part in seen].count("tool_result") == 1
    assert [part.type for part in seen].count("tool_call") == 1


async def test_F_50_a_verdict_for_what_waits_for_none(open_desk: Desk) -> None:
    """For a call that ran without one, for one that was decided, and for a run that was cancelled."""
    plain = await open_desk.run([{"calls": [["lookup", {"order_id": 1}]]}, {"text": "looked"}])
    assert problems(await open_desk.post(plain, "approvals", verdict("1.1")), 409) == [("/approvals/0", "run_ended")]
    run = await open_desk.waiting(REFUND)
    assert problems(await open_desk.post(run, "approvals", verdict("1.1")), 409) == [("/approvals/0", "not_pending")]
    cancelled = await open_desk.http.post(f"/runs/{run['run_id']}/cancel", headers={"Prefer": "wait=20"})
    assert cancelled.json()["run"]["status"] == "stopped"
    assert problems(await open_desk.post(run, "approvals", verdict(asked_id(run))), 409) == [("/approvals/0", "run_ended")]
    assert open_desk.effects == [("lookup", 1)]


# -- what is refused -----------------------------------------------------------------------------------------------------


async def test_one_bad_item_refuses_all_and_every_bad_one_is_named(open_desk: Desk) -> None:
    run = await open_desk.waiting([{"calls": [["refund", {"order_id": n, "amount": 1}] for n in (1, 2)]}, {"text": "both"}])
    first, second = asked_id(run), asked_id(run, 1)
    await open_desk.post(run, "approvals", verdict(first))
    items = [
        {"approval_id": first, "approved": False},
        {"approval_id": second, "approved": True},
        {"approval_id": "ap_no", "approved": True},
    ]
    answer = await open_desk.post(run, "approvals", {"approvals": items})
    assert problems(answer, 409) == [("/approvals/0", "already_answered"), ("/approvals/2", "not_pending")]
    waiting = await open_desk.over(run, "suspended")
    assert asked_id(waiting) == second
    named_twice = await open_desk.post(run, "approvals", {"approvals": [items[1], items[1]]})
    assert problems(named_twice, 422) == [("/approvals/1/approval_id", "invalid_value")]


def one(**fields: Any) -> dict[str, Any]:
    """An approval that would do, but for these fields."""
    return {"approvals": [{"approval_id": "ap_1", "approved": True, **fields}]}


def answered(**fields: Any) -> dict[str, Any]:
    return {"answers": [{"question_id": "1.1.1", **fields}]}


HOSTILE: dict[str, tuple[str, Any, str]] = {
    "no list": ("approvals", {}, "invalid_value"),
    "an empty list": ("approvals", {"approvals": []}, "invalid_value"),
    "no list at all": ("approvals", {"approvals": one()["approvals"][0]}, "invalid_value"),
    "101 items": ("approvals", {"approvals": [{"approval_id": f"ap_{n}", "approved": True} for n in range(101)]}, "invalid_value"),
    "101 items in two lists": (
        "resume",
        {
            "tool_results": [{"tool_call_id": f"1.{n}", "output": 1} for n in range(50)],
            "answers": [{"question_id": f"2.{n}", "answer": "x"} for n in range(51)],
        },
        "invalid_value",
    ),
    "approved is missing": ("approvals", {"approvals": [{"approval_id": "ap_1"}]}, "invalid_value"),
    "approved is null": ("approvals", one(approved=None), "invalid_value"),
    "approved is 1": ("approvals", one(approved=1), "invalid_value"),
    "approved is a word": ("approvals", one(approved="true"), "invalid_value"),
    "a misspelt field": ("approvals", one(reasons="x"), "unknown_field"),
    "an id that is none": ("approvals", one(approval_id="../x"), "invalid_value"),
    "edited arguments that are a list": ("approvals", one(edited_arguments=[]), "invalid_value"),
    "5 KiB of reason": ("approvals", one(reason="x" * 5_000), "invalid_value"),
    "a control character in a name": ("approvals", one(decided_by="a\u0007"), "invalid_value"),
    "no output": ("tool-results", {"tool_results": [{"tool_call_id": "1.1"}]}, "invalid_value"),
    "an output with a NUL": ("tool-results", result("1.1", "\0"), "invalid_value"),
    "is_error is a number": ("tool-results", result("1.1", 1, is_error=1), "invalid_value"),
    "neither answer nor declined": ("answers", answered(), "invalid_value"),
    "both answer and declined": ("answers", answered(answer="x", declined=True), "invalid_value"),
    "not declined": ("answers", answered(declined=False), "invalid_value"),
    "an answer that is a number": ("answers", answered(answer=1), "invalid_value"),
    "an endless answer": ("answers", answered(answer="x" * 65_537), "invalid_value"),
    "a result without output": ("reconcile", settled("result"), "invalid_value"),
    "a retry with output": ("reconcile", settled("retry", output=1), "invalid_value"),
    "a decision nobody knows": ("reconcile", settled("succeeded", output=1), "invalid_value"),
    "evidence of another kind": ("reconcile", settled("retry", evidence={"photo": 1}), "unknown_field"),
    "a revision below 0": ("resume", {"retry_failed": True, "expected_revision": -1}, "invalid_value"),
    "a revision that is a text": ("resume", {"retry_failed": True, "expected_revision": "3"}, "invalid_value"),
    "a switch that is a number": ("resume", {"retry_failed": 1}, "invalid_value"),
    "steering, which comes later": ("resume", {"steer": "left"}, "unknown_field"),
    "an array": ("answers", [], "invalid_value"),
}


@pytest.mark.parametrize(("path", "body", "code"), HOSTILE.values(), ids=HOSTILE.keys())
async def test_R46_a_hostile_input_is_refused_and_nothing_is_stored(quiet_house: House, path: str, body: Any, code: str) -> None:
    run = await quiet_house.created()
    answer = await quiet_house.http.post(f"/runs/{run['run_id']}/{path}", json=body)
    assert refused(answer) == (422, code), answer.text
    assert (await quiet_house.http.get(f"/runs/{run['run_id']}/inbox")).json() == {"data": [], "next_cursor": None}
    assert (await quiet_house.http.get(f"/runs/{run['run_id']}")).json() == run


@pytest.mark.parametrize("answer", ["", "  \n", "green", "Red", "red "])
async def test_R26_an_answer_is_one_of_the_choices(open_desk: Desk, answer: str) -> None:
    run = await open_desk.waiting(ASK)
    said = await open_desk.post(run, "answers", {"answers": [{"question_id": "1.1.1", "answer": answer}]})
    assert problems(said, 422) == [("/answers/0/answer", "invalid_value")]


@pytest.mark.parametrize("key", ["", "a b", "é", "x" * 256])
async def test_R42_an_idempotency_key_has_to_be_one(open_desk: Desk, key: str) -> None:
    run = await open_desk.waiting(REFUND)
    bodies = {"approvals": verdict(asked_id(run)), "cancel": {}, "resume": verdict(asked_id(run))}
    for path, body in bodies.items():
        answer = await open_desk.http.post(f"/runs/{run['run_id']}/{path}", json=body, headers={b"Idempotency-Key": key.encode()})
        assert refused(answer) == (400, "invalid_idempotency_key")
    answer = await open_desk.http.post(f"/approvals/{asked_id(run)}", json={"approved": True}, headers={b"Idempotency-Key": key.encode()})
    assert refused(answer) == (400, "invalid_idempotency_key")
    assert (await open_desk.http.get(f"/runs/{run['run_id']}")).json() == run


async def test_R6a_a_full_inbox_is_429(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "MAX_UNAPPLIED_MAIL", 0)
    async with desk() as made:
        run = await made.waiting(REFUND)
        answer = await made.post(run, "approvals", verdict(asked_id(run)))
        assert (refused(answer), answer.headers["retry-after"]) == ((429, "rate_limited"), "1")


async def test_R23_the_inbox_says_who_sent_what_and_from_where(open_desk: Desk) -> None:
    run = await open_desk.waiting(REFUND)
    await open_desk.post(run, "approvals", verdict(asked_id(run), reason="known", decided_by="ann"))
    await open_desk.over(run)
    address = f"/runs/{run['run_id']}/inbox"
    (mail,) = (await open_desk.http.get(address)).json()["data"]
    assert (mail["seq"], mail["kind"], mail["state"]) == (1, "approval", "applied")
    assert mail["principal"] == {"by": "local", "from": "127.0.0.1"}
    assert mail["data"] == {"approval_id": asked_id(run), "approved": True, "reason": "known", "decided_by": "ann"}
    assert (await open_desk.http.get(address, params={"cursor": "1"})).json()["data"] == []
    assert refused(await open_desk.http.get(address, params={"cursor": "-1"})) == (400, "invalid_cursor")


# -- client tools of the request -----------------------------------------------------------------------------------------

WHERE = {"name": "where_am_i", "description": "Ask the browser."}


async def test_R24_a_request_brings_its_own_tools(open_desk: Desk) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    run = await open_desk.waiting([{"calls": [["where_am_i", {}]]}, {"text": "there"}], client_tools=[{**WHERE, "output_schema": schema}])
    offered = {tool.name: tool for tool in open_desk.asked[0].tools}
    assert (offered["where_am_i"].description, offered["where_am_i"].parameters) == ("Ask the browser.", {"type": "object"})
    assert problems(await open_desk.post(run, "tool-results", result("1.1", "Rome")), 422) == [("/tool_results/0/output", "invalid_value")]
    assert (await open_desk.post(run, "tool-results", result("1.1", {"city": "Rome"}))).status_code == 202
    assert (await open_desk.over(run))["text"] == "there"


async def test_R20_a_client_call_expires_by_itself(open_desk: Desk) -> None:
    tools = [{**WHERE, "expires_seconds": 0.2}]
    run = await open_desk.waiting([{"calls": [["where_am_i", {}]]}, {"text": "nowhere"}], client_tools=tools)
    assert run["pending"]["client_calls"][0]["expires_at"] is not None
    assert (await open_desk.over(run))["text"] == "nowhere"
    assert refused(await open_desk.post(run, "tool-results", result("1.1", "late"))) == (409, "run_ended")


BAD_TOOLS: dict[str, tuple[list[Any], list[str]]] = {
    "the agent's name": ([{"name": "refund"}], ["/client_tools/0/name"]),
    "a name twice": ([WHERE, WHERE], ["/client_tools/1/name"]),
    "a name that is none": ([{"name": "where am i"}], ["/client_tools/0/name"]),
    "no name": ([{"description": "x"}], ["/client_tools/0/name"]),
    "a type nobody knows": ([{**WHERE, "parameters": {"type": "SECRET"}}], ["/client_tools/0"]),
    "parameters of a text": ([{**WHERE, "parameters": {"type": "string"}}], ["/client_tools/0"]),
    "a reference to elsewhere": ([{**WHERE, "parameters": {"$ref": "https://example.org/x"}}], ["/client_tools/0"]),
    "an output schema that is none": ([{**WHERE, "output_schema": {"required": 7}}], ["/client_tools/0"]),
    "a pattern that may take for ever": ([{**WHERE, "output_schema": {"pattern": "(?=a)+$"}}], ["/client_tools/0"]),
    "two bad ones": ([{**WHERE, "output_schema": {"type": 1}}, {"name": "refund"}], ["/client_tools/0", "/client_tools/1/name"]),
    "65 of them": ([{"name": f"t{number}"} for number in range(65)], ["/client_tools"]),
    "an expiry of nothing": ([{**WHERE, "expires_seconds": 0}], ["/client_tools/0/expires_seconds"]),
    "a long description": ([{"name": "x", "description": "y" * 4_097}], ["/client_tools/0/description"]),
}


@pytest.mark.parametrize(("tools", "pointers"), BAD_TOOLS.values(), ids=BAD_TOOLS.keys())
async def test_a_client_tool_that_cannot_be_is_refused(open_desk: Desk, tools: list[Any], pointers: list[str]) -> None:
    answer = await open_desk.http.post("/runs", json={"agent": "desk", "input": "[]", "client_tools": tools})
    assert problems(answer, 422) == [(pointer, "invalid_value") for pointer in pointers]
    assert "SECRET" not in answer.text
    assert open_desk.house.database.actors == {}
