"""`@tool`: a function that a model may call."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar, overload

from runward.agents.approvals import Approval, NeedsApproval, approval_of
from runward.agents.contexts import RunContext, ToolContext
from runward.agents.names import check_tool_name
from runward.agents.probes import ProbeAnswer
from runward.agents.schemas import Schema
from runward.agents.signatures import Signature, name_of, read_signature
from runward.core.errors import DefinitionError
from runward.core.runs.calls import Effect, OnUnknown, Risk, ToolTraits

F = TypeVar("F", bound=Callable[..., Any])
Called_co = TypeVar("Called_co", covariant=True)
"""The function's own type. Covariant and without a bound, so that a list of different tools is a list of tools to a type checker."""

EffectName = Literal["read", "idempotent_write", "non_idempotent_write", "unclassified"]
RiskName = Literal["low", "medium", "high", "critical"]
Enabled = bool | Callable[[RunContext[Any, Any]], bool | Awaitable[bool]]
Probe = Callable[[str, Mapping[str, Any], ToolContext[Any, Any]], ProbeAnswer | Awaitable[ProbeAnswer]]
"""`(idempotency_key, arguments, ctx) -> Happened | DidNotHappen | CannotTell`, sync or async."""
VerifyEvidence = Callable[[Mapping[str, Any], ToolContext[Any, Any]], bool | Awaitable[bool]]
"""`(evidence, ctx) -> bool`: whether the evidence of a reconciliation holds (R15), sync or async."""

DEFAULT_TIMEOUT_SECONDS = 60
DEFAULT_ATTEMPTS = 3
LONGEST_PERMISSION = 64


