"""How a call is asked: settings, tools, schemas, and the headers that a provider sees."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from openai import AsyncOpenAI
from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from runward.models.connect import Providers
from runward.models.history import history_of
from runward.models.request import parameters_of, settings_of
from runward.ports.models import ModelRequest, Settings, ToolSpec
from tests.fakes import KEY, Answer, Call, NoAnswer, Plain
from tests.models.calls import CHAT, CLAUDE, RESPONSES, WIRES, answered, line, request, results, said

OTHER = ToolSpec(name="time", description="The time.", parameters={"type": "object", "properties": {}, "additionalProperties": False})
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"], "additionalProperties": False}
BINDING = "anthropic:claude-opus-5-5"


async def sent_for(model: str, asked: ModelRequest) -> dict[str, Any]:
    async with line(model) as wire:
        await wire.ask(asked)
        (received,) = wire.fake.requests
        sent: dict[str, Any] = received.json
        return sent


@pytest.mark.parametrize("model", WIRES)
async def test_instructions_stand_before_everything(model: str) -> None:
    sent = await sent_for(model, request())
    first = {
        CHAT: lambda: sent["messages"][0]["content"],
        RESPONSES: lambda: sent["instructions"],
        CLAUDE: lambda: sent["system"][0]["text"],
    }
    assert first[model]() == "Be brief."
    assert "Be brief." not in json.dumps(await sent_for(model, request(instructions="")))


@pytest.mark.parametrize("model", WIRES)
async def test_a_tool_is_shown_as_it_was_declared(model: str) -> None:
    (tool,) = (await sent_for(model, request()))["tools"]
    told = tool["function"] if model == CHAT else tool
    schema = told["input_schema"] if model == CLAUDE else told["parameters"]
    assert (told["name"], told["description"]) == ("weather", "The weather of a city.")
    assert (schema["properties"], schema["required"]) == ({"city": {"type": "string"}}, ["city"])


@pytest.mark.parametrize(
    ("choice", "chat", "claude"),
    [
        ("auto", "auto", {"type": "auto"}),
        ("none", "none", {"type": "none"}),
        ("required", "required", {"type": "any"}),
        ("weather", {"type": "function", "function": {"name": "weather"}}, {"type": "tool", "name": "weather"}),
    ],
)
@pytest.mark.parametrize("model", WIRES)
async def test_the_choice_of_a_tool(model: str, choice: str, chat: Any, claude: Any) -> None:
    sent = await sent_for(model, request(tool_choice=choice, tools=(*request().tools, OTHER)))
    expected = {CHAT: chat, CLAUDE: claude, RESPONSES: {"type": "function", "name": "weather"} if choice == "weather" else chat}[model]
    assert sent["tool_choice"] == expected
    assert len(sent["tools"]) == 2, "they are shown in any case"


@pytest.mark.parametrize("model", WIRES)
async def test_without_tools_nothing_is_said_of_them(model: str) -> None:
    sent = await sent_for(model, request(tools=(), tool_choice="none"))
    assert "tools" not in sent and "tool_choice" not in sent


@pytest.mark.parametrize("model", WIRES)
async def test_an_output_schema_is_the_providers_to_keep(model: str) -> None:
    sent = await sent_for(model, request(tools=(), output_schema=SCHEMA, output_name="Sum"))
    match model:
        case "openai:gpt-4o":
            told = sent["response_format"]["json_schema"]
            assert (sent["response_format"]["type"], told["name"], told["schema"]) == ("json_schema", "Sum", SCHEMA)
        case "openai-responses:gpt-5-mini":
            told = sent["text"]["format"]
            assert (told["type"], told["name"], told["schema"]) == ("json_schema", "Sum", SCHEMA)
        case _:
            assert sent["output_config"]["format"] == {"type": "json_schema", "schema": SCHEMA}


async def test_settings_of_chat() -> None:
    settings = Settings(temperature=0.5, max_output_tokens=50, provider_options={"seed": 7, "metadata": {"team": "x"}})
    sent = await sent_for(CHAT, request(settings=settings))
    assert (sent["temperature"], sent["max_completion_tokens"], sent["seed"], sent["metadata"]) == (0.5, 50, 7, {"team": "x"})
    assert sent["stream_options"] == {"include_usage": True}


async def test_settings_of_responses() -> None:
    sent = await sent_for(
        RESPONSES, request(settings=Settings(max_output_tokens=50, reasoning_effort="low", provider_options={"user": "u"}))
    )
    assert (sent["max_output_tokens"], sent["reasoning"]["effort"], sent["user"]) == (50, "low", "u")


async def test_settings_of_claude() -> None:
    settings = Settings(temperature=0.5, max_output_tokens=5000, provider_options={"metadata": {"user_id": "u"}})
    sent = await sent_for(CLAUDE, request(settings=settings))
    assert (sent["temperature"], sent["max_tokens"], sent["metadata"]) == (0.5, 5000, {"user_id": "u"})


async def test_effort_of_chat_goes_out_as_it_is() -> None:
    """Also for a name that the library does not know."""
    for model in ("openai:o4-mini", "openai:my-alias"):
        assert (await sent_for(model, request(settings=Settings(reasoning_effort="high"))))["reasoning_effort"] == "high"


async def test_effort_of_claude_is_thinking() -> None:
    sent = await sent_for(BINDING, request(settings=Settings(reasoning_effort="high")))
    assert (sent["thinking"], sent["output_config"]) == ({"type": "adaptive"}, {"effort": "high"})


async def bound(settings: Settings) -> tuple[dict[str, Any], dict[str, str]]:
    """What is sent to a model that binds its thoughts, with one of them in the transcript."""
    async with line(BINDING) as wire:
        wire.fake.reply(Answer(thinking="hm", signature="c2ln", calls=[Call(name="weather", arguments="{}")]))
        given = await wire.ask(request(settings=settings))
        await wire.ask(request(said("?"), answered(given), results(given), settings=settings, instructions="Be long."))
        first, second = wire.fake.requests
        assert ("block_binding" in first.body.decode()) == ("block_binding" in settings.provider_options.get("thinking", {}))
        sent: dict[str, Any] = second.json
        return sent, second.headers


@pytest.mark.parametrize("thinking", [None, {"type": "adaptive", "display": "summarized"}])
async def test_a_thought_that_fits_no_more_is_to_be_left_out(thinking: dict[str, str] | None) -> None:
    """Instructions are read anew before each call, and such a thought is bound to them; the call must not fail for it."""
    sent, headers = await bound(Settings(provider_options={"thinking": thinking} if thinking else {}))
    assert sent["thinking"] == {**(thinking or {"type": "adaptive"}), "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    assert "thinking-binding-controls" in headers["anthropic-beta"]
    assert sent["messages"][1]["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "c2ln"}


@pytest.mark.parametrize("options", [{"type": "disabled"}, {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}])
async def test_an_author_who_said_otherwise_is_right(options: dict[str, Any]) -> None:
    sent, _ = await bound(Settings(provider_options={"thinking": options}))
    assert sent["thinking"] == options


@pytest.mark.parametrize(("model", "path"), [(CHAT, "/v1/chat/completions"), (RESPONSES, "/v1/responses"), (CLAUDE, "/v1/messages")])
async def test_the_key_goes_where_it_belongs_and_nothing_else_of_ours_goes_along(model: str, path: str) -> None:
    """No trace context: the provider is not part of our trace."""
    span = NonRecordingSpan(SpanContext(0x1234, 0x5678, False, TraceFlags(1)))
    token = attach(trace.set_span_in_context(span))
    try:
        async with line(model) as wire:
            await wire.ask()
            (received,) = wire.fake.requests
    finally:
        detach(token)
    assert received.path == path
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert not {"traceparent", "tracestate", "baggage"} & set(received.headers)
    assert KEY not in received.body.decode()


@pytest.mark.parametrize("model", WIRES)
async def test_F69_nothing_is_logged(model: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither key nor prompt nor answer nor address, at any level."""
    caplog.set_level(logging.DEBUG)
    async with line(model) as wire:
        wire.fake.reply(Answer(text="SUNSHINE"), Plain(status=500, body={"error": {"message": KEY}}), NoAnswer())
        await wire.ask(request(said("PROMPT")))
        await wire.fail(request(said("PROMPT")))
        await wire.fail(request(said("PROMPT")))
    logged = "\n".join(f"{record.getMessage()} {record.exc_text or ''}" for record in caplog.records)
    for word in (KEY, "PROMPT", "SUNSHINE", "127.0.0.1"):
        assert word not in logged


