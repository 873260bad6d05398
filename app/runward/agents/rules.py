"""What a run of an agent may do: `Policy` and `Guardrails`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from runward.agents.approvals import Block, Rewrite
from runward.agents.contexts import RunContext
from runward.core.errors import DefinitionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Lists of names that a run is held to; a request can only narrow them.

    - `allow_tools`: the only tools that may be called; None allows all. `deny_tools`: tools that may not. A forbidden call fails the run.
    - `require_approval`: tools whose calls a person approves, whatever they say themselves.
    - `allow_models`: the only models that may be asked; None allows all.

    Raises DefinitionError where these are no lists of names; naming a tool the agent lacks does so in `Agent`. Example::

        Policy(require_approval=["refund"])
    """

    allow_tools: Sequence[str] | None = None
    deny_tools: Sequence[str] = ()
    require_approval: Sequence[str] = ()
    allow_models: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            names = getattr(self, each.name)
            if names is None:
                continue
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise DefinitionError(f"Policy.{each.name} must be a list of names.")
            object.__setattr__(self, each.name, tuple(names))

    def narrowed(self, other: Policy) -> Policy:
        """This policy with what another one forbids or asks for besides: nothing becomes allowed by it (R35)."""
        return Policy(
            allow_tools=_both(self.allow_tools, other.allow_tools),
            deny_tools=tuple(dict.fromkeys((*self.deny_tools, *other.deny_tools))),
            require_approval=tuple(dict.fromkeys((*self.require_approval, *other.require_approval))),
            allow_models=_both(self.allow_models, other.allow_models),
        )

    @property
    def tools(self) -> tuple[str, ...]:
        """Every tool it names."""
        return (*(self.allow_tools or ()), *self.deny_tools, *self.require_approval)


def _both(mine: Sequence[str] | None, theirs: Sequence[str] | None) -> tuple[str, ...] | None:
    """What both lists allow; None allows everything."""
    if mine is None or theirs is None:
        return None if mine is theirs else tuple(mine or theirs or ())
    return tuple(name for name in mine if name in theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedCall:
    """A tool call as an `on_tool_call` guardrail gets it: its id, the tool's name, and the arguments as the model issued them.

    Example::

        return Block("not today") if call.tool_name == "refund" else None
    """

    tool_call_id: str
    tool_name: str
    arguments: Mapping[str, Any]


Guardrail = Callable[[Any, RunContext[Any, Any]], Block | Rewrite | Awaitable[Block | Rewrite | None] | None]
"""`(value, ctx)`: nothing lets it pass, `Block(reason)` stops it, `Rewrite(value)` goes on with another value. Sync or async."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guardrails:
    """Functions that look at what goes in and out; one, or a list that is asked in order.

    - `on_input`: the run's input. `on_tool_call`: each call, as a `GuardedCall`, before people are asked.
    - `on_tool_result`: what the model is going to see of a result. `on_output`: the answer.

    Raises DefinitionError for what is no function. Example::

        def no_gifts(call: GuardedCall, ctx: RunContext) -> Block | None:
            return Block("nothing is for free") if call.tool_name == "charge" and call.arguments["amount"] == 0 else None

        Guardrails(on_tool_call=no_gifts)
    """

    on_input: Guardrail | Sequence[Guardrail] = ()
    on_tool_call: Guardrail | Sequence[Guardrail] = ()
    on_tool_result: Guardrail | Sequence[Guardrail] = ()
    on_output: Guardrail | Sequence[Guardrail] = ()

    def __post_init__(self) -> None:
        for each in fields(self):
            given = getattr(self, each.name)
            hooks = (given,) if callable(given) else tuple(given)
            if not all(callable(hook) for hook in hooks):
                raise DefinitionError(f"Guardrails.{each.name} must be a function, or a list of functions.")
            object.__setattr__(self, each.name, hooks)

    def names(self) -> dict[str, list[str]]:
        """The functions' names by hook, without the hooks that have none."""
        hooks = {each.name: [guardrail_name(hook) for hook in getattr(self, each.name)] for each in fields(self)}
        return {hook: names for hook, names in hooks.items() if names}


def guardrail_name(function: Any) -> str:
    """What a guardrail is known as: its function's name."""
    return str(getattr(function, "__name__", type(function).__name__))
