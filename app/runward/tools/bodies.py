"""From an agent to what the engine runs: the tools whose calls this version can run, by name."""

from __future__ import annotations

from runward.agents.agent import Agent
from runward.agents.limitations import unsupported_call
from runward.agents.tools import Tool
from runward.ports import tools as port
from runward.tools.local import LocalTool
from runward.tools.threads import Threads


def bodies(agent: Agent, *, max_result_bytes: int, threads: Threads) -> dict[str, port.Tool]:
    """The agent's tools that can run, compiled. Those that cannot, or need a person first, have no body: they cannot run by accident.

    `max_result_bytes` is how long a result may be as stored text, `threads` is shared by all agents of a process.
    """
    return {
        tool.name: LocalTool(tool, max_result_bytes=max_result_bytes, threads=threads)
        for tool in agent.tools
        if isinstance(tool, Tool) and tool.enabled is not False and unsupported_call(agent, tool) is None
    }