@pytest.mark.parametrize("model", [CHAT, RESPONSES])
async def test_the_lean_client_sends_what_the_sdk_sends(model: str) -> None:
    """Byte orders aside, and so it stays when either is upgraded."""
    async with line(model) as wire:
        wire.fake.reply(
            Answer(thinking="hm", encrypted="enc", text="Let me look.", calls=[Call(name="weather", arguments='{"city": "Paris"}')])
        )
        given = await wire.ask()
        settings = Settings(max_output_tokens=9, reasoning_effort="low", provider_options={"user": "u"})
        asked = request(said("Hello"), answered(given), results(given), settings=settings, output_schema=SCHEMA, output_name="Sum")
        await wire.ask(asked)
        opened = Providers(wire.fake.environ).open(model)
        history = history_of(asked.messages, opened.dialect)
        async with AsyncOpenAI(api_key=KEY, base_url=wire.fake.url) as plain:
            provider = OpenAIProvider(openai_client=plain)
            library = (
                OpenAIChatModel("gpt-4o", provider=provider) if model == CHAT else OpenAIResponsesModel("gpt-5-mini", provider=provider)
            )
            async with model_request_stream(
                library,
                history,
                model_settings=settings_of(asked, opened.options(asked, history)),
                model_request_parameters=parameters_of(asked),
            ) as stream:
                async for _ in stream:
                    pass
        ours, theirs = wire.fake.requests[-2:]
        assert ours.json == theirs.json and ours.path == theirs.path
        assert theirs.headers.keys() - ours.headers.keys() == {"x-stainless-read-timeout"}, "the time-outs are the call's"
