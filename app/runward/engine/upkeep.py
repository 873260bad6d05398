"""Upkeep: what has to be done once in a while and by one process at a time. It forgets dead workers, old keys and
old reservations, prunes old runs, and tells runs that wait for a budget what a process that died did not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from runward.core.kernel.commit import Appended
from runward.engine.budgets import tell
from runward.engine.oversight import PRUNE_BATCH
from runward.engine.services import Services, UpkeepSettings
from runward.ports.singletons import Lease

KEY = "upkeep"
"""The keyed lease of whoever does it."""
ROUND_SECONDS = 60.0
LEASE_MS = 180_000
"""When its process dies, another one goes on after so long."""
MOST_BATCHES = 50
"""How many batches of one kind a round deletes; what is left waits for the next."""
PAUSE_SECONDS = 0.1
"""Between two batches, so that whoever drives runs has its turn."""
LEAST_SILENCE_MS = 300_000
SILENT_LEASES = 10
"""A worker is forgotten once it was silent for so many lengths of a lease, and for `LEAST_SILENCE_MS`."""


class Upkeep:
    """Keeps house while this process holds the lease. `owner` is the worker's id, `lease_ttl` the length of its leases in seconds."""

    def __init__(self, services: Services, settings: UpkeepSettings, *, owner: str, lease_ttl: float) -> None:
        self._services = services
        self._settings = settings
        self._owner = owner
        self._silent_ms = max(LEAST_SILENCE_MS, round(SILENT_LEASES * lease_ttl * 1000))
        self._lease: Lease | None = None

    async def keep_house(self) -> None:
        """A round a minute, until cancelled."""
        while True:
            await self._services.clock.sleep(ROUND_SECONDS)
            try:
                await self.round()
            except Exception as error:  # noqa: BLE001 - the store is away, or it is a bug: the next round tries again
                self._services.telemetry.problem("upkeep_failed", error)

    async def round(self) -> bool:
        """Does what is due, if no other process is at it. Stops between two batches once the lease is lost. False: somebody else has it."""
        self._lease = await self._services.singletons.acquire(KEY, self._owner, LEASE_MS)
        if self._lease is None:
            return False
        store, settings, now = self._services.store, self._settings, await self._services.store.now()
        workers = await self._services.directory.forget_silent_workers(self._silent_ms)
        keys_before = now - round(settings.idempotency_retention * 1000)
        keys = await self._pruned(lambda most: store.prune_keys(created_before=keys_before, limit=most))
        budgets = self._services.budgets
        reservations = await self._pruned(lambda most: budgets.prune_reservations(made_before=keys_before, limit=most))
        runs = 0
        if settings.run_retention is not None:
            runs_before = now - round(settings.run_retention * 1000)
            runs = await self._pruned(lambda most: store.prune(ended_before=runs_before, limit=most))
        woken = await self._tell_overlooked()
        if workers or keys or reservations or runs or woken:
            self._services.telemetry.event("upkeep", workers=workers, keys=keys, reservations=reservations, runs=runs, woken=woken)
        return True

    async def leave(self) -> None:
        """Lets another process go on at once."""
        if self._lease is not None:
            await self._services.singletons.release(self._lease)
            self._lease = None

    async def _tell_overlooked(self) -> int:
        """Tells runs that wait for a budget that its terms were set, where whoever set them died before it did. Returns how many."""
        woken, after = 0, None
        while self._lease is not None:
            page = await self._services.budgets.overlooked(after=after, limit=PRUNE_BATCH)
            for one in page:
                answer = await tell(self._services, one.tenant, one.key, one.waiter, one.changed_by)
                woken += isinstance(answer, Appended)
            if len(page) < PRUNE_BATCH:
                break
            after = page[-1].tenant, page[-1].waiter.id
            await self._services.clock.sleep(PAUSE_SECONDS)
            self._lease = await self._services.singletons.renew(self._lease, LEASE_MS)
        return woken

    async def _pruned(self, prune: Callable[[int], Awaitable[int]]) -> int:
        """Deletes in batches while the lease holds. Returns how many."""
        deleted = 0
        for _ in range(MOST_BATCHES):
            if self._lease is None:
                break
            count = await prune(PRUNE_BATCH)
            deleted += count
            if count < PRUNE_BATCH:
                break
            await self._services.clock.sleep(PAUSE_SECONDS)
            self._lease = await self._services.singletons.renew(self._lease, LEASE_MS)
        return deleted
