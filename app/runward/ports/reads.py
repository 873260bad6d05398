"""The store's reads. None of them blocks a writer, keeps a connection between two calls, or changes anything.

All of them raise `Unavailable` when the store is away. A scope is part of the query itself, never a check behind it (R43).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from runward.core.kernel.actor import Envelope, Scope, Status
from runward.core.kernel.commit import CreatedIsGone, IdempotencyKey, KeyReused, Replayed
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.mail import Mail
from runward.core.kernel.records import MessageRow, Receipt


class Order(StrEnum):
    """How a list runs: over `(created_at, uid)` or `(ended_at, uid)`, which never move. A minus means newest first."""

    NEWEST = "-created_at"
    OLDEST = "created_at"
    ENDED = "ended_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in a list: the last row of a page. `uid` is an actor's, or in a list of approvals the approval's id."""

    at: int
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorQuery:
    """Which actors to list. `scope` None means every tenant: operators only. Empty collections and None filter nothing.

    Times are milliseconds; `_after` is inclusive, `_before` is not. `waiting_on` matches actors that wait for at least one of its bits.
    `horizon` leaves out what happened after it, for the ascending orders. `metadata` matches string values of top-level keys exactly.
    """

    kind: str
    scope: Scope | None
    statuses: Sequence[Status] = ()
    waiting_on: int = 0
    agent: str | None = None
    agent_version: str | None = None
    user: str | None = None
    namespace: str | None = None
    stop_reason: str | None = None
    task_outcome: str | None = None
    cancel_requested: bool | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    created_after: int | None = None
    created_before: int | None = None
    ended_after: int | None = None
    ended_before: int | None = None
    updated_before: int | None = None
    order: Order = Order.NEWEST
    horizon: int | None = None
    after: Place | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredApproval:
    """A request for approval as the inbox shows it. `run_id` is the public id of the actor that asks, and scope and agent are that actor's.

    `status` is `pending`, or how it ended: `approved`, `denied`, `expired` or `cancelled`; `decided_at` and `decision` are None until then.
    `data` and `decision` are JSON text.
    """

    id: str
    uid: str
    run_id: str
    scope: Scope
    agent: str
    tool: str
    status: str
    created_at: int
    expires_at: int | None
    data: str
    decided_at: int | None
    decision: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalQuery:
    """Which requests for approval to list, over `(created_at, id)`. What the fields mean is as in `ActorQuery`."""

    scope: Scope | None
    statuses: Sequence[str] = ()
    run_id: str | None = None
    agent: str | None = None
    tool: str | None = None
    user: str | None = None
    created_after: int | None = None
    order: Literal[Order.NEWEST, Order.OLDEST] = Order.NEWEST
    horizon: int | None = None
    after: Place | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsTaken:
    """How many leases count where leases are bounded: those of a concurrency key, and those of a tenant."""

    of_key: int
    of_tenant: int


PAGE_BYTES = 262_144
"""How many bytes of frames one read gives, and at least one frame: whoever reads slowly holds no more than that."""


def is_whole(page: Sequence[StoredFrame], limit: int) -> bool:
    """Whether a page of frames was the last one when it was read."""
    return len(page) < limit and sum(len(frame.data) for frame in page) < PAGE_BYTES


class Reads(Protocol):
    """The reads. See the module."""

    async def find(self, kind: str, scope: Scope | None, public_id: str) -> Envelope | None:
        """The actor with this public id, if the scope may see it. With `scope` None (operators) the newest of all tenants."""
        ...

    async def tenants_with(self, kind: str, public_id: str) -> Sequence[str]:
        """The tenants that have an actor with this public id; at most two of them are named. For operators, who see all tenants."""
        ...

    async def get(self, uid: str) -> Envelope | None:
        """The actor with this uid. For callers that hold a uid because they were allowed to."""
        ...

    async def list(self, query: ActorQuery) -> Sequence[Envelope]:
        """At most `query.limit` actors behind `query.after`, in order: no repeats, no misses (R43)."""
        ...

    async def frames(self, uid: str, *, after: int, limit: int) -> Sequence[StoredFrame]:
        """The frames with a seq above `after`, ascending, the very bytes that were written: at most `limit`, and none more once they are
        `PAGE_BYTES` together. `is_whole` says whether there may be more behind them."""
        ...

    async def messages(self, uid: str, *, after: int, limit: int | None) -> Sequence[MessageRow]:
        """Messages with a seq above `after`, ascending."""
        ...

    async def receipts(
        self, uid: str, *, step: int | None = None, after: tuple[int, int] = (0, 0), limit: int | None = None
    ) -> Sequence[Receipt]:
        """Receipts in the model's order, that is by `(step, position)`, behind `after`; only those of one step when `step` is given."""
        ...

    async def mail(self, uid: str, *, after: int, limit: int | None) -> Sequence[Mail]:
        """Mail with a seq above `after`, ascending."""
        ...

    async def mail_by_key(self, uid: str, keys: Sequence[str]) -> Mapping[str, Mail]:
        """The mail that has these keys, by key."""
        ...

    async def approval(self, scope: Scope | None, id: str) -> StoredApproval | None:
        """The request for approval with this id, if the scope may see it; None as a scope sees all."""
        ...

    async def approvals(self, query: ApprovalQuery) -> Sequence[StoredApproval]:
        """At most `query.limit` requests for approval behind `query.after`, in order: no repeats, no misses (R43)."""
        ...

    async def held(self, scope: Scope | None, *, lapsed_for_ms: int | None, after: Place | None, limit: int) -> Sequence[Envelope]:
        """At most `limit` actors under a lease that the scope may see, behind a place, over `(lease_until, uid)`; None sees all. With
        `lapsed_for_ms` only those whose lease ran out longer ago than that by the store's clock. A renewal moves an actor."""
        ...

    async def slots_taken(self, tenant: str, key: str | None) -> SlotsTaken:
        """How many slots are taken of a tenant, and of a concurrency key of it, which None has none of."""
        ...

    async def unclaimable(self, scope: Scope | None, bindings: Sequence[str], *, after: Place | None, limit: int) -> Sequence[Envelope]:
        """At most `limit` actors that the scope may see (None sees all), behind a place, over `(created_at, uid)`, that nobody with these
        bindings will take (R41): those without a lease that are `queued`, or `suspended` and due, of another binding or a newer format."""
        ...

    async def remembered(self, key: IdempotencyKey) -> Replayed | KeyReused | CreatedIsGone | None:
        """What `Store.create` would answer to this idempotency key, whatever else is wrong with the request (R42); None: unknown."""
        ...
