"""The manifest: an agent as callers see it (`GET /agents`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from runward.agents.agent import Agent
from runward.agents.approvals import Approval
from runward.agents.binding import fingerprint
from runward.agents.estimates import overhead_tokens
from runward.agents.limitations import unsupported
from runward.agents.tools import AnyTool

Asked = Literal["never", "always", "sometimes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolManifest:
    """A tool as callers see it. `needs_approval` is "sometimes" where a predicate decides."""

    name: str
    description: str
    kind: str
    effect: str
    risk: str
    permissions: Sequence[str]
    needs_approval: Asked
    editable: bool
    parameters: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """An agent as callers see it: nothing in it is secret. `verified`: its answers are looked at before they count. `guardrails` are named
    by hook. Each of its model calls takes `overhead_tokens` besides its messages, about, and `max_output_tokens` for its answer, where the
    author says it. `warnings` says what this version of the service does not run of it yet."""

    name: str
    version: str
    fingerprint: str
    description: str
    models: tuple[str, ...]
    tools: tuple[ToolManifest, ...]
    context_schema: Mapping[str, Any] | None
    output_schema: Mapping[str, Any] | None
    verified: bool
    guardrails: Mapping[str, Sequence[str]]
    policy: Mapping[str, Any]
    limits: Mapping[str, Any]
    overhead_tokens: int
    max_output_tokens: int | None
    accepts: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The manifest as JSON."""
        return asdict(self)


def manifest(agent: Agent) -> Manifest:
    """The manifest of an agent."""
    return Manifest(
        name=agent.name,
        version=agent.version,
        fingerprint=fingerprint(agent),
        description=agent.description,
        models=tuple(agent.models),
        tools=tuple(_tool(tool, agent) for tool in agent.tools),
        context_schema=None if agent.context is None else agent.context.model_json_schema(),
        output_schema=None if agent.output is None else agent.output.json_schema,
        verified=agent.output is not None and agent.output.verify is not None,
        guardrails=agent.guardrails.names(),
        policy=agent.policy.to_json(),
        limits=asdict(agent.limits),
        overhead_tokens=overhead_tokens(agent),
        max_output_tokens=agent.model_settings.max_output_tokens,
        accepts=tuple(agent.accepts),
        warnings=unsupported(agent),
    )


def _tool(tool: AnyTool, agent: Agent) -> ToolManifest:
    approval, traits = tool.approval, tool.traits
    return ToolManifest(
        name=tool.name,
        description=tool.description,
        kind=tool.kind,
        effect=traits.effect.value,
        risk=traits.risk_level.value,
        permissions=[*traits.permissions],
        needs_approval="always" if agent.policy.asks(traits) else _asked(approval),
        editable=approval is not None and approval.editable,
        parameters=tool.parameters,
        output_schema=tool.output_schema,
    )


def _asked(approval: Approval | None) -> Asked:
    if approval is None:
        return "never"
    return "always" if approval.when is None else "sometimes"
