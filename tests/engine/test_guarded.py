"""Guardrails on a run's input and on its answer: what they have not let pass, nobody sees."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from runward import (
    Agent,
    Block,
    Guardrails,
    Limits,
    ModelRequest,
    Output,
    Reply,
    Rewrite,
    RunContext,
    ScriptedModel,
    ToolCall,
    Verdict,
    tool,
)
from runward.core.kernel.actor import Status
from runward.core.messages import Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from tests.engine.rig import DONE, TTL, Rig, agent
from tests.engine.test_holds import hold, parked, release

SECRET = "hunter2"


class Answer(BaseModel):
    answer: str
    note: str = ""


def masked(text: str, ctx: Any) -> Rewrite | None:
    return Rewrite(text.replace(SECRET, "***")) if SECRET in text else None


def loud(text: str, ctx: Any) -> Rewrite:
    return Rewrite(text.upper())


def blocks(value: Any, ctx: Any) -> Block:
    return Block("not today")


def fails(value: Any, ctx: Any) -> Block:
    raise RuntimeError(SECRET)


def is_no_answer(value: Any, ctx: Any) -> Any:
    return True


class Model:
    """Gives replies in turn, and keeps what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.requests: list[ModelRequest] = []
        self._replies = replies

    def __call__(self, request: ModelRequest) -> Reply:
        self.requests.append(request)
        return self._replies[request.step - 1]


def guarded(model: Any, *, tools: Any = (), **hooks: Any) -> Agent:
    output = hooks.pop("output", None)
    limits = hooks.pop("limits", Limits())
    script = ScriptedModel(model, name="script") if callable(model) else ScriptedModel(list(model))
    return agent(model=script, tools=tools, output=output, limits=limits, guardrails=Guardrails(**hooks))


def everything(rig: Rig, uid: str) -> str:
    """All that anybody can read of a run: its journal, its transcript, its view."""
    rows = rig.rows(uid)
    return json.dumps([rig.frames(uid), [message.content for message in rows.messages.values()], rig.view(uid)])


def transcript(rig: Rig, uid: str) -> list[tuple[str, str]]:
    found = [(message.role, json.loads(message.content)) for message in rig.rows(uid).messages.values()]
    return [(role, part.get("text", part.get("output"))) for role, parts in found for part in parts]


# -- input -------------------------------------------------------------------------------------------------------------------


async def test_input_reaches_the_model_and_the_transcript_as_guardrails_leave_it() -> None:
    """R10 does not come into it: a rewritten input is an input. Each guardrail sees what those before it have left."""
    model = Model(DONE)
    async with Rig(guarded(model, on_input=[masked, loud])) as rig:
        uid = await rig.run(text=f"my password is {SECRET}")
        assert [message.text for message in model.requests[0].messages] == ["MY PASSWORD IS ***"]
        assert transcript(rig, uid) == [("user", "MY PASSWORD IS ***"), ("assistant", "done")]
        assert SECRET not in everything(rig, uid)
        said = [(frame["hook"], frame["action"], frame["name"]) for frame in rig.frames(uid, "guardrail")]
        assert said == [("on_input", "rewrite", "masked"), ("on_input", "rewrite", "loud")]
        assert rig.row(uid).status is Status.COMPLETED


async def test_R10_a_blocked_input_stops_the_run_and_no_model_is_asked() -> None:
    model = Model(DONE)
    async with Rig(guarded(model, on_input=[masked, blocks, loud])) as rig:
        uid = await rig.run(text=SECRET)
        view = rig.view(uid)
        assert (view["status"], view["stop"]) == (
            "stopped",
            {"reason": "guardrail_input", "details": {"hook": "on_input", "guardrail": "blocks", "reason": "not today"}},
        )
        assert model.requests == [] and view["usage"]["model_calls"] == 0 and transcript(rig, uid) == []
        assert SECRET not in everything(rig, uid)
        assert [frame["action"] for frame in rig.frames(uid, "guardrail")] == ["rewrite", "block"]
        assert rig.row(uid).stop_reason == "guardrail_input"


