"""A run's journal as a stream: replay, then live, without gap or repeat (R44a)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from runward.api.sse import Emit
from runward.core.errors import Unavailable
from runward.core.kernel.actor import Envelope
from runward.core.kernel.frames import StoredFrame
from runward.engine.queries import Queries, Until, is_over
from runward.engine.tail import RunGone
from runward.ports.clock import Clock

DONE = b"data: [DONE]\n\n"
CHUNK_BYTES = 65_536
"""Frames that wait are joined into one send, up to about so much."""
AWAY_SECONDS = 1.0
"""How long to wait before the store is asked again after it was away."""

_STATE_FRAME = b'{"type":"data-agent"'


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFollower:
    """Emits the frames of a run after a cursor. `place` is where the run stood when the stream was opened.

    It ends behind the frame that ends the run (or, `until` suspended, suspends it), if that is the newest of the journal and not one that
    the run had left behind already when the stream was opened: a run may have been reopened (R10). A deleted run's stream ends without
    `[DONE]`. While the store is away it waits.
    """

    queries: Queries
    clock: Clock
    place: Envelope
    after: int
    until: Until

    async def follow(self, emit: Emit) -> None:
        cursor = self.after
        while True:
            try:
                async with self.queries.subscribe(self.place.uid, cursor) as subscription:
                    over = False
                    while not over:
                        frames = await subscription.next()
                        over = self._is_over(frames[-1], subscription.last)
                        await _emit_frames(emit, frames, over)
                        cursor = frames[-1].seq
                    return
            except RunGone:
                return
            except Unavailable:
                await self.clock.sleep(AWAY_SECONDS)

    @property
    def is_over(self) -> bool:
        """Whether nothing can come after the cursor."""
        return self.after == self.place.last_seq and is_over(self.place.status, self.until)

    def _is_over(self, newest: StoredFrame, last_seq: int) -> bool:
        if newest.seq < last_seq:
            return False
        if newest.seq <= self.place.last_seq:
            return newest.seq == self.place.last_seq and is_over(self.place.status, self.until)
        return _ends(newest.data, self.until)


def _ends(data: bytes, until: Until) -> bool:
    if not data.startswith(_STATE_FRAME):
        return False
    state = orjson.loads(data)["data"]
    return state.get("final") is True or (until == "suspended" and state["status"] == "suspended")


async def _emit_frames(emit: Emit, frames: Sequence[StoredFrame], over: bool) -> None:
    waiting: list[bytes] = []
    size = 0
    for frame in frames:
        waiting.append(b"id: %d\ndata: %b\n\n" % (frame.seq, frame.data))
        size += len(frame.data)
        if size >= CHUNK_BYTES:
            await emit(b"".join(waiting))
            waiting, size = [], 0
    if over:
        waiting.append(DONE)
    if waiting:
        await emit(b"".join(waiting))
