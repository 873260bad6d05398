"""A store in this process's memory, and the bus of a single process.

For users' tests (`runward.testing`), the simulator, and as the plainest statement of what the ports promise. Everything is gone with the
process. Several stores on one `MemoryDatabase` are several processes on one database::

    database = MemoryDatabase(clock, epoch_ms=1_700_000_000_000)
    store, reads, directory = MemoryStore(database), MemoryReads(database), MemoryDirectory(database)
"""

from runward.stores.memory.budgets import MemoryBudgets
from runward.stores.memory.bus import LocalBus
from runward.stores.memory.database import Faults, MemoryDatabase
from runward.stores.memory.directory import MemoryDirectory
from runward.stores.memory.reads import MemoryReads
from runward.stores.memory.renewals import MemoryRenewals
from runward.stores.memory.singletons import MemorySingletons
from runward.stores.memory.store import MemoryStore

__all__ = [
    "Faults",
    "LocalBus",
    "MemoryBudgets",
    "MemoryDatabase",
    "MemoryDirectory",
    "MemoryReads",
    "MemoryRenewals",
    "MemorySingletons",
    "MemoryStore",
]
