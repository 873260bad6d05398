"""A fake OpenAI: Chat Completions and Responses, streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.fakes.replies import Answer, Call, Ending
from tests.fakes.server import FakeProvider, Received

OVERLOADED = {"message": "The server is overloaded.", "type": "service_unavailable_error", "code": "server_is_overloaded"}


class FakeOpenAI(FakeProvider):
    """Speaks `POST /v1/chat/completions` and, for `openai-responses:` models, `POST /v1/responses`."""

    key_variable = "OPENAI_API_KEY"
    url_variable = "OPENAI_BASE_URL"
    prefix = "/v1"

    def events(self, answer: Answer, request: Received) -> Iterator[bytes]:
        if request.path.endswith("/responses"):
            for event in _Responses(answer).events():
                yield b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode())
            return
        for chunk in _chat(answer):
            yield b"data: %b\n\n" % (chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode())


def _chat(answer: Answer) -> Iterator[dict[str, Any] | bytes]:
    yield _chunk(answer, {"role": "assistant", "content": None if answer.calls else ""})
    for piece in _pieces(answer.thinking, 9):
        yield _chunk(answer, {"reasoning_content": piece})
    for word in answer.words() if answer.text or answer.pieces else ():
        yield _chunk(answer, {"content": word})
    for piece in _pieces(answer.refusal, 9):
        yield _chunk(answer, {"refusal": piece})
    yield from (_chunk(answer, delta) for delta in _chat_calls(answer.calls))
    finish = answer.finish or ("tool_calls" if answer.calls else "stop")
    match answer.ending:
        case Ending.BAD_JSON:
            yield b'{"id": "chatcmpl-1", "choices": ['
        case Ending.OVERLOADED | Ending.ERROR_EVENT:
            yield {"error": answer.error or OVERLOADED}
        case Ending.TWO_FINISHES:
            yield _chunk(answer, {}, finish)
            yield _chunk(answer, {"content": "and more"})
            yield _chunk(answer, {}, "stop")
            yield b"[DONE]"
        case Ending.DONE | Ending.FINISH_TWICE | Ending.CHANGED_FINISH:
            yield _chunk(answer, {}, finish)
            if answer.ending is not Ending.DONE:
                yield _chunk(answer, {"content": ""}, finish if answer.ending is Ending.FINISH_TWICE else "length")
            if answer.usage is not None:
                yield {**_chunk(answer, {}), "choices": [], "usage": _chat_usage(answer)}
            yield b"[DONE]"
        case Ending.NO_FINISH:
            yield b"[DONE]"


def _chat_calls(calls: Any) -> Iterator[dict[str, Any]]:
    """Parallel calls, their arguments interleaved piece by piece."""
    for index, call in enumerate(calls):
        function = {"name": call.name, "arguments": ""} if call.name is not None else {"arguments": ""}
        head: dict[str, Any] = {"index": index, "id": call.id, "type": "function", "function": function}
        yield {"tool_calls": [head]}
    rest = [(index, list(_pieces(call.arguments, call.piece))) for index, call in enumerate(calls)]
    while any(pieces for _, pieces in rest):
        for index, pieces in rest:
            if pieces:
                yield {"tool_calls": [{"index": index, "function": {"arguments": pieces.pop(0)}}]}


def _chunk(answer: Answer, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_764_500_000, "model": answer.model, "choices": [choice]}


def _chat_usage(answer: Answer) -> dict[str, Any]:
    assert answer.usage is not None
    return {
        "prompt_tokens": answer.usage.input,
        "completion_tokens": answer.usage.output,
        "total_tokens": answer.usage.input + answer.usage.output,
        "prompt_tokens_details": {"cached_tokens": answer.usage.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": answer.usage.reasoning, "audio_tokens": 0},
    }


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


class _Responses:
    """An answer as the events of the Responses API."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._sequence = 0
        self._items: list[dict[str, Any]] = []

    def events(self) -> Iterator[dict[str, Any]]:
        answer = self._answer
        yield self._event("response.created", response=self._response("in_progress"))
        if answer.encrypted:
            yield from self._reasoning()
        if answer.text or answer.refusal:
            yield from self._message()
        for call in answer.calls:
            yield from self._call(call)
        match answer.ending:
            case Ending.OVERLOADED:
                yield self._event("response.failed", response={**self._response("failed"), "error": answer.error or OVERLOADED})
            case Ending.ERROR_EVENT:
                error = answer.error or OVERLOADED
                yield self._event("error", code=error.get("code"), message=error["message"], param=None)
            case Ending.DONE:
                reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(answer.finish or "")
                details = {"incomplete_details": {"reason": reason}} if reason else {}
                status = "incomplete" if reason else "completed"
                yield self._event(f"response.{status}", response={**self._response(status), **details})
            case Ending.BAD_JSON:
                yield {"type": "response.completed"}
            case _:
                pass

    def _reasoning(self) -> Iterator[dict[str, Any]]:
        number, base = len(self._items), {"type": "reasoning", "id": "rs_1"}
        summary = [{"type": "summary_text", "text": self._answer.thinking}]
        item = {**base, "summary": summary, "encrypted_content": self._answer.encrypted, "status": "completed"}
        yield self._event("response.output_item.added", output_index=number, item={**base, "summary": [], "status": "in_progress"})
        part = {"item_id": "rs_1", "output_index": number, "summary_index": 0}
        yield self._event("response.reasoning_summary_part.added", **part, part={"type": "summary_text", "text": ""})
        for piece in _pieces(self._answer.thinking, 9):
            yield self._event("response.reasoning_summary_text.delta", **part, delta=piece)
        yield self._event("response.reasoning_summary_part.done", **part, part=summary[0])
        yield self._done(number, item)

    def _message(self) -> Iterator[dict[str, Any]]:
        number, base = len(self._items), {"type": "message", "id": "msg_1", "role": "assistant"}
        answer = self._answer
        content: dict[str, Any] = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        if answer.refusal:
            content = {"type": "refusal", "refusal": answer.refusal}
        yield self._event("response.output_item.added", output_index=number, item={**base, "content": [], "status": "in_progress"})
        part = {"item_id": "msg_1", "output_index": number, "content_index": 0}
        empty = {**content, "refusal": ""} if answer.refusal else {**content, "text": ""}
        yield self._event("response.content_part.added", **part, part=empty)
        for word in [] if answer.refusal else answer.words():
            yield self._event("response.output_text.delta", **part, delta=word, logprobs=[])
        if answer.refusal:
            yield self._event("response.refusal.delta", **part, delta=answer.refusal)
            yield self._event("response.refusal.done", **part, refusal=answer.refusal)
        yield self._event("response.content_part.done", **part, part=content)
        yield self._done(number, {**base, "content": [content], "status": "completed"})

    def _call(self, call: Call) -> Iterator[dict[str, Any]]:
        number, item_id = len(self._items), f"fc_{len(self._items)}"
        item = {"type": "function_call", "id": item_id, "call_id": call.id, "name": call.name, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=number, item=item)
        for piece in _pieces(call.arguments, call.piece):
            yield self._event("response.function_call_arguments.delta", item_id=item_id, output_index=number, delta=piece)
        done = {"item_id": item_id, "output_index": number, "name": call.name}
        yield self._event("response.function_call_arguments.done", **done, arguments=call.arguments)
        yield self._done(number, {**item, "arguments": call.arguments, "status": "completed"})

    def _done(self, number: int, item: dict[str, Any]) -> dict[str, Any]:
        self._items.append(item)
        return self._event("response.output_item.done", output_index=number, item=item)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence, **fields}

    def _response(self, status: str) -> dict[str, Any]:
        answer, usage = self._answer, None
        if answer.usage is not None and status != "in_progress":
            usage = {
                "input_tokens": answer.usage.input,
                "input_tokens_details": {"cached_tokens": answer.usage.cache_read},
                "output_tokens": answer.usage.output,
                "output_tokens_details": {"reasoning_tokens": answer.usage.reasoning},
                "total_tokens": answer.usage.input + answer.usage.output,
            }
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_764_500_000,
            "model": answer.model,
            "status": status,
            "output": self._items,
            "usage": usage,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "temperature": 1,
            "top_p": 1,
        }
