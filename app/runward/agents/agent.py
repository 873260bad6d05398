"""`Agent`: everything a run needs to know of one, as one frozen value."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from runward.agents.contexts import RunContext
from runward.agents.models import CHOSEN, AnyModel, ModelObject, ModelSettings, check_model, is_choice, model_name
from runward.agents.names import check_id
from runward.agents.output import Output
from runward.agents.rules import Guardrails, Policy
from runward.agents.tools import AnyTool
from runward.core.errors import DefinitionError
from runward.core.runs.limits import Limits

Instructions = str | Callable[[RunContext[Any, Any]], str | Awaitable[str]]
Lifespan = Callable[[], AbstractAsyncContextManager[Any]]

_FINGERPRINT = re.compile(r"[0-9a-f]{32}\Z")


@dataclass(frozen=True, kw_only=True, eq=False)
class Agent:
    """An agent: a model, its instructions and its tools, and what bounds its runs.

    - `name`, `version`: 1 to 128 letters, digits, `.`, `_`, `-`. Change the version when a tool, predicate, guardrail or verifier changes
      meaning. `description`: for people.
    - `model`: `provider:model`, a model object such as `ScriptedModel`, or a function of the context that chooses a name once per run.
      `fallback_models`: asked in turn when it fails. `model_settings`: how they are asked.
    - `instructions`: a text, or a function of the context that is asked before each model call.
    - `context`: a Pydantic model that a run's `context` has to fit.
    - `lifespan`: an `@asynccontextmanager` without arguments, entered once per worker; what it yields is `ctx.resources`.
    - `tools`, `output`, `limits`, `policy`, `guardrails`: see there. `handoffs`: names of agents that may take a run over.
    - `accepts`: fingerprints of older versions whose runs this one may go on with (R41).

    Raises DefinitionError, naming the agent and what is wrong. `dataclasses.replace` makes a changed copy. Example::

        support = Agent(name="support", model="openai:gpt-5-mini", instructions="You help customers.", tools=[lookup_order])
    """

    name: str
    version: str = "1"
    description: str = ""
    model: AnyModel = field(repr=False)
    fallback_models: Sequence[str | ModelObject] = field(default=(), repr=False)
    model_settings: ModelSettings = field(default_factory=ModelSettings, repr=False)
    instructions: Instructions = field(default="", repr=False)
    context: type[BaseModel] | None = field(default=None, repr=False)
    lifespan: Lifespan | None = field(default=None, repr=False)
    tools: Sequence[AnyTool] = field(default=(), repr=False)
    output: Output | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits, repr=False)
    policy: Policy = field(default_factory=Policy, repr=False)
    guardrails: Guardrails = field(default_factory=Guardrails, repr=False)
    handoffs: Sequence[str] = field(default=(), repr=False)
    accepts: Sequence[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        check_id(self.name, "An agent's name")
        of = f"Agent {self.name!r}"
        check_id(self.version, f"{of}: version")
        for name in ("fallback_models", "tools", "handoffs", "accepts"):
            _tuple(self, name, of)
        check_model(self.model, f"{of}: model")
        for model in self.fallback_models:
            check_model(model, f"{of}: fallback_models")
            if is_choice(model):
                raise DefinitionError(f"{of}: fallback_models holds a function; only model may be chosen by one.")
        _check_types(self, of)
        _check_callables(self, of)
        self._check_tools(of)
        for fingerprint in self.accepts:
            if not _FINGERPRINT.match(str(fingerprint)):
                raise DefinitionError(
                    f"{of}: accepts holds {fingerprint!r}, which is no fingerprint: 32 hexadecimal digits, see GET /agents."
                )
        for handoff in self.handoffs:
            check_id(handoff, f"{of}: handoffs")

    @property
    def models(self) -> Mapping[str, AnyModel]:
        """The model and its fall-backs by name, in order. Two scripts of one name are told apart by a number."""
        named: dict[str, AnyModel] = {}
        for model in (self.model, *self.fallback_models):
            name = model_name(model)
            count = 1
            while name in named:
                count += 1
                name = f"{model_name(model)}-{count}"
            named[name] = model
        return named

    def tool(self, name: str) -> AnyTool | None:
        """The tool with exactly this name (R17)."""
        return next((tool for tool in self.tools if tool.name == name), None)

    def _check_tools(self, of: str) -> None:
        names: set[str] = set()
        tools: Sequence[Any] = self.tools
        for tool in tools:
            if not isinstance(tool, AnyTool):
                hint = " Put @tool above it." if callable(tool) else ""
                raise DefinitionError(f"{of}: {getattr(tool, '__name__', tool)!r} is no tool.{hint}")
            if tool.name in names:
                raise DefinitionError(f"{of}: two tools are called {tool.name!r}.")
            names.add(tool.name)
        for name in self.policy.tools:
            if name not in names:
                raise DefinitionError(f"{of}: its policy names the tool {name!r}, which it does not have.")
        for model in self.models:
            if model != CHOSEN and not self.policy.permits_model(model):
                raise DefinitionError(f"{of}: its policy does not allow the model {model!r}, which it may ask.")
        choice = self.model_settings.tool_choice
        if choice is not None and choice not in ("auto", "none", "required") and choice not in names:
            raise DefinitionError(f"{of}: model_settings.tool_choice is {choice!r}, which is no tool of it.")


def _tuple(agent: Agent, name: str, of: str) -> None:
    value = getattr(agent, name)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise DefinitionError(f"{of}: {name} must be a list.")
    object.__setattr__(agent, name, tuple(value))


def _check_types(agent: Agent, of: str) -> None:
    if not isinstance(agent.description, str):
        raise DefinitionError(f"{of}: description must be a text.")
    for name, wanted in (("model_settings", ModelSettings), ("limits", Limits), ("policy", Policy), ("guardrails", Guardrails)):
        if not isinstance(getattr(agent, name), wanted):
            raise DefinitionError(f"{of}: {name} must be made by {wanted.__name__}(…).")
    output: Any = agent.output
    if output is not None and not isinstance(output, Output):
        raise DefinitionError(f"{of}: output must be made by Output(…).")
    context: Any = agent.context
    if context is not None and not (isinstance(context, type) and issubclass(context, BaseModel)):
        raise DefinitionError(f"{of}: context must be a Pydantic model (the class).")


def _check_callables(agent: Agent, of: str) -> None:
    if not isinstance(agent.instructions, str) and not callable(agent.instructions):
        raise DefinitionError(f"{of}: instructions must be a text or a function of the context.")
    lifespan: Any = agent.lifespan
    if lifespan is None:
        return
    if not callable(lifespan) or isinstance(lifespan, AbstractAsyncContextManager):
        raise DefinitionError(f"{of}: lifespan must be the @asynccontextmanager function itself, not called.")
    required = [each.name for each in inspect.signature(lifespan).parameters.values() if _required(each)]
    if required:
        raise DefinitionError(f"{of}: lifespan must not need arguments, and needs {', '.join(required)}.")


def _required(parameter: inspect.Parameter) -> bool:
    variable = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and not variable
