"""Hints between processes: "actor X has news". Truth is always read from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Topic(StrEnum):
    """What kind of news. `ANYTHING` has no uid: something changed somewhere, whoever watches reads again."""

    READY = "r"
    MAIL = "m"
    FRAMES = "f"
    KEYS = "k"
    ANYTHING = "*"


@dataclass(frozen=True, slots=True)
class Hint:
    """News of one actor; `uid` is empty where no single actor is meant."""

    topic: Topic
    uid: str = ""


class Bus(Protocol):
    """Carries hints to every process of the service, this one included.

    - **Hints only**: uids, never content. A lost hint costs a poll interval, never a frame, a run or a cancel. Duplicates and hints about
      actors that are long gone are harmless.
    - `publish` is called after a commit, never inside one. It returns at once, never raises, and may gather hints for up to 5 ms and
      send each of them once. Subscribers of the same process hear it too.
    - Handlers are called on the event loop that called `start`, must not block and must not raise.
    - After a gap (a lost connection that came back) every subscriber gets `Hint(Topic.ANYTHING)` once, so that everything watched is read
      again. `healthy` is False from the moment hints may be lost until then; whoever waits polls faster meanwhile.
    - `start` succeeds even if hints cannot be carried between processes right now; the bus goes on trying. `stop` sends what is gathered.
    """

    @property
    def healthy(self) -> bool: ...

    def publish(self, hints: Iterable[Hint]) -> None: ...

    def subscribe(self, handler: Callable[[Hint], None]) -> Callable[[], None]:
        """Calls `handler` for every hint from now on, until the returned function is called."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...
