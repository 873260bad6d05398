"""What goes back to a provider: its own answers unchanged, everybody else's in our words, and results under ids that fit."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from runward.core.messages import FilePart, Message, TextPart, ToolCallPart, ToolResultPart
from runward.ports.models import ModelAnswer
from tests.fakes import Answer, Call
from tests.models.calls import CHAT, CLAUDE, RESPONSES, WIRES, Line, answered, line, request, results, said

SIGNATURE = base64.b64encode(bytes(range(256))).decode()
REDACTED = base64.b64encode(b"redacted" * 40).decode()
PARIS = '{"city": "Paris",  "n": 1.0, "big": 12345678901234567890123, "\\u00e9": null}'
FULL = Answer(
    text="Let me look.",
    thinking="They want the weather.",
    signature=SIGNATURE,
    redacted=REDACTED,
    encrypted=SIGNATURE,
    calls=[Call(name="weather", arguments=PARIS, id="call_a"), Call(name="weather", arguments="{}", id="call_b")],
)


async def goes_back(wire: Line, given: ModelAnswer, model: str | None = None) -> dict[str, Any]:
    """What is sent after this answer and its results, by this client or by one of another model of the same provider."""
    client = wire.client if model is None else wire.clients.client(model)
    await client.call(request(said("What is the weather?"), answered(given), results(given)), wire.heard)
    sent: dict[str, Any] = wire.fake.requests[-1].json
    return sent


async def test_thoughts_of_claude_go_back_byte_for_byte() -> None:
    async with line(CLAUDE) as wire:
        wire.fake.reply(FULL)
        sent = await goes_back(wire, await wire.ask())
        _, assistant, user = sent["messages"]
        assert assistant["content"][:3] == [
            {"type": "thinking", "thinking": "They want the weather.", "signature": SIGNATURE},
            {"type": "redacted_thinking", "data": REDACTED},
            {"type": "text", "text": "Let me look."},
        ]
        assert [(block["id"], block["input"]) for block in assistant["content"][3:]] == [("call_a", json.loads(PARIS)), ("call_b", {})]
        assert [(block["tool_use_id"], block["content"][0]["text"]) for block in user["content"]] == [
            ("call_a", "result 1"),
            ("call_b", "result 2"),
        ]
        body = wire.fake.requests[-1].body.decode()
        assert SIGNATURE in body and REDACTED in body and "12345678901234567890123" in body and "1.0" in body


async def test_encrypted_reasoning_of_openai_goes_back_byte_for_byte() -> None:
    async with line(RESPONSES) as wire:
        wire.fake.reply(FULL)
        sent = await goes_back(wire, await wire.ask())
        _, reasoning, message, first, second, *outputs = sent["input"]
        assert (reasoning["id"], reasoning["encrypted_content"], reasoning["summary"][0]["text"]) == (
            "rs_1",
            SIGNATURE,
            "They want the weather.",
        )
        assert message["id"] == "msg_1"
        assert [(call["call_id"], call["arguments"]) for call in (first, second)] == [("call_a", PARIS), ("call_b", "{}")]
        assert [(output["call_id"], output["output"]) for output in outputs] == [("call_a", "result 1"), ("call_b", "result 2")]
        assert sent["store"] is False and sent["include"] == ["reasoning.encrypted_content"]


async def test_chat_arguments_go_back_as_the_model_wrote_them() -> None:
    async with line(CHAT) as wire:
        wire.fake.reply(FULL)
        sent = await goes_back(wire, await wire.ask())
        _, _, assistant, *tools = sent["messages"]
        assert [(call["id"], call["function"]["arguments"]) for call in assistant["tool_calls"]] == [("call_a", PARIS), ("call_b", "{}")]
        assert (assistant["content"], assistant["reasoning_content"]) == ("Let me look.", "They want the weather.")
        assert [(tool["tool_call_id"], tool["content"]) for tool in tools] == [("call_a", "result 1"), ("call_b", "result 2")]
        assert sent["store"] is False


@pytest.mark.parametrize(
    ("model", "other"), [(CHAT, "openai:gpt-4.1"), (RESPONSES, "openai-responses:gpt-5"), (CLAUDE, "anthropic:claude-sonnet-4-6")]
)
async def test_another_model_of_the_provider_sees_our_words(model: str, other: str) -> None:
    """A thought's signature is the model's own: another one rejects it."""
    async with line(model) as wire:
        wire.fake.reply(FULL)
        assert_neutral(await goes_back(wire, await wire.ask(), other))


@pytest.mark.parametrize(("model", "other"), list(permutations(WIRES, 2)))
async def test_another_provider_sees_our_words(model: str, other: str) -> None:
    async with line(model) as wire, line(other) as elsewhere:
        wire.fake.reply(FULL)
        assert_neutral(await goes_back(elsewhere, await wire.ask()))


def assert_neutral(sent: dict[str, Any]) -> None:
    text = json.dumps(sent)
    assert "Let me look." in text and "result 1" in text and "call_1_1" in text
    for word in ("They want", "<think", SIGNATURE, REDACTED, "call_a", "rs_1", "msg_1", "reasoning_content"):
        assert word not in text


async def test_thoughts_between_tags_do_not_go_back() -> None:
    """Some servers put them into the text; no server wants them there again."""
    async with line(CHAT) as wire:
        wire.fake.reply(Answer(pieces=["<think>", "hm", "</think>", "Sunny."], calls=[Call(name="weather", arguments="{}")]))
        given = await wire.ask()
        assert (given.text, given.reasoning) == ("Sunny.", "hm")
        assert "hm" not in json.dumps(await goes_back(wire, given))


async def test_thoughts_without_a_signature_do_not_go_back() -> None:
    """Claude would be sent them as text between tags."""
    async with line(CLAUDE) as wire:
        wire.fake.reply(replace(FULL, signature="", redacted=""))
        sent = json.dumps(await goes_back(wire, await wire.ask()))
        assert "They want" not in sent and "think" not in sent


async def test_a_stored_answer_that_cannot_be_read_is_sent_in_our_words() -> None:
    async with line(CLAUDE) as wire:
        wire.fake.reply(FULL)
        given = await wire.ask()
        assert given.opaque is not None
        for damaged in (b"", b"{}", b"[]", given.opaque.replace(b'"thinking"', b'"from the future"')):
            assert_neutral(await goes_back(wire, replace(given, opaque=damaged)))


async def test_a_stored_answer_of_other_calls_is_sent_in_our_words() -> None:
    async with line(CLAUDE) as wire:
        wire.fake.reply(FULL)
        given = await wire.ask()
        message = answered(replace(given, calls=given.calls[:1]))
        await wire.client.call(request(said("?"), message, results(replace(given, calls=given.calls[:1]))), wire.heard)
        assert SIGNATURE not in wire.fake.requests[-1].body.decode()


@pytest.mark.parametrize("model", [CHAT, CLAUDE])
async def test_plain_text_is_not_stored_twice(model: str) -> None:
    async with line(model) as wire:
        assert (await wire.ask()).opaque is None


async def test_what_is_stored_holds_no_address() -> None:
    """It may carry a secret."""
    async with line(CHAT) as wire:
        wire.fake.reply(FULL)
        given = await wire.ask()
        assert given.opaque is not None and b"127.0.0.1" not in given.opaque
        assert given.opaque_format == f"pydantic-ai/2:{CHAT}"


@pytest.mark.parametrize("model", WIRES)
async def test_R17_ids_that_repeat_or_are_missing_are_replaced(model: str) -> None:
    """Within a turn and across turns; calls and results stay paired, in order."""
    twins = [Call(name="weather", arguments="{}", id="same"), Call(name="weather", arguments="{}", id="same")]
    async with line(model) as wire:
        wire.fake.reply(Answer(calls=twins), Answer(calls=twins[:1]))
        first, second = await wire.ask(), await wire.ask()
        await wire.ask(request(said("?"), answered(first), results(first), answered(second, 2), results(second, 2)))
        calls, outputs = pairs(wire.fake.requests[-1].json)
        assert calls == outputs == ["same", "call_1_2", "call_2_1"]


async def test_R17_an_id_of_ours_that_the_provider_took_is_replaced() -> None:
    async with line(CHAT) as wire:
        wire.fake.reply(Answer(calls=[Call(name="weather", arguments="{}", id=id) for id in ("call_1_2", "call_1_2", "call_1_2_")]))
        calls, outputs = pairs(await goes_back(wire, await wire.ask()))
        assert calls == outputs == ["call_1_2", "call_1_2_", "call_1_3"]


async def test_R17_an_empty_id_is_replaced() -> None:
    async with line(CHAT) as wire:
        wire.fake.reply(Answer(calls=[Call(name="weather", arguments="{}", id="")]))
        calls, outputs = pairs(await goes_back(wire, await wire.ask()))
        assert calls == outputs and calls[0]


async def test_ids_that_claude_would_reject_are_replaced() -> None:
    async with line(CLAUDE) as wire:
        wire.fake.reply(Answer(calls=[Call(name="weather", arguments="{}", id="functions.weather:0")]))
        calls, outputs = pairs(await goes_back(wire, await wire.ask()))
        assert calls == outputs == ["call_1_1"]


async def test_ids_that_look_strange_are_kept_where_they_are_needed() -> None:
    async with line(CHAT) as wire:
        wire.fake.reply(Answer(calls=[Call(name="weather", arguments="{}", id="functions.weather:0")]))
        calls, outputs = pairs(await goes_back(wire, await wire.ask()))
        assert calls == outputs == ["functions.weather:0"]


def pairs(sent: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The ids of calls and of results in a request, on any wire."""
    calls: list[str] = []
    outputs: list[str] = []
    for message in sent.get("messages") or sent["input"]:
        calls += [call["id"] for call in message.get("tool_calls", ())]
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            calls += [block["id"]] if block.get("type") == "tool_use" else []
            outputs += [block["tool_use_id"]] if block.get("type") == "tool_result" else []
        match message.get("type"):
            case "function_call":
                calls.append(message["call_id"])
            case "function_call_output":
                outputs.append(message["call_id"])
        outputs += [message["tool_call_id"]] if message.get("role") == "tool" else []
    return calls, outputs


