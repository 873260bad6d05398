"""What author code waits for until it is durable: checkpoints, and reservations of its model calls."""

from __future__ import annotations

import asyncio
from collections.abc import Container

from runward.core.runs.asking import GenerationAsked
from runward.core.runs.facts import CheckpointSaved, Happening

WaitedFor = CheckpointSaved | GenerationAsked


class Kept:
    """What of it is not durable yet, in one leg."""

    def __init__(self) -> None:
        self._waiting: list[tuple[WaitedFor, asyncio.Future[None]]] = []
        self._dropped = False

    def add(self, fact: WaitedFor) -> asyncio.Future[None]:
        """Something to await: done once the fact is durable."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._dropped:
            durable.cancel()
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
        """The leg is over: whoever waits, or comes to wait, is told by a cancel."""
        self._dropped = True
        for _, durable in self._waiting:
            durable.cancel()