async def test_every_text_of_an_input_is_looked_at_whoever_wrote_it() -> None:
    seen: list[str] = []

    def sees(text: str, ctx: RunContext) -> Rewrite | None:
        seen.append(text)
        assert len(ctx.messages) == 4
        return masked(text, ctx)

    model = Model(DONE)
    async with Rig(guarded(model, on_input=sees)) as rig:
        history = [
            Message(seq=1, role="user", content=(TextPart(text=f"one {SECRET}"),)),
            Message(
                seq=2,
                role="assistant",
                content=(
                    ReasoningPart(text=f"two {SECRET}"),
                    ToolCallPart(tool_call_id="a", tool_name="look", arguments={"password": SECRET}),
                    ToolCallPart(tool_call_id="b", tool_name="look", arguments="no object"),
                ),
            ),
            Message(
                seq=3,
                role="tool",
                content=(
                    ToolResultPart(tool_call_id="a", tool_name="look", output=[1, SECRET]),
                    ToolResultPart(tool_call_id="b", tool_name="look", output=f"three {SECRET}"),
                ),
            ),
            Message(seq=4, role="user", content=(TextPart(text="four"),)),
        ]
        uid = await rig.run(messages=history)
        assert seen == ["one hunter2", "two hunter2", '{"password": "hunter2"}', "no object", '[1, "hunter2"]', "three hunter2", "four"]
        assert SECRET not in everything(rig, uid)
        asked = model.requests[0].messages
        assert asked[1].tool_calls[0].arguments == {"password": "***"} and asked[1].tool_calls[1].arguments == "no object"
        assert [result.output for result in asked[2].tool_results] == [[1, "***"], "three ***"]
        assert len(rig.frames(uid, "guardrail")) == 1, "one for all texts that it rewrote"


async def test_input_that_guardrails_have_not_seen_is_sealed_and_no_model_function_sees_it() -> None:
    chosen: list[str] = []

    def choose(ctx: RunContext) -> str:
        chosen.append(ctx.messages[0].text)
        return "scripted:chosen"

    held = agent(DONE, guardrails=Guardrails(on_input=masked))
    other = Agent(name="agent", model=choose, fallback_models=[ScriptedModel([DONE], name="chosen")], guardrails=held.guardrails)
    async with Rig(other, secret="a secret key of some length", worker=False) as rig:
        uid = await rig.begin(text=SECRET)
        assert SECRET not in everything(rig, uid) and SECRET not in (rig.row(uid).context or "") and SECRET not in rig.row(uid).state
        await rig.start()
        await rig.over(uid)
        assert chosen == ["***"] and rig.row(uid).status is Status.COMPLETED


async def test_a_leg_that_dies_between_guardrail_and_commit_says_what_it_did_once() -> None:
    asked: list[str] = []

    def counts(text: str, ctx: Any) -> Rewrite:
        asked.append(text)
        return Rewrite("rewritten")

    model = Model(DONE)
    async with Rig(guarded(model, on_input=counts)) as rig:
        gate = rig.faults.hold("commit")
        uid = await rig.begin(text=SECRET)
        await rig.reached(gate)
        assert asked == [SECRET] and model.requests == [], "no model is asked before it is durable what it is asked"
        await rig.first.die()
        await rig.start()
        await rig.pass_seconds(2 * TTL)
        await rig.over(uid)
        assert asked == [SECRET, SECRET] and len(rig.frames(uid, "guardrail")) == 1
        assert transcript(rig, uid) == [("user", "rewritten"), ("assistant", "done")]


async def test_R37_a_cancel_outranks_a_guardrail_that_never_answers() -> None:
    entered: list[int] = []

    async def waits(text: str, ctx: Any) -> None:
        entered.append(1)
        await rig.clock.sleep(50_000)

    rig = Rig(guarded(Model(DONE), on_input=waits))
    async with rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(entered))
        await rig.cancel(uid)
        assert (await rig.over(uid)).stop_reason == "cancelled"


# -- output ------------------------------------------------------------------------------------------------------------------


async def test_an_answer_is_shown_only_as_guardrails_leave_it() -> None:
    """R32: the stream, folded, is the transcript; not a word of what was rewritten was ever on it."""
    replies = (Reply(text="I look", tool_calls=[ToolCall("look")]), Reply(text=f"it is {SECRET}", reasoning=f"hm, {SECRET}"))

    @tool(effect="read")
    async def look() -> str:
        return "seen"

    async with Rig(guarded(replies, tools=[look], on_output=[masked, loud])) as rig:
        uid = await rig.run()
        view = rig.view(uid)
        assert (view["status"], view["text"]) == ("completed", "IT IS ***")
        assert SECRET not in everything(rig, uid)
        assert [(frame["step"], frame["delta"]) for frame in rig.frames(uid, "text-delta")] == [(1, "I look"), (2, "IT IS ***")]
        assert transcript(rig, uid)[-1] == ("assistant", "IT IS ***")
        assert [frame["hook"] for frame in rig.frames(uid, "guardrail")] == ["on_output", "on_output"]
        assert view["usage"]["model_calls"] == 2 and rig.types(uid).count("finish-step") == 2


async def test_an_answer_that_passes_keeps_all_of_itself() -> None:
    async with Rig(guarded([Reply(text="plain", reasoning="thought")], on_output=masked)) as rig:
        uid = await rig.run()
        assert transcript(rig, uid)[-2:] == [("assistant", "thought"), ("assistant", "plain")]
        assert rig.frames(uid, "guardrail") == [] and [frame["delta"] for frame in rig.frames(uid, "reasoning-delta")] == ["thought"]