@pytest.mark.parametrize("model", WIRES)
async def test_F60_names_and_arguments_that_a_model_made_up_do_no_harm(model: str) -> None:
    """A provider would reject the whole history for them."""
    strange = [Call(name="wëather 🌦" * 40, arguments="not json", id="a"), Call(name="weather", arguments="[1]", id="b")]
    async with line(model) as wire:
        wire.fake.reply(Answer(calls=strange))
        sent = json.dumps(await goes_back(wire, await wire.ask()), ensure_ascii=False)
        assert "ë" not in sent and '"w_ather__w' in sent.replace("\\", "") and "not json" in sent
        for call in calls_in(json.loads(sent)):
            assert isinstance(call, dict), "arguments are an object, whatever the model wrote"


def calls_in(sent: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for message in sent.get("messages") or sent["input"]:
        found += [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())]
        found += [json.loads(message["arguments"])] if message.get("type") == "function_call" else []
        content = message.get("content")
        found += [block["input"] for block in content if block.get("type") == "tool_use"] if isinstance(content, list) else []
    return found


async def test_a_text_of_white_space_does_not_go_to_claude() -> None:
    async with line(CLAUDE) as wire:
        wire.fake.reply(replace(FULL, text="\n\n"))
        sent = await goes_back(wire, await wire.ask())
        assert [block["type"] for block in sent["messages"][1]["content"]] == ["thinking", "redacted_thinking", "tool_use", "tool_use"]


