"""The one queue through which a leg writes: frames between commits, and commits (R4a)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from runward.core.errors import Unavailable
from runward.core.kernel.actor import Position
from runward.core.kernel.commit import Changes, MailArrived, Stale, Written
from runward.core.kernel.frames import Frame, StoredFrame
from runward.core.redaction import SECRETS, Redactor
from runward.engine.encoding import stored_frame
from runward.engine.hiding import frame_hidden
from runward.engine.hold import Hold, LeaseLost
from runward.engine.timing import StoreTime
from runward.ports.clock import Clock
from runward.ports.store import Store

GROUP_SECONDS = 0.030
"""Text is journaled at most this often."""
FIRST_DELAY_SECONDS = 0.008
"""How long the first frame after a quiet time waits for company: an answer that is whole by then needs no transaction of its own."""
MAX_WAITING_BYTES = 4_194_304
"""How much text may wait while the database is away; the model's stream is slowed down beyond it."""
FRAME_CHARACTERS = 16_384
"""How long a frame of text may grow while it waits; what comes then is another frame."""
RESEND_SECONDS = 0.2
MERGED = {"text-delta", "reasoning-delta", "tool-input-delta"}


class Listener(Protocol):
    """Who hears of what became durable."""

    def wrote(self, frames: Sequence[StoredFrame], written: Written | None) -> None:
        """These frames are durable. `written` is the store's answer, None when it was lost and found later."""
        ...

    def broke(self) -> None:
        """Frames could not be written, and nothing will be any more: `failure` says why."""
        ...


