"""The store of actors: the writes. Reads are in `ports.reads`; keys, agents and workers in `ports.directory`.

Every adapter promises the same, proven by one contract suite (`tests/contract`):

- **A write is one transaction** and durable when its answer comes; a rejected one leaves nothing behind.
- **A lost race is an answer**, typed; exceptions are for the store being away. `Unavailable` means: nothing is known about the write; it
  may have happened or may yet happen (R2a). Deadlocks and serialization failures are repeated inside, bounded.
- **Order within a write**: it locks its own actor's row and every recipient's in uid order first, then checks its gates, then writes.
  The gate holds for every part of it.
- **Text and bytes come back unchanged.** Text that not every database keeps (NUL, lone surrogates) is refused with ValueError by all of
  them: it is a bug, since the entry points refuse or clean it (R46, R47).
- **Time** is the store's own clock, in milliseconds since 1970. Whether a lease has run out, or an actor is ready, is decided by it
  inside the write that acts on it, never by a host's clock (R36).
- Formats newer than the adapter reads are never claimed, changed or counted as this process's business (R41a).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from runward.core.kernel.actor import Position, Status
from runward.core.kernel.commit import AppendAnswer, Changes, Claims, CommitAnswer, CreateAnswer, IdempotencyKey, NewActor, Stale, Written
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.mail import Letter
from runward.core.kernel.records import ApprovalClosing

KEYS_LIVE_MS: Final = 24 * 60 * 60 * 1000
"""How long an idempotency key is remembered at least (R42)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """What a worker would take. `owner` is unique per process start. `limit` and `suspects` bound how many, the latter those that have
    already been recovered once or more (R40). `ttl_ms` is the lease's length. `bindings` are those the worker can drive; care needs none.

    `overdue` says how many of `limit` lapsed leases and due care get before what is merely ready; the others they get behind that. So a
    worker that asks for about half, and in turns for one and none when it takes one, neither lets a long queue keep it from recovering, nor
    a thousand orphans from the queue.

    A recovered actor waits, after its lease ran out, for `recovery_delay_ms` x 2^(recoveries - 1) more when it is a suspect. Actors with
    `max_recoveries` recoveries are taken whatever their binding.

    `per_key` bounds how many leases the actors of one `concurrency_key` of a tenant have at a time, `per_tenant` those of a tenant; None
    does not.
    """

    owner: str
    bindings: Sequence[str]
    limit: int
    overdue: int
    suspects: int
    ttl_ms: int
    recovery_delay_ms: int
    max_recoveries: int
    per_key: int = 1
    per_tenant: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Letters for one actor, all or none.

    - `wakes`: the actor becomes ready now and, when `suspended`, `queued` with a rank of now (R6); one that was queued for later gets that
      rank, too. `reopens`: so does one that is `failed`, and its `ended_at` is cleared (R10); only for `retry`, refused for any other
      ended status. A caretaker that has it loses it, and writes nothing more: to it the actor is over.
    - `care`: any worker may act on it now, whatever its binding (R41).
    - `may_be_ended`: the letters are accepted after the end too (`reconcile`).
    - `marks_cancel`: sets `cancel_requested_at` when it is not set. A cancel has room in every inbox: it is what ends the flood.
    - `closings` show decided approvals at once, in the same write (R23).
    - `expected_revision`: refuse unless the actor is at it.

    Of several refusals the first of this order is answered: `NotThere`, `HasEnded`, `KeyTaken`, `InboxFull`, `RevisionMoved`.
    """

    uid: str
    letters: Sequence[Letter]
    wakes: bool = True
    reopens: bool = False
    care: bool = False
    may_be_ended: bool = False
    marks_cancel: bool = False
    closings: Sequence[ApprovalClosing] = ()
    expected_revision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where an actor stands, without its state: enough to know whether there is news."""

    uid: str
    status: Status
    position: Position
    leg: int
    lease_owner: str | None
    mail_received: int
    drain_leg: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """The answer to a heartbeat. `held` are the actors still this owner's, with their heads; what was asked for and is not in it is lost.
    `now` is the store's clock."""

    held: Mapping[str, Head]
    now: int


class Renewals(Protocol):
    """Renews leases on a connection of its own, usable from the thread and loop that opened it, so that neither a busy pool nor a blocked
    event loop can make a healthy worker lose its runs (I-18)."""

    async def renew(self, owner: str, uids: Sequence[str], ttl_ms: int) -> Renewal:
        """Extends the leases `owner` holds among `uids` to now + `ttl_ms`, in one statement, locking in uid order. A lapsed lease that
        nobody took is renewed too (R36). Raises `Unavailable`; that alone loses nothing."""
        ...

    async def close(self) -> None: ...


