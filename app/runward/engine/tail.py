"""One journal reader per run and process, many subscribers (R44, R44a).

A subscriber has a cursor and nothing else: what is in the tail's ring is shared, what is older is read from the store a page at a time.
So a slow reader costs one page of memory, and never slows the run or its neighbours.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

from runward.core.kernel.frames import StoredFrame
from runward.engine.services import Services
from runward.engine.timing import wait_for
from runward.ports.bus import Hint, Topic
from runward.ports.reads import is_whole

RING_FRAMES = 1_000
RING_BYTES = 1_048_576
PAGE = 200
FEW = 8
"""So many runs are read at once when anything may have happened; of more it is asked first, in one statement, which have gone on."""


class RunGone(Exception):
    """The run was deleted while somebody watched it."""


class Tail:
    """The newest frames of one run."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.last: int | None = None
        self.watchers = 0
        self.gone = False
        self.reading = False
        self.read_again = False
        self._ring: deque[StoredFrame] = deque()
        self._bytes = 0
        self._waiting: dict[asyncio.Future[None], None] = {}

    def feed(self, frames: Sequence[StoredFrame]) -> bool:
        """Takes frames that have become durable. False when some before them are missing, or may be."""
        if self.last is None:
            return False
        fresh = [frame for frame in frames if frame.seq > self.last]
        if fresh and fresh[0].seq != self.last + 1:
            return False
        for frame in fresh:
            self._ring.append(frame)
            self._bytes += len(frame.data)
            self.last = frame.seq
        while len(self._ring) > RING_FRAMES or self._bytes > RING_BYTES:
            self._bytes -= len(self._ring.popleft().data)
        if fresh:
            self.stir()
        return True

    def stir(self) -> None:
        """Wakes everybody who waits."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def behind(self, cursor: int) -> bool:
        return self.last is not None and cursor < self.last

    def after(self, cursor: int) -> list[StoredFrame] | None:
        """The frames after a cursor, or None when the ring does not reach back so far."""
        if not self._ring or self._ring[0].seq > cursor + 1:
            return None
        skip = cursor + 1 - self._ring[0].seq
        return [self._ring[index] for index in range(skip, len(self._ring))]

    async def stirred(self) -> None:
        """Returns at the next news."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        try:
            await waiting
        finally:
            self._waiting.pop(waiting, None)


class Subscription:
    """One reader of one run: `async with tails.subscribe(uid, after) as subscription`. With `after` None it begins with what comes next."""

    def __init__(self, tails: Tails, uid: str, after: int | None) -> None:
        self._tails = tails
        self._uid = uid
        self._after = after
        self.cursor = 0

    async def __aenter__(self) -> Subscription:
        self._tail = self._tails.watch(self._uid)
        try:
            await self._tails.catch_up(self._tail, self._after)
        except BaseException:
            self._tails.unwatch(self._tail)
            raise
        self.cursor = self.last if self._after is None else self._after
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._tails.unwatch(self._tail)

    @property
    def last(self) -> int:
        """The newest seq this process knows of."""
        return self._tail.last or 0

    async def next(self) -> Sequence[StoredFrame]:
        """The next frames after the cursor, at least one, and moves it. Raises RunGone, and `Unavailable` while the store is away."""
        while not self._tail.behind(self.cursor):
            if self._tail.gone:
                raise RunGone
            await self._tail.stirred()
        frames: Sequence[StoredFrame] | None = self._tail.after(self.cursor)
        if frames is None:
            frames = await self._tails.page(self._uid, self.cursor)
            if not frames:
                raise RunGone
        self.cursor = frames[-1].seq
        return frames


