"""The stores and buses under test, and the few back doors a test needs to them.

`tests/contract/backends_sql.py` brings the SQL ones and is imported only where they are asked for:

- `async def sqlite_backend(folder: Path) -> Backend`: a migrated database in a new file below `folder`;
- `def fill_postgres(url: str) -> None`: migrates an empty database, blocking, leaving no connection open; done once per session, every
  test gets a copy;
- `async def postgres_backend(url: str) -> Backend`: on such a copy;
- `async def sqlite_buses(folder: Path) -> BusPair`: two buses on a new file below `folder`, neither started yet;
- `async def postgres_buses(url: str) -> BusPair`: two buses on one database, neither started yet;
- `async def redis_buses(url: str) -> BusPair`: the same on one Redis.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from runward.ports.budgets import Budgets
from runward.ports.bus import Bus
from runward.ports.directory import Directory
from runward.ports.reads import Reads
from runward.ports.singletons import Singletons
from runward.ports.store import Store
from runward.stores.memory import LocalBus, MemoryBudgets, MemoryDatabase, MemoryDirectory, MemoryReads, MemorySingletons, MemoryStore

TABLES = ("actors", "messages", "receipts", "frames", "mail", "approvals", "idempotency_keys")
"""The tables that writes of the store touch, under the names that `Backend.rows` gives them."""


class Backend(ABC):
    """One database with the doors to it, opened. Methods are back doors: they go around the ports."""

    store: Store
    reads: Reads
    directory: Directory
    singletons: Singletons
    budgets: Budgets

    @abstractmethod
    async def new_store(self) -> Store:
        """A second process's store on the same data, opened. `close` closes it."""

    @abstractmethod
    async def age(self, uid: str, ms: int) -> None:
        """Lets time go by for one actor: moves its `lease_until`, `ready_at` and `care_at`, where set, and its rank `ms` back."""

    @abstractmethod
    async def age_others(self, ms: int) -> None:
        """Lets time go by for all that is no actor: moves when keys were remembered, workers last beat and keyed leases run out
        `ms` back."""

    @abstractmethod
    async def age_budgets(self, ms: int) -> None:
        """Lets time go by for budgets: moves when something was spent, used, made and reserved `ms` back."""

    @abstractmethod
    async def set_format(self, uid: str, version: int) -> None:
        """Makes an actor look as if other code had written it: sets the format version of its row."""

    @abstractmethod
    async def rows(self) -> Mapping[str, int]:
        """How many rows each of `TABLES` has, all tenants together."""

    @abstractmethod
    async def close(self) -> None:
        """Closes every door."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusPair:
    """The buses of two processes on one medium; of a bus that lives in one process, the same one twice.

    `cut` breaks what connects `there` with the medium, once, in a way that it can mend; None where nothing can break. `close` ends what
    the pair was made from; the test starts and stops the buses. `vague`: of another process's hints one hears only that there is something.
    """

    here: Bus
    there: Bus
    cut: Callable[[], Awaitable[None]] | None
    close: Callable[[], Awaitable[None]]
    vague: bool = False


class RealClock:
    """The clock of tests that do not turn it."""

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class MemoryBackend(Backend):
    """A database in memory."""

    def __init__(self) -> None:
        self.database = MemoryDatabase(RealClock())
        self.store = MemoryStore(self.database)
        self.reads = MemoryReads(self.database)
        self.directory = MemoryDirectory(self.database)
        self.singletons = MemorySingletons(self.database)
        self.budgets = MemoryBudgets(self.database)

    async def new_store(self) -> Store:
        return MemoryStore(self.database)

    async def age(self, uid: str, ms: int) -> None:
        envelope = self.database.actors[uid].envelope
        times = {name: getattr(envelope, name) for name in ("lease_until", "ready_at", "care_at", "rank")}
        self.database.put(replace(envelope, **{name: at - ms for name, at in times.items() if at is not None}))

    async def age_others(self, ms: int) -> None:
        self.database.keys = {slot: replace(key, created_at=key.created_at - ms) for slot, key in self.database.keys.items()}
        self.database.workers = {id: replace(worker, beat_at=worker.beat_at - ms) for id, worker in self.database.workers.items()}
        self.database.singletons = {key: replace(held, until=held.until - ms) for key, held in self.database.singletons.items()}

    async def age_budgets(self, ms: int) -> None:
        for slot, budget in self.database.budgets.items():
            buckets = tuple(replace(bucket, until=bucket.until and bucket.until - ms) for bucket in budget.account.buckets)
            account = replace(budget.account, buckets=buckets)
            times = {name: getattr(budget, name) - ms for name in ("created_at", "changed_at", "used_at")}
            self.database.budgets[slot] = replace(budget, account=account, **times)
        reservations = self.database.reservations
        self.database.reservations = {slot: replace(row, created_at=row.created_at - ms) for slot, row in reservations.items()}

    async def set_format(self, uid: str, version: int) -> None:
        self.database.put(replace(self.database.actors[uid].envelope, format=version))

    async def rows(self) -> Mapping[str, int]:
        actors = self.database.actors.values()
        counts = {name: sum(len(getattr(rows, name)) for rows in actors) for name in TABLES[1:-1]}
        return {"actors": len(actors), **counts, "idempotency_keys": len(self.database.keys)}

    async def close(self) -> None:
        await self.store.close()


async def local_buses() -> BusPair:
    """The bus of a single process."""
    bus = LocalBus()

    async def close() -> None: ...

    return BusPair(here=bus, there=bus, cut=None, close=close)
