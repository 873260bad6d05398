"""Tools that run elsewhere: in the caller's own program, or behind a URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from runward.agents.approvals import Approval, NeedsApproval, approval_of
from runward.agents.templates import check_headers, check_url
from runward.agents.tools import (
    DEFAULT_ATTEMPTS,
    DEFAULT_TIMEOUT_SECONDS,
    AnyTool,
    EffectName,
    RiskName,
    effect_of,
    permissions_of,
    risk_of,
)
from runward.core.errors import DefinitionError
from runward.core.runs.calls import Awaits, Effect, OnUnknown, ToolTraits

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
IN_QUERY: Final = frozenset({"GET", "DELETE"})
"""Methods whose requests have no body: their arguments are in the URL."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientTool(AnyTool):
    """A tool that the caller's own program runs: the run waits until a result for the call arrives.

    `expires_seconds`: how long it waits, for good without; past it the model reads that nobody answered. A result is checked against
    `output_schema`. `risk` and `permissions` are as for `tool`. Raises DefinitionError for values out of range. Example::

        ClientTool(
            name="pick_file",
            description="Let the user pick a file.",
            parameters={"type": "object", "properties": {"kind": {"type": "string"}}},
        )
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(repr=False)
    output_schema: Mapping[str, Any] | None = field(default=None, repr=False)
    expires_seconds: float | None = None
    risk: RiskName | None = None
    permissions: Sequence[str] = ()

    def __post_init__(self) -> None:
        AnyTool.__post_init__(self)
        if self.expires_seconds is not None and not self.expires_seconds > 0:
            raise DefinitionError(f"Tool {self.name!r}: expires_seconds must be more than 0.")

    @property
    def kind(self) -> str:
        return "client"

    @property
    def traits(self) -> ToolTraits:
        return ToolTraits(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            effect=Effect.UNCLASSIFIED,
            awaits=Awaits.RESULT,
            expires_seconds=self.expires_seconds,
            output_schema=self.output_schema,
            risk=risk_of(self.risk, f"Tool {self.name!r}"),
            permissions=permissions_of(self.permissions, f"Tool {self.name!r}"),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class HttpTool(AnyTool):
    """A tool behind a URL, without code. Arguments fill the `{…}` in the URL; the others become the query (GET, DELETE) or a JSON body.

    `${NAME}` in `headers`, and in the URL behind its host, is taken from the worker's environment. `effect`, `needs_approval`,
    `timeout_seconds`, `max_attempts`, `on_unknown`, `risk`, `permissions` and `output_schema` are as for `tool`. Raises DefinitionError for
    values out of range, and for a placeholder in the URL that is not a required parameter. Example::

        HttpTool(
            name="stock",
            description="How many of an article are there?",
            url="https://erp.internal/stock/{sku}",
            parameters={"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]},
            headers={"Authorization": "Bearer ${ERP_TOKEN}"},
            effect="read",
        )
    """

    name: str
    description: str
    url: str = field(repr=False)
    method: Method = "GET"
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}}, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    output_schema: Mapping[str, Any] | None = field(default=None, repr=False)
    effect: EffectName = "unclassified"
    needs_approval: NeedsApproval | None = None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    max_attempts: int = DEFAULT_ATTEMPTS
    on_unknown: OnUnknown = "reconcile"
    risk: RiskName | None = None
    permissions: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.parameters, Mapping):  # what nobody named is not sent, unless the author says so
            object.__setattr__(self, "parameters", {"additionalProperties": False, **self.parameters})
        AnyTool.__post_init__(self)
        of = f"Tool {self.name!r}"
        if self.method not in get_args(Method):
            raise DefinitionError(f"{of}: method must be one of {', '.join(get_args(Method))}.")
        check_url(self.url, self.parameters, of, in_query=self.method in IN_QUERY)
        check_headers(self.headers, of)
        object.__setattr__(self, "headers", dict(self.headers))

    @property
    def kind(self) -> str:
        return "http"

    @property
    def approval(self) -> Approval | None:
        return approval_of(self.needs_approval, Effect(self.effect))

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
            risk=risk_of(self.risk, f"Tool {self.name!r}"),
            permissions=permissions_of(self.permissions, f"Tool {self.name!r}"),
        )
