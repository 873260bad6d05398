"""What tools wait for until it is durable: their checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Container

from runward.core.runs.facts import CheckpointSaved, Happening


class Kept:
    """The checkpoints of one leg that are not durable yet."""

    def __init__(self) -> None:
        self._waiting: list[tuple[CheckpointSaved, asyncio.Future[None]]] = []

    def add(self, fact: CheckpointSaved) -> asyncio.Future[None]:
        """Something to await: done once the fact is durable."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((fact, durable))
        return durable

    def committed(self, unfolded: Container[Happening]) -> None:
        """A commit made durable what was folded before it: all but what is `unfolded`."""
        still = [(fact, durable) for fact, durable in self._waiting if fact in unfolded]
        for fact, durable in self._waiting:
            if fact not in unfolded and not durable.done():
                durable.set_result(None)
        self._waiting = still

    def drop(self) -> None:
        """The leg is over: whoever waits is told by a cancel."""
        for _, durable in self._waiting:
            durable.cancel()
