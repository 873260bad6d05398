"""A typed answer, and who checks it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel

from runward.agents.contexts import RunContext
from runward.agents.names import check_tool_name
from runward.agents.schemas import Schema
from runward.core.errors import DefinitionError

OutputMode = Literal["auto", "native", "tool", "prompted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a verifier says of a candidate. Made by `Verdict.verified()`, `Verdict.rejected(feedback)`, `Verdict.inconclusive(why)`.

    Example::

        return Verdict.verified() if candidate.total == 42 else Verdict.rejected("Check the sum again.")
    """

    kind: Literal["verified", "rejected", "inconclusive"]
    message: str = ""

    @classmethod
    def verified(cls) -> Verdict:
        """The candidate is the run's answer."""
        return cls(kind="verified")

    @classmethod
    def rejected(cls, feedback: str) -> Verdict:
        """The model reads `feedback` and gives another candidate."""
        return cls(kind="rejected", message=feedback)

    @classmethod
    def inconclusive(cls, why: str) -> Verdict:
        """Nobody can tell: the run stops without an accepted answer."""
        return cls(kind="inconclusive", message=why)


Verify = Callable[[Any, RunContext[Any, Any]], Verdict | Awaitable[Verdict]]
"""`(candidate, ctx) -> Verdict`, sync or async. May be asked twice about one candidate: key effects on run and candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The answer's type: `schema` is a Pydantic model or a JSON Schema.

    - `verify(candidate, ctx)`: a `Verdict` on each valid candidate, which is a value of the model, or JSON for a JSON Schema.
    - `mode`: "auto", or how the model is held to it: "native", "tool", "prompted". `name`: what the model knows the answer as.

    Raises DefinitionError for what is no schema. Example::

        Output(schema=Answer, verify=check)
    """

    schema: type[BaseModel] | Mapping[str, Any]
    verify: Verify | None = None
    mode: OutputMode = "auto"
    name: str = "answer"

    def __post_init__(self) -> None:
        schema: Any = self.schema
        if isinstance(schema, Mapping):
            object.__setattr__(self, "schema", Schema(schema, of="Output.schema").document)
        elif not (isinstance(schema, type) and issubclass(schema, BaseModel)):
            raise DefinitionError("Output.schema must be a Pydantic model or a JSON Schema.")
        if self.verify is not None and not callable(self.verify):
            raise DefinitionError("Output.verify must be a function of (candidate, ctx).")
        if self.mode not in get_args(OutputMode):
            raise DefinitionError(f"Output.mode must be one of {', '.join(get_args(OutputMode))}.")
        check_tool_name(self.name, "Output.name")

    @property
    def json_schema(self) -> Mapping[str, Any]:
        """The JSON Schema of the answer."""
        return self.schema if isinstance(self.schema, Mapping) else self.schema.model_json_schema()
