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


def unsupported(agent: Agent) -> tuple[str, ...]:
    """Everything an agent declares that this version does not run, a sentence each: the manifest's warnings."""
    if not agent.handoffs:
        return ()
    return (f"Agent {agent.name!r} has handoffs: this version does not hand runs over yet.",)
