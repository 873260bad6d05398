"""What a tool's `probe` answers: did the effect under this key happen?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Happened:
    """The effect happened. `result` is recorded as what the tool returned; the call does not run again.

    Example::

        return Happened(f"refunded, receipt {found.id}")
    """

    result: Any = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """The effect did not happen and cannot happen any more: the call runs again under the same key.

    The attempt may live on: in a thread that outlasted its time, on a worker that froze, in a request under way. Say so only where whoever
    keeps the key refuses a later use of it; else it is `CannotTell`.

    Example::

        return DidNotHappen() if await payments.find(key) is None else Happened("refunded")
    """


@dataclass(frozen=True, slots=True)
class CannotTell:
    """Nobody knows: a person is asked, and reads `why`.

    Example::

        return CannotTell("the payment service is down")
    """

    why: str = ""


ProbeAnswer = Happened | DidNotHappen | CannotTell
