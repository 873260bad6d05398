"""A fake Anthropic: the Messages API, streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.fakes.replies import Answer, Ending
from tests.fakes.server import FakeProvider, Received

OVERLOADED = {"type": "overloaded_error", "message": "Overloaded"}


class FakeAnthropic(FakeProvider):
    """Speaks `POST /v1/messages`."""

    key_variable = "ANTHROPIC_API_KEY"
    url_variable = "ANTHROPIC_BASE_URL"

    def events(self, answer: Answer, request: Received) -> Iterator[bytes]:
        for event in _events(answer):
            data = event if isinstance(event, bytes) else json.dumps(event).encode()
            kind = "content_block_delta" if isinstance(event, bytes) else event["type"]
            yield b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _events(answer: Answer) -> Iterator[dict[str, Any] | bytes]:
    yield {"type": "message_start", "message": _message(answer)}
    yield {"type": "ping"}
    index = 0
    for start, deltas in _blocks(answer):
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
        index += 1
    finish = answer.finish or ("refusal" if answer.refusal else "tool_use" if answer.calls else "end_turn")
    match answer.ending:
        case Ending.BAD_JSON:
            yield b'{"type": "content_block_delta", "index": '
        case Ending.OVERLOADED | Ending.ERROR_EVENT:
            yield {"type": "error", "error": answer.error or OVERLOADED}
        case Ending.TWO_FINISHES:
            yield _finish(answer, finish)
            yield {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": "and more"}}
            yield {"type": "content_block_stop", "index": index}
            yield _finish(answer, "end_turn")
            yield {"type": "message_stop"}
        case Ending.DONE | Ending.FINISH_TWICE | Ending.CHANGED_FINISH:
            yield _finish(answer, finish)
            if answer.ending is not Ending.DONE:
                yield _finish(answer, finish if answer.ending is Ending.FINISH_TWICE else "max_tokens")
            yield {"type": "message_stop"}
        case _:
            pass


def _blocks(answer: Answer) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    if answer.thinking or answer.signature:
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(answer.thinking, 9)]
        if answer.signature:
            deltas.append({"type": "signature_delta", "signature": answer.signature})
        yield {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if answer.redacted:
        yield {"type": "redacted_thinking", "data": answer.redacted}, []
    if answer.text or answer.pieces:
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": word} for word in answer.words()]
    for call in answer.calls:
        pieces = ["", *_pieces(call.arguments, call.piece)]
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, deltas


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


def _message(answer: Answer) -> dict[str, Any]:
    usage = answer.usage
    counted = {"input_tokens": usage.input if usage else 0, "output_tokens": 1 if usage else 0}
    if usage:
        counted |= {"cache_read_input_tokens": usage.cache_read, "cache_creation_input_tokens": usage.cache_write}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": counted,
    }


def _finish(answer: Answer, finish: str) -> dict[str, Any]:
    details = {"stop_details": {"type": "refusal", "category": None, "explanation": answer.refusal}} if answer.refusal else {}
    usage = {"output_tokens": answer.usage.output if answer.usage else 0}
    thinking = {"output_tokens_details": {"thinking_tokens": answer.usage.reasoning}} if answer.usage else {}
    return {"type": "message_delta", "delta": {"stop_reason": finish, "stop_sequence": None, **details}, "usage": {**usage, **thinking}}
