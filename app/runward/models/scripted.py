"""The client of a `ScriptedModel`: a model without a provider, for tests, demos and benchmarks."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Sequence

from runward.agents.models import Reply, Script, ScriptedModel, ToolCall
from runward.core.errors import DefinitionError
from runward.core.messages import TextPart
from runward.core.text import clean
from runward.core.usage import Usage
from runward.models.kinds import failure
from runward.ports.clock import Clock
from runward.ports.models import AskedCall, Finish, ModelAnswer, ModelCallError, ModelDelta, ModelRequest

_WORD = re.compile(r"^\s+|\S+\s*")
CHARACTERS_PER_TOKEN = 4

OnDelta = Callable[[ModelDelta], Awaitable[None]]


class ScriptedClient:
    """`ports.models.ModelClient` that answers from a script. Its delays and the call's time-outs are those of the clock it is given."""

    def __init__(self, model: ScriptedModel, clock: Clock) -> None:
        self._model = model
        self._clock = clock

    @property
    def name(self) -> str:
        """`scripted:` and the name of the script."""
        return self._model.name

    async def call(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Turn n is answered with reply n. Without a delay each text comes in one piece, else word by word."""
        reply = await self._reply(request)
        if reply.error is not None and reply.error != "disconnect_mid_stream":
            raise _failed(reply.error)
        answer = _answer(reply, request, self.name)
        pieces = _pieces(reply, answer)
        if not reply.chunk_delay_seconds:
            for piece in pieces:
                await on_delta(piece)
        else:
            await self._slowly(pieces, reply.chunk_delay_seconds, request, on_delta)
        if reply.error is not None:
            raise failure("network", billed=True, started=bool(pieces))
        return answer

    async def _reply(self, request: ModelRequest) -> Reply:
        script: Script | Reply = self._model.script
        if request.purpose == "generate" and (self._model.generate is not None or not callable(script)):
            if self._model.generate is None:
                raise failure("rejected", detail="The script has no reply for ctx.generate.", billed=False, started=False)
            script = self._model.generate
        if isinstance(script, Reply):
            return script
        if not callable(script):
            if request.step > len(script):
                raise failure(
                    "rejected", detail=f"The script has {len(script)} replies; this is turn {request.step}.", billed=False, started=False
                )
            return script[request.step - 1]
        reply = script(request)
        if inspect.isawaitable(reply):
            reply = await reply
        if not isinstance(reply, Reply):
            raise DefinitionError(f"The function of {self.name!r} returned {type(reply).__name__}, not a Reply.")
        return reply

    async def _slowly(self, pieces: Sequence[ModelDelta], delay: float, request: ModelRequest, on_delta: OnDelta) -> None:
        """Sleeps before each piece, and gives up where a provider's client would."""
        end, patience = self._clock.monotonic() + request.timeout_seconds, request.first_event_timeout_seconds
        for number, piece in enumerate(pieces):
            allowed = min(patience, end - self._clock.monotonic())
            await self._clock.sleep(min(delay, allowed))
            if delay > allowed:
                raise failure("timeout", billed=True, started=number > 0)
            await on_delta(piece)
            patience = request.chunk_timeout_seconds


def _answer(reply: Reply, request: ModelRequest, name: str) -> ModelAnswer:
    calls = tuple(AskedCall(provider_id=call.id or "", tool_name=clean(call.name), arguments=_arguments(call)) for call in reply.tool_calls)
    finish: Finish = reply.finish
    if finish in ("stop", "tool_calls"):
        finish = "tool_calls" if calls else "stop"
    text, reasoning = clean(reply.text), clean(reply.reasoning)
    usage = reply.usage or _estimate(request, len(text) + len(reasoning) + sum(len(call.arguments) for call in calls))
    return ModelAnswer(text=text, reasoning=reasoning, calls=calls, finish=finish, usage=usage, model=name)


def _arguments(call: ToolCall) -> str:
    return clean(call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments), ensure_ascii=False))


def _pieces(reply: Reply, answer: ModelAnswer) -> list[ModelDelta]:
    """What is streamed: the thoughts, the text, the calls. A stream that breaks off does so behind the text."""
    slow = bool(reply.chunk_delay_seconds)
    pieces = [ModelDelta(kind="reasoning", text=text) for text in _split(answer.reasoning, slow)]
    pieces += [ModelDelta(kind="text", text=text) for text in _split(answer.text, slow)]
    if reply.error is None:
        numbered = enumerate(answer.calls, 1)
        pieces += [ModelDelta(kind="tool_input", text=call.arguments, index=index, tool_name=call.tool_name) for index, call in numbered]
    return pieces


def _split(text: str, slow: bool) -> list[str]:
    if not text:
        return []
    return _WORD.findall(text) if slow else [text]


def _estimate(request: ModelRequest, characters: int) -> Usage:
    said = sum(len(part.text) for message in request.messages for part in message.content if isinstance(part, TextPart))
    return Usage(
        input_tokens=1 + (said + len(request.instructions)) // CHARACTERS_PER_TOKEN,
        output_tokens=1 + characters // CHARACTERS_PER_TOKEN,
    )


def _failed(error: str) -> ModelCallError:
    match error:
        case "rate_limited":
            return failure("rate_limited", billed=False, started=False, status=429)
        case "server_error":
            return failure("server_error", billed=False, started=False, status=500)
        case "timeout":
            return failure("timeout", billed=True, started=False)
        case "content_filter":
            return failure("content_filter", billed=False, started=False)
        case _:
            return failure("rejected", billed=False, started=False, status=400)
