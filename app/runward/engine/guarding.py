"""Guardrails of the agent: what looks at calls before they run, and at results before the model sees them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runward.agents.approvals import Block, Rewrite
from runward.agents.rules import GuardedCall, Guardrails, guardrail_name
from runward.core.errors import RunwardError
from runward.core.runs.calls import Call
from runward.core.runs.facts import Guarded
from runward.core.text import clean, shorten
from runward.engine.authors import AuthorFailed, call_author
from runward.ports.telemetry import Telemetry

REASON_LIMIT = 4_096
BLOCKED = "A guardrail blocked it."


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

    def __init__(self, guardrails: Guardrails, telemetry: Telemetry) -> None:
        self._guardrails = guardrails
        self._telemetry = telemetry

    @property
    def of_results(self) -> bool:
        """Whether any of them looks at results."""
        return bool(self._guardrails.on_tool_result)

    async def call(self, call: Call, arguments: Mapping[str, Any], context_of: Callable[[Call], Awaitable[Any]]) -> Passage:
        """A call with arguments, before it runs. The passage's value are its arguments. Raises GuardrailFailed."""
        if not self._guardrails.on_tool_call:
            return Passage(value=arguments, blocked=None, said=())

        def shown(value: Any) -> GuardedCall:
            return GuardedCall(tool_call_id=call.id, tool_name=call.name, arguments=value)

        passage = await self._passed("on_tool_call", arguments, shown, await context_of(call))
        if not isinstance(passage.value, Mapping):
            raise GuardrailFailed(f"A guardrail rewrote the arguments of {call.name!r} to what is no object.")
        return passage

    async def result(self, value: Any, context: Any) -> Passage:
        """What the model is going to see of a result. Raises GuardrailFailed."""
        return await self._passed("on_tool_result", value, lambda value: value, context)

    async def _passed(self, hook: str, value: Any, shown: Callable[[Any], Any], context: Any) -> Passage:
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
                    value = rewritten
                case _:
                    raise GuardrailFailed(f"The guardrail {name!r} answered neither nothing, nor Block, nor Rewrite.")
        return Passage(value=value, blocked=None, said=tuple(said))
