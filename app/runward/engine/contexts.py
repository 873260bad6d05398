"""What author code is told about its run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, ValidationError

from runward.agents.contexts import CallHost, RunContext, RunHost, ToolContext
from runward.agents.elsewhere import ClientTool
from runward.agents.output import Output
from runward.agents.rules import Policy
from runward.core.errors import RunwardError
from runward.core.ids import idempotency_key
from runward.core.kernel.actor import Envelope
from runward.core.messages import PARTS, Message
from runward.core.runs.calls import Call
from runward.core.runs.dues import deadline
from runward.core.runs.state import RunState
from runward.engine.deployment import Deployed
from runward.engine.sealing import Seal


class BadContext(RunwardError):
    """The run's stored context does not fit the agent's model."""

    default_code = "invalid_context"


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What the request brought: contexts for author code only, never shown, never sent to a model (R17c), client tools, a type for the
    answer, the policy that was narrowed for this run, and the input, where guardrails look at it before it enters the transcript."""

    context: Any
    tool_context: Mapping[str, Mapping[str, Any]]
    client_tools: tuple[ClientTool, ...]
    output: Output | None
    policy: Policy | None
    input: tuple[Message, ...]


def brought_text(
    *,
    context: Mapping[str, Any] | None,
    tool_context: Mapping[str, Mapping[str, Any]] | None,
    client_tools: Sequence[ClientTool] = (),
    output: Mapping[str, Any] | None = None,
    policy: Policy | None = None,
    input: Sequence[Message] = (),
) -> str | None:
    """All of it as it is stored, before sealing; None when there is nothing to store."""
    if context is None and not tool_context and not client_tools and output is None and policy is None and not input:
        return None
    brought: dict[str, Any] = {"context": context, "tool_context": tool_context or {}}
    if client_tools:
        brought["client_tools"] = [asdict(tool) for tool in client_tools]
    if output is not None:
        brought["output"] = output
    if policy is not None:
        brought["policy"] = policy.to_json()
    if input:
        brought["input"] = [{"role": each.role, "content": PARTS.dump_python(each.content, mode="json")} for each in input]
    return json.dumps(brought, ensure_ascii=False, separators=(",", ":"))


class Contexts:
    """Makes the contexts of one run. Opened and validated once, on first use."""

    def __init__(self, row: Envelope, deployed: Deployed, seal: Seal, host: RunHost) -> None:
        self._row = row
        self._deployed = deployed
        self._seal = seal
        self._host = host
        self._brought: Brought | None = None

    def of_run(self, run: RunState, messages: Sequence[Message]) -> RunContext[Any, Any]:
        """Raises Unsealable and BadContext."""
        row = self._row
        return RunContext(
            run_id=row.public_id,
            agent=row.agent,
            agent_version=row.agent_version,
            scope=row.scope,
            step=run.step,
            resources=self._deployed.resources,
            context=self._opened().context,
            messages=messages,
            deadline=_deadline(run),
            host=self._host,
        )

    def of_call(self, run: RunState, call: Call, messages: Sequence[Message], host: CallHost) -> ToolContext[Any, Any]:
        """Raises Unsealable and BadContext."""
        row = self._row
        brought = self._opened()
        return ToolContext(
            run_id=row.public_id,
            agent=row.agent,
            agent_version=row.agent_version,
            scope=row.scope,
            step=call.step,
            resources=self._deployed.resources,
            context=brought.context,
            messages=messages,
            deadline=_deadline(run),
            tool_call_id=call.id,
            attempt=call.attempt,
            idempotency_key=idempotency_key(row.uid, call.id),
            answers=call.answers,
            tool_context=brought.tool_context.get(call.name),
            host=host,
        )

    @property
    def client_tools(self) -> tuple[ClientTool, ...]:
        """The client tools that the request brought. Raises Unsealable and BadContext."""
        return self._opened().client_tools

    @property
    def output(self) -> Output | None:
        """The type of the run's answer: the request's, else the agent's. Raises Unsealable and BadContext."""
        return self._opened().output or self._deployed.agent.output

    @property
    def input(self) -> tuple[Message, ...]:
        """The input that is not in the transcript yet. Raises Unsealable and BadContext."""
        return self._opened().input

    @property
    def policy(self) -> Policy:
        """What the run is held to: the agent's policy as it was narrowed for it. Raises Unsealable and BadContext."""
        return self._opened().policy or self._deployed.agent.policy

    def _opened(self) -> Brought:
        if self._brought is None:
            stored = {} if self._row.context is None else json.loads(self._seal.open(self._row.context))
            context, model = stored.get("context"), self._deployed.agent.context
            self._brought = Brought(
                context=_validated(context, model),
                tool_context=stored.get("tool_context", {}),
                client_tools=tuple(ClientTool(**tool) for tool in stored.get("client_tools", ())),
                output=Output(**stored["output"]) if "output" in stored else None,
                policy=Policy(**stored["policy"]) if "policy" in stored else None,
                input=tuple(_message(seq, each) for seq, each in enumerate(stored.get("input", ()), 1)),
            )
        return self._brought


def _message(seq: int, stored: Mapping[str, Any]) -> Message:
    return Message(seq=seq, role=stored["role"], content=PARTS.validate_python(stored["content"]))


def _validated(context: Any, model: type[BaseModel] | None) -> Any:
    if model is None:
        return context
    try:
        return model.model_validate({} if context is None else context)
    except ValidationError:
        raise BadContext("The run's context does not fit the agent's context model.") from None


def _deadline(run: RunState) -> datetime | None:
    due = deadline(run)
    return None if due is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=due)
