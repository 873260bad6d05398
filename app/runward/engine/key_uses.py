"""When API keys were last used: noted in memory, and told to the store once a minute by each process whose callers used one."""

from __future__ import annotations

import asyncio

from runward.engine.services import Services

ROUND_SECONDS = 60.0


class KeyUses:
    """Gathers the keys that callers come with. A request costs a set's entry and no more; the store hears of a minute's in one write."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._used: set[str] = set()
        self._any = asyncio.Event()

    def note(self, id: str) -> None:
        """A caller came with this key."""
        self._used.add(id)
        self._any.set()

    async def tell(self) -> None:
        """Tells the store what was used, if anything. What it could not be told is told with the next round."""
        used, self._used = self._used, set()
        self._any.clear()
        if not used:
            return
        try:
            await self._services.directory.note_key_uses(used)
        except Exception as error:  # noqa: BLE001 - the store is away, or it is a bug: the next round tells it again
            for id in used:
                self.note(id)
            self._services.telemetry.problem("key_uses_failed", error)

    async def keep_telling(self) -> None:
        """A round a minute while keys are used, until cancelled. A process that nobody calls does nothing."""
        while True:
            await self._any.wait()
            await self._services.clock.sleep(ROUND_SECONDS)
            await self.tell()