async def test_R10_a_blocked_answer_stops_the_run_and_is_nowhere_to_be_read() -> None:
    async with Rig(guarded([Reply(text=SECRET)], on_output=[blocks, fails])) as rig:
        uid = await rig.run()
        view = rig.view(uid)
        assert (view["status"], view["text"], view["output"]) == ("stopped", None, None)
        assert view["stop"] == {
            "reason": "guardrail_output",
            "details": {"hook": "on_output", "guardrail": "blocks", "reason": "not today"},
        }
        assert SECRET not in everything(rig, uid) and view["usage"]["model_calls"] == 1 and view["usage"]["output_tokens"] > 0
        assert "reset-step" in rig.types(uid) and "finish-step" not in rig.types(uid)


@pytest.mark.parametrize("finish", ["length", "refusal", "content_filter"])
async def test_an_answer_that_was_cut_off_is_looked_at_as_well(finish: Any) -> None:
    """R10: its text is kept, so that it is shown."""
    async with Rig(guarded([Reply(text=SECRET, finish=finish)], on_output=masked)) as rig:
        uid = await rig.run()
        assert (rig.view(uid)["stop"]["reason"], rig.view(uid)["text"]) == (finish, "***") and SECRET not in everything(rig, uid)
    turn = Reply(text=SECRET, tool_calls=[ToolCall("look")], finish=finish)

    @tool(effect="read")
    async def look() -> None: ...

    async with Rig(guarded([turn], tools=[look], on_output=masked)) as rig:
        uid = await rig.run()
        assert (rig.view(uid)["stop"]["reason"], rig.view(uid)["text"]) == (finish, "***") and len(rig.results(uid)) == 1


async def test_typed_answers_are_rewritten_as_values_and_verified_as_they_are_left() -> None:
    """R28: the verifier sees what the guardrails have left, and what it saw is the answer."""
    seen: list[Any] = []

    def adds(value: Answer, ctx: Any) -> Rewrite:
        return Rewrite(value.model_copy(update={"note": value.note + "+"}))

    def hides(value: Answer, ctx: Any) -> Rewrite:
        return Rewrite({"answer": value.answer.replace(SECRET, "***"), "note": value.note + "-"})

    def verify(value: Answer, ctx: RunContext) -> Verdict:
        seen.append(value)
        assert SECRET not in "".join(message.text for message in ctx.messages)
        return Verdict.verified() if len(seen) == 2 else Verdict.rejected("again")

    texts = [json.dumps({"answer": f"{SECRET} {number}"}) for number in (1, 2)]
    output = Output(schema=Answer, verify=verify)
    async with Rig(guarded([Reply(text=text) for text in texts], on_output=[adds, hides], output=output)) as rig:
        uid = await rig.run()
        assert seen == [Answer(answer="*** 1", note="+-"), Answer(answer="*** 2", note="+-")]
        view = rig.view(uid)
        assert view["output"] == {"answer": "*** 2", "note": "+-"} and json.loads(view["text"]) == view["output"]
        assert SECRET not in everything(rig, uid) and not any("partial" in frame["data"] for frame in rig.frames(uid, "data-agent"))


async def test_what_is_no_candidate_is_repaired_before_guardrails_are_asked() -> None:
    seen: list[Any] = []
    texts = ["nope", '{"answer": "yes"}']
    output = Output(schema=Answer)
    async with Rig(guarded([Reply(text=text) for text in texts], on_output=lambda value, ctx: seen.append(value), output=output)) as rig:
        uid = await rig.run()
        assert seen == [Answer(answer="yes")] and rig.view(uid)["output"] == {"answer": "yes", "note": ""}


async def test_a_blocked_typed_answer_is_no_answer() -> None:
    asked: list[int] = []

    def verify(value: Any, ctx: Any) -> Verdict:
        asked.append(1)
        return Verdict.verified()

    output = Output(schema=Answer, verify=verify)
    async with Rig(guarded([Reply(text='{"answer": "hunter2"}')], on_output=blocks, output=output)) as rig:
        uid = await rig.run()
        view = rig.view(uid)
        assert (view["stop"]["reason"], view["output"], asked) == ("guardrail_output", None, []) and SECRET not in everything(rig, uid)


@pytest.mark.parametrize(
    ("hook", "guardrail"),
    [
        ("on_input", fails),
        ("on_input", is_no_answer),
        ("on_input", lambda text, ctx: Rewrite(7)),
        ("on_output", fails),
        ("on_output", is_no_answer),
        ("on_output", lambda text, ctx: Rewrite(None)),
    ],
)
async def test_R9_a_guardrail_that_fails_has_let_nothing_pass(hook: str, guardrail: Any) -> None:
    model = Model(Reply(text="an answer"))
    async with Rig(guarded(model, **{hook: guardrail})) as rig:
        uid = await rig.run(text="an input")
        error = rig.view(uid)["error"]
        assert (rig.row(uid).status, error["code"]) == (Status.FAILED, "guardrail_failed") and SECRET not in json.dumps(error)
        assert len(model.requests) == (hook == "on_output") and "an answer" not in everything(rig, uid)


