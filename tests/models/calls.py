"""What the tests of model clients share: a request, a transcript, and a client on a fake provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from runward.core.messages import Message, Part, TextPart, ToolCallPart, ToolResultPart
from runward.engine.clock import SystemClock
from runward.models.clients import ModelClients
from runward.ports.models import ModelAnswer, ModelCallError, ModelClient, ModelDelta, ModelRequest, Settings, ToolSpec
from tests.fakes import FakeAnthropic, FakeOpenAI, FakeProvider

CHAT = "openai:gpt-4o"
RESPONSES = "openai-responses:gpt-5-mini"
CLAUDE = "anthropic:claude-haiku-4-5"
WIRES = [CHAT, RESPONSES, CLAUDE]

WEATHER = ToolSpec(
    name="weather",
    description="The weather of a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
)


def request(*messages: Message, **changes: Any) -> ModelRequest:
    """A model call; without messages, of a run that has just begun."""
    fields: dict[str, Any] = {
        "agent": "weatherman",
        "step": 1,
        "attempt": 1,
        "instructions": "Be brief.",
        "messages": messages or (said("What is the weather?"),),
        "tools": (WEATHER,),
        "tool_choice": "auto",
        "output_schema": None,
        "output_name": None,
        "settings": Settings(),
        "timeout_seconds": 10,
        "first_event_timeout_seconds": 5,
        "chunk_timeout_seconds": 5,
    }
    return ModelRequest(**{**fields, **changes})


def said(text: str, *more: Part) -> Message:
    """A user's message."""
    return Message(seq=1, role="user", content=(TextPart(text=text), *more))


def answered(answer: ModelAnswer, step: int = 1) -> Message:
    """An answer as the transcript keeps it, as the core writes it."""
    calls = [
        ToolCallPart(tool_call_id=f"{step}.{index}", tool_name=call.tool_name, arguments={"n": index})
        for index, call in enumerate(answer.calls, 1)
    ]
    text = [TextPart(text=answer.text)] if answer.text else []
    return Message(
        seq=2 * step, role="assistant", step=step, content=(*text, *calls), opaque=answer.opaque, opaque_format=answer.opaque_format
    )


def results(answer: ModelAnswer, step: int = 1, **fields: Any) -> Message:
    """One result for each call of an answer."""
    parts = tuple(
        ToolResultPart(**{"tool_call_id": f"{step}.{index}", "tool_name": call.tool_name, "output": f"result {index}", **fields})
        for index, call in enumerate(answer.calls, 1)
    )
    return Message(seq=2 * step + 1, role="tool", step=step, content=parts)


@dataclass(slots=True, kw_only=True)
class Line:
    """A client on a fake provider. `deltas` are those of the last call."""

    fake: FakeProvider
    client: ModelClient
    clients: ModelClients
    deltas: list[ModelDelta] = field(default_factory=list)

    async def ask(self, asked: ModelRequest | None = None) -> ModelAnswer:
        self.deltas.clear()
        return await self.client.call(asked or request(), self.heard)

    async def fail(self, asked: ModelRequest | None = None) -> ModelCallError:
        with pytest.raises(ModelCallError) as caught:
            await self.ask(asked)
        return caught.value

    async def heard(self, delta: ModelDelta) -> None:
        self.deltas.append(delta)

    def streamed(self, kind: str) -> str:
        return "".join(delta.text for delta in self.deltas if delta.kind == kind)

    def calls_streamed(self) -> dict[tuple[int, str], str]:
        found: dict[tuple[int, str], str] = {}
        for delta in self.deltas:
            if delta.kind == "tool_input":
                key = (delta.index, delta.tool_name)
                found[key] = found.get(key, "") + delta.text
        return found


@asynccontextmanager
async def line(model: str, *, url: str | None = None) -> AsyncIterator[Line]:
    """A fake of the model's provider, and a client that knows it from its environment; with `url` the client goes there instead."""
    async with FakeAnthropic() if model.startswith("anthropic") else FakeOpenAI() as fake:
        clients = ModelClients(SystemClock(), fake.environ if url is None else {**fake.environ, fake.url_variable: url})
        try:
            yield Line(fake=fake, client=clients.client(model), clients=clients)
        finally:
            await clients.close()
