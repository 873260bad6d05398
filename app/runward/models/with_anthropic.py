"""Models of Anthropic, on its Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
from anthropic import AsyncAnthropic, OpenTelemetryOptions
from anthropic.types.beta import (
    BetaRawContentBlockDeltaEvent,
    BetaRawContentBlockStartEvent,
    BetaRawMessageDeltaEvent,
    BetaRawMessageStreamEvent,
)
from pydantic_ai.messages import ModelMessage, ModelResponse, ThinkingPart
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicStreamedResponse
from pydantic_ai.profiles import merge_profile
from pydantic_ai.profiles.anthropic import AnthropicModelProfile
from pydantic_ai.providers import Provider
from pydantic_ai.providers.anthropic import AnthropicProvider

from runward.models.failures import Broken
from runward.models.history import Dialect
from runward.models.opened import PLAIN_TEXT, Opened, any_options, keep_quiet
from runward.models.replay import format_of
from runward.ports.models import ModelRequest

keep_quiet("anthropic")

DROP = {"prefix_mismatch_behavior": "drop_block"}


def provider(environ: Mapping[str, str], client: httpx2.AsyncClient) -> Provider[Any]:
    """Anthropic, or whatever answers at `ANTHROPIC_BASE_URL`. The SDK would make spans, and send our trace's id to the provider."""
    key, url = environ.get("ANTHROPIC_API_KEY"), environ.get("ANTHROPIC_BASE_URL") or None
    quiet = OpenTelemetryOptions(propagation=False, traces=False)
    return AnthropicProvider(anthropic_client=AsyncAnthropic(api_key=key, base_url=url, http_client=client, open_telemetry=quiet))


def messages(name: str, model: str, provider: Provider[Any]) -> Opened:
    """A model on the Messages API."""
    binds = AnthropicModel(model, provider=provider).profile.get("anthropic_binds_thinking_blocks", False)
    # The library asks a second time where such a model rejects a thought; what that second request says is said in the first one here.
    profile = merge_profile(PLAIN_TEXT, AnthropicModelProfile(anthropic_binds_thinking_blocks=False))
    dialect = Dialect(
        format=format_of(name), thinks_back=_signed, url_types=("image/", "application/pdf"), plain_ids=True, blank_text=False
    )
    asked = _ClaudeModel(model, provider=provider, profile=profile)
    return Opened(model=asked, dialect=dialect, options=_binding_options if binds else any_options, tells_sent=True)


def _binding_options(request: ModelRequest, history: Sequence[ModelMessage]) -> dict[str, Any]:
    """A thought is bound to everything before it, and what stands before it may change (instructions are read anew before each call):
    one that does not fit any more is to be left out, not to fail the call."""
    options = any_options(request, history)
    thinking = request.settings.provider_options.get("thinking", {"type": "adaptive"})
    thoughts = any(isinstance(part, ThinkingPart) for message in history if isinstance(message, ModelResponse) for part in message.parts)
    if not thoughts or options.get("thinking") is False or thinking.get("type") != "adaptive" or "block_binding" in thinking:
        return options
    return {**options, "extra_body": {"thinking": {**thinking, "block_binding": DROP}}}


def _signed(part: ThinkingPart) -> bool:
    return bool(part.signature)


class _ClaudeModel(AnthropicModel):
    async def _process_streamed_response(self, response: Any, *args: Any, **kwargs: Any) -> AnthropicStreamedResponse:
        return await super()._process_streamed_response(_WholeStream(response), *args, **kwargs)  # type: ignore[arg-type]


class _WholeStream:
    """The events of an answer, as the library reads them. One that goes on behind its stop reason, or has two different ones, is no
    answer. (That there is one is seen in `answers`, for every provider.)"""

    def __init__(self, events: Any) -> None:
        self._events = events
        self._finish: str | None = None

    @property
    def source(self) -> Any:
        return self._events.source

    async def peek(self) -> Any:
        return await self._events.peek()

    def __aiter__(self) -> _WholeStream:
        return self

    async def __anext__(self) -> BetaRawMessageStreamEvent:
        event: BetaRawMessageStreamEvent = await anext(self._events)
        match event:
            case BetaRawContentBlockStartEvent() | BetaRawContentBlockDeltaEvent() if self._finish:
                raise Broken("bad_response", "It went on behind its end.")
            case BetaRawMessageDeltaEvent() if event.delta.stop_reason:
                if self._finish not in (None, event.delta.stop_reason):
                    raise Broken("bad_response", "It ended twice.")
                self._finish = event.delta.stop_reason
        return event
