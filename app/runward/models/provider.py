"""A client of one provider's model: exactly one request per call, streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelResponseStreamEvent
from pydantic_ai.models import StreamedResponse

from runward.models.answers import Deltas, answer_of
from runward.models.failures import failure_of
from runward.models.history import history_of
from runward.models.kinds import failure
from runward.models.opened import SENT, Opened
from runward.models.request import fits_natively, parameters_of, settings_of
from runward.ports.models import ModelAnswer, ModelCallError, ModelDelta, ModelRequest

CLOSE_SECONDS = 5.0
"""How long closing the connection of a finished answer may take."""

T = TypeVar("T")
OnDelta = Callable[[ModelDelta], Awaitable[None]]


class ProviderClient:
    """`ports.models.ModelClient` on pydantic-ai. Never retries, never logs, never lets a provider's own text into an error."""

    def __init__(self, name: str, opened: Opened) -> None:
        self._name = name
        self._opened = opened

    @property
    def name(self) -> str:
        """`provider:model`."""
        return self._name

    def holds_to(self, schema: Mapping[str, Any]) -> bool:
        """What the library knows of the model, and of the schemas that its provider takes: Anthropic's have to be simple."""
        return self._opened.model.profile.get("supports_json_schema_output", False) and fits_natively(self._opened.model, schema)

    @property
    def objects_only(self) -> bool:
        """OpenAI rejects every other schema; no provider rejects these."""
        return True

    async def call(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """One request; see `ports.models.ModelClient`."""
        return await _Call(self._name, self._opened, request, on_delta).run()


class _Call:
    """One call under way. The clock is the event loop's: what is timed here is a real connection."""

    def __init__(self, name: str, opened: Opened, request: ModelRequest, on_delta: OnDelta) -> None:
        self._name = name
        self._opened = opened
        self._request = request
        self._on_delta = on_delta
        self._deltas = Deltas()
        self._sent: list[bool] = []
        self._now = asyncio.get_running_loop().time
        self._end = self._now() + request.timeout_seconds

    async def run(self) -> ModelAnswer:
        """Opens the stream, reads it to its end and closes it, whatever happens."""
        token = SENT.set(self._sent)
        stack = AsyncExitStack()
        try:
            answer = await self._read(await self._guarded(self._open(stack), self._request.first_event_timeout_seconds))
        except BaseException:
            await stack.aclose()
            raise
        finally:
            SENT.reset(token)
        await self._guarded(stack.aclose(), CLOSE_SECONDS)
        return answer

    async def _open(self, stack: AsyncExitStack) -> StreamedResponse:
        request, opened = self._request, self._opened
        history = history_of(request.messages, opened.dialect)
        settings = settings_of(request, opened.options(request, history))
        stream = model_request_stream(
            opened.model, history, model_settings=settings, model_request_parameters=parameters_of(request), instrument=False
        )
        return await stack.enter_async_context(stream)

    async def _read(self, stream: StreamedResponse) -> ModelAnswer:
        events, patience, over = aiter(stream), self._request.first_event_timeout_seconds, False
        while not over:
            over, delta = await self._guarded(self._next(events), patience)
            patience = self._request.chunk_timeout_seconds
            if delta is not None:
                await self._on_delta(delta)
        answer = await self._guarded(self._whole(stream), patience)
        if answer.text and not self._deltas.has_text:
            await self._on_delta(ModelDelta(kind="text", text=answer.text))  # a refusal, which the library keeps until the end
        return answer

    async def _next(self, events: AsyncIterator[ModelResponseStreamEvent]) -> tuple[bool, ModelDelta | None]:
        event = await anext(events, None)
        return (True, None) if event is None else (False, self._deltas.of(event))

    async def _whole(self, stream: StreamedResponse) -> ModelAnswer:
        return answer_of(stream.get(), name=self._name)

    async def _guarded(self, waiting: Awaitable[T], patience: float) -> T:
        """Waits for the provider, no longer than allowed. Whatever fails is a `ModelCallError`, raised where nothing hangs on to the
        library's own exception: its text has no way out, not even through a traceback."""
        scope = asyncio.timeout_at(min(self._end, self._now() + patience))
        try:
            async with scope:
                return await waiting
        except Exception as error:  # noqa: BLE001  an SDK stumbles over a strange answer in any way there is
            failed = self._failure(error, late=scope.expired())
        raise failed

    def _failure(self, error: Exception, *, late: bool) -> ModelCallError:
        started, sent = self._deltas.started, bool(self._sent) or not self._opened.tells_sent
        if late:
            return failure("timeout", billed=sent, started=started)
        return failure_of(error, started=started, sent=sent)
