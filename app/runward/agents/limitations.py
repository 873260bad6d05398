"""What an agent may declare already and this version of the service does not run yet. It shrinks until it is empty.

Nothing declared is ever ignored: what a run reaches and this version cannot do ends it `failed` with a clear message, and the agent's
manifest says so beforehand.
"""

from __future__ import annotations

from runward.agents.agent import Agent
from runward.core.errors import RunwardError


class Unsupported(RunwardError):
    """What was asked for can be declared, but this version of the service does not run it yet. The run that reaches it fails."""

    default_code = "unsupported"


def unsupported_run(agent: Agent) -> str | None:
    """Why no run of this agent can be made good on in this version; None when its runs can start."""
    missing = [
        (bool(agent.guardrails.on_input or agent.guardrails.on_output), "guardrails on input or output"),
        (agent.policy.allow_models is not None, "allow_models of a policy"),
    ]
    found = [name for reached, name in missing if reached]
    return _sentence(f"Agent {agent.name!r} uses", found) if found else None


def unsupported(agent: Agent) -> tuple[str, ...]:
    """Everything an agent declares that this version does not run, a sentence each: the manifest's warnings."""
    found = [unsupported_run(agent)]
    if agent.handoffs:
        found.append(f"Agent {agent.name!r} has handoffs: this version does not hand runs over yet.")
    return tuple(each for each in found if each is not None)


def _sentence(who: str, what: list[str]) -> str:
    return f"{who} {' and '.join(what)}, which this version of the service does not run yet."
