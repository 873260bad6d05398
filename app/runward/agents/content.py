"""What a tool can return beside JSON: texts, pictures and other files for the model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

MediaType = Annotated[str, StringConstraints(pattern=r"^[a-z]+/[a-z0-9.+-]+$", max_length=127)]


class Text(BaseModel):
    """A text in a tool's result, beside files. Only in a list of `Text` and `File`::

    return [Text("The invoice:"), File(media_type="application/pdf", data=pdf)]
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["text"] = "text"
    text: str

    def __init__(self, text: str, **fields: object) -> None:
        super().__init__(text=text, **fields)


class File(BaseModel):
    """A picture or another file in a tool's result: `data`, its bytes, or the `url` (http or https) where the provider finds it.

    Its bytes count, in base64, towards `RUNWARD_MAX_RESULT_BYTES`. Raises pydantic.ValidationError unless exactly one is given::

        return [File(media_type="image/png", data=picture, name="chart.png")]
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    type: Literal["file"] = "file"
    media_type: MediaType
    data: bytes | None = Field(default=None, repr=False)
    url: Annotated[str, StringConstraints(pattern=r"^https?://\S+$", max_length=8192)] | None = None
    name: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> File:
        if (self.data is None) == (self.url is None):
            raise ValueError("a File has either data or a url")
        return self
