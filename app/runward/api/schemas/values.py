"""The values that bodies and queries are made of, with their caps (R48)."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from runward.core.ids import ID_PATTERN, canonical_json
from runward.core.runs.limits import is_amount
from runward.core.times import from_rfc3339

MAX_METADATA_KEYS = 64
MAX_METADATA_BYTES = 16_384
MAX_REASON_BYTES = 4_096
LABEL_PATTERN = r"^[^\x00-\x1f\x7f]*$"


class Body(BaseModel):
    """A request body: nothing is coerced, and a field that is not known is refused, so that a typo never silently changes a run."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class View(BaseModel):
    """Something that is shown. Clients skip fields they do not know."""

    model_config = ConfigDict(extra="allow")


def given(name: str) -> dict[str, Any]:
    """For the document: that a field is there and not null, where one of several has to be."""
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


def _metadata(value: dict[str, Any]) -> dict[str, Any]:
    if len(value) > MAX_METADATA_KEYS:
        raise PydanticCustomError("metadata", f"There may be at most {MAX_METADATA_KEYS} keys.")
    if len(canonical_json(value).encode()) > MAX_METADATA_BYTES:
        raise PydanticCustomError("metadata", f"There may be at most {MAX_METADATA_BYTES} bytes of it.")
    return value


def _moment(value: Any) -> int:
    moment = from_rfc3339(value) if isinstance(value, str) else None
    if moment is None:
        raise PydanticCustomError("moment", "This has to be a time with its zone, such as 2026-01-31T12:00:00Z.")
    return moment


def _above_nothing(value: str) -> str:
    if not is_amount(value):
        raise PydanticCustomError("amount", "This has to be more than 0.")
    return value


def _short(value: str) -> str:
    if len(value.encode()) > MAX_REASON_BYTES:
        raise PydanticCustomError("reason", f"There may be at most {MAX_REASON_BYTES} bytes of it.")
    return value


RunId = Annotated[str, Path(pattern=ID_PATTERN, description="The run's public id.", examples=["order-7-status"])]
AgentName = Annotated[str, Path(pattern=ID_PATTERN, description="The agent's name.", examples=["support"])]
ApprovalId = Annotated[str, Path(pattern=ID_PATTERN, description="The request's id.", examples=["ap_0c1d"])]
NewId = Annotated[str, Field(pattern=ID_PATTERN)]
ItemId = Annotated[str, Field(pattern=ID_PATTERN)]
"""The id of something that waits in a run, as the run shows it."""
Label = Annotated[str, Field(min_length=1, max_length=128, pattern=LABEL_PATTERN)]
"""A name of something that is not ours: a user, a tenant. Any characters but control characters."""
Metadata = Annotated[dict[Annotated[str, Field(min_length=1, max_length=128)], Any], AfterValidator(_metadata)]
Time = Annotated[int, BeforeValidator(_moment), WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time as RFC 3339 outside, milliseconds inside."""
Reason = Annotated[str, AfterValidator(_short)]
Tokens = Annotated[int, Field(ge=1, le=2**53)]
Dollars = Annotated[str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,12})?$", examples=["0.50"]), AfterValidator(_above_nothing)]
"""An amount in USD: a plain decimal text, never a number."""
