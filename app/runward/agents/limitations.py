"""What an agent may declare already and this version of the service does not run yet. It shrinks until it is empty.

Nothing declared is ever ignored: what a run reaches and this version cannot do ends it `failed` with a clear message, and the agent's
manifest says so beforehand.
"""

from __future__ import annotations

from runward.agents.agent import Agent
from runward.agents.builtin import BuiltinTool
from runward.agents.elsewhere import ClientTool, HttpTool
from runward.agents.tools import AnyTool, Tool
from runward.core.errors import RunwardError


class Unsupported(RunwardError):
    """What was asked for can be declared, but this version of the service does not run it yet. The run that reaches it fails."""

    default_code = "unsupported"


def unsupported_run(agent: Agent) -> str | None:
    """Why no run of this agent can be made good on in this version; None when its runs can start."""
    missing = [
        (agent.output is not None, "typed output"),
        (bool(agent.guardrails.names()), "guardrails"),
        (agent.policy.allow_models is not None, "allow_models of a policy"),
        (agent.limits.max_total_tokens is not None or agent.limits.max_cost_usd is not None, "budgets (max_total_tokens, max_cost_usd)"),
    ]
    found = [name for reached, name in missing if reached]
    return _sentence(f"Agent {agent.name!r} uses", found) if found else None


def unsupported_call(agent: Agent, tool: AnyTool) -> str | None:
    """Why a call of this tool cannot be made good on in this version; None when it can run."""
    policy = agent.policy
    missing = [
        (isinstance(tool, ClientTool), "client tools"),
        (isinstance(tool, HttpTool), "HTTP tools"),
        (isinstance(tool, BuiltinTool), "questions and timers"),
        (tool.approval is not None or tool.name in policy.require_approval, "approvals"),
        (tool.name in policy.deny_tools or (policy.allow_tools is not None and tool.name not in policy.allow_tools), "tool policies"),
    ]
    found = [name for reached, name in missing if reached]
    return _sentence(f"Tool {tool.name!r} uses", found) if found else None


def unsupported(agent: Agent) -> tuple[str, ...]:
    """Everything an agent declares that this version does not run, a sentence each: the manifest's warnings."""
    found = [unsupported_run(agent), *(unsupported_call(agent, tool) for tool in agent.tools)]
    found += [_unsettled(tool) for tool in agent.tools]
    if agent.fallback_models:
        found.append(f"Agent {agent.name!r} has fall-back models: this version does not fail over to them yet.")
    if agent.handoffs:
        found.append(f"Agent {agent.name!r} has handoffs: this version does not hand runs over yet.")
    return tuple(each for each in found if each is not None)


def _unsettled(tool: AnyTool) -> str | None:
    if not isinstance(tool, Tool) or (tool.probe is None and tool.verify_evidence is None):
        return None
    return f"Tool {tool.name!r} has a probe or checks evidence: this version does not settle unknown effects yet."


def _sentence(who: str, what: list[str]) -> str:
    return f"{who} {' and '.join(what)}, which this version of the service does not run yet."
