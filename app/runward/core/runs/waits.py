"""What a suspended run waits for (R8)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntFlag
from typing import Final


class Wait(IntFlag):
    """A bit set: a run may wait for several things at once. Stored in `actors.waiting_on`."""

    APPROVALS = 1
    CLIENT_CALLS = 2
    QUESTIONS = 4
    TIMERS = 8
    TASKS = 16
    CHILDREN = 32
    UNKNOWN_EFFECTS = 64
    BUDGET = 128
    HOLD = 256


NOTHING: Final = Wait(0)


def names(waits: Wait) -> list[str]:
    """The names of what is waited for, as views and filters spell them."""
    return [wait.name.lower() for wait in Wait if wait in waits and wait.name is not None]


def from_names(wanted: Iterable[str]) -> Wait | None:
    """The bit set of some names; None when one of them is unknown."""
    result = NOTHING
    for name in wanted:
        member = Wait.__members__.get(name.upper())
        if member is None or name != name.lower():
            return None
        result |= member
    return result
