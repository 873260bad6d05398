"""R46: what a model reads about a value that does not fit quotes the validator, and never the value."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import (
    AfterValidator,
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from runward.agents.complaints import NOT_ACCEPTED, complaint_of

SECRET = "hunter2"


class Cash(BaseModel):
    kind: Literal["cash"]


class Card(BaseModel):
    kind: Literal["card"]
    number: int = 0


def known(code: str) -> str:
    raise PydanticCustomError("unknown_code", "{code} is not a code, nor is {upper}", {"code": code, "upper": code.upper()})


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid")
    paid: Cash | Card | None = Field(default=None, discriminator="kind")
    id: UUID | None = None
    amount: Decimal = Decimal(1)
    counts: dict[str, int] = {}
    letters: Annotated[str, StringConstraints(pattern="^a+$")] = "a"
    colour: Literal["red", "green"] = "red"
    url: AnyUrl | None = None
    code: Annotated[str, AfterValidator(known)] | None = None
    password: str = ""
    pin: int = 0

    @field_validator("password")
    @classmethod
    def is_strong(cls, password: str) -> str:
        if password:
            raise ValueError(f"{password} is too weak, make it stronger than {password!r}")
        return password

    @model_validator(mode="after")
    def fits_together(self) -> Form:
        assert self.pin == 0, f"the pin {self.pin} of {self.counts} is taken"
        return self


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"paid": {"kind": SECRET}}, "`paid`: Input tag '…' found using 'kind' does not match any of the expected tags: 'cash', 'card'"),
        ({"amount": SECRET}, "`amount`: Input should be a valid decimal"),
        ({"counts": {"a": SECRET}}, "`counts.a`: Input should be a valid integer, unable to parse string as an integer"),
        ({"letters": SECRET}, "`letters`: String should match pattern '^a+$'"),
        ({"colour": "Red"}, "`colour`: Input should be 'red' or 'green'"),
        ({"url": SECRET}, "`url`: Input should be a valid URL, relative URL without a base"),
        ({"code": SECRET}, "`code`: … is not a code, nor is …"),
        ({"password": SECRET}, "`password`: Value error, … is too weak, make it stronger than '…'"),
        ({"pin": 4711, "counts": {"a": 815}}, "`the whole`: Assertion failed, the pin … of {'a': …} is taken"),
        ({"more": SECRET}, "`more`: Extra inputs are not permitted"),
        ({"id": SECRET}, "`id`: Input should be a valid UUID"),
    ],
)
def test_R46_the_validator_is_quoted_and_the_value_is_not(value: Any, told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Form.model_validate(value)
    said = complaint_of(caught.value, whole="the whole")
    assert said.startswith(told) and SECRET not in said.lower() and "4711" not in said


@pytest.mark.parametrize("value", [{"words": [f"{SECRET}-{number}" for number in range(200)]}, {"word": SECRET * 2_000}])
def test_R46_a_value_that_is_very_large_is_not_looked_for(value: Any) -> None:
    class Long(BaseModel):
        @model_validator(mode="before")
        @classmethod
        def refuses(cls, value: Any) -> Any:
            raise ValueError(f"no: {value}")

    with pytest.raises(ValidationError) as caught:
        Long.model_validate(value)
    assert complaint_of(caught.value, whole="the whole") == f"`the whole`: {NOT_ACCEPTED}"


def test_complaints_are_few_and_short() -> None:
    class Wide(BaseModel):
        words: list[int]

    with pytest.raises(ValidationError) as caught:
        Wide.model_validate({"words": ["x"] * 50})
    said = complaint_of(caught.value, whole="the whole")
    assert said.count("`") == 10 and said.endswith("; and more")
