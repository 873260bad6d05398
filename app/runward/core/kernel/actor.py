"""The envelope every durable actor has: who it is, where it stands, who drives it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

FORMAT: Final = 1
"""The format version of states, messages, receipts and frames that this code writes (R41a). It reads this one and older ones."""

RANK_PER_PRIORITY_MS: Final = 60_000
"""How far one point of priority moves an actor ahead in its queue: rank = ready time - priority x this, so priorities age by themselves."""

MAX_UNAPPLIED_MAIL: Final = 1_000
"""How many items may wait in one inbox (R6a)."""


class Status(StrEnum):
    """Where an actor stands. `completed`, `stopped` and `failed` are ended."""

    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in ENDED


ENDED: Final = frozenset({Status.COMPLETED, Status.STOPPED, Status.FAILED})

DRIVEN: Final = ENDED | {Status.RUNNING}
"""What an actor is while a leg has it: an ended one under a caretaker keeps its status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose something is. Every read and write is confined to a tenant, and to a user or namespace where the caller's key names one."""

    tenant: str
    user: str | None = None
    namespace: str | None = None

    def narrowed(self, *, user: str | None, namespace: str | None) -> Scope | None:
        """This scope with a user or namespace added; None when that would leave it (R43)."""
        if self.user is not None and user not in (None, self.user):
            return None
        if self.namespace is not None and namespace not in (None, self.namespace):
            return None
        return Scope(tenant=self.tenant, user=self.user or user, namespace=self.namespace or namespace)

    def covers(self, other: Scope) -> bool:
        """Whether what is `other`'s is this scope's too."""
        return self.tenant == other.tenant and self.user in (None, other.user) and self.namespace in (None, other.namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """One row of `actors`: the actor's identity, its place in its life, and its lease. Times are store time in milliseconds since 1970.

    `state` is the kind's own state as stored text. `binding` is the fingerprint of what code must provide to drive it. `waiting_on` is
    a bit set that the kind defines. `context` is opaque to the kernel and may be encrypted. `metadata` is a JSON object as text.
    `key_slot` and `tenant_slot` are the places that its lease has among those of its `concurrency_key` and of its tenant, where these are
    bounded; they mean something only while there is a lease.
    """

    uid: str
    kind: str
    format: int
    public_id: str
    scope: Scope
    status: Status
    revision: int
    leg: int
    recoveries: int
    lease_owner: str | None
    lease_until: int | None
    drain_leg: int | None
    last_seq: int
    mail_received: int
    mail_applied: int
    ready_at: int | None
    care_at: int | None
    rank: int
    priority: int
    binding: str
    agent: str
    agent_version: str
    session_id: str | None
    parent_uid: str | None
    waiting_on: int
    stop_reason: str | None
    task_outcome: str
    metadata: str
    context: str | None
    state: str
    created_at: int
    updated_at: int
    started_at: int | None
    ended_at: int | None
    cancel_requested_at: int | None
    concurrency_key: str | None = None
    key_slot: int | None = None
    tenant_slot: int | None = None

    def has_turn(self, *, per_tenant: bool) -> bool:
        """Whether the lease counts where leases are bounded, by the actor's key and with `per_tenant` by its tenant. One that does not is
        for care alone (R41)."""
        return (self.concurrency_key is None or self.key_slot is not None) and (not per_tenant or self.tenant_slot is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What a write of a leg follows: it changes something only while exactly this is stored (R3, R4a)."""

    revision: int
    last_seq: int


def rank_of(ready_at: int, priority: int) -> int:
    """The place in the queue, fixed when the actor becomes ready; lower goes first."""
    return ready_at - priority * RANK_PER_PRIORITY_MS
