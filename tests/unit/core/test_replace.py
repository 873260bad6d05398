"""`core.values.replace` is `dataclasses.replace`, and nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from runward.core.errors import DefinitionError
from runward.core.runs.calls import Call, CallStage, Effect, Result
from runward.core.runs.limits import Limits
from runward.core.runs.state import Hold, RunState
from runward.core.values import replace

CALL = Call(id="1.1", provider_id="", name="look", arguments="{}", effect=Effect.READ, stage=CallStage.READY)


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (RunState(uid="u", agent="a", created_at=1), {}),
        (RunState(uid="u", agent="a", created_at=1), {"turn": (CALL,), "hold": Hold(since=1), "leg": 3}),
        (CALL, {"result": Result(output=[1]), "raw": {"a": 1}}),
        (Limits(max_steps=3), {"timeout_seconds": 5.0}),
    ],
)
def test_it_makes_what_dataclasses_would(value: Any, changes: dict[str, Any]) -> None:
    made = replace(value, **changes)
    assert made == dataclasses.replace(value, **changes) and made is not value and hash(type(made)) == hash(type(value))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(made)[0].name, None)


def test_it_refuses_what_dataclasses_would() -> None:
    unknown: dict[str, Any] = {"colour": "red"}
    with pytest.raises(TypeError, match="colour"):
        replace(CALL, **unknown)
    with pytest.raises(DefinitionError):
        replace(Limits(), max_steps=0)