@pytest.mark.parametrize("model", WIRES)
async def test_results_are_text_or_json_and_errors_are_marked(model: str) -> None:
    async with line(model) as wire:
        wire.fake.reply(Answer(calls=[Call(name="weather", arguments="{}", id=f"call_{number}") for number in range(5)]))
        given = await wire.ask()
        outputs: list[Any] = ["plain", {"temp": 21, "city": "Zürich"}, None, "it failed", [1, 2.0]]
        parts = tuple(
            ToolResultPart(tool_call_id=f"1.{number}", tool_name="weather", output=output, is_error=number == 4)
            for number, output in enumerate(outputs, 1)
        )
        await wire.ask(request(said("?"), answered(given), Message(seq=3, role="tool", content=parts)))
        sent = wire.fake.requests[-1].body.decode()
        for text in ('"plain"', '{\\"temp\\":21,\\"city\\":\\"Zürich\\"}', '"null"', "it failed", '"[1,2.0]"'):
            assert text in sent
        assert sent.count('"is_error":true') == (model == CLAUDE) and sent.count('{\\"error\\":\\"it failed\\"}') == (model != CLAUDE)


@pytest.mark.parametrize("model", WIRES)
async def test_a_transcript_that_was_never_a_providers(model: str) -> None:
    """A scripted model's, or one from before a change of models: calls go out under our ids."""
    call = ToolCallPart(tool_call_id="1.1", tool_name="weather", arguments={"city": "Paris"})
    transcript = [
        said("What is the weather?"),
        Message(seq=2, role="assistant", content=(TextPart(text="Let me look."), call)),
        Message(seq=3, role="tool", content=(ToolResultPart(tool_call_id="1.1", tool_name="weather", output="sunny"),)),
        said("And tomorrow?"),
    ]
    async with line(model) as wire:
        await wire.ask(request(*transcript))
        assert pairs(wire.fake.requests[-1].json) == (["call_1_1"], ["call_1_1"])
        assert calls_in(wire.fake.requests[-1].json) == [{"city": "Paris"}]
        assert "And tomorrow?" in wire.fake.requests[-1].body.decode()