class Tails:
    """All tails of a process. Hears hints, feeds on what local legs write, and polls as the floor under both."""

    def __init__(self, services: Services, *, poll: float, poll_with_bus: float) -> None:
        self._services = services
        self._poll = poll
        self._poll_with_bus = poll_with_bus
        self._tails: dict[str, Tail] = {}
        self._local: set[str] = set()
        self._reads: set[asyncio.Task[None]] = set()
        self._poller: asyncio.Task[None] | None = None
        self._watched = asyncio.Event()
        self._anything = asyncio.Event()
        self._unsubscribe: Callable[[], None] = lambda: None

    async def start(self) -> None:
        self._unsubscribe = self._services.bus.subscribe(self._heard)
        self._poller = asyncio.ensure_future(self._poll_forever())

    async def stop(self) -> None:
        self._unsubscribe()
        tasks = [*self._reads, *([self._poller] if self._poller else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def watching(self) -> int:
        """How many runs are watched."""
        return len(self._tails)

    def subscribe(self, uid: str, after: int | None) -> Subscription:
        return Subscription(self, uid, after)

    # -- from the legs of this process ---------------------------------------------------------------------------------------

    def driven_here(self, uid: str, driven: bool, *, in_step: bool = True) -> None:
        """A leg of this process drives the run, or does no longer: what it writes comes by `journaled`, hints about it are its own echo.
        `in_step` False: it lost the run, so that some of those hints may have been another's."""
        if driven:
            self._local.add(uid)
            return
        self._local.discard(uid)
        if not in_step:
            self._look(uid)

    def journaled(self, uid: str, frames: Sequence[StoredFrame]) -> None:
        """Frames of a local leg are durable: subscribers here get them as they are, other processes a hint."""
        tail = self._tails.get(uid)
        if tail is not None and not tail.feed(frames):
            self._read_soon(tail)
        self._services.bus.publish((Hint(Topic.FRAMES, uid),))

    # -- for subscriptions -----------------------------------------------------------------------------------------------------

    def watch(self, uid: str) -> Tail:
        tail = self._tails.setdefault(uid, Tail(uid))
        tail.watchers += 1
        self._watched.set()
        return tail

    def unwatch(self, tail: Tail) -> None:
        tail.watchers -= 1
        if tail.watchers == 0 and self._tails.get(tail.uid) is tail:
            del self._tails[tail.uid]

    async def catch_up(self, tail: Tail, after: int | None = None) -> None:
        """Makes sure that the tail knows where its run stands. The page behind a cursor says it, where that is the last one."""
        if tail.last is None and after is not None:
            page = await self.page(tail.uid, after)
            if page and is_whole(page, PAGE) and tail.last is None:
                tail.last = after
                tail.feed(page)
        if tail.last is None:
            head = (await self._services.store.heads([tail.uid])).get(tail.uid)
            if head is None:
                raise RunGone
            if tail.last is None:
                tail.last = head.position.last_seq

    async def page(self, uid: str, after: int) -> Sequence[StoredFrame]:
        return await self._services.reads.frames(uid, after=after, limit=PAGE)

    # -- news ------------------------------------------------------------------------------------------------------------------

    def _heard(self, hint: Hint) -> None:
        if hint.topic is Topic.FRAMES and hint.uid not in self._local:
            self._look(hint.uid)
        elif hint.topic is Topic.ANYTHING and len(self._tails) > FEW:
            self._anything.set()
        elif hint.topic is Topic.ANYTHING:
            for tail in self._tails.values():
                self._read_soon(tail)

    def _look(self, uid: str) -> None:
        tail = self._tails.get(uid)
        if tail is not None:
            self._read_soon(tail)

    def _read_soon(self, tail: Tail) -> None:
        if tail.reading:
            tail.read_again = True
            return
        tail.reading = True
        task = asyncio.ensure_future(self._read(tail))
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)

    async def _read(self, tail: Tail) -> None:
        try:
            while tail.watchers:
                tail.read_again = False
                if tail.last is None:
                    await self.catch_up(tail)
                page = await self.page(tail.uid, tail.last or 0)
                tail.feed(page)
                if is_whole(page, PAGE) and not tail.read_again:
                    return
        except RunGone:
            tail.gone = True
            tail.stir()
        except Exception as error:  # noqa: BLE001 - the store is away, or it is a bug: the next poll reads again
            self._services.telemetry.problem("tail_read_failed", error)
        finally:
            tail.reading = False

    async def _poll_forever(self) -> None:
        while True:
            await self._watched.wait()
            await wait_for(self._services.clock, self._anything, self._poll_with_bus if self._services.bus.healthy else self._poll)
            self._anything.clear()
            if not self._tails:
                self._watched.clear()
                continue
            watched = [*self._tails.items()]
            try:
                heads = await self._services.store.heads([uid for uid, _ in watched])
            except Exception as error:  # noqa: BLE001 - the same
                self._services.telemetry.problem("tail_poll_failed", error)
                continue
            for uid, tail in watched:
                if uid not in heads:
                    tail.gone = True
                    tail.stir()
                elif tail.last is not None and heads[uid].position.last_seq > tail.last:
                    self._read_soon(tail)
