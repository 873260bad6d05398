"""R27-R29: answers with a type: repaired, verified, shown only when accepted."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator

from runward import Agent, Limits, ModelRequest, Output, Reply, RunContext, ScriptedModel, ToolCall, Verdict, tool
from runward.core.kernel.actor import Status
from runward.engine.outputs import OutputReader
from tests.engine.rig import TTL, Rig, agent, calls

SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"], "additionalProperties": False}


class Answer(BaseModel):
    answer: int = Field(ge=0)


@tool(effect="read")
async def look() -> str:
    return "seen"


def says(*texts: str) -> list[Reply]:
    return [Reply(text=text) for text in texts]


def typed(*texts: str, verify: Any = None, schema: Any = None, tools: Any = (look,), **differing: Any) -> Agent:
    return agent(*says(*texts), tools=tools, output=Output(schema=schema or SCHEMA, verify=verify), **differing)


async def test_R27_the_answer_comes_in_a_turn_of_its_own_and_only_then_has_a_type() -> None:
    requests: list[ModelRequest] = []
    script = [calls("look"), *says("thinking", '{"answer": 42}')]

    def model(request: ModelRequest) -> Reply:
        requests.append(request)
        return script[request.step - 1]

    async with Rig(agent(model=ScriptedModel(model), tools=[look], output=Output(schema=SCHEMA))) as rig:
        uid = await rig.run()
        view = rig.view(uid)
        assert (view["status"], view["output"], view["phase"], view["steps"]) == ("completed", {"answer": 42}, "finalizing", 3)
        final = requests[-1]
        assert (final.tool_choice, final.output_schema, [each.name for each in final.tools]) == ("none", SCHEMA, ["look"])
        assert [request.output_schema for request in requests[:-1]] == [None, None]
        assert final.messages[-1].role == "user"
        states = [frame["data"] for frame in rig.frames(uid, "data-agent")]
        assert states[-1]["output"] == {"answer": 42} and all(state.get("output") is None for state in states[:-1])
        assert {state["phase"] for state in states} == {"loop", "finalizing"}


async def test_R27_without_tools_the_first_turn_is_the_answer() -> None:
    async with Rig(typed('```json\n{"answer": 7}\n```', tools=())) as rig:
        uid = await rig.run()
        assert (rig.view(uid)["output"], rig.view(uid)["steps"]) == ({"answer": 7}, 1)


@pytest.mark.parametrize(
    ("texts", "status", "reason", "output"),
    [
        (("x", '{"answer": "7"}', '{"answer": 7}'), "completed", None, {"answer": 7}),
        (("x", "nope", '{"answer": 4.5}', '{"answer": 7}'), "stopped", "output_attempts_exhausted", None),
        (("x", '{"answer": NaN}', "[" * 100_000), "stopped", "output_attempts_exhausted", None),
    ],
)
async def test_R28_an_answer_that_does_not_fit_is_repaired_or_the_run_stops(
    texts: Any, status: str, reason: str | None, output: Any
) -> None:
    async with Rig(typed(*texts)) as rig:
        uid = await rig.run()
        view = rig.view(uid)
        assert (view["status"], view["stop"] and view["stop"]["reason"], view["output"]) == (status, reason, output)


async def test_R28_what_was_wrong_is_told_without_the_value() -> None:
    async with Rig(typed("x", '{"answer": "my-password-is-hunter2"}', '{"answer": 7}')) as rig:
        uid = await rig.run()
        said = [json.loads(message.content)[0]["text"] for message in rig.rows(uid).messages.values() if message.role == "user"]
        assert "`answer` must be an integer" in said[-1] and "hunter2" not in said[-1]


async def test_R28_calls_in_finalization_are_answered_and_none_runs() -> None:
    ran: list[int] = []

    @tool(effect="read")
    async def peek() -> str:
        ran.append(1)
        return "seen"

    turns = [*says("x"), Reply(text="", tool_calls=[ToolCall("peek", {})]), *says('{"answer": 7}')]
    async with Rig(agent(*turns, tools=[peek], output=Output(schema=SCHEMA))) as rig:
        uid = await rig.run()
        assert (rig.view(uid)["output"], ran) == ({"answer": 7}, [])
        assert len(rig.results(uid)) == 1, "R17b: the history is paired all the same"


async def test_R28_a_verifier_gets_the_typed_value_and_decides() -> None:
    seen: list[Any] = []

    async def verify(candidate: Answer, ctx: RunContext) -> Verdict:
        seen.append(candidate)
        return Verdict.verified() if candidate.answer == 42 else Verdict.rejected("check the sum again")

    async with Rig(typed("x", '{"answer": 7}', '{"answer": 42}', verify=verify, schema=Answer)) as rig:
        uid = await rig.run()
        assert seen == [Answer(answer=7), Answer(answer=42)] and rig.view(uid)["output"] == {"answer": 42}
        texts = [json.loads(message.content)[0].get("text") for message in rig.rows(uid).messages.values()]
        assert texts[-2:] == ["check the sum again", '{"answer": 42}']


@pytest.mark.parametrize(
    ("verify", "answers", "reason"),
    [
        (lambda value, ctx: Verdict.rejected("no"), (7, 8, 9), "verification_attempts_exhausted"),
        (lambda value, ctx: Verdict.inconclusive("cannot tell"), (7,), "verification_inconclusive"),
        (lambda value, ctx: 1 / 0, (7,), "verification_inconclusive"),
        (lambda value, ctx: True, (7,), "verification_inconclusive"),
    ],
)
async def test_R28_what_is_not_verified_is_never_an_answer(verify: Any, answers: Any, reason: str) -> None:
    async with Rig(typed("x", *(json.dumps({"answer": each}) for each in answers), verify=verify)) as rig:
        uid = await rig.run()
        view = rig.view(uid)
        assert (view["status"], view["stop"]["reason"], view["output"]) == ("stopped", reason, None)
        assert "division" not in json.dumps(view)


async def test_R28_a_verifier_that_takes_too_long_is_inconclusive() -> None:
    async def verify(value: Any, ctx: RunContext) -> Verdict:
        await rig.clock.sleep(10_000)
        return Verdict.verified()

    rig = Rig(typed("x", '{"answer": 7}', verify=verify, limits=Limits(model_timeout_seconds=30)))
    async with rig:
        uid = await rig.run()
        assert rig.view(uid)["stop"]["reason"] == "verification_inconclusive"


async def test_R29_a_verifier_whose_worker_died_is_asked_again_without_a_model_call() -> None:
    """And each attempt counts, so that a verifier that kills its worker cannot go on for ever."""
    asked: list[int] = []

    async def verify(value: Any, ctx: RunContext) -> Verdict:
        asked.append(1)
        await rig.clock.sleep(5_000 if len(asked) < 3 else 0)
        return Verdict.verified()

    rig = Rig(typed("x", '{"answer": 7}', verify=verify, limits=Limits(max_verify_attempts=3, model_timeout_seconds=9_000)))
    async with rig:
        uid = await rig.begin()
        for number in (1, 2):
            await rig.until(lambda number=number: len(asked) == number)  # type: ignore[misc]
            await rig.processes[-1].die()
            await rig.start()
        await rig.pass_seconds(3 * TTL)
        assert (await rig.over(uid)).status is Status.COMPLETED and len(asked) == 3
        assert len(rig.frames(uid, "start-step")) == 2, "no model call was repeated"
        assert rig.view(uid)["output"] == {"answer": 7}


async def test_R29_without_an_attempt_left_the_run_stops() -> None:
    asked: list[int] = []

    async def verify(value: Any, ctx: RunContext) -> Verdict:
        asked.append(1)
        await rig.clock.sleep(5_000)
        return Verdict.verified()

    rig = Rig(typed("x", '{"answer": 7}', verify=verify, limits=Limits(max_verify_attempts=1, model_timeout_seconds=9_000)))
    async with rig:
        uid = await rig.begin()
        await rig.until(lambda: len(asked) == 1)
        await rig.first.die()
        await rig.start()
        await rig.pass_seconds(2 * TTL)
        await rig.over(uid)
        assert rig.view(uid)["stop"]["reason"] == "verification_attempts_exhausted" and len(asked) == 1


async def test_R37_a_cancel_outranks_a_verdict() -> None:
    entered: list[int] = []

    async def verify(value: Any, ctx: RunContext) -> Verdict:
        entered.append(1)
        await rig.clock.sleep(60)
        return Verdict.verified()

    rig = Rig(typed("x", '{"answer": 7}', verify=verify))
    async with rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(entered))
        await rig.cancel(uid)
        row = await rig.over(uid)
        assert (row.stop_reason, rig.view(uid)["output"]) == ("cancelled", None)


async def test_R9_a_requests_own_schema_takes_the_agents_place_and_is_not_verified() -> None:
    def verify(value: Any, ctx: RunContext) -> Verdict:
        raise AssertionError("the agent's verifier knows nothing of this type")

    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    async with Rig(typed("x", '{"city": "Lisbon"}', verify=verify)) as rig:
        uid = await rig.run(output={"schema": city})
        assert rig.view(uid)["output"] == {"city": "Lisbon"}


async def test_drafts_are_shown_while_the_answer_is_written() -> None:
    """R27: and are never the typed value."""
    reply = Reply(text='{"answer": 42, "why": "because of the sum"}', chunk_delay_seconds=0.3)
    open_schema = {"type": "object", "properties": {"answer": {"type": "integer"}}}
    async with Rig(agent(*says("x"), reply, tools=[look], output=Output(schema=open_schema))) as rig:
        uid = await rig.run()
        drafts = [frame["data"]["partial"]["value"] for frame in rig.frames(uid, "data-agent") if "partial" in frame["data"]]
        assert (
            len(drafts) > 1
            and drafts[-1]["answer"] == 42
            and all("output" not in frame["data"] for frame in rig.frames(uid, "data-agent")[:-1])
        )


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"answer": 1}', True),
        ('{"answer": -1}', False),
        ('{"answer": "1x"}', False),
        ("[]", False),
        ("", False),
        ('{"answer": 1} extra', False),
    ],
)
def test_a_model_of_pydantic_is_read_and_written_as_json(text: str, fits: bool) -> None:
    read = OutputReader(Output(schema=Answer)).read(text)
    assert (read.complaint is None, read.value if fits else None) == (fits, {"answer": 1} if fits else None)


# -- what outranks and outlasts a verdict ------------------------------------------------------------------------------------


async def test_R28_the_deadline_outranks_a_verdict() -> None:
    async def verify(value: Any, ctx: RunContext) -> Verdict:
        await rig.clock.sleep(60)
        return Verdict.verified()

    rig = Rig(typed("x", '{"answer": 7}', verify=verify, limits=Limits(timeout_seconds=20)))
    async with rig:
        uid = await rig.run()
        view = rig.view(uid)
        assert (view["status"], view["stop"]["reason"], view["output"]) == ("stopped", "deadline", None)


@pytest.mark.parametrize("ends", ["cancelled", "verification_inconclusive"])
async def test_R37_a_verifier_that_blocks_holds_nobody_up(ends: str) -> None:
    """A `def` has a thread: time-out and cancel reach its run, and other runs go on."""
    entered, go = threading.Event(), threading.Event()

    def verify(value: Any, ctx: RunContext) -> Verdict:
        entered.set()
        go.wait(60)
        return Verdict.verified()

    limits = Limits(model_timeout_seconds=9_000 if ends == "cancelled" else 40)
    rig = Rig(typed("x", '{"answer": 7}', verify=verify, limits=limits), agent(*says("quick"), name="other"))
    rig.clock.tools_running = 1
    async with rig:
        uid = await rig.begin()
        await rig.until(entered.is_set)
        assert rig.view(await rig.run("other"))["text"] == "quick"
        if ends == "cancelled":
            await rig.cancel(uid)
        assert (await rig.over(uid)).stop_reason == ends and rig.view(uid)["output"] is None
        go.set()


@pytest.mark.parametrize("kind", ["refuse", "lose"])
async def test_R29_a_commit_that_fails_behind_the_verdict_is_sent_again(kind: str) -> None:
    """While the lease can be held the verdict stands, and nobody is asked again."""
    asked: list[int] = []

    async def verify(value: Any, ctx: RunContext) -> Verdict:
        asked.append(1)
        getattr(rig.faults, kind)("commit", 1, 2)
        return Verdict.verified()

    rig = Rig(typed("x", '{"answer": 7}', verify=verify))
    async with rig:
        uid = await rig.run()
        assert (rig.view(uid)["output"], len(asked), rig.row(uid).leg) == ({"answer": 7}, 1, 1)


@pytest.mark.parametrize("attempts", [1, 2])
async def test_R29_a_verdict_whose_commit_never_came_is_asked_for_again_for_the_same_candidate(attempts: int) -> None:
    """Its worker died between the verdict and its commit: no model call, one attempt more, or the end of them."""
    asked: list[Any] = []

    async def verify(value: Any, ctx: RunContext) -> Verdict:
        asked.append(value)
        if len(asked) == 1:
            gates.append(rig.faults.hold("commit"))
        return Verdict.verified()

    gates: list[Any] = []
    rig = Rig(typed("x", '{"answer": 7}', verify=verify, limits=Limits(max_verify_attempts=attempts)))
    async with rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(gates))
        await rig.reached(gates[0])
        await rig.first.die()
        await rig.start()
        await rig.pass_seconds(2 * TTL)
        await rig.over(uid)
        view = rig.view(uid)
        assert (asked, view["usage"]["model_calls"]) == ([{"answer": 7}] * attempts, 2)
        assert view["output"] == ({"answer": 7} if attempts == 2 else None)
        assert attempts == 2 or view["stop"]["reason"] == "verification_attempts_exhausted"


# -- what is left of answers that are none -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["native", "tool", "prompted"])
async def test_R28_the_raw_text_of_every_failed_candidate_is_kept(mode: Any) -> None:
    """As the model gave it, in the transcript; and the end says what was wrong with the last one, without its value."""
    texts = ["nope, hunter2", '{"answer":  "hunter2"}']
    final = [Reply(tool_calls=[ToolCall("answer", text)]) for text in texts] if mode == "tool" else says(*texts)
    async with Rig(agent(*says("x"), *final, tools=[look], output=Output(schema=SCHEMA, mode=mode))) as rig:
        uid = await rig.run()
        stored = [json.loads(message.content) for message in rig.rows(uid).messages.values() if message.role == "assistant"]
        assert [[part["text"] for part in content] for content in stored] == [["x"], *([text] for text in texts)]
        stop = rig.view(uid)["stop"]
        assert stop["reason"] == "output_attempts_exhausted" and "`answer` must be an integer" in stop["details"]["why"]
        assert "hunter2" not in json.dumps(stop)


async def test_R28_the_last_feedback_of_a_verifier_is_in_the_stop() -> None:
    one = Limits(max_verify_attempts=1)
    async with Rig(typed("x", '{"answer": 7}', verify=lambda value, ctx: Verdict.rejected("not 42"), limits=one)) as rig:
        assert rig.view(await rig.run())["stop"] == {"reason": "verification_attempts_exhausted", "details": {"why": "not 42"}}


async def test_R28_a_validators_own_words_are_quoted_without_the_value() -> None:
    class Strict(BaseModel):
        answer: str

        @field_validator("answer")
        @classmethod
        def is_fine(cls, answer: str) -> str:
            if answer != "fine":
                raise ValueError(f"{answer!r} is not what was agreed on")
            return answer

    async with Rig(typed("x", '{"answer": "hunter2"}', '{"answer": "fine"}', schema=Strict)) as rig:
        uid = await rig.run()
        said = [json.loads(message.content)[0]["text"] for message in rig.rows(uid).messages.values() if message.role == "user"]
        assert "`answer`: Value error, '…' is not what was agreed on" in said[-1] and rig.view(uid)["output"] == {"answer": "fine"}


# -- drafts ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [SCHEMA, Answer])
def test_drafts_never_break_on_a_beginning(schema: Any) -> None:
    """R27: every beginning of an answer gives a draft or none, and a draft never takes back what an earlier one had."""
    text = '```json\n{"title": "a \\"q\\" \\u00e9", "items": [{"n": 1, "deep": {"x": [true, null]}}, {"n": -2.5e3}], "end": "ok"}\n```'
    reader, seen = OutputReader(Output(schema=schema)), list[dict[str, Any]]([{}])
    for length in range(len(text) + 1):
        draft = reader.draft(text[:length])
        if draft is not None:
            assert list(draft)[: len(seen[-1])] == list(seen[-1]), f"after {text[:length]!r}"
            seen.append(draft)
    assert seen[-1] == {"title": 'a "q" é', "items": [{"n": 1, "deep": {"x": [True, None]}}, {"n": -2500.0}], "end": "ok"}


@pytest.mark.parametrize("text", ["", "   ", "hello", "{", "[", '{"a', "[[[[" * 50, '{"a": NaN', "nul", '"text', "12", "```", "```json"])
def test_what_is_no_draft_shows_none(text: str) -> None:
    assert OutputReader(Output(schema=SCHEMA)).draft(text) is None


# -- reading -----------------------------------------------------------------------------------------------------------------

ANY: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ("\n ```\n[1]\n\n```  \n", [1]),
        ("```JSON \n1\n```", 1),
        ('"```"', "```"),
        ('{"a": "\\u0000\\ud800"}', {"a": "\ufffd\ufffd"}),
        ('{"a": "é\x00"}', None),
        ('{"a": "\ud800"}', {"a": "\ufffd"}),
        ("12345678901234567890123", 12345678901234567890123),
        ("1e400", None),
        ("[-1e999]", None),
        ("NaN", None),
        ("[Infinity]", None),
        ("9" * 5_000, None),
        ("```json\n{}", None),
        ("```", None),
        ("``````", None),
        ("```json```", None),
        ("```two words\n1\n```", None),
        ("\ufeff{}", None),
        ("[" * 65 + "]" * 65, ...),
        ("[" * 66 + "]" * 66, None),
        ('"' + "[" * 100 + '"', "[" * 100),
    ],
    ids=lambda each: str(each)[:20],
)
def test_R47_answers_are_read_as_json_and_cleaned(text: str, value: Any) -> None:
    read = OutputReader(Output(schema=ANY)).read(text)
    assert (read.complaint is not None) is (value is None)
    assert value is ... or read.value == value


def test_no_answer_takes_long_to_read() -> None:
    """Whatever a model sends, the loop is not held up: what begins like a fence, and never ends, least of all."""
    reader, began = OutputReader(Output(schema=SCHEMA)), time.perf_counter()
    for text in (
        "```json\n" + "\n" * 200_000 + "x",
        "```" + " " * 200_000,
        "`" * 200_000,
        "[" * 200_000,
        '{"a":' * 50_000,
        '"' + "\\" * 200_001,
    ):
        assert reader.read(text).complaint is not None
        reader.draft(text)
    assert time.perf_counter() - began < 5
