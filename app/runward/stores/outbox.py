"""Hints of one process that wait to be sent to the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from runward.ports.bus import Hint, Topic

MAX_WAITING: Final = 10_000
"""How many hints wait while they cannot be sent; beyond that everybody is told to read everything."""

ANYTHING: Final = Hint(Topic.ANYTHING)


class Outbox:
    """Takes hints from any thread, each once, and wakes the loop that opened it. Never holds more than `MAX_WAITING` of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Hint, None] = {}
        self._filled = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = False

    def open(self) -> None:
        """From here on this loop is woken, also for what waits already."""
        with self._lock:
            self._loop, self._told = asyncio.get_running_loop(), False
            self._tell()

    def close(self) -> None:
        """Nobody is woken from here on. What waits stays, and more may come."""
        with self._lock:
            self._loop = None

    def put(self, hints: Iterable[Hint]) -> None:
        with self._lock:
            self._keep(dict.fromkeys(hints))
            self._tell()

    async def filled(self) -> None:
        """Returns once something waits."""
        await self._filled.wait()

    def take(self) -> tuple[Hint, ...]:
        """What waits, which waits no more."""
        with self._lock:
            taken, self._waiting, self._told = tuple(self._waiting), {}, False
            self._filled.clear()
        return taken

    def put_back(self, hints: Iterable[Hint]) -> None:
        """What was taken and not sent, in front of what has come since."""
        with self._lock:
            newer, self._waiting = self._waiting, {}
            self._keep(dict.fromkeys(hints) | newer)
            self._tell()

    def _keep(self, hints: dict[Hint, None]) -> None:
        self._waiting |= hints
        if len(self._waiting) > MAX_WAITING:
            self._waiting = {ANYTHING: None}

    def _tell(self) -> None:
        if self._loop is not None and self._waiting and not self._told:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to send
                self._loop.call_soon_threadsafe(self._fill)
                self._told = True

    def _fill(self) -> None:
        with self._lock:
            if self._waiting:
                self._filled.set()
