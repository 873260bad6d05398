"""What a run says: one constructor per frame of the stream (docs/api.md, "The stream"). Absent fields are left out, never null."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from runward.core.kernel.frames import Frame
from runward.core.redaction import SECRETS, shown_arguments
from runward.core.runs.calls import Awaited, Call, Gate, Result
from runward.core.runs.state import Phase
from runward.core.times import rfc3339
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
    return tool_state_of(call.id, call.name, state, call.attempt)


def tool_state_of(call_id: str, tool_name: str, state: str, attempt: int) -> Frame:
    """The same, also for a call of a turn that is over."""
    return Frame(type="tool-state", fields={"tool_call_id": call_id, "tool_name": tool_name, "state": state, "attempt": attempt})


def tool_approval_request(call: Call, gate: Gate) -> Frame:
    """What is to be approved: the arguments that will run, not those the model issued (R18)."""
    fields: dict[str, Any] = {
        "approval_id": gate.id,
        "tool_call_id": call.id,
        "tool_name": call.name,
        "arguments": shown_arguments(call.arguments),
    }
    if gate.expires_at is not None:
        fields["expires_at"] = rfc3339(gate.expires_at)
    return Frame(type="tool-approval-request", fields=fields)


def tool_approval_response(approval_id: str, approved: bool, reason: str | None) -> Frame:
    fields: dict[str, Any] = {"approval_id": approval_id, "approved": approved}
    if reason is not None:
        fields["reason"] = reason
    return Frame(type="tool-approval-response", fields=fields)


def client_call(call: Call) -> Frame:
    fields = {"tool_call_id": call.id, "tool_name": call.name, "arguments": json.loads(call.arguments)}
    return Frame(type="client-call", fields=fields)


def question(awaited: Awaited) -> Frame:
    fields: dict[str, Any] = {
        "question_id": awaited.question_id,
        "question": awaited.question,
        "choices": list(awaited.choices),
        "allows_free_text": awaited.allows_free_text,
    }
    if awaited.expires_at is not None:
        fields["expires_at"] = rfc3339(awaited.expires_at)
    return Frame(type="question", fields=fields)


def question_answered(question_id: str, answered: bool) -> Frame:
    """What was answered is not shown: only that it was."""
    return Frame(type="question-answered", fields={"question_id": question_id, "answered": answered})


def timer_started(tool_call_id: str, due_at: int) -> Frame:
    return Frame(type="timer-started", fields={"tool_call_id": tool_call_id, "due_at": rfc3339(due_at)})


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


def usage(usage: Usage, total: Usage) -> Frame:
    """What a model call used, and all of them together; never what it costs."""
    return Frame(type="usage", fields={"usage": usage_fields(usage), "total_usage": usage_fields(total)})


def warning(code: str, message: str) -> Frame:
    return Frame(type="warning", fields={"code": code, "message": message})


def guardrail(hook: str, action: str, name: str, reason: str | None) -> Frame:
    """A guardrail blocked or rewrote something; what it was is not shown."""
    fields: dict[str, Any] = {"hook": hook, "action": action, "name": name}
    if reason is not None:
        fields["reason"] = SECRETS.text(reason)
    return Frame(type="guardrail", fields=fields)


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