class Journal:
    """Numbers and writes a leg's frames, in order, and its commits between them.

    A write whose answer was lost is sent again, the very same, while the lease lasts; nothing else is written until it is known whether
    it landed (R2a). Raises LeaseLost when the actor is somebody else's.
    """

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        time: StoreTime,
        hold: Hold,
        uid: str,
        run_id: str,
        leg: int,
        position: Position,
        listener: Listener,
        redactor: Redactor = SECRETS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._time = time
        self._hold = hold
        self._uid = uid
        self._run_id = run_id
        self._leg = leg
        self.position = position
        self._listener = listener
        self._redactor = redactor
        self._waiting: list[tuple[Frame, int]] = []
        self._taken = 0
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._lock = asyncio.Lock()
        self._flushing: asyncio.Task[None] | None = None
        self._last_write = self._waiting_since = clock.monotonic() - 1.0
        self.failure: Exception | None = None

    def emit(self, frames: Sequence[Frame]) -> None:
        """Says something before the next commit: it is written within 30 ms, or with the next commit if that comes first."""
        at = self._time.now()
        for frame in frames:
            self._add(frame, at)
        if frames and self._flushing is None and self.failure is None:
            self._flushing = asyncio.ensure_future(self._flush_soon())

    async def room(self) -> None:
        """Returns once more text may be emitted."""
        await self._room.wait()

    async def commit(
        self, make: Callable[[Position, tuple[StoredFrame, ...], int], Changes], frames: Sequence[Frame], at: int
    ) -> MailArrived | None:
        """Writes a commit; frames that wait go first, then `frames`. None means it is durable.

        `make` makes it once it is its turn, of the position it follows, all its frames, and the seq of the last one that waited.
        """
        async with self._lock:
            if self.failure is not None:
                raise self.failure
            waiting = self._take()
            stored = self._numbered([*waiting, *((frame, at) for frame in frames)])
            changes = make(self.position, tuple(stored), self.position.last_seq + len(waiting))
            answer = await self._sent(lambda: self._store.commit(changes), changes.leads_to)
            if isinstance(answer, MailArrived):
                self._taken = 0
                return answer
            self._landed(stored, len(waiting), changes.leads_to, answer)
            return None

    async def close(self) -> None:
        """Stops writing; what waits is dropped, since the leg is over."""
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.gather(self._flushing, return_exceptions=True)

    def _add(self, frame: Frame, at: int) -> None:
        if frame.type in MERGED:
            self._waiting_bytes += len(frame.fields["delta"])
            if self._waiting_bytes > MAX_WAITING_BYTES:
                self._room.clear()
            if len(self._waiting) > self._taken and _mergeable(self._waiting[-1][0], frame):
                last, when = self._waiting[-1]
                merged = {**last.fields, "delta": last.fields["delta"] + frame.fields["delta"]}
                self._waiting[-1] = (Frame(type=frame.type, fields=merged), when)
                return
        if not self._waiting:
            self._waiting_since = self._clock.monotonic()
        if frame.type == "tool-progress":
            self._drop_older_progress(frame)
        self._waiting.append((frame, at))

    def _drop_older_progress(self, frame: Frame) -> None:
        """Of several reports of progress of one call in a group, the latest wins."""
        call = frame.fields["tool_call_id"]
        for index in range(self._taken, len(self._waiting)):
            other = self._waiting[index][0]
            if other.type == "tool-progress" and other.fields["tool_call_id"] == call:
                del self._waiting[index]
                return

    async def _flush_soon(self) -> None:
        try:
            while self._waiting:
                seconds = self._seconds_until_due()
                if seconds > 0:  # a commit may take along what waits now: then what comes later has a time of its own
                    await self._clock.sleep(seconds)
                    continue
                async with self._lock:
                    if self._waiting:
                        await self._append()
        except Exception as error:  # noqa: BLE001 - the lease is lost, or it is a bug: the leg ends with it either way
            self.failure = error
            self._room.set()
            self._listener.broke()
        finally:
            self._flushing = None

    def _seconds_until_due(self) -> float:
        due = max(self._waiting_since + FIRST_DELAY_SECONDS, self._last_write + GROUP_SECONDS)
        return due - self._clock.monotonic()

    async def _append(self) -> None:
        waiting = self._take()
        stored = self._numbered(waiting)
        follows = self.position
        leads_to = Position(revision=follows.revision, last_seq=follows.last_seq + len(stored))
        answer = await self._sent(lambda: self._store.append_frames(self._uid, follows, stored), leads_to)
        assert not isinstance(answer, MailArrived), "frames have no mail gate"
        self._landed(stored, len(waiting), leads_to, answer)

    def _take(self) -> list[tuple[Frame, int]]:
        """What waits now. Nothing is merged into it any more: it is being written."""
        self._taken = len(self._waiting)
        return [*self._waiting]

    def _numbered(self, frames: Sequence[tuple[Frame, int]]) -> list[StoredFrame]:
        first = self.position.last_seq + 1
        return [
            stored_frame(frame_hidden(frame, self._redactor), seq=seq, run_id=self._run_id, at=at)
            for seq, (frame, at) in enumerate(frames, first)
        ]

    def _landed(self, stored: Sequence[StoredFrame], waited: int, position: Position, written: Written | None) -> None:
        del self._waiting[:waited]
        self._taken = 0
        self._waiting_bytes = sum(len(frame.fields.get("delta", "")) for frame, _ in self._waiting)
        if self._waiting_bytes <= MAX_WAITING_BYTES:
            self._room.set()
        self.position = position
        self._last_write = self._waiting_since = self._clock.monotonic()
        self._listener.wrote(stored, written)

    async def _sent(
        self, write: Callable[[], Awaitable[Written | Stale | MailArrived]], leads_to: Position
    ) -> Written | MailArrived | None:
        uncertain = False
        while True:
            self._hold.check()
            try:
                answer = await write()
            except Unavailable:
                uncertain = True
                await self._clock.sleep(min(RESEND_SECONDS, max(0.0, self._hold.remaining)))
                continue
            if not isinstance(answer, Stale):
                return answer
            if uncertain and answer.leg == self._leg and answer.position == leads_to:
                return None
            raise LeaseLost


def _mergeable(last: Frame, new: Frame) -> bool:
    if last.type != new.type or len(last.fields["delta"]) >= FRAME_CHARACTERS:
        return False
    return all(last.fields[name] == value for name, value in new.fields.items() if name != "delta")
