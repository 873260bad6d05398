"""What each model call of an agent takes besides its messages, as far as that is known without a run."""

from __future__ import annotations

from collections.abc import Iterable

from runward.agents.agent import Agent
from runward.agents.tools import AnyTool
from runward.core.runs.budget import size_of, tokens_of


def overhead_tokens(agent: Agent) -> int:
    """The tokens of its instructions, where they are a text, and of its tools."""
    instructions = agent.instructions if isinstance(agent.instructions, str) else ""
    schema = 0 if agent.output is None else size_of(agent.output.json_schema)
    return tokens_of(len(instructions) + schema) + tool_tokens(agent.tools)


def tool_tokens(tools: Iterable[AnyTool]) -> int:
    """The tokens by which a model is told of tools."""
    return tokens_of(sum(len(tool.name) + len(tool.description) + size_of(tool.parameters) for tool in tools))
