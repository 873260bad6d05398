"""What the parts of the engine share in one process."""

from __future__ import annotations

from dataclasses import dataclass, field

from runward.core.redaction import SECRETS, Redactor
from runward.engine.probes import FaultPoints
from runward.engine.timing import StoreTime
from runward.ports.budgets import Budgets
from runward.ports.bus import Bus
from runward.ports.clock import Chance, Clock
from runward.ports.directory import Directory
from runward.ports.prices import NoPrices, Prices
from runward.ports.reads import Reads
from runward.ports.singletons import Singletons
from runward.ports.store import Store
from runward.ports.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The adapters a process runs on, joined by `wiring`."""

    store: Store
    reads: Reads
    directory: Directory
    singletons: Singletons
    budgets: Budgets
    bus: Bus
    clock: Clock
    chance: Chance
    time: StoreTime
    telemetry: Telemetry
    prices: Prices = field(default_factory=NoPrices)
    faults: FaultPoints | None = None
    """Where it breaks on purpose; None, as a rule: nowhere."""
    redactor: Redactor = SECRETS
    """Takes secrets out of what people are shown: those that look like one, and those that the process was started with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepSettings:
    """How long things are kept, in seconds. `run_retention` None keeps ended runs for good."""

    idempotency_retention: float = 604_800.0
    run_retention: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitSettings:
    """When a model that keeps failing is left alone (R30), in seconds. `failures` 0: never."""

    failures: int = 5
    window_seconds: float = 30.0
    open_seconds: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How a worker works. Seconds, unless named otherwise. `per_key` and `per_tenant` bound how many runs of one concurrency key, and of
    one tenant, all workers drive at a time; None does not."""

    concurrency: int = 32
    lease_ttl: float = 30.0
    poll: float = 1.0
    poll_with_bus: float = 5.0
    drain_grace: float = 25.0
    cancel_grace: float = 5.0
    max_recoveries: int = 5
    recovery_delay: float = 2.0
    loop_stall: float = 300.0
    per_key: int = 1
    per_tenant: int | None = None
    circuit: CircuitSettings = CircuitSettings()
