"""The data, its clock, and how an operation takes its turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from runward.core.kernel.actor import DRIVEN, Envelope, Position, Scope
from runward.core.kernel.commit import CreatedIsGone, IdempotencyKey, KeyReused, Replayed
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.mail import Mail
from runward.core.kernel.records import ApprovalClosing, ApprovalRow, MessageRow, Receipt
from runward.core.runs.ledger import Amount
from runward.ports.budgets import Budget, Closed, ReserveAnswer
from runward.ports.clock import Clock
from runward.ports.directory import ApiKey, PublishedAgent, WorkerRow
from runward.ports.store import Head

T = TypeVar("T")


class Faults:
    """What happens around an operation; here nothing. Tests and the simulator override it, one object per simulated process.

    `name` is the port method's. Waiting in `before` is a process that is paused before its write, raising `Unavailable` there a write that
    never happened; raising it in `after` an answer that was lost.
    """

    async def before(self, name: str) -> None:
        """Nothing has happened yet."""

    async def after(self, name: str) -> None:
        """It is done, and nobody was told."""


@dataclass(slots=True)
class Rows:
    """Everything that belongs to one actor. Values are frozen: a change puts another one in their place."""

    envelope: Envelope
    frames: list[StoredFrame] = field(default_factory=list)
    messages: dict[int, MessageRow] = field(default_factory=dict)
    receipts: dict[str, Receipt] = field(default_factory=dict)
    mail: list[Mail] = field(default_factory=list)
    mail_seqs: dict[str, int] = field(default_factory=dict)
    approvals: dict[str, tuple[ApprovalRow, ApprovalClosing | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedKey:
    """What an idempotency key made. It outlives the actor."""

    fingerprint: str
    uid: str
    public_id: str
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedLease:
    """Who holds a key of `ports.singletons`; nobody since `until` when there is no owner."""

    owner: str | None
    token: int
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """A reservation of `ports.budgets`, with what was answered: `outcome` first, and once it was closed `closed`. `waits_for` is the budget
    that refused it, as long as somebody waits."""

    keys: tuple[str, ...]
    holder: str
    amount: Amount
    created_at: int
    outcome: ReserveAnswer
    closed: Closed | None = None
    waits_for: str | None = None


class MemoryDatabase:
    """One database. Its time is the clock's, `epoch_ms` at the clock's zero."""

    def __init__(self, clock: Clock, *, epoch_ms: int = 1_700_000_000_000) -> None:
        self.clock = clock
        self.actors: dict[str, Rows] = {}
        self.public_ids: dict[tuple[str, str], str] = {}
        self.keys: dict[tuple[Scope, str, str], RememberedKey] = {}
        self.api_keys: dict[str, ApiKey] = {}
        self.authentication: bool | None = None
        self.agents: dict[tuple[str, str, str], PublishedAgent] = {}
        self.workers: dict[str, WorkerRow] = {}
        self.singletons: dict[str, KeyedLease] = {}
        self.budgets: dict[tuple[str, str], Budget] = {}
        self.reservations: dict[tuple[str, str], Reserved] = {}
        self._epoch_ms = epoch_ms
        self._pending: dict[str, None] = {}
        self._lock = threading.Lock()

    def now(self) -> int:
        """Milliseconds since 1970."""
        return self._epoch_ms + int(self.clock.monotonic() * 1000)

    def add(self, rows: Rows) -> None:
        """Adds an actor."""
        envelope = rows.envelope
        self.actors[envelope.uid] = rows
        self.public_ids[envelope.scope.tenant, envelope.public_id] = envelope.uid
        self.put(envelope)

    def put(self, envelope: Envelope) -> None:
        """Writes an actor's envelope."""
        self.actors[envelope.uid].envelope = envelope
        if envelope.ready_at is None and envelope.care_at is None and envelope.lease_owner is None:
            self._pending.pop(envelope.uid, None)
        else:
            self._pending[envelope.uid] = None

    def remove(self, uid: str) -> None:
        """Removes an actor, whole."""
        envelope = self.actors.pop(uid).envelope
        del self.public_ids[envelope.scope.tenant, envelope.public_id]
        self._pending.pop(uid, None)

    def remembered(self, key: IdempotencyKey) -> Replayed | KeyReused | CreatedIsGone | None:
        """What an idempotency key says of a creation; None: it is not known."""
        known = self.keys.get((key.scope, key.route, key.key))
        if known is None:
            return None
        if known.fingerprint != key.fingerprint:
            return KeyReused()
        return Replayed(uid=known.uid, public_id=known.public_id) if known.uid in self.actors else CreatedIsGone(public_id=known.public_id)

    def pending(self) -> Iterator[Envelope]:
        """The actors that somebody holds, or will have to take some time."""
        return (self.actors[uid].envelope for uid in self._pending)

    async def turn(self, faults: Faults, name: str, work: Callable[[], T]) -> T:
        """Runs one operation: others get a turn before it and before its answer, and nobody one in between."""
        await self.clock.sleep(0)
        await faults.before(name)
        with self._lock:  # heartbeats may live in a thread of their own
            answer = work()
        await faults.after(name)
        await self.clock.sleep(0)
        return answer


def is_writable(envelope: Envelope, follows: Position) -> bool:
    """Whether a leg has the actor, and it stands where the leg's write says."""
    return position_of(envelope) == follows and envelope.status in DRIVEN


def position_of(envelope: Envelope) -> Position:
    return Position(revision=envelope.revision, last_seq=envelope.last_seq)


def head_of(envelope: Envelope) -> Head:
    return Head(
        uid=envelope.uid,
        status=envelope.status,
        position=position_of(envelope),
        leg=envelope.leg,
        lease_owner=envelope.lease_owner,
        mail_received=envelope.mail_received,
        drain_leg=envelope.drain_leg,
    )