class AnyTool(ABC):
    """What every kind of tool has. Make one with `@tool`, `ClientTool` or `HttpTool`, or take `ask_user` and `durable_wait`.

    - `name`: what the model calls it: 1 to 64 letters, digits, `_` or `-`. `description`: what the model reads.
    - `parameters`: the JSON Schema of its arguments. `output_schema`: the one its result has to fit, None for any.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None

    @property
    @abstractmethod
    def kind(self) -> str:
        """What has to run it, as manifests and fingerprints name it: function, client, http or builtin."""

    @property
    @abstractmethod
    def traits(self) -> ToolTraits:
        """What a run has to know of it."""

    @property
    def approval(self) -> Approval | None:
        """How its calls are approved by people; None when they are not."""
        return None

    @property
    def offered(self) -> Enabled:
        """Whether models are offered it; a function is to be asked before each model call."""
        return True

    def __post_init__(self) -> None:
        """Checks, and copies of the schemas: what an author changes later changes nothing here."""
        check_tool_name(self.name, "A tool's name")
        of = f"Tool {self.name!r}"
        if not isinstance(self.description, str):
            raise DefinitionError(f"{of}: description must be a text.")
        schema = Schema(self.parameters, of=f"{of}: parameters").document
        if schema.get("type") != "object":
            raise DefinitionError(f'{of}: parameters must be a JSON Schema with "type": "object".')
        object.__setattr__(self, "parameters", schema)
        if self.output_schema is not None:
            object.__setattr__(self, "output_schema", Schema(self.output_schema, of=f"{of}: output_schema").document)
        traits = self.traits
        if not 0 < traits.timeout_seconds < float("inf"):
            raise DefinitionError(f"{of}: timeout_seconds must be more than 0.")
        if traits.max_attempts < 1:
            raise DefinitionError(f"{of}: max_attempts must be at least 1.")
        if traits.on_unknown not in ("reconcile", "tell_model"):
            raise DefinitionError(f'{of}: on_unknown must be "reconcile" or "tell_model".')


@dataclass(frozen=True, kw_only=True, eq=False)
class Tool(AnyTool, Generic[Called_co]):
    """A function that a model may call; what `@tool` makes of it. Calling it calls the function::

        assert await lookup_order(7, ctx=make_context(resources=fake_shop))

    `function` is that function, `signature` what is known of it; the rest is as `tool` was told.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(repr=False)
    output_schema: Mapping[str, Any] | None = field(default=None, repr=False)
    effect: EffectName = "unclassified"
    needs_approval: NeedsApproval | None = None
    enabled: Enabled = True
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    max_attempts: int = DEFAULT_ATTEMPTS
    on_unknown: OnUnknown = "reconcile"
    risk: RiskName | None = None
    permissions: Sequence[str] = ()
    function: Called_co = field(repr=False)
    signature: Signature = field(repr=False)
    to_model_output: Callable[[Any], Any] | None = field(default=None, repr=False)
    probe: Probe | None = field(default=None, repr=False)
    verify_evidence: VerifyEvidence | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        AnyTool.__post_init__(self)
        for name in ("to_model_output", "probe", "verify_evidence"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise DefinitionError(f"Tool {self.name!r}: {name} must be a function.")
        if not isinstance(self.enabled, bool) and not callable(self.enabled):
            raise DefinitionError(f"Tool {self.name!r}: enabled must be True, False or a function of the context.")
        object.__setattr__(self, "__doc__", self.function.__doc__)
        object.__setattr__(self, "__wrapped__", self.function)

    @property
    def __call__(self) -> Called_co:
        """Calling the tool calls its function."""
        return self.function

    @property
    def kind(self) -> str:
        return "function"

    @property
    def approval(self) -> Approval | None:
        return approval_of(self.needs_approval, Effect(self.effect))

    @property
    def offered(self) -> Enabled:
        return self.enabled

    @property
    def traits(self) -> ToolTraits:
        return ToolTraits(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            effect=effect_of(self.effect, f"Tool {self.name!r}"),
            timeout_seconds=self.timeout_seconds,
            max_attempts=self.max_attempts,
            on_unknown=self.on_unknown,
            projects=self.to_model_output is not None,
            probes=self.probe is not None,
            wants_evidence=self.verify_evidence is not None,
            risk=risk_of(self.risk, f"Tool {self.name!r}"),
            permissions=permissions_of(self.permissions, f"Tool {self.name!r}"),
        )


class Decorator(Protocol):
    """What `tool(…)` with options returns."""

    def __call__(self, function: F, /) -> Tool[F]: ...


@overload
def tool(function: F, /) -> Tool[F]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: EffectName = "unclassified",
    needs_approval: NeedsApproval | None = None,
    enabled: Enabled = True,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    max_attempts: int = DEFAULT_ATTEMPTS,
    on_unknown: OnUnknown = "reconcile",
    risk: RiskName | None = None,
    permissions: Sequence[str] = (),
    output_schema: Mapping[str, Any] | None = None,
    to_model_output: Callable[[Any], Any] | None = None,
    probe: Probe | None = None,
    verify_evidence: VerifyEvidence | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Decorator: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: EffectName = "unclassified",
    needs_approval: NeedsApproval | None = None,
    enabled: Enabled = True,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    max_attempts: int = DEFAULT_ATTEMPTS,
    on_unknown: OnUnknown = "reconcile",
    risk: RiskName | None = None,
    permissions: Sequence[str] = (),
    output_schema: Mapping[str, Any] | None = None,
    to_model_output: Callable[[Any], Any] | None = None,
    probe: Probe | None = None,
    verify_evidence: VerifyEvidence | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Any:
    """Makes a tool of a function or a bound method. The result is still callable as that function.

    Name, description and JSON Schema come from the function: its type hints, `Annotated` and `Field`, Pydantic models, and its docstring in
    Google, NumPy or Sphinx style. A parameter typed `ToolContext` gets the call's context and is not in the schema. `async def` runs on the
    event loop, `def` in a thread.

    - `effect`: "read", "idempotent_write" (repeating it under the same key changes nothing), "non_idempotent_write", or "unclassified".
    - `needs_approval`: True, False, a predicate, or an `Approval`. Left out, the effect decides: the last two are asked for.
    - `enabled`: False, or a function of the context that says no, hides it from the model.
    - `timeout_seconds` (60) bounds one attempt. `max_attempts` (3) bounds the attempts of `read` and `idempotent_write` tools.
    - `on_unknown`: what happens when nobody knows whether its effect happened: "reconcile" (the run waits for a person) or "tell_model".
    - `risk`: "low", "medium", "high" or "critical"; left out, the effect decides: low for "read", medium for "idempotent_write", else high.
      `permissions`: what a call needs, in words of your own ("network", "payments"). Policies go by both (`Policy`); nothing else does.
    - `output_schema`: a JSON Schema its result has to fit. `to_model_output(result)`: what the model sees in place of the result.
    - `probe(idempotency_key, arguments, ctx)`: `Happened`, `DidNotHappen` or `CannotTell`. `verify_evidence(evidence, ctx)`: a bool.
    - `parameters`: a JSON Schema in place of the generated one; its properties have to be the function's parameters.

    Raises DefinitionError, naming the function and the parameter, for what cannot be a tool. Example::

        @tool(effect="read")
        async def lookup_order(order_id: int, ctx: ToolContext[Shop, ShopContext]) -> Order:
            'Look up an order by its number.'
    """

    def declare(function: Callable[..., Any]) -> Tool[Any]:
        signature = read_signature(function, _local_names(depth=2 if bare else 1))
        return Tool(
            name=function.__name__ if name is None else name,
            description=signature.description if description is None else description,
            parameters=signature.schema() if parameters is None else _checked(parameters, signature),
            output_schema=output_schema,
            effect=effect,
            needs_approval=needs_approval,
            enabled=enabled,
            timeout_seconds=timeout_seconds,
            max_attempts=max_attempts,
            on_unknown=on_unknown,
            risk=risk,
            permissions=permissions,
            function=function,
            signature=signature,
            to_model_output=to_model_output,
            probe=probe,
            verify_evidence=verify_evidence,
        )

    bare = function is not None
    return declare if function is None else declare(function)


def _local_names(depth: int) -> Mapping[str, Any]:
    """The names that are local where a tool is defined: annotations written as strings may need them."""
    return sys._getframe(depth + 1).f_locals


def effect_of(name: str, of: str) -> Effect:
    """An effect by its name. Raises DefinitionError."""
    try:
        return Effect(name)
    except ValueError as error:
        raise DefinitionError(f"{of}: effect is {name!r}, but has to be one of {', '.join(Effect)}.") from error


def risk_of(name: str | None, of: str) -> Risk | None:
    """A risk by its name; None where the effect decides. Raises DefinitionError."""
    if name is None:
        return None
    try:
        return Risk(name)
    except ValueError as error:
        raise DefinitionError(f"{of}: risk is {name!r}, but has to be one of {', '.join(Risk)}.") from error


def permissions_of(names: Sequence[str], of: str) -> tuple[str, ...]:
    """The permissions a tool needs, each once. Raises DefinitionError."""
    given: Sequence[object] = names
    if isinstance(names, str) or not all(isinstance(name, str) and 0 < len(name) <= LONGEST_PERMISSION for name in given):
        raise DefinitionError(f"{of}: permissions must be a list of names of at most {LONGEST_PERMISSION} characters.")
    return tuple(dict.fromkeys(names))


def _checked(parameters: Mapping[str, Any], signature: Signature) -> dict[str, Any]:
    """An author's own schema, which has to speak of the function's parameters."""
    of = name_of(signature.function)
    generated = signature.schema()
    properties = parameters.get("properties", {})
    for name in properties:
        if name not in generated["properties"]:
            raise DefinitionError(f"{of}: parameters names `{name}`, which the function does not take.")
    for name in generated.get("required", ()):
        if name not in properties:
            raise DefinitionError(f"{of}: parameters leaves out `{name}`, which the function needs.")
    return {"type": "object", "additionalProperties": False, **parameters}
