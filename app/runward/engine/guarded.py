"""Shows a run's input and its answer to the agent's guardrails, and says what they have left of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from runward.core.errors import RunwardError
from runward.core.ids import canonical_json
from runward.core.messages import Message
from runward.core.runs.facts import Broke, Happening, InputGuarded, OutputGuarded
from runward.core.runs.state import Answer
from runward.core.values import replace
from runward.engine.guarding import GuardrailFailed, Guards, Passage
from runward.engine.outputs import OutputReader
from runward.engine.services import Services

UNGUARDABLE = "It cannot be shown to the guardrails."


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarding:
    """What guardrails are asked with, and how long they may take, all together."""

    guards: Guards
    context: Any
    timeout_seconds: float


class _Shown:
    """What both have in common: guardrails that fail, or take too long, have let nothing pass (R9)."""

    def __init__(self, *, prepare: Callable[[], Awaitable[Guarding]], services: Services) -> None:
        self._prepare = prepare
        self._services = services

    def stop(self) -> None:
        """Nothing to stop: it has no effect, and a run that ends does not wait for it."""

    async def outcome(self) -> Happening:
        try:
            guarding = await self._prepare()
            return await guarding.guards.within(guarding.timeout_seconds, self._asked(guarding))
        except RunwardError as error:
            self._services.telemetry.problem("guarding_impossible", error)
            return Broke(at=self._services.time.now(), code=error.code, message=error.detail, details={})

    async def _asked(self, guarding: Guarding) -> Happening:
        raise NotImplementedError


class InputGuarding(_Shown):
    """The input, before anything else sees it."""

    def __init__(
        self, messages: Callable[[], Sequence[Message]], *, prepare: Callable[[], Awaitable[Guarding]], services: Services
    ) -> None:
        super().__init__(prepare=prepare, services=services)
        self._messages = messages

    async def _asked(self, guarding: Guarding) -> InputGuarded:
        passage = await guarding.guards.input(self._messages(), guarding.context)
        left = passage.value if passage.blocked is None else None
        return InputGuarded(at=self._services.time.now(), messages=left, guarded=passage.said)


class OutputGuarding(_Shown):
    """The answer of a step, before it is stored, shown or verified. `reader` reads typed ones, and None stands for a text."""

    def __init__(
        self,
        step: int,
        answer: Answer,
        *,
        reader: Callable[[], OutputReader | None],
        prepare: Callable[[], Awaitable[Guarding]],
        services: Services,
    ) -> None:
        super().__init__(prepare=prepare, services=services)
        self._step = step
        self._answer = answer
        self._reader = reader

    async def _asked(self, guarding: Guarding) -> OutputGuarded:
        reader = self._reader()
        left = await (self._text(guarding) if reader is None else self._typed(guarding, reader))
        passage, answer = left
        kept = answer if passage.blocked is None else None
        return OutputGuarded(at=self._services.time.now(), step=self._step, answer=kept, guarded=passage.said)

    async def _text(self, guarding: Guarding) -> tuple[Passage, Answer]:
        passage = await guarding.guards.output(self._answer.text, guarding.context)
        return passage, self._rewritten(passage.value) if passage.said else self._answer

    async def _typed(self, guarding: Guarding, reader: OutputReader) -> tuple[Passage, Answer]:
        """Each guardrail gets a value of the declared type: what one of them rewrites has to fit the schema anew."""
        try:
            value = reader.typed(self._answer.output)
        except ValidationError:
            raise GuardrailFailed(UNGUARDABLE) from None
        written: Any = self._answer.output

        def accept(rewritten: Any) -> Any:
            nonlocal written
            read = reader.reread(rewritten)
            if read.complaint is not None:
                raise GuardrailFailed(f"A guardrail rewrote the answer to what does not fit its schema: {read.complaint}.")
            written = read.value
            return reader.typed(written)

        passage = await guarding.guards.output(value, guarding.context, accept)
        if not passage.said:
            return passage, self._answer
        return passage, replace(self._rewritten(canonical_json(written)), output=written)

    def _rewritten(self, text: str) -> Answer:
        """The answer with another text. What its model thought, and its provider's own form of it, say what that text does not."""
        return replace(self._answer, text=text, reasoning="", opaque=None, opaque_format=None)