@pytest.mark.parametrize("rewritten", [{"answer": 7}, {}, "text", object(), float("nan"), {"answer": "x", "more": object()}])
async def test_R9_an_answer_that_is_rewritten_to_what_does_not_fit_is_no_answer(rewritten: Any) -> None:
    output = Output(schema=Answer)
    async with Rig(guarded([Reply(text='{"answer": "yes"}')], on_output=lambda value, ctx: Rewrite(rewritten), output=output)) as rig:
        uid = await rig.run()
        assert (rig.view(uid)["error"]["code"], rig.view(uid)["output"]) == ("guardrail_failed", None)


async def test_R9_a_guardrail_that_takes_too_long_has_failed() -> None:
    async def waits(value: Any, ctx: Any) -> None:
        await rig.clock.sleep(10_000)

    rig = Rig(guarded(Model(DONE), on_output=waits, limits=Limits(model_timeout_seconds=30)))
    async with rig:
        uid = await rig.run()
        assert rig.view(uid)["error"]["code"] == "guardrail_failed" and "in time" in rig.view(uid)["error"]["message"]


async def test_a_leg_that_dies_before_an_answer_is_guarded_asks_guardrails_again_and_no_model() -> None:
    """The answer is durable by then, and nobody has seen it; what the guardrails did is said once."""
    asked: list[str] = []

    async def counts(text: str, ctx: Any) -> Rewrite:
        asked.append(text)
        if len(asked) < 3:
            await rig.clock.sleep(5_000)
        return Rewrite("rewritten")

    model = Model(Reply(text=SECRET))
    rig = Rig(guarded(model, on_output=counts, limits=Limits(model_timeout_seconds=9_000)))
    async with rig:
        uid = await rig.begin()
        for number in (1, 2):
            await rig.until(lambda number=number: len(asked) == number)  # type: ignore[misc]
            await rig.pass_seconds(1)
            assert SECRET not in everything(rig, uid)
            await rig.processes[-1].die()
            await rig.start()
        await rig.pass_seconds(3 * TTL)
        await rig.over(uid)
        assert len(asked) == 3 and len(model.requests) == 1 and rig.view(uid)["usage"]["model_calls"] == 1
        assert rig.view(uid)["text"] == "rewritten" and len(rig.frames(uid, "guardrail")) == 1
        assert SECRET not in everything(rig, uid)


async def test_a_leg_that_dies_between_guardrail_and_commit_has_shown_nothing() -> None:
    model = Model(Reply(text=SECRET))
    async with Rig(guarded(model, on_output=masked)) as rig:
        uid = await rig.begin()
        gate = rig.faults.hold("commit")
        await rig.reached(gate)
        assert len(model.requests) == 1 and rig.frames(uid, "guardrail") == [] and rig.frames(uid, "text-delta") == []
        await rig.first.die()
        await rig.start()
        await rig.pass_seconds(2 * TTL)
        await rig.over(uid)
        assert rig.view(uid)["text"] == "***" and len(rig.frames(uid, "guardrail")) == 1 and SECRET not in everything(rig, uid)


async def test_guardrails_cost_nothing_where_there_are_none_and_one_write_at_most_where_there_are() -> None:
    """A fast guardrail on output shares the commit of the answer; one on input has a commit of its own, before the model is asked."""

    async def commits(**hooks: Any) -> int:
        async with Rig(guarded([Reply(text="x")], **hooks)) as rig:
            uid = await rig.run()
            assert rig.row(uid).status is Status.COMPLETED
            return rig.faults.counts["commit"]

    plain = await commits()
    assert (await commits(on_output=masked), await commits(on_input=masked)) == (plain, plain + 1)


async def test_R39_a_held_run_keeps_its_answer_until_it_is_released() -> None:
    entered: list[int] = []

    async def waits(text: str, ctx: Any) -> None:
        entered.append(1)
        await rig.clock.sleep(3)

    model = Model(Reply(text="answer"))
    rig = Rig(guarded(model, on_output=waits))
    async with rig:
        uid = await rig.begin()
        await rig.until(lambda: bool(entered))
        await hold(rig, uid)
        await parked(rig, uid)
        assert rig.view(uid)["text"] is None and "answer" not in everything(rig, uid)
        await release(rig, uid)
        await rig.until(lambda: rig.row(uid).status is Status.COMPLETED)
        assert len(model.requests) == 1 and len(entered) == 2 and rig.view(uid)["text"] == "answer"
