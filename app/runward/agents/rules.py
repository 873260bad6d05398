"""What a run of an agent may do: `Policy` and `Guardrails`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, TypeVar, get_args

from runward.agents.approvals import Block, Rewrite
from runward.agents.contexts import RunContext
from runward.agents.tools import EffectName, RiskName, risk_of
from runward.core.errors import DefinitionError, RunwardError
from runward.core.runs.calls import Risk, ToolTraits

EFFECTS: Final[tuple[EffectName, ...]] = get_args(EffectName)


class ModelNotAllowed(RunwardError):
    """The policy of a run does not allow the model that it would ask. The run fails."""

    default_code = "model_not_allowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a run is held to; a request can only narrow it.

    - `allow_tools`: the only tools that may be called; None allows all. `deny_tools`: tools that may not. A forbidden call fails the run.
    - `allow_effects`: the only effects that called tools may have, "read" for instance. `allow_permissions`: the only permissions that they
      may need. None allows all. `max_risk`: the highest risk that they may have; None for any.
    - `require_approval`: tools whose calls a person approves, whatever they say themselves. `approve_effects`, `approve_permissions`: the
      same by effect and by permission. `approve_risk`: the same from this risk on.
    - `allow_models`: the only models that may be asked; None allows all. `deny_models`: models that may not.
    - `max_depth`: how deep runs may start others; 0 for not at all. This version starts none, so that every depth is kept.

    `Policy.read_only()`, `Policy.supervised()` and `Policy.locked_down()` are ready-made, and `narrowed` joins two to what both allow.

    Raises DefinitionError for what is none of this; naming a tool the agent lacks does so in `Agent`. Example::

        Policy.supervised().narrowed(Policy(deny_tools=["refund"]))
    """

    allow_tools: Sequence[str] | None = None
    deny_tools: Sequence[str] = ()
    require_approval: Sequence[str] = ()
    allow_models: Sequence[str] | None = None
    deny_models: Sequence[str] = ()
    allow_effects: Sequence[EffectName] | None = None
    approve_effects: Sequence[EffectName] = ()
    allow_permissions: Sequence[str] | None = None
    approve_permissions: Sequence[str] = ()
    max_risk: RiskName | None = None
    approve_risk: RiskName | None = None
    max_depth: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            names = getattr(self, each.name)
            if names is None or each.name == "max_depth":
                continue
            if each.name in ("max_risk", "approve_risk"):
                risk_of(names, f"Policy.{each.name}")
                continue
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise DefinitionError(f"Policy.{each.name} must be a list of names.")
            if each.name.endswith("_effects") and (unknown := [name for name in names if name not in EFFECTS]):
                raise DefinitionError(f"Policy.{each.name} holds {unknown[0]!r}, but effects are {', '.join(EFFECTS)}.")
            object.__setattr__(self, each.name, tuple(names))
        depth: Any = self.max_depth
        if depth is not None and (not isinstance(depth, int) or isinstance(depth, bool) or depth < 0):
            raise DefinitionError("Policy.max_depth must be a whole number, 0 or more.")

    @classmethod
    def read_only(cls) -> Policy:
        """Only tools that read may be called::

        Agent(…, policy=Policy.read_only())
        """
        return cls(allow_effects=("read",))

    @classmethod
    def supervised(cls) -> Policy:
        """A person approves every call that may change something, idempotent writes and unclassified tools included, and every call whose
        risk is medium or higher::

        Agent(…, policy=Policy.supervised())
        """
        return cls(approve_effects=tuple(name for name in EFFECTS if name != "read"), approve_risk="medium")

    @classmethod
    def locked_down(cls, *, permissions: Sequence[str] = ()) -> Policy:
        """Only tools that read, at low risk, and that need no permissions but these may be called; a person approves every single call;
        and no other run is started::

        Agent(…, policy=Policy.locked_down(permissions=["crm"]))
        """
        return cls(allow_effects=("read",), max_risk="low", allow_permissions=permissions, approve_effects=EFFECTS, max_depth=0)

    def narrowed(self, other: Policy) -> Policy:
        """This policy with what another one forbids or asks for besides: nothing becomes allowed by it (R35)."""
        depths = [depth for depth in (self.max_depth, other.max_depth) if depth is not None]
        return Policy(
            allow_tools=_both(self.allow_tools, other.allow_tools),
            deny_tools=_either(self.deny_tools, other.deny_tools),
            require_approval=_either(self.require_approval, other.require_approval),
            allow_models=_both(self.allow_models, other.allow_models),
            deny_models=_either(self.deny_models, other.deny_models),
            allow_effects=_both(self.allow_effects, other.allow_effects),
            approve_effects=_either(self.approve_effects, other.approve_effects),
            allow_permissions=_both(self.allow_permissions, other.allow_permissions),
            approve_permissions=_either(self.approve_permissions, other.approve_permissions),
            max_risk=_lower(self.max_risk, other.max_risk),
            approve_risk=_lower(self.approve_risk, other.approve_risk),
            max_depth=min(depths, default=None),
        )

    def permits(self, tool: ToolTraits) -> bool:
        """Whether a tool may be called."""
        return (
            tool.name not in self.deny_tools
            and (self.allow_tools is None or tool.name in self.allow_tools)
            and (self.allow_effects is None or tool.effect.value in self.allow_effects)
            and (self.allow_permissions is None or set(tool.permissions) <= set(self.allow_permissions))
            and (self.max_risk is None or tool.risk_level.rank <= Risk(self.max_risk).rank)
        )

    def asks(self, tool: ToolTraits) -> bool:
        """Whether a person has to approve its calls, whatever the tool says itself."""
        return (
            tool.name in self.require_approval
            or tool.effect.value in self.approve_effects
            or not set(tool.permissions).isdisjoint(self.approve_permissions)
            or (self.approve_risk is not None and tool.risk_level.rank >= Risk(self.approve_risk).rank)
        )

    def permits_model(self, name: str) -> bool:
        """Whether a model may be asked."""
        return name not in self.deny_models and (self.allow_models is None or name in self.allow_models)

    @property
    def tools(self) -> tuple[str, ...]:
        """Every tool it names."""
        return (*(self.allow_tools or ()), *self.deny_tools, *self.require_approval)

    def to_json(self) -> dict[str, Any]:
        """The policy as JSON, which `Policy(**…)` reads."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


N = TypeVar("N", bound=str)


def _both(mine: Sequence[N] | None, theirs: Sequence[N] | None) -> tuple[N, ...] | None:
    """What both lists allow; None allows everything."""
    if mine is None or theirs is None:
        return None if mine is theirs else tuple(mine or theirs or ())
    return tuple(name for name in mine if name in theirs)


def _either(mine: Sequence[N], theirs: Sequence[N]) -> tuple[N, ...]:
    """What one of both lists names, each once."""
    return tuple(dict.fromkeys((*mine, *theirs)))


def _lower(mine: RiskName | None, theirs: RiskName | None) -> RiskName | None:
    """The lower of two risks; None is higher than all."""
    return min((risk for risk in (mine, theirs) if risk is not None), key=lambda risk: Risk(risk).rank, default=None)


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
