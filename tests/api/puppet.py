"""A run driven by hand, in place of a worker: every write of it is the test's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from runward.core.kernel.actor import Envelope, Position, Status
from runward.core.kernel.commit import Changes, Face, Written
from runward.core.kernel.frames import Frame
from runward.core.runs import codec
from runward.core.runs.face import face_of
from runward.engine.encoding import stored_frame
from runward.engine.service import Service
from runward.ports.store import ClaimRequest


class Housed(Protocol):
    """Whatever has a service."""

    @property
    def service(self) -> Service: ...


@dataclass
class Puppet:
    """Drives one run by hand, in place of a worker: every write of it is the test's."""

    house: Housed
    row: Envelope
    said: list[bytes] = field(default_factory=list)

    @property
    def run_id(self) -> str:
        return self.row.public_id

    @classmethod
    async def claim(cls, house: Housed, run_id: str) -> Puppet:
        """Takes the lease of a run; give the house no worker."""
        store, reads = house.service.services.store, house.service.services.reads
        bindings = [entry.binding for entry in house.service.registry.agents]
        request = ClaimRequest(
            owner="puppet", bindings=bindings, limit=100, overdue=50, suspects=100, ttl_ms=60_000, recovery_delay_ms=1, max_recoveries=5
        )
        (taken,) = [claimed for claimed in (await store.claim(request)).taken if claimed.envelope.public_id == run_id]
        frames = await reads.frames(taken.envelope.uid, after=0, limit=1_000_000)
        return cls(house, taken.envelope, [frame.data for frame in frames])

    async def say(self, *frames: Frame, status: Status | None = None) -> None:
        """Appends frames; with a status as the commit that gives the run back with it."""
        row, store = self.row, self.house.service.services.store
        at = self.house.service.services.time.now()
        made = [stored_frame(frame, seq=row.last_seq + place, run_id=row.public_id, at=at) for place, frame in enumerate(frames, 1)]
        follows = Position(revision=row.revision, last_seq=row.last_seq)
        if status is None:
            answer: object = await store.append_frames(row.uid, follows, made)
            self.row = replace(row, last_seq=row.last_seq + len(made))
        else:
            changes = Changes(
                uid=row.uid, follows=follows, face=self._face(status, at), mail_applied=row.mail_received, frames=tuple(made), release=True
            )
            answer = await store.commit(changes)
            self.row = replace(row, last_seq=row.last_seq + len(made), revision=row.revision + 1, status=status)
        assert isinstance(answer, Written), answer
        self.said += [frame.data for frame in made]
        self.house.service.tails.journaled(row.uid, made)

    def _face(self, status: Status, at: int) -> Face:
        run = replace(codec.decode(self.row.state), status=status, ended_at=at if status.ended else None)
        return face_of(run, binding=self.row.binding, priority=0, at=at)


def delta(text: str = "word ", step: int = 1) -> Frame:
    return Frame(type="text-delta", fields={"step": step, "attempt": 1, "delta": text})


def state(status: str, **data: Any) -> Frame:
    return Frame(type="data-agent", fields={"data": {"status": status, "phase": "loop", "steps": 1, **data}})
