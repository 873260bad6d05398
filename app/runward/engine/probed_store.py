"""A store with the fault points of its writes around it: only there where somebody asked for faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from runward.core.kernel.actor import Position, Status
from runward.core.kernel.commit import AppendAnswer, Changes, Claims, CommitAnswer, CreateAnswer, IdempotencyKey, NewActor, Stale, Written
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.records import Stage
from runward.engine.probes import FaultPoints
from runward.ports.store import Append, ClaimRequest, Store

T = TypeVar("T")

OUTCOMES = (Stage.COMPLETED, Stage.FAILED)


def probed(store: Store, faults: FaultPoints) -> Store:
    """The store, through its fault points."""
    return cast(Store, _ProbedStore(store, faults))


def kinds_of(changes: Changes) -> tuple[str, ...]:
    """What a commit is, by the names of `probes.WRITES`."""
    stages = {receipt.stage for receipt in changes.receipts}
    status = changes.face.status
    kinds = {
        "commit": True,
        "answer": any(message.role == "assistant" for message in changes.messages),
        "executing": Stage.EXECUTING in stages,
        "executed": Stage.EXECUTED in stages,
        "outcome": not stages.isdisjoint(OUTCOMES),
        "request": bool(changes.approvals),
        "closing": bool(changes.closings),
        "suspend": changes.release and status is Status.SUSPENDED,
        "give_back": changes.release and status is Status.QUEUED,
        "end": changes.release and status.ended,
    }
    return tuple(name for name, is_so in kinds.items() if is_so)


class _ProbedStore:
    """`ports.store.Store`: the writes below pass their points, everything else is the store's own."""

    def __init__(self, store: Store, faults: FaultPoints) -> None:
        self._store = store
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(self, new: NewActor, key: IdempotencyKey | None) -> CreateAnswer:
        return await self._passing(("create",), lambda: self._store.create(new, key))

    async def claim(self, request: ClaimRequest) -> Claims:
        return await self._passing(("claim",), lambda: self._store.claim(request))

    async def commit(self, changes: Changes) -> CommitAnswer:
        return await self._passing(kinds_of(changes), lambda: self._store.commit(changes))

    async def append_frames(self, uid: str, follows: Position, frames: Sequence[StoredFrame]) -> Written | Stale:
        return await self._passing(("frames",), lambda: self._store.append_frames(uid, follows, frames))

    async def append_mail(self, append: Append) -> AppendAnswer:
        return await self._passing(("mail",), lambda: self._store.append_mail(append))

    async def _passing(self, kinds: Sequence[str], write: Callable[[], Awaitable[T]]) -> T:
        await self._faults.reach(*(f"before_{kind}" for kind in kinds))
        answer = await write()
        await self._faults.reach(*(f"after_{kind}" for kind in kinds))
        return answer
