"""The bus of one process. Buses between processes keep one for their own subscribers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from runward.ports.bus import Hint


class LocalBus:
    """`ports.bus.Bus` within a process.

    Hints are handed over in the event loop's next round, so that a publisher is never inside a subscriber; those of one round once
    each. They may be published from any thread; while the bus is not started they wait for `start`.
    """

    def __init__(self) -> None:
        self._handlers: dict[object, Callable[[Hint], None]] = {}
        self._gathered: dict[Hint, None] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = False

    @property
    def healthy(self) -> bool:
        return self._loop is not None

    def publish(self, hints: Iterable[Hint]) -> None:
        with self._lock:
            self._gathered.update(dict.fromkeys(hints))
            self._hand_over_soon()

    def subscribe(self, handler: Callable[[Hint], None]) -> Callable[[], None]:
        place = object()
        self._handlers[place] = handler

        def unsubscribe() -> None:
            self._handlers.pop(place, None)

        return unsubscribe

    async def start(self) -> None:
        with self._lock:
            self._loop, self._due = asyncio.get_running_loop(), False
            self._hand_over_soon()

    async def stop(self) -> None:
        self._hand_over()
        with self._lock:
            self._loop = None

    def _hand_over_soon(self) -> None:
        if self._loop is not None and self._gathered and not self._due:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to hear
                self._loop.call_soon_threadsafe(self._hand_over)
                self._due = True

    def _hand_over(self) -> None:
        with self._lock:
            loop = self._loop
            if loop is None:
                return
            hints, self._gathered, self._due = self._gathered, {}, False
        for hint in hints:
            for place, handler in tuple(self._handlers.items()):
                if place in self._handlers:
                    _tell(loop, handler, hint)


def _tell(loop: asyncio.AbstractEventLoop, handler: Callable[[Hint], None], hint: Hint) -> None:
    """One subscriber's bug must not make the others deaf; the loop reports it."""
    try:
        handler(hint)
    except Exception as error:  # noqa: BLE001
        loop.call_exception_handler({"message": "a subscriber of the bus raised", "exception": error})
