"""What a run says: one constructor per frame of the stream (docs/api.md, "The stream"). Absent fields are left out, never null."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runward.core.kernel.frames import Frame
from runward.core.runs.calls import Call, Result
from runward.core.runs.state import Phase
from runward.core.usage import Usage


def start(agent: str) -> Frame:
    return Frame(type="start", fields={"agent": agent})


def start_step(step: int, attempt: int, phase: Phase, agent: str, model: str | None) -> Frame:
    fields: dict[str, Any] = {"step": step, "phase": phase.value, "agent": agent, "attempt": attempt}
    if model is not None:
        fields["model"] = model
    return Frame(type="start-step", fields=fields)


def finish_step(step: int, finish_reason: str, usage: Usage) -> Frame:
    return Frame(type="finish-step", fields={"step": step, "finish_reason": finish_reason, "usage": usage_fields(usage)})


def reset_step(step: int, attempt: int) -> Frame:
    """Drops the text of an attempt whose message was not stored (R32)."""
    return Frame(type="reset-step", fields={"step": step, "attempt": attempt})


def text_delta(step: int, attempt: int, delta: str) -> Frame:
    return Frame(type="text-delta", fields={"step": step, "attempt": attempt, "delta": delta})


def reasoning_delta(step: int, attempt: int, delta: str) -> Frame:
    return Frame(type="reasoning-delta", fields={"step": step, "attempt": attempt, "delta": delta})


def tool_input_delta(step: int, tool_call_id: str, tool_name: str, delta: str) -> Frame:
    return Frame(type="tool-input-delta", fields={"step": step, "tool_call_id": tool_call_id, "tool_name": tool_name, "delta": delta})


def tool_call(call: Call, issued: Any, effect: str | None, requires_approval: bool) -> Frame:
    """A call as the model issued it. `effect` is None for a tool nobody has."""
    fields: dict[str, Any] = {"step": call.step, "tool_call_id": call.id, "tool_name": call.name, "arguments": issued}
    if effect is not None:
        fields |= {"effect": effect, "requires_approval": requires_approval}
    return Frame(type="tool-call", fields=fields)


def tool_state(call: Call, state: str) -> Frame:
    return Frame(type="tool-state", fields={"tool_call_id": call.id, "tool_name": call.name, "state": state, "attempt": call.attempt})


def tool_progress(tool_call_id: str, data: Any) -> Frame:
    return Frame(type="tool-progress", fields={"tool_call_id": tool_call_id, "data": data})


def tool_output(call: Call, result: Result) -> Frame:
    """What the model sees of a call: after projection, never the raw result."""
    fields: dict[str, Any] = {
        "step": call.step,
        "tool_call_id": call.id,
        "tool_name": call.name,
        "output": result.output,
        "is_error": result.is_error,
    }
    if result.files:
        fields["files"] = list(result.files)
    if result.outcome is not None:
        fields["outcome"] = result.outcome
    return Frame(type="tool-output", fields=fields)


def warning(code: str, message: str) -> Frame:
    return Frame(type="warning", fields={"code": code, "message": message})


def data_agent(data: Mapping[str, Any]) -> Frame:
    """The control state. `run_id` and `seq` are added to `data` when it is written."""
    return Frame(type="data-agent", fields={"data": data})


def finish(status: str, usage: Usage, text: str | None) -> Frame:
    fields: dict[str, Any] = {"status": status, "usage": usage_fields(usage)}
    if text is not None:
        fields["text"] = text
    return Frame(type="finish", fields=fields)


def usage_fields(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "total_tokens": usage.total_tokens,
        "model_calls": usage.model_calls,
    }
