"""R8, R24-R26: calls that wait for a client, the user or a time, over crashes and without holding a worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runward import ClientTool, NeedsInput, Reply, ScriptedModel, ToolCall, ToolContext, ask_user, durable_wait, tool
from runward.core.errors import Conflict, Invalid
from runward.core.kernel.actor import Status
from runward.core.runs.waits import Wait
from runward.engine.letters import AnswerIn, ResultIn
from tests.engine.rig import DONE, Rig, agent, calls

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False}
pick = ClientTool(name="pick", description="Pick a file.", parameters={"type": "object", "properties": {}}, output_schema=PATH)


def asking(question: str = "Which?", **more: Any) -> Reply:
    return Reply(tool_calls=[ToolCall("ask_user", {"question": question, **more})])


async def code_of(rig: Rig, uid: str, **given: Any) -> str:
    """What is answered to some input: the first item's result, or the refusal's code."""
    try:
        return (await rig.deliver(uid, **given)).items[0]["result"]
    except (Conflict, Invalid) as error:
        return error.code


async def test_R24_a_client_call_waits_for_its_own_valid_result() -> None:
    async with Rig(agent(calls("pick"), DONE, tools=[pick])) as rig:
        uid = await rig.run()
        assert rig.row(uid).waiting_on == Wait.CLIENT_CALLS
        given = [
            ResultIn(tool_call_id="9.9", output={"path": "x"}),
            ResultIn(tool_call_id="1.1", output={"file": "x"}),
            ResultIn(tool_call_id="1.1", output={"path": "a.pdf"}),
        ]
        codes = [await code_of(rig, uid, tool_results=[item]) for item in given]
        assert codes == ["not_pending", "invalid_value", "accepted"]
        await rig.over(uid)
        assert rig.results(uid)[0]["output"] == {"path": "a.pdf"} and rig.row(uid).status is Status.COMPLETED
        assert await code_of(rig, uid, tool_results=[given[2]]) == "duplicate"
        assert await code_of(rig, uid, tool_results=[ResultIn(tool_call_id="1.1", output={"path": "b"})]) == "already_answered"
        assert len(rig.rows(uid).mail) == 1


async def test_R24_an_error_of_the_client_skips_the_schema_and_reaches_the_model() -> None:
    async with Rig(agent(calls("pick"), DONE, tools=[pick])) as rig:
        uid = await rig.run()
        assert await code_of(rig, uid, tool_results=[ResultIn(tool_call_id="1.1", output="no permission", is_error=True)]) == "accepted"
        await rig.over(uid)
        assert (rig.results(uid)[0]["output"], rig.results(uid)[0]["is_error"]) == ("no permission", True)


async def test_A22_answering_one_of_several_client_calls_leaves_the_others_as_they_are() -> None:
    """R8: they are not issued again either."""
    async with Rig(agent(calls("pick", "pick", "pick"), DONE, tools=[pick])) as rig:
        uid = await rig.run()
        await rig.deliver(uid, tool_results=[ResultIn(tool_call_id="1.2", output={"path": "b"})])
        await rig.over(uid)
        assert [call["tool_call_id"] for call in rig.view(uid)["pending"]["client_calls"]] == ["1.1", "1.3"]
        assert len(rig.frames(uid, "client-call")) == 3


async def test_R25_a_mixed_turn_is_answered_once_in_the_models_order() -> None:
    ran: list[str] = []

    @tool(effect="read")
    async def look() -> str:
        ran.append("look")
        return "seen"

    @tool(effect="non_idempotent_write")
    async def refund() -> str:
        ran.append("refund")
        return "refunded"

    async with Rig(agent(calls("refund", "pick", "look"), DONE, tools=[look, refund, pick])) as rig:
        uid = await rig.run()
        assert ran == ["look"] and rig.row(uid).waiting_on == Wait.APPROVALS | Wait.CLIENT_CALLS
        await rig.deliver(uid, tool_results=[ResultIn(tool_call_id="1.2", output={"path": "a"})])
        await rig.over(uid)
        assert len(rig.frames(uid, "start-step")) == 1, "the model is not asked before every call has its result"
        await rig.verdict(uid, True)
        assert [result["output"] for result in rig.results(uid)] == ["refunded", {"path": "a"}, "seen"]
        assert [message.role for message in rig.rows(uid).messages.values()].count("tool") == 1


@pytest.mark.parametrize(
    ("more", "answer", "code"),
    [
        ({}, "the red one", "accepted"),
        ({}, " ", "invalid_value"),
        ({"choices": ["red", "blue"], "allows_free_text": False}, "red", "accepted"),
        ({"choices": ["red", "blue"], "allows_free_text": False}, "green", "invalid_value"),
        ({"choices": ["red", "blue"]}, "green", "accepted"),
        ({}, None, "accepted"),
    ],
)
async def test_R26_a_question_takes_an_answer_that_fits(more: dict[str, Any], answer: str | None, code: str) -> None:
    async with Rig(agent(asking(**more), DONE, tools=[ask_user])) as rig:
        uid = await rig.run()
        assert rig.row(uid).waiting_on == Wait.QUESTIONS
        assert await code_of(rig, uid, answers=[AnswerIn(question_id="1.1.1", answer=answer)]) == code
        await rig.over(uid)
        ended = rig.row(uid).status is Status.COMPLETED
        assert ended is (code == "accepted")
        if ended:
            expected = ("The user declined to answer.", True) if answer is None else (answer, False)
            assert (rig.results(uid)[0]["output"], rig.results(uid)[0]["is_error"]) == expected


async def test_R26_a_tool_that_asks_first_runs_again_under_its_key_with_the_answers() -> None:
    seen: list[tuple[str, tuple[str, ...]]] = []

    @tool(effect="non_idempotent_write", needs_approval=False)
    async def ship(ctx: ToolContext) -> str:
        seen.append((ctx.idempotency_key, ctx.answers))
        if len(ctx.answers) < 2:
            raise NeedsInput(f"Question {len(ctx.answers) + 1}?", choices=["yes", "no"])
        return "shipped"

    async with Rig(agent(calls("ship"), DONE, tools=[ship])) as rig:
        uid = await rig.run()
        for number, answer in enumerate(("yes", "no"), 1):
            (question,) = rig.view(uid)["pending"]["questions"]
            assert (question["question_id"], question["question"]) == (f"1.1.{number}", f"Question {number}?")
            await rig.first.die()
            await rig.start()
            rig.processes[0], rig.processes[-1] = rig.processes[-1], rig.processes[0]
            await rig.deliver(uid, answers=[AnswerIn(question_id=f"1.1.{number}", answer=answer)])
            await rig.over(uid)
        key = f"{uid}/1.1"
        assert seen == [(key, ()), (key, ("yes",)), (key, ("yes", "no"))] and rig.results(uid)[0]["output"] == "shipped"


async def test_R26_a_durable_wait_holds_no_worker_and_ends_on_time_though_every_process_died() -> None:
    wait = Reply(tool_calls=[ToolCall("durable_wait", {"seconds": 600})])
    async with Rig(agent(wait, DONE, tools=[durable_wait])) as rig:
        uid = await rig.run()
        assert (rig.row(uid).waiting_on, rig.row(uid).lease_owner) == (Wait.TIMERS, None)
        await rig.first.die()
        rig.clock.advance(700)
        await rig.start()
        assert (await rig.over(uid)).status is Status.COMPLETED
        assert rig.results(uid)[0]["output"] == {"waited_seconds": 600}


@pytest.mark.parametrize("seconds", [0, 0.5, 31_536_001, -1, "1"])
async def test_R26_a_wait_out_of_range_is_answered_to_the_model(seconds: Any) -> None:
    wait = Reply(tool_calls=[ToolCall("durable_wait", {"seconds": seconds})])
    async with Rig(agent(wait, DONE, tools=[durable_wait])) as rig:
        uid = await rig.run()
        assert rig.rows(uid).receipts["1.1"].outcome == "invalid_arguments" and rig.row(uid).status is Status.COMPLETED


async def test_R20_questions_and_client_calls_that_nobody_answers_expire_by_themselves() -> None:
    question, picker = replace(ask_user, expires_seconds=60), replace(pick, expires_seconds=60)
    turn = Reply(tool_calls=[ToolCall("ask_user", {"question": "Which?"}), ToolCall("pick", {})])
    async with Rig(agent(turn, DONE, tools=[question, picker])) as rig:
        uid = await rig.run()
        await rig.pass_seconds(61)
        row = await rig.over(uid)
        assert (row.status, row.task_outcome) == (Status.COMPLETED, "denied")
        assert [receipt.outcome for receipt in rig.rows(uid).receipts.values()] == ["expired", "expired"]
        assert sorted(mail.key for mail in rig.rows(uid).mail) == ["client:1.2", "question:1.1.1"]
        assert await code_of(rig, uid, answers=[AnswerIn(question_id="1.1.1", answer="late")]) in ("not_pending", "run_ended")


async def test_R17_client_tools_of_the_request_are_offered_and_wait_like_the_agents_own() -> None:
    where = {"name": "where", "description": "Ask the browser.", "parameters": {"type": "object", "properties": {}}}
    async with Rig(agent(calls("where"), DONE), secret="s3cret-key-for-tests") as rig:
        uid = await rig.run(client_tools=[where])
        (call,) = rig.view(uid)["pending"]["client_calls"]
        assert call["tool_name"] == "where"
        await rig.deliver(uid, tool_results=[ResultIn(tool_call_id="1.1", output="here")])
        assert (await rig.over(uid)).status is Status.COMPLETED


async def test_R6_one_bad_item_refuses_the_whole_request() -> None:
    """Item by item, each with its pointer."""
    async with Rig(agent(calls("pick", "pick"), DONE, tools=[pick])) as rig:
        uid = await rig.run()
        good, bad = ResultIn(tool_call_id="1.1", output={"path": "a"}), ResultIn(tool_call_id="1.2", output={})
        with pytest.raises(Invalid) as refused:
            await rig.deliver(uid, tool_results=[good, bad])
        assert [problem.pointer for problem in refused.value.problems] == ["/tool_results/1/output/path"]
        assert rig.rows(uid).mail == []


async def test_an_expected_revision_keeps_a_late_answer_out() -> None:
    """R19: what the caller looked at is what they decide about."""
    async with Rig(agent(calls("pick"), DONE, tools=[pick])) as rig:
        uid = await rig.run()
        result = [ResultIn(tool_call_id="1.1", output={"path": "a"})]
        assert await code_of(rig, uid, tool_results=result, expected_revision=rig.row(uid).revision + 1) == "revision_conflict"
        assert await code_of(rig, uid, tool_results=result, expected_revision=rig.row(uid).revision) == "accepted"


async def test_R30_a_failed_run_is_tried_again_from_its_checkpoint() -> None:
    """R10: the call that ran answers from its receipt; the failed model call keeps its step."""
    ran: list[str] = []
    down = [True]

    @tool(effect="non_idempotent_write", needs_approval=False)
    async def charge() -> str:
        ran.append("charge")
        return "charged"

    def says(request: Any) -> Reply:
        if request.step == 1:
            return calls("charge")
        return Reply(error="server_error") if down[0] else DONE

    async with Rig(agent(model=ScriptedModel(says), tools=[charge])) as rig:
        uid = await rig.run()
        view = rig.view(uid)
        assert (view["status"], view["error"]["transient"], view["steps"]) == ("failed", True, 2)
        down[0] = False
        assert await code_of(rig, uid, retry_failed=True) == "accepted"
        row = await rig.over(uid)
        view = rig.view(uid)
        assert (row.status, view["error"], view["task_outcome"], view["steps"], ran) == (Status.COMPLETED, None, "resolved", 2, ["charge"])
        finals = [frame for frame in rig.frames(uid, "data-agent") if frame["data"].get("final")]
        assert len(finals) == 2 and rig.frames(uid)[-1] == finals[-1]
        assert await code_of(rig, uid, retry_failed=True) == "not_transient"
        assert [mail.kind.value for mail in rig.rows(uid).mail] == ["retry"]
        attempts = [(frame["step"], frame["attempt"]) for frame in rig.frames(uid, "start-step")]
        assert attempts == sorted(set(attempts)) and attempts[-1][0] == 2


async def test_R30_a_run_that_failed_for_good_is_not_tried_again() -> None:
    async with Rig(agent(Reply(error="bad_request"), DONE)) as rig:
        uid = await rig.run()
        view = rig.view(uid)
        assert (view["status"], view["error"]["transient"]) == ("failed", False)
        assert await code_of(rig, uid, retry_failed=True) == "not_transient"
        assert rig.view(uid) == view and rig.rows(uid).mail == []


async def test_R30_a_run_that_works_or_waits_has_nothing_to_try_again() -> None:
    async with Rig(agent(calls("pick"), DONE, tools=[pick])) as rig:
        uid = await rig.run()
        assert await code_of(rig, uid, retry_failed=True) == "ignored" and rig.rows(uid).mail == []
        assert rig.row(uid).status is Status.SUSPENDED
