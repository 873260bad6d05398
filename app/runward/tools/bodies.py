"""From an agent to what the engine runs: the tools whose calls this version can run, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from runward.agents.agent import Agent
from runward.agents.builtin import BuiltinTool
from runward.agents.elsewhere import ClientTool, HttpTool
from runward.agents.schemas import Schema
from runward.agents.tools import AnyTool, Tool
from runward.core.runs.calls import ToolTraits
from runward.ports import tools as port
from runward.tools.local import LocalTool
from runward.tools.threads import Threads

if TYPE_CHECKING:
    from runward.tools.outward import Outward


class WaitingTool:
    """`ports.tools.Offer` of a tool that nobody here runs: its calls wait for somebody else, or for a time."""

    def __init__(self, tool: AnyTool) -> None:
        self._traits = tool.traits
        self._schema = Schema(tool.parameters, of=f"Tool {tool.name!r}")

    @property
    def traits(self) -> ToolTraits:
        return self._traits

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        complaint = self._schema.complaint(arguments)
        return None if complaint is None else f"The arguments do not fit: {complaint}."


def bodies(agent: Agent, *, max_result_bytes: int, threads: Threads, outward: Callable[[], Outward]) -> dict[str, port.Tool]:
    """The agent's own functions and HTTP tools, compiled.

    `max_result_bytes` is how long a result may be as stored text; `threads`, and `outward`, which HTTP tools ask for, are shared by all
    agents of a process.
    """
    made: dict[str, port.Tool] = {}
    for tool in agent.tools:
        if isinstance(tool, Tool) and tool.enabled is not False:
            made[tool.name] = LocalTool(tool, max_result_bytes=max_result_bytes, threads=threads)
        elif isinstance(tool, HttpTool):
            from runward.tools.http import HttpBody  # whoever has none needs no HTTP client

            made[tool.name] = HttpBody(tool, outward(), max_result_bytes=max_result_bytes)
    return made


def waiting(tools: Iterable[AnyTool]) -> dict[str, port.Offer]:
    """Those of some tools whose calls wait: client tools, questions, timers."""
    return {tool.name: WaitingTool(tool) for tool in tools if isinstance(tool, ClientTool | BuiltinTool)}
