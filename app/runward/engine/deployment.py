"""What a worker brings to a run: the agent as its author declared it, its tools and models ready to be called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runward.agents.agent import Agent
from runward.ports.models import ModelClients
from runward.ports.tools import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """One agent in one worker process.

    `tools` are those that can run, by name; `unsupported` says of the others why a run that calls one fails. `resources` is what the
    agent's lifespan yielded.
    """

    agent: Agent
    binding: str
    tools: Mapping[str, Tool]
    unsupported: Mapping[str, str]
    models: ModelClients
    resources: Any = None
