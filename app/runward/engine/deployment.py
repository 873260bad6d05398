"""What a worker brings to a run: the agent as its author declared it, its tools and models ready to be called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runward.agents.agent import Agent
from runward.agents.tools import AnyTool
from runward.ports.models import ModelClient, ModelClients
from runward.ports.tools import Offer, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """One agent in one worker process.

    `tools` are those that run here, by name, `waiting` those whose calls wait for others. `offers_of` makes the like of `waiting` of the
    tools that a request brings. `verify` is the output's verifier, which holds nobody else up. `resources` is what the agent's lifespan
    yielded.
    """

    agent: Agent
    binding: str
    tools: Mapping[str, Tool]
    waiting: Mapping[str, Offer]
    offers_of: Callable[[Sequence[AnyTool]], Mapping[str, Offer]]
    models: ModelClients
    verify: Callable[..., Awaitable[Any]] | None = None
    resources: Any = None

    def client(self, name: str) -> ModelClient:
        """The client of a model by its recorded name: the agent's own object where it has one of that name. Raises DefinitionError."""
        return self.models.client(self.agent.models.get(name, name))
