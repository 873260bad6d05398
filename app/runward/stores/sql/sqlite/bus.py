"""Hints on SQLite: within the process at once, from other processes by the file's version counter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from runward.ports.bus import Hint, Topic
from runward.stores.memory import LocalBus
from runward.stores.sql.sqlite.writer import Watch, Writer

LOOK_SECONDS: Final = 0.015
"""How often the counter is looked at while anybody subscribes. It moves with the commits of other connections only."""


class FileBus:
    """`ports.bus.Bus` between the processes of one file. What other processes do is `Hint(Topic.ANYTHING)`: the counter says no more."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._local = LocalBus()
        self._subscribers = 0
        self._started = False

    @property
    def healthy(self) -> bool:
        return self._local.healthy

    def publish(self, hints: Iterable[Hint]) -> None:
        self._local.publish(hints)

    def subscribe(self, handler: Callable[[Hint], None]) -> Callable[[], None]:
        unsubscribe = self._local.subscribe(handler)
        subscribed = True
        self._subscribers += 1
        self._look()

        def unsubscribe_once() -> None:
            nonlocal subscribed
            if subscribed:
                subscribed = False
                self._subscribers -= 1
                self._look()
            unsubscribe()

        return unsubscribe_once

    async def start(self) -> None:
        await self._local.start()
        self._started = True
        self._look()

    async def stop(self) -> None:
        self._started = False
        self._look()
        await self._local.stop()

    def _look(self) -> None:
        wanted = self._started and self._subscribers > 0
        self._writer.watch(Watch(changed=self._changed, seconds=LOOK_SECONDS) if wanted else None)

    def _changed(self) -> None:
        self._local.publish([Hint(Topic.ANYTHING)])