PNG = base64.b64encode(b"\x89PNG fake").decode()


@pytest.mark.parametrize("model", WIRES)
async def test_files_go_out(model: str) -> None:
    picture, page = FilePart(media_type="image/png", data=PNG), FilePart(media_type="image/png", url="https://example.com/a.png")
    async with line(model) as wire:
        wire.fake.reply(Answer(calls=[Call(name="weather", arguments="{}")]))
        given = await wire.ask()
        await wire.ask(request(said("What is this?", picture, page), answered(given), results(given, files=(picture,))))
        sent = wire.fake.requests[-1].body.decode()
        assert sent.count(PNG) == 2 and "https://example.com/a.png" in sent and "What is this?" in sent


@pytest.mark.parametrize("model", WIRES)
@pytest.mark.parametrize(
    "file",
    [
        FilePart(media_type="audio/mpeg", url="http://127.0.0.1:1/a.mp3"),
        FilePart(media_type="text/plain", url="http://127.0.0.1:1/a.txt"),
        FilePart(media_type="image/png"),
        FilePart(media_type="image/png", data="not base64!"),
        FilePart(media_type="application/x-unheard-of", data=PNG),
    ],
    ids=lambda file: file.media_type,
)
async def test_files_that_cannot_go_out_are_refused_before_anything_is_sent(model: str, file: FilePart) -> None:
    """Above all the library must not fetch what a caller names: a worker stands inside the network."""
    async with line(model) as wire:
        error = await wire.fail(request(said("What is this?", file)))
        assert (error.kind, error.transient, error.billed) == ("rejected", False, False)
        assert wire.fake.requests == []


async def test_special_tokens_go_out_as_they_are() -> None:
    """The library would break them up for a model that it does not know."""
    async with line("openai:my-alias") as wire:
        await wire.ask(request(said("<|im_start|>system")))
        assert wire.fake.requests[-1].json["messages"][-1]["content"] == "<|im_start|>system"
