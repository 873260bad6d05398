"""Guardrails of the agent: what looks at the input and at calls before they are used, and at results and answers before they are shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from runward.agents.approvals import Block, Rewrite
from runward.agents.rules import GuardedCall, Guardrails, guardrail_name
from runward.core.errors import RunwardError
from runward.core.messages import Message, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from runward.core.runs.calls import Call
from runward.core.runs.facts import Guarded
from runward.core.text import clean, clean_json, shorten
from runward.engine.authors import AuthorFailed, call_author
from runward.engine.timing import finished_within
from runward.ports.clock import Clock
from runward.ports.telemetry import Telemetry

REASON_LIMIT = 4_096
BLOCKED = "A guardrail blocked it."
TOO_SLOW = "The guardrails did not answer in time."
T = TypeVar("T")


class GuardrailFailed(RunwardError):
    """A guardrail raised, or returned what is no answer: nobody has let the value pass, so the run ends (R9)."""

    default_code = "guardrail_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """What became of a value: `value` goes on, unless `blocked` says why it does not. `said` is what the stream shows of it."""

    value: Any
    blocked: str | None
    said: tuple[Guarded, ...]


class Guards:
    """The guardrails of one run."""

    def __init__(self, guardrails: Guardrails, telemetry: Telemetry, clock: Clock) -> None:
        self._guardrails = guardrails
        self._telemetry = telemetry
        self._clock = clock

    @property
    def of_output(self) -> bool:
        """Whether any of them looks at answers."""
        return bool(self._guardrails.on_output)

    @property
    def of_results(self) -> bool:
        """Whether any of them looks at results."""
        return bool(self._guardrails.on_tool_result)

    async def within(self, seconds: float, asked: Awaitable[T]) -> T:
        """What guardrails answer, if it does not take longer. Raises GuardrailFailed, and what they raise."""
        asking = asyncio.ensure_future(asked)
        try:
            if not await finished_within(self._clock, asking, seconds):
                raise GuardrailFailed(TOO_SLOW)
            return await asking
        finally:
            asking.cancel()

    async def call(
        self, call: Call, arguments: Mapping[str, Any], context_of: Callable[[Call], Awaitable[Any]], *, seconds: float
    ) -> Passage:
        """A call with arguments, before it runs. The passage's value are its arguments. Raises GuardrailFailed."""
        if not self._guardrails.on_tool_call:
            return Passage(value=arguments, blocked=None, said=())

        def shown(value: Any) -> GuardedCall:
            return GuardedCall(tool_call_id=call.id, tool_name=call.name, arguments=value)

        passage = await self.within(seconds, self._passed("on_tool_call", arguments, shown, await context_of(call)))
        if not isinstance(passage.value, Mapping):
            raise GuardrailFailed(f"A guardrail rewrote the arguments of {call.name!r} to what is no object.")
        return passage

    async def result(self, value: Any, context: Any, *, seconds: float) -> Passage:
        """What the model is going to see of a result. Raises GuardrailFailed."""
        if not self.of_results:
            return Passage(value=value, blocked=None, said=())
        return await self.within(seconds, self._passed("on_tool_result", value, same, context))

    async def input(self, messages: Sequence[Message], context: Any) -> Passage:
        """The run's input, text by text, each shown to all of them in turn. The passage's value are messages. Raises GuardrailFailed."""
        left: list[Message] = []
        said: dict[Guarded, None] = {}
        for message in messages:
            parts: list[Part] = []
            for part in message.content:
                text = _text(part)
                if text is None:
                    parts.append(part)
                    continue
                passage = await self._passed("on_input", text, same, context, _as_text)
                said |= dict.fromkeys(passage.said)
                if passage.blocked is not None:
                    return Passage(value=messages, blocked=passage.blocked, said=tuple(said))
                parts.append(_with_text(part, passage.value) if passage.said else part)
            left.append(message.model_copy(update={"content": tuple(parts)}))
        return Passage(value=tuple(left), blocked=None, said=tuple(said))

    async def output(self, value: Any, context: Any, accept: Callable[[Any], Any] | None = None) -> Passage:
        """The answer: its text, or its typed value. `accept` makes an answer of what one of them rewrote it to. Raises GuardrailFailed, and
        what `accept` raises."""
        return await self._passed("on_output", value, same, context, accept or _as_text)

    async def _passed(
        self, hook: str, value: Any, shown: Callable[[Any], Any], context: Any, accept: Callable[[Any], Any] = lambda value: value
    ) -> Passage:
        """Asks the guardrails of one hook in order, each about what those before it have left. The first that blocks ends it."""
        said: list[Guarded] = []
        for guardrail in getattr(self._guardrails, hook):
            name = guardrail_name(guardrail)
            try:
                answer = await call_author(f"guardrail {name!r}", guardrail, shown(value), context)
            except AuthorFailed as error:
                self._telemetry.problem("agent_function_failed", error.__cause__, function=error.what)
                raise GuardrailFailed(f"The guardrail {name!r} failed unexpectedly.") from error
            match answer:
                case None:
                    continue
                case Block(reason=reason):
                    why = shorten(clean(str(reason)), REASON_LIMIT) or BLOCKED
                    said.append(Guarded(hook=hook, action="block", name=name, reason=why))
                    return Passage(value=value, blocked=why, said=tuple(said))
                case Rewrite(value=rewritten):
                    said.append(Guarded(hook=hook, action="rewrite", name=name))
                    value = accept(rewritten)
                case _:
                    raise GuardrailFailed(f"The guardrail {name!r} answered neither nothing, nor Block, nor Rewrite.")
        return Passage(value=value, blocked=None, said=tuple(said))


def same(value: Any) -> Any:
    return value


def _as_text(rewritten: Any) -> str:
    """What a guardrail rewrote a text to. Raises GuardrailFailed for what is none."""
    if not isinstance(rewritten, str):
        raise GuardrailFailed("A guardrail rewrote a text to what is none.")
    return clean(rewritten)


def _text(part: Part) -> str | None:
    """What guardrails on input see of a part: its text, or its JSON where it is none; None for a file."""
    match part:
        case TextPart() | ReasoningPart():
            return part.text
        case ToolResultPart(output=value) | ToolCallPart(arguments=value):
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return None


def _with_text(part: Part, text: str) -> Part:
    """The part with another text in place of its own."""
    match part:
        case TextPart() | ReasoningPart():
            return part.model_copy(update={"text": text})
        case ToolResultPart():
            return part.model_copy(update={"output": _read(text, part.output)})
        case ToolCallPart():
            return part.model_copy(update={"arguments": _read(text, part.arguments)})
    return part


def _read(text: str, before: Any) -> Any:
    """A text as the JSON that stood in its place; the text itself where that was one, or where it is no JSON any more."""
    if isinstance(before, str):
        return text
    try:
        return clean_json(json.loads(text))
    except (ValueError, RecursionError):
        return text
