"""Whole answers of providers: text, thoughts, calls, how they ended and what they cost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic_ai.messages import PartStartEvent
from pydantic_ai.messages import ToolCallPart as LibraryCall

from runward.core.usage import Usage
from runward.models.answers import Deltas
from runward.models.failures import Broken
from runward.ports.models import AskedCall, ModelDelta
from tests.fakes import Answer, Call, Ending, Plain, Tokens
from tests.models.calls import CHAT, CLAUDE, RESPONSES, WIRES, line, request

PARIS = '{"city": "Paris",  "n": 1.0}'
ROME = '{"city": "Rome"}'
CALLS = [Call(name="weather", arguments=PARIS, id="call_a"), Call(name="weather", arguments=ROME, id="call_b", piece=3)]


@pytest.mark.parametrize("model", WIRES)
async def test_an_answer_is_the_sum_of_its_deltas(model: str) -> None:
    async with line(model) as wire:
        wire.fake.reply(
            Answer(text="It is sunny  in Paris.\n", thinking="They want the weather.", signature="sig", encrypted="enc", calls=CALLS)
        )
        answer = await wire.ask()
        assert answer.text == wire.streamed("text") == "It is sunny  in Paris.\n"
        assert answer.reasoning == wire.streamed("reasoning") == "They want the weather."
        assert answer.calls == tuple(AskedCall(provider_id=call.id, tool_name="weather", arguments=call.arguments) for call in CALLS)
        assert wire.calls_streamed() == {(1, "weather"): PARIS, (2, "weather"): ROME}
        assert len(wire.deltas) > 12, "it came in pieces"
        assert (answer.finish, answer.model) == ("tool_calls", model)
        assert len(wire.fake.requests) == 1


@pytest.mark.parametrize(
    ("model", "mark", "finish"),
    [
        (CHAT, "stop", "stop"),
        (CHAT, "length", "length"),
        (CHAT, "content_filter", "content_filter"),
        (CHAT, "eos_token", "stop"),
        (RESPONSES, "length", "length"),
        (RESPONSES, "content_filter", "content_filter"),
        (CLAUDE, "end_turn", "stop"),
        (CLAUDE, "stop_sequence", "stop"),
        (CLAUDE, "max_tokens", "length"),
        (CLAUDE, "model_context_window_exceeded", "length"),
        (CLAUDE, "refusal", "refusal"),
    ],
)
async def test_every_finish_has_one_name(model: str, mark: str, finish: str) -> None:
    async with line(model) as wire:
        wire.fake.reply(Answer(text="Well", finish=mark))
        assert (await wire.ask()).finish == finish


async def test_calls_under_a_plain_stop_are_calls() -> None:
    """Servers say so where a call was forced by name."""
    async with line(CHAT) as wire:
        wire.fake.reply(Answer(calls=CALLS, finish="stop"))
        assert (await wire.ask()).finish == "tool_calls"


async def test_a_cut_off_call_stays_cut_off() -> None:
    async with line(CHAT) as wire:
        wire.fake.reply(Answer(calls=[Call(name="weather", arguments='{"city": "Pa')], finish="length"))
        answer = await wire.ask()
        assert (answer.finish, answer.calls[0].arguments) == ("length", '{"city": "Pa')


@pytest.mark.parametrize("model", WIRES)
async def test_a_refusal_says_why_and_streams_it(model: str) -> None:
    async with line(model) as wire:
        wire.fake.reply(Answer(refusal="I cannot help with that."))
        answer = await wire.ask()
        assert (answer.finish, answer.text) == ("refusal", "I cannot help with that.")
        assert wire.streamed("text") == answer.text


async def test_chunks_as_other_servers_send_them() -> None:
    """Without a choice or a delta, with words of their own, with reasoning beside the text."""
    chunks: list[dict[str, Any]] = [
        {"id": "", "choices": [], "prompt_filter_results": []},
        {"id": "1", "choices": None},
        {"id": "1", "service_tier": "on_demand", "choices": [{"index": 0, "delta": {"content": "Sun", "reasoning": "hm"}}]},
        {"id": "1", "choices": [{"index": 0, "delta": None, "content_filter_results": {}}]},
        {"id": "1", "choices": [{"index": 0, "delta": {"content": "ny"}, "finish_reason": "eos"}]},
    ]
    body = "".join(f": a comment\r\ndata: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks)
    async with line(CHAT) as wire:
        wire.fake.reply(Plain(status=200, body=body, content_type="text/event-stream"))
        answer = await wire.ask()
        assert (answer.text, answer.reasoning, answer.finish) == ("Sunny", "hm", "stop")


@pytest.mark.parametrize("model", WIRES)
async def test_an_empty_answer_is_an_answer(model: str) -> None:
    async with line(model) as wire:
        wire.fake.reply(Answer())
        answer = await wire.ask()
        assert (answer.text, answer.calls, answer.finish) == ("", (), "stop")


@pytest.mark.parametrize(
    ("model", "tokens", "usage"),
    [
        (
            CHAT,
            Tokens(input=60, output=9, cache_read=20, reasoning=4),
            Usage(input_tokens=60, output_tokens=9, cache_read_tokens=20, reasoning_tokens=4),
        ),
        (
            RESPONSES,
            Tokens(input=60, output=9, cache_read=20, reasoning=4),
            Usage(input_tokens=60, output_tokens=9, cache_read_tokens=20, reasoning_tokens=4),
        ),
        (
            CLAUDE,
            Tokens(input=10, output=9, cache_read=20, cache_write=30, reasoning=4),
            Usage(input_tokens=60, output_tokens=9, cache_read_tokens=20, cache_write_tokens=30, reasoning_tokens=4),
        ),
    ],
)
async def test_input_tokens_include_the_cache(model: str, tokens: Tokens, usage: Usage) -> None:
    async with line(model) as wire:
        wire.fake.reply(Answer(text="Hello", usage=tokens))
        assert (await wire.ask()).usage == usage


@pytest.mark.parametrize("model", WIRES)
async def test_usage_that_nobody_told_is_unknown(model: str) -> None:
    async with line(model) as wire:
        wire.fake.reply(Answer(text="Hello", usage=None))
        assert (await wire.ask()).usage == Usage()


async def test_R47_text_is_cleaned_on_entry() -> None:
    """NUL and lone surrogates, also one that is split over two chunks; what is streamed and what is kept agree."""
    async with line(CHAT) as wire:
        wire.fake.reply(
            Answer(pieces=["a\x00b", "\ud83d", "\ude00 c"], calls=[Call(name="we\x00ather", arguments='{"city": "\\ud800"}\x00')])
        )
        answer = await wire.ask()
        assert answer.text == wire.streamed("text") == "a\ufffdb\ufffd\ufffd c"
        assert (answer.calls[0].tool_name, answer.calls[0].arguments) == ("we\ufffdather", '{"city": "\\ud800"}\ufffd')
        assert answer.opaque is None, "no bytes can hold it"


async def test_F60_strange_calls_come_through_as_they_are() -> None:
    strange = [
        Call(name="", arguments="{}", id="a"),
        Call(name="wëather 🌦", arguments="not json", id="b"),
        Call(name="x" * 10_000, arguments="[1, 2]", id="c"),
        Call(name="weather", arguments="", id=""),
    ]
    async with line(CHAT) as wire:
        wire.fake.reply(Answer(calls=strange))
        answer = await wire.ask()
        assert [(call.tool_name, call.arguments) for call in answer.calls] == [(call.name, call.arguments) for call in strange]


@pytest.mark.parametrize("model", WIRES)
async def test_F61_calls_that_share_an_id_stay_apart(model: str) -> None:
    twins = [Call(name="weather", arguments=PARIS, id="call_1"), Call(name="weather", arguments=ROME, id="call_1")]
    async with line(model) as wire:
        wire.fake.reply(Answer(calls=twins))
        assert [call.arguments for call in (await wire.ask()).calls] == [PARIS, ROME]


async def test_F61_too_many_calls_are_no_answer() -> None:
    async with line(CHAT) as wire:
        wire.fake.reply(Answer(calls=[Call(name="weather", arguments="{}", id=f"call_{number}") for number in range(500)]))
        assert (await wire.fail()).kind == "bad_response"


def test_calls_that_begin_out_of_order_are_no_answer() -> None:
    """A delta's number is its call's place in the answer; it cannot be taken back."""
    deltas = Deltas()
    assert deltas.of(PartStartEvent(index=1, part=LibraryCall("weather", "{}", "b"))) == ModelDelta(
        kind="tool_input", text="{}", index=1, tool_name="weather"
    )
    with pytest.raises(Broken):
        deltas.of(PartStartEvent(index=0, part=LibraryCall("weather", "{}", "a")))


async def test_R47_an_answer_has_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runward.models.answers.MAX_CHARACTERS", 100)
    async with line(CHAT) as wire:
        wire.fake.reply(Answer(text="x" * 100), Answer(text="word " * 10, calls=[Call(name="weather", arguments="x" * 51)]))
        assert len((await wire.ask()).text) == 100
        assert (await wire.fail()).kind == "bad_response"


@pytest.mark.parametrize("model", WIRES)
async def test_deltas_are_awaited_one_after_the_other(model: str) -> None:
    """A slow journal slows the stream down instead of filling memory."""
    inside: list[str] = []
    seen: list[str] = []

    async def slowly(delta: ModelDelta) -> None:
        assert not inside
        inside.append(delta.text)
        await asyncio.sleep(0)
        seen.append(inside.pop())

    async with line(model) as wire:
        wire.fake.reply(Answer(text="one two three"))
        await wire.client.call(request(), slowly)
    assert seen == ["one ", "two ", "three"]


@pytest.mark.parametrize("model", WIRES)
async def test_what_goes_wrong_with_a_delta_is_not_the_providers_fault(model: str) -> None:
    async def lost(delta: ModelDelta) -> None:
        raise LookupError("the lease is gone")

    async with line(model) as wire:
        wire.fake.reply(Answer(text="one two three", ending=Ending.HANG))
        with pytest.raises(LookupError, match="the lease is gone") as caught:
            await wire.client.call(request(), lost)
        await asyncio.wait_for(wire.fake.requests[0].disconnected.wait(), 5)
        assert caught.tb is not None, "closed by the client, not by the garbage collection of its frames"
