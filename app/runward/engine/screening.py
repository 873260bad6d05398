"""Stations 2 to 4 for a turn's calls: what may run, with which arguments, what a person has to approve, and what is answered instead."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from runward.agents.agent import Agent
from runward.agents.approvals import Approval, Block
from runward.agents.contexts import ToolContext
from runward.agents.rules import Policy
from runward.core.errors import RunwardError
from runward.core.ids import canonical_json
from runward.core.runs.calls import (
    MAX_ARGUMENT_BYTES,
    MAX_CALLS_PER_TURN,
    ApprovalTerms,
    Call,
    CallStage,
    Result,
    ToolTraits,
    parse_arguments,
)
from runward.core.runs.facts import Broke, Happening, Screened, Screening
from runward.core.runs.state import RunState
from runward.core.text import clean, shorten
from runward.core.values import replace
from runward.engine.authors import AuthorFailed, call_author
from runward.engine.deployment import Deployed
from runward.engine.guarding import GuardrailFailed, Guards, Passage
from runward.engine.services import Services
from runward.ports.tools import Offer

NAMES_SHOWN = 32
NAME_SHOWN = 128
REASON_LIMIT = 4_096
BLOCKED = "The call was blocked."


class Screener:
    """Looks at every proposed and cleared call of the turn, all at once, before any of them starts.

    `context_of` makes the context that predicates get. `requested` are the tools that the request brought.
    """

    def __init__(
        self,
        run: RunState,
        *,
        deployed: Deployed,
        policy: Callable[[], Policy],
        requested: Callable[[], Mapping[str, Offer]],
        guards: Guards,
        context_of: Callable[[Call], Awaitable[ToolContext[Any, Any]]],
        services: Services,
    ) -> None:
        self._run = run
        self._deployed = deployed
        self._policy = policy
        self._requested = requested
        self._guards = guards
        self._context_of = context_of
        self._services = services

    def stop(self) -> None:
        """Nothing to stop: it has no effect, and the next leg does it again."""

    async def outcome(self) -> Happening:
        try:
            return await self._outcome()
        except RunwardError as error:
            self._services.telemetry.problem("screening_impossible", error)
            return self._broke(error.code, error.detail, {})

    async def _outcome(self) -> Happening:
        offers = {**self._requested(), **self._deployed.waiting, **self._deployed.tools}
        calls = [call for call in self._run.turn if call.stage in (CallStage.PROPOSED, CallStage.CLEARED)]
        for call in calls:
            offer = offers.get(call.name) if call.offered else None
            if offer is not None and not self._policy().permits(offer.traits):
                message = f"The policy does not allow the tool {call.name!r}, which the model called."
                return self._broke("tool_not_allowed", message, {"tool_name": call.name})
        screenings = [await self._screening(call, offers) for call in calls]
        return Screened(at=self._services.time.now(), screenings=tuple(screenings))

    async def _screening(self, call: Call, offers: Mapping[str, Offer]) -> Screening:
        if call.position > MAX_CALLS_PER_TURN:
            return _refused(call, "blocked", f"Only the first {MAX_CALLS_PER_TURN} calls of one answer are run. Ask again for the others.")
        offer = offers.get(call.name)
        if offer is None or not call.offered:
            return _refused(call, "unknown_tool", _unknown_tool(call.name, offers))
        _, canonical = parse_arguments(call.arguments if call.given is None else call.given)
        if canonical is None:
            message = f"The arguments must be a JSON object of at most {MAX_ARGUMENT_BYTES // 1024} KiB."
            return Screening(call_id=call.id, traits=offer.traits, arguments="", refusal=_error("invalid_arguments", message))
        seconds = self._run.limits.model_timeout_seconds
        passage = await self._guards.call(call, json.loads(canonical), self._context_of, seconds=seconds)
        traits = replace(offer.traits, projects=offer.traits.projects or self._guards.of_results)
        if passage.blocked is not None:
            blocked = _error("blocked", passage.blocked)
            return Screening(call_id=call.id, traits=traits, arguments=canonical, refusal=blocked, guarded=passage.said)
        arguments, canonical = _rewritten(passage, canonical)
        refusal = offer.refusal(arguments)
        terms: ApprovalTerms | str | None = None
        if refusal is None:
            terms = await self._terms(call, offer, arguments)
        refused = _error("invalid_arguments", refusal) if refusal is not None else None
        if isinstance(terms, str):
            refused, terms = _error("blocked", terms), None
        return Screening(call_id=call.id, traits=traits, arguments=canonical, refusal=refused, approval=terms, guarded=passage.said)

    async def _terms(self, call: Call, offer: Offer, arguments: Mapping[str, Any]) -> ApprovalTerms | str | None:
        """How a person has to approve the call; None when nobody has to; a text when the author's predicate blocks it. A predicate decides
        once, when the model asks (I-32), and one that fails has not said that the call may run (I-29). What it blocks a person cannot edit
        a call into either (R21)."""
        approval, always = approval_for(self._deployed.agent, self._policy(), offer.traits)
        if approval is None:
            return None
        edited = call.gate is not None and call.gate.verdict is not None and call.gate.verdict.issued is not None
        if approval.when is not None and not always and (call.stage is CallStage.PROPOSED or edited):
            try:
                asks = await call_author("approval predicate", approval.when, arguments, await self._context_of(call))
            except AuthorFailed as error:
                self._services.telemetry.problem("agent_function_failed", error.__cause__, function=error.what, tool=call.name)
                asks = True
            if isinstance(asks, Block):
                return shorten(clean(str(asks.reason)), REASON_LIMIT) or BLOCKED
            if asks is False and call.stage is CallStage.PROPOSED:
                return None
        return ApprovalTerms(
            version=approval.version,
            editable=approval.editable,
            expires_seconds=approval.expires_seconds,
            on_expiry=approval.on_expiry,
            reason=approval.reason,
            schema=offer.traits.parameters,
        )

    def _broke(self, code: str, message: str, details: Mapping[str, Any]) -> Broke:
        return Broke(at=self._services.time.now(), code=code, message=message, details=details)


def _rewritten(passage: Passage, canonical: str) -> tuple[Mapping[str, Any], str]:
    """The arguments that guardrails have left, and their canonical text (R17a). Raises GuardrailFailed for what is not JSON."""
    if not any(each.action == "rewrite" for each in passage.said):
        return passage.value, canonical
    try:
        text = canonical_json(dict(passage.value))
    except (TypeError, ValueError):
        raise GuardrailFailed("A guardrail rewrote a call's arguments to what is not JSON.") from None
    _, canonical_or_none = parse_arguments(text)
    if canonical_or_none is None:
        raise GuardrailFailed("A guardrail rewrote a call's arguments to what no call may have.")
    return json.loads(canonical_or_none), canonical_or_none


def approval_for(agent: Agent, policy: Policy, traits: ToolTraits) -> tuple[Approval | None, bool]:
    """How calls of a tool are approved, by its author or the run's policy; the policy's word is `always`."""
    own = next((tool.approval for tool in agent.tools if tool.name == traits.name), None)
    always = policy.asks(traits)
    return (own or Approval() if always else own), always


def _unknown_tool(name: str, offers: Mapping[str, Offer]) -> str:
    known = sorted(offers)
    some = ", ".join(known[:NAMES_SHOWN]) + (", …" if len(known) > NAMES_SHOWN else "")
    return f"There is no tool named {shorten(name, NAME_SHOWN)!r}. " + (f"The tools are: {some}." if known else "There are no tools.")


def _refused(call: Call, outcome: str, message: str) -> Screening:
    return Screening(call_id=call.id, traits=None, arguments="", refusal=_error(outcome, message))


def _error(outcome: str, message: str) -> Result:
    return Result(output=message, is_error=True, outcome=outcome)
