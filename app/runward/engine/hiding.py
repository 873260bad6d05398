"""What operators want hidden, taken out of what people are shown of runs: views, and the frames that say the same.

Secrets by their shapes are taken out before (`core.redaction`). What is left to do is for the rules that operators add, and for the secrets
that the process itself was started with. Text, results and outputs are the caller's own, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runward.core.kernel.frames import Frame
from runward.core.redaction import SECRETS, Redactor

PARTS: Final = ("pending", "stop", "error")
WRITTEN: Final = frozenset({"arguments", "details", "message", "reason", "request_reason"})
SHOWING: Final = ("tool-approval-request", "guardrail")


def view_hidden(view: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    """A run, or its control state, as people are shown it."""
    if redactor == SECRETS:
        return view
    return {**view, **{part: _hidden(view[part], redactor) for part in PARTS if view.get(part) is not None}}


def frame_hidden(frame: Frame, redactor: Redactor) -> Frame:
    """A frame as subscribers get it."""
    if redactor == SECRETS:
        return frame
    if frame.type == "data-agent":
        return Frame(type=frame.type, fields={**frame.fields, "data": view_hidden(frame.fields["data"], redactor)})
    return Frame(type=frame.type, fields=_hidden(frame.fields, redactor)) if frame.type in SHOWING else frame


def _hidden(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, Mapping):
        return {name: redactor.json(item) if name in WRITTEN else _hidden(item, redactor) for name, item in value.items()}
    return [_hidden(item, redactor) for item in value] if isinstance(value, list | tuple) else value
