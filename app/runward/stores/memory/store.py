"""The writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runward.core.errors import InvariantViolated
from runward.core.kernel.actor import Position, Status
from runward.core.kernel.commit import (
    AppendAnswer,
    Changes,
    Claims,
    CommitAnswer,
    CreateAnswer,
    Created,
    IdempotencyKey,
    NewActor,
    PublicIdTaken,
    Stale,
    Written,
)
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.mail import Letter
from runward.ports.store import Append, ClaimRequest, Head, Renewals
from runward.stores.guards import check_new_actor, check_text
from runward.stores.memory.claims import claim, disown, owned, seize
from runward.stores.memory.commits import add_actor, append_frames, commit
from runward.stores.memory.database import Faults, MemoryDatabase, RememberedKey, head_of
from runward.stores.memory.mailbox import append_mail
from runward.stores.memory.pruning import delete, prune, prune_keys
from runward.stores.memory.renewals import MemoryRenewals
from runward.stores.turns import Served


class MemoryStore:
    """`ports.store.Store` as one process sees it."""

    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._database = database
        self._faults = faults or Faults()
        self._served = Served()

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to let go."""

    async def now(self) -> int:
        return await self._database.turn(self._faults, "now", self._database.now)

    async def create(self, new: NewActor, key: IdempotencyKey | None) -> CreateAnswer:
        return await self._database.turn(self._faults, "create", lambda: _create(self._database, new, key))

    async def claim(self, request: ClaimRequest) -> Claims:
        return await self._database.turn(self._faults, "claim", lambda: claim(self._database, self._served, request))

    async def commit(self, changes: Changes) -> CommitAnswer:
        return await self._database.turn(self._faults, "commit", lambda: commit(self._database, changes))

    async def append_frames(self, uid: str, follows: Position, frames: Sequence[StoredFrame]) -> Written | Stale:
        return await self._database.turn(self._faults, "append_frames", lambda: append_frames(self._database, uid, follows, frames))

    async def append_mail(self, append: Append) -> AppendAnswer:
        return await self._database.turn(self._faults, "append_mail", lambda: append_mail(self._database, append))

    async def ask_drain(self, uid: str) -> int | None:
        return await self._database.turn(self._faults, "ask_drain", lambda: _ask_drain(self._database, uid))

    async def seize(self, uid: str, letter: Letter, *, lapsed_only: bool) -> int | None:
        return await self._database.turn(self._faults, "seize", lambda: seize(self._database, uid, letter, lapsed_only=lapsed_only))

    async def owned(self, owner: str) -> Mapping[str, int]:
        return await self._database.turn(self._faults, "owned", lambda: owned(self._database, owner))

    async def disown(self, owner: str, legs: Mapping[str, int]) -> Sequence[str]:
        return await self._database.turn(self._faults, "disown", lambda: disown(self._database, owner, legs))

    async def delete(self, uid: str) -> bool:
        return await self._database.turn(self._faults, "delete", lambda: delete(self._database, uid))

    async def prune(self, *, ended_before: int, limit: int) -> int:
        return await self._database.turn(self._faults, "prune", lambda: prune(self._database, ended_before=ended_before, limit=limit))

    async def prune_keys(self, *, created_before: int, limit: int) -> int:
        def work() -> int:
            return prune_keys(self._database, created_before=created_before, limit=limit)

        return await self._database.turn(self._faults, "prune_keys", work)

    async def heads(self, uids: Sequence[str]) -> Mapping[str, Head]:
        return await self._database.turn(self._faults, "heads", lambda: _heads(self._database, uids))

    async def renewals(self) -> Renewals:
        return await self._database.turn(self._faults, "renewals", lambda: MemoryRenewals(self._database, self._faults))


def _create(database: MemoryDatabase, new: NewActor, key: IdempotencyKey | None) -> CreateAnswer:
    check_new_actor(new)
    check_text(key)
    if key is not None and (known := database.remembered(key)) is not None:
        return known
    same_id = database.public_ids.get((new.scope.tenant, new.public_id))
    if same_id is not None:
        return Created(uid=new.uid) if same_id == new.uid else PublicIdTaken()
    if new.uid in database.actors:
        raise InvariantViolated("a uid is never used twice")
    add_actor(database, new, now=database.now())
    if key is not None:
        database.keys[key.scope, key.route, key.key] = RememberedKey(
            fingerprint=key.fingerprint, uid=new.uid, public_id=new.public_id, created_at=database.now()
        )
    return Created(uid=new.uid)


def _ask_drain(database: MemoryDatabase, uid: str) -> int | None:
    rows = database.actors.get(uid)
    if rows is None or rows.envelope.status is not Status.RUNNING or rows.envelope.lease_owner is None:
        return None
    database.put(replace(rows.envelope, drain_leg=rows.envelope.leg))
    return rows.envelope.leg


def _heads(database: MemoryDatabase, uids: Sequence[str]) -> dict[str, Head]:
    return {uid: head_of(database.actors[uid].envelope) for uid in uids if uid in database.actors}