class Store(Protocol):
    """The writes. See the module for what holds for all of them."""

    async def open(self) -> None:
        """Connects. Raises `Unavailable`, or `SchemaMismatch` when the schema is not exactly this version's."""
        ...

    async def close(self) -> None:
        """Finishes what was begun and lets every connection go. Idempotent."""
        ...

    async def now(self) -> int:
        """The store's clock."""
        ...

    async def create(self, new: NewActor, key: IdempotencyKey | None) -> CreateAnswer:
        """Creates an actor with its first frames and messages and remembers the idempotency key, in one statement (R42).

        The key is looked at first: a known one is answered `Replayed`, `KeyReused` or `CreatedIsGone`, however many race, also while the
        first is under way. Then a public id that another actor of the tenant has is `PublicIdTaken` and leaves no key. A key that is
        refused leaves no actor. The very same creation sent again without a key is `Created` (R2a). The actor starts `queued`, at revision
        1, leg 0, ready at `new.ready_at` or now, ranked by its priority.
        """
        ...

    async def claim(self, request: ClaimRequest) -> Claims:
        """Takes actors to drive, in one write, skipping what others have locked. They are of two kinds:

        - *ready*: `queued` or `suspended` ones of the given bindings without a lease whose `ready_at` is due. Tenants take turns: first
          those of the tenant that has the fewest leases, counting those that this claim gives; among equals whoever had its turn with
          this store the longest time ago; then, and within a tenant, the lowest ranks of all bindings. A store may learn one claim late
          that several tenants wait;
        - *overdue*: those whose lease has run out (`lease_until` past), of the given bindings, suspects only after their delay, at most
          `suspects` of them; or of any binding once `max_recoveries` is reached, or when `care_at` is due; and those without a lease whose
          `care_at` is due, whatever their binding or status, also when they are ready besides; what has been due longest first.

        First come so many overdue ones as the request says, then the ready ones, then the other overdue ones, all up to the limit.

        A ready one is taken only while its `concurrency_key`, if it has one, and its tenant have fewer leases than the request allows, and
        gets a slot of the key, and of the tenant where that is bounded. No two leases ever have the same slot, however many claim at once.
        A lapsed lease keeps its slots for whoever recovers it; a lease taken for care has none and is not bounded, since care runs no
        author code. How a tenant's queue is read is the adapter's: however much waits, a claim reads a bounded part of it, in which every
        tenant and every key comes up.

        A taken one gets: owner, `lease_until` = now + ttl, leg + 1, revision + 1, status `running` (an ended one keeps its own),
        `started_at` when it had none, no `drain_leg`, no `ready_at`; a lease that had run out counts one recovery more. `care_at`
        stays until a commit gives the lease back: care that is due must not be lost with the leg that took it (I-17).
        A claim is unique per acquisition: no two claims ever return the same leg of an actor (I-14). Kinds of actor never matter here.
        """
        ...

    async def commit(self, changes: Changes) -> CommitAnswer:
        """Writes one commit of a leg, all or nothing, gated as `Changes` says. `Written` carries what is stored now. An actor that is
        `queued` or `suspended` is no leg's: `Stale`.

        `release` clears owner, expiry and `drain_leg`. Letters for others are numbered in the order given; a taken key, a recipient of
        another tenant and one that is gone, `completed` or `stopped` are dropped without a word; the others wake as an `Append` does.
        A letter for itself meets the status that the commit gives it. A closing's key that is already in the own mailbox is `MailArrived`.
        Children that exist are left as they are; one that this commit creates is not there yet for its letters.
        """
        ...

    async def append_frames(self, uid: str, follows: Position, frames: Sequence[StoredFrame]) -> Written | Stale:
        """Appends frames between commits: moves `last_seq`, nothing else. Gated like a commit."""
        ...

    async def append_mail(self, append: Append) -> AppendAnswer:
        """Puts letters into a mailbox from outside, in one write that locks the actor's row, numbers them and wakes the actor as `Append`
        says. Touches neither revision nor journal (R1)."""
        ...

    async def ask_drain(self, uid: str) -> int | None:
        """Asks the current leg to give the actor back: writes `drain_leg` while it is `running` under a lease, and returns the leg; else
        None, and nothing is stored (R39)."""
        ...

    async def seize(self, uid: str, letter: Letter, *, lapsed_only: bool) -> int | None:
        """Takes an actor from its holder, whose next write is `Stale`, and returns the leg it was taken from.

        The letter goes into the mailbox, also when that is full; the lease and `drain_leg` are cleared, at revision + 1; the actor is
        `queued`, ready now with at most a rank of now, and has one recovery more when its lease had run out. An ended one keeps its status
        and is due for care, since the letter has to be applied. None, and nothing is stored: nobody holds it, with `lapsed_only` its lease
        has not run out, or the letter's key is in the mailbox.
        """
        ...

    async def owned(self, owner: str) -> Mapping[str, int]:
        """Every actor under a lease of `owner`, lapsed or not, and which leg of it that is: how a claim whose answer was lost is found out
        (R2a)."""
        ...

    async def disown(self, owner: str, legs: Mapping[str, int]) -> Sequence[str]:
        """Gives back, at revision + 1, ready now with at most a rank of now, those actors whose lease is `owner`'s for exactly the leg that
        `legs` names: `queued`, but an ended one keeps its status. What was taken since stays, however late this comes. Returns their uids.
        """
        ...

    async def delete(self, uid: str) -> bool:
        """Deletes an ended actor that nobody holds, whole: rows of every table but its idempotency key. False, and nothing is deleted,
        when it has not ended, is held, or is gone."""
        ...

    async def prune(self, *, ended_before: int, limit: int) -> int:
        """Deletes, as `delete` does, at most `limit` actors that ended and were last saved before a time, and whose mail is all applied;
        those that ended first go first. Returns how many. A time later than the store's clock is cut back to it. An actor whose parent
        exists is left, however old: it goes once its parent has gone (R45)."""
        ...

    async def prune_keys(self, *, created_before: int, limit: int) -> int:
        """Forgets at most `limit` idempotency keys that were remembered before a time, oldest first, and returns how many; none younger
        than `KEYS_LIVE_MS` (R42)."""
        ...

    async def heads(self, uids: Sequence[str]) -> Mapping[str, Head]:
        """Where these actors stand, in one statement; those that do not exist are left out."""
        ...

    async def renewals(self) -> Renewals:
        """Opens a door for heartbeats. Call it from the loop that will use it."""
        ...
