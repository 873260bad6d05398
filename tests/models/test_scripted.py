"""The model that answers from a script."""

from __future__ import annotations

import json

import pytest

from runward.agents.models import Reply, ReplyError, ScriptedModel, ToolCall
from runward.core.errors import DefinitionError
from runward.core.usage import Usage
from runward.models.scripted import ScriptedClient
from runward.ports.models import AskedCall, ModelAnswer, ModelCallError, ModelDelta, ModelRequest
from tests.models.calls import answered, request, said


class Watch:
    """A clock that goes forward by what is slept."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Scene:
    """A scripted client and what came of its last call."""

    def __init__(self, model: ScriptedModel) -> None:
        self.clock = Watch()
        self.client = ScriptedClient(model, self.clock)
        self.deltas: list[ModelDelta] = []

    async def ask(self, asked: ModelRequest | None = None) -> ModelAnswer:
        self.deltas.clear()
        return await self.client.call(asked or request(), self.heard)

    async def fail(self, asked: ModelRequest | None = None) -> ModelCallError:
        with pytest.raises(ModelCallError) as caught:
            await self.ask(asked)
        return caught.value

    async def heard(self, delta: ModelDelta) -> None:
        self.deltas.append(delta)

    def streamed(self, kind: str) -> list[str]:
        return [delta.text for delta in self.deltas if delta.kind == kind]


def scene(*replies: Reply) -> Scene:
    return Scene(ScriptedModel(replies))


async def test_turn_n_is_answered_with_reply_n() -> None:
    """Whatever the transcript says, so that it is the same after a crash."""
    on = scene(Reply(text="one"), Reply(text="two"), Reply(text="three"))
    assert [(await on.ask(request(step=step))).text for step in (1, 3, 2, 2)] == ["one", "three", "two", "two"]


async def test_a_script_that_is_over_says_so() -> None:
    error = await scene(Reply(text="one")).fail(request(step=2))
    assert (error.kind, error.transient, error.billed) == ("rejected", False, False)
    assert "1 replies" in error.message and "turn 2" in error.message


async def test_an_answer_is_the_sum_of_its_deltas() -> None:
    on = scene(
        Reply(text="It is  sunny.\n", reasoning="Easy.", tool_calls=[ToolCall("weather", {"city": "Zürich"}, "x"), ToolCall("time")])
    )
    answer = await on.ask()
    assert (on.streamed("reasoning"), on.streamed("text")) == (["Easy."], ["It is  sunny.\n"]), "in one piece, where nobody waits"
    calls = [delta for delta in on.deltas if delta.kind == "tool_input"]
    assert [(delta.index, delta.tool_name, delta.text) for delta in calls] == [(1, "weather", '{"city": "Zürich"}'), (2, "time", "{}")]
    assert answer.calls == (
        AskedCall(provider_id="x", tool_name="weather", arguments='{"city": "Zürich"}'),
        AskedCall(provider_id="", tool_name="time", arguments="{}"),
    )
    assert (answer.text, answer.reasoning, answer.finish) == ("It is  sunny.\n", "Easy.", "tool_calls")
    assert answer.model == on.client.name == "scripted:script"
    assert on.clock.slept == []


@pytest.mark.parametrize("text", ["", "word", "  It is  sunny.\n\nYes. ", " ", "\n"])
async def test_words_come_one_by_one_after_a_delay(text: str) -> None:
    on = scene(Reply(text=text, chunk_delay_seconds=0.5))
    assert (await on.ask()).text == text == "".join(on.streamed("text"))
    assert on.clock.slept == [0.5] * len(on.deltas)
    assert len(on.deltas) <= max(1, len(text.split()) + 1)


async def test_everything_that_is_streamed_is_slept_for() -> None:
    on = scene(Reply(text="It is sunny.", reasoning="So easy.", tool_calls=[ToolCall("weather")], chunk_delay_seconds=2))
    await on.ask(request(timeout_seconds=60))
    assert (on.streamed("reasoning"), on.streamed("text")) == (["So ", "easy."], ["It ", "is ", "sunny."])
    assert on.clock.slept == [2.0] * 6


@pytest.mark.parametrize(
    ("delay", "limits", "at", "heard"),
    [
        (3.0, {"first_event_timeout_seconds": 2, "chunk_timeout_seconds": 9}, 102.0, 0),
        (3.0, {"first_event_timeout_seconds": 9, "chunk_timeout_seconds": 2}, 105.0, 1),
        (3.0, {"timeout_seconds": 7, "first_event_timeout_seconds": 9, "chunk_timeout_seconds": 9}, 107.0, 2),
    ],
)
async def test_it_gives_up_where_a_providers_client_would(delay: float, limits: dict[str, float], at: float, heard: int) -> None:
    on = scene(Reply(text="one two three four", chunk_delay_seconds=delay))
    error = await on.fail(request(**limits))
    assert (error.kind, error.transient, error.billed, error.after_content) == ("timeout", True, True, heard > 0)
    assert (on.clock.now, len(on.deltas)) == (at, heard)


@pytest.mark.parametrize(
    ("error", "kind", "transient", "billed", "status"),
    [
        ("rate_limited", "rate_limited", True, False, 429),
        ("server_error", "server_error", True, False, 500),
        ("timeout", "timeout", True, True, None),
        ("bad_request", "rejected", False, False, 400),
        ("content_filter", "content_filter", False, False, None),
    ],
)
async def test_errors_come_before_any_content_on_every_attempt(
    error: ReplyError, kind: str, transient: bool, billed: bool, status: int | None
) -> None:
    on = scene(Reply(text="never heard", tool_calls=[ToolCall("weather")], error=error, chunk_delay_seconds=1))
    for attempt in (1, 2):
        failed = await on.fail(request(attempt=attempt))
        assert (failed.kind, failed.transient, failed.billed, failed.after_content, failed.status) == (
            kind,
            transient,
            billed,
            False,
            status,
        )
        assert on.deltas == [] and on.clock.slept == []


@pytest.mark.parametrize("delay", [0, 0.1])
async def test_a_stream_that_breaks_off_does_so_behind_all_of_its_text(delay: float) -> None:
    on = scene(Reply(text="half a sen", tool_calls=[ToolCall("weather")], error="disconnect_mid_stream", chunk_delay_seconds=delay))
    failed = await on.fail()
    assert (failed.kind, failed.transient, failed.billed, failed.after_content) == ("network", True, True, True)
    assert "".join(on.streamed("text")) == "half a sen" and on.streamed("tool_input") == []


async def test_a_function_sees_the_request_and_answers_sync_or_async() -> None:
    def reply(asked: ModelRequest) -> Reply:
        turn = sum(message.role == "assistant" for message in asked.messages)
        return Reply(
            text=f"turn {turn} of {asked.agent}, step {asked.step}: {asked.messages[0].text} {[tool.name for tool in asked.tools]}"
        )

    async def later(asked: ModelRequest) -> Reply:
        return reply(asked)

    for model in (ScriptedModel(reply), ScriptedModel(later)):
        on = Scene(model)
        first = await on.ask(request(said("Hi")))
        assert first.text == "turn 0 of weatherman, step 1: Hi ['weather']"
        assert (await on.ask(request(said("Hi"), answered(first), step=2))).text.startswith("turn 1 of weatherman, step 2")


async def test_a_function_that_returns_something_else_is_named() -> None:
    def wrong(asked: ModelRequest) -> Reply:
        return "a text"  # type: ignore[return-value]

    with pytest.raises(DefinitionError, match=r"scripted:wrong.*returned str"):
        await Scene(ScriptedModel(wrong)).ask()


async def test_R47_text_is_cleaned_on_entry() -> None:
    on = scene(Reply(text="a\x00b\ud800", tool_calls=[ToolCall("we\x00ather", "not json \ud800")]))
    answer = await on.ask()
    assert answer.text == "".join(on.streamed("text")) == "a\ufffdb\ufffd"
    assert answer.calls[0] == AskedCall(provider_id="", tool_name="we\ufffdather", arguments="not json \ufffd")


async def test_usage_is_what_the_reply_says_or_an_estimate_above_zero() -> None:
    usage = Usage(input_tokens=3, output_tokens=4, cache_read_tokens=1)
    assert (await scene(Reply(text="x", usage=usage)).ask()).usage == usage
    estimate = (await scene(Reply()).ask(request(said(""), instructions=""))).usage
    assert estimate.input_tokens > 0 and estimate.output_tokens > 0
    longer = (await scene(Reply(text="word " * 100)).ask(request(said("word " * 200)))).usage
    assert longer.output_tokens > 100 and longer.input_tokens > 200


@pytest.mark.parametrize(
    ("reply", "finish"),
    [
        (Reply(), "stop"),
        (Reply(tool_calls=[ToolCall("weather")]), "tool_calls"),
        (Reply(tool_calls=[ToolCall("weather")], finish="tool_calls"), "tool_calls"),
        (Reply(finish="tool_calls"), "stop"),
        (Reply(tool_calls=[ToolCall("weather")], finish="length"), "length"),
        (Reply(text="No.", finish="refusal"), "refusal"),
        (Reply(finish="content_filter"), "content_filter"),
    ],
)
async def test_how_it_ended(reply: Reply, finish: str) -> None:
    assert (await scene(reply).ask()).finish == finish


async def test_arguments_are_json_the_core_reads() -> None:
    on = scene(Reply(tool_calls=[ToolCall("weather", {"n": 1, "f": 1.0, "list": [None, True]})]))
    assert json.loads((await on.ask()).calls[0].arguments) == {"n": 1, "f": 1.0, "list": [None, True]}
