"""Bodies that ask for access tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from runward.api.schemas.values import Body, Label
from runward.engine.tokens import MAX_TTL_SECONDS

DEFAULT_TTL_SECONDS = 3_600

Ttl = Annotated[int, Field(ge=1, le=MAX_TTL_SECONDS)]
RunCall = Literal["events", "tool-results", "answers", "cancel"]


def _each_once(value: list[RunCall]) -> list[RunCall]:
    if len(set(value)) < len(value):
        raise PydanticCustomError("twice", "Each can be named once.")
    return value


class GrantRun(Body):
    """What a token for a run allows, and for how long."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}, {"allow": ["events", "answers"], "ttl_seconds": 600}]})

    allow: Annotated[list[RunCall], Field(min_length=1, json_schema_extra={"uniqueItems": True}), AfterValidator(_each_once)] = Field(
        default_factory=lambda: list[RunCall](["events"]), description="The calls that it opens; following the events without it."
    )
    ttl_seconds: Ttl = Field(default=DEFAULT_TTL_SECONDS, description="How long it is good for; thirty days at most.")


class GrantDecision(Body):
    """Whom a token for a request for approval is for, and for how long."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"for": "ann@acme.example", "ttl_seconds": 86_400}]}, populate_by_name=False)

    decides_as: Label | None = Field(default=None, alias="for", description="Recorded as `decided_by` of what is decided with it.")
    ttl_seconds: Ttl = Field(default=DEFAULT_TTL_SECONDS, description="How long it is good for; thirty days at most.")
