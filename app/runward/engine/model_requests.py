"""A model call as it is sent: a turn of the run's loop, or one that the agent's own code asks for."""

from __future__ import annotations

from typing import Literal

from runward.core.messages import Message
from runward.core.runs.state import RunState
from runward.engine.outputs import Asked, OutputReader
from runward.ports.models import ModelRequest, Settings


def request_of(
    run: RunState,
    asked: Asked,
    messages: tuple[Message, ...],
    reader: OutputReader | None,
    settings: Settings,
    *,
    purpose: Literal["turn", "generate"] = "turn",
) -> ModelRequest:
    """The request, with the run's own time-outs. `reader` is there where the call is to give a typed answer."""
    limits = run.limits
    return ModelRequest(
        agent=run.agent,
        step=run.step,
        attempt=run.attempt,
        instructions=asked.instructions,
        messages=messages,
        tools=asked.tools,
        tool_choice=asked.tool_choice,
        output_schema=asked.schema,
        output_name=None if reader is None else reader.name,
        output_mode=asked.mode,
        settings=settings,
        timeout_seconds=limits.model_timeout_seconds,
        first_event_timeout_seconds=limits.first_event_timeout_seconds,
        chunk_timeout_seconds=limits.chunk_timeout_seconds,
        purpose=purpose,
    )
