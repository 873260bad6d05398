"""Chat Completions whose streams have to be whole."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import cast

from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse

from runward.models.failures import Broken


class ChatModel(OpenAIChatModel):
    """The library's model, on streams that are watched."""

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _WholeStream


class _WholeStream(OpenAIStreamedResponse):
    """A stream that goes on behind its finish mark, or has two different ones, is no answer; a mark that is merely repeated, as OpenRouter
    and some other gateways do, is fine. (That there is one is seen in `answers`, for every provider.)"""

    def _validate_response(self) -> AsyncIterable[ChatCompletionChunk]:
        return self._whole(super()._validate_response())

    async def _whole(self, chunks: AsyncIterable[ChatCompletionChunk]) -> AsyncIterator[ChatCompletionChunk]:
        finish: str | None = None
        calls: dict[int, bool] = {}
        async for chunk in chunks:
            for choice in (chunk.choices or ())[:1]:
                delta = cast(ChoiceDelta | None, choice.delta)  # Azure sends none beside the results of its filter
                asked = (delta and delta.tool_calls) or ()
                if finish and (asked or (delta and delta.content)):
                    raise Broken("bad_response", "It went on behind its end.")
                if choice.finish_reason:
                    if finish not in (None, choice.finish_reason):
                        raise Broken("bad_response", "It ended twice.")
                    finish = choice.finish_reason
                for call in asked:
                    calls[call.index] = calls.get(call.index, False) or bool(call.function and call.function.name is not None)
            yield chunk
        if not all(calls.values()):
            raise Broken("bad_response", "It has a call without a name.")
