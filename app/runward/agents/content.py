"""What a tool can return beside JSON: texts, pictures and other files for the model."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, StringConstraints, ValidationInfo
from pydantic.dataclasses import dataclass

MediaType = Annotated[str, StringConstraints(pattern=r"^[a-z]+/[a-z0-9.+-]+$", max_length=127)]


def _from_base64(value: Any, info: ValidationInfo) -> Any:
    if info.mode != "json" or not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error


def _to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


Bytes = Annotated[bytes, Field(strict=True), BeforeValidator(_from_base64), PlainSerializer(_to_base64, when_used="json")]
"""Bytes for authors, standard base64 in JSON."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text in a tool's result, beside files. Only in a list of `Text` and `File`.

    Example::

        return [Text("The invoice:"), File(media_type="application/pdf", data=pdf)]
    """

    text: str
    type: Literal["text"] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A picture or another file in a tool's result: `data`, its bytes, or the `url` (http or https) where the provider finds it.

    Its bytes count, in base64, towards `RUNWARD_MAX_RESULT_BYTES`. Raises pydantic.ValidationError unless exactly one is given.

    Example::

        return [File(media_type="image/png", data=picture, name="chart.png")]
    """

    media_type: MediaType
    data: Bytes | None = Field(default=None, repr=False)
    url: Annotated[str, StringConstraints(pattern=r"^https?://\S+$", max_length=8192)] | None = None
    name: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    type: Literal["file"] = "file"

    def __post_init__(self) -> None:
        if (self.data is None) == (self.url is None):
            raise ValueError("a File has either data or a url")
