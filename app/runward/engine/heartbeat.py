"""Keeps a worker's leases: its own thread, loop and connection, so that neither a busy pool nor a blocked event loop loses a run (I-18)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from runward.engine.timing import wait_for
from runward.ports.clock import Clock
from runward.ports.store import Renewal, Renewals, Store
from runward.ports.telemetry import Telemetry


class Keeper(Protocol):
    """The worker whose leases are kept. `driven`, `held` and `ticked_at` are called from the heartbeat's thread."""

    def driven(self) -> Sequence[str]:
        """The uids to renew."""
        ...

    def held(self, uids: Iterable[str], sent_at: float) -> None:
        """These leases were renewed. The worker's loop may stand still: it hears of it later, by `renewed`."""
        ...

    def renewed(self, asked: Sequence[str], renewal: Renewal, sent_at: float) -> None:
        """The store's answer to a renewal that was sent at `sent_at`; called on the worker's loop."""
        ...

    def ticked_at(self) -> float:
        """When the worker's loop last had its turn, on the monotonic clock."""
        ...

    def stalled(self) -> None:
        """The worker's loop has not had its turn for too long; called from the heartbeat's thread. Leases are not renewed any more."""
        ...


Deliver = Callable[[Callable[[], None]], None]


class Heartbeat:
    """Renews every third of the lease's length, and at once when asked to."""

    def __init__(self, *, store: Store, clock: Clock, telemetry: Telemetry, keeper: Keeper, owner: str, ttl: float, stall: float) -> None:
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._keeper = keeper
        self._owner = owner
        self._ttl = ttl
        self._stall = stall
        self._soon = asyncio.Event()
        self._deliver: Deliver = lambda call: call()
        self._ask: Callable[[], None] = self._soon.set

    def across_threads(self, deliver: Deliver, ask: Callable[[Callable[[], None]], None]) -> None:
        """The worker is on another loop: `deliver` calls there, `ask` calls here."""
        self._deliver = deliver
        self._ask = lambda: ask(self._soon.set)

    def renew_soon(self) -> None:
        """Renew now, not at the next beat. Called on the worker's loop."""
        self._ask()

    async def beat_forever(self) -> None:
        """Beats until cancelled."""
        renewals: Renewals | None = None
        try:
            while True:
                await wait_for(self._clock, self._soon, self._ttl / 3)
                self._soon.clear()
                if self._clock.monotonic() - self._keeper.ticked_at() > self._stall:
                    self._keeper.stalled()
                    return
                asked = tuple(self._keeper.driven())
                if not asked:
                    continue
                try:
                    renewals = renewals or await self._store.renewals()
                    await self._beat(renewals, asked)
                except Exception as error:  # noqa: BLE001 - the store is away, or it is a bug: the leases have to be kept all the same
                    self._telemetry.problem("renewal_failed", error)
                    await wait_for(self._clock, self._soon, min(0.2, self._ttl / 30))
                    self._soon.set()
        finally:
            if renewals is not None:
                await renewals.close()

    async def _beat(self, renewals: Renewals, asked: Sequence[str]) -> None:
        sent_at = self._clock.monotonic()
        renewal = await renewals.renew(self._owner, asked, round(self._ttl * 1000))
        self._keeper.held(renewal.held, sent_at)
        self._deliver(lambda: self._keeper.renewed(asked, renewal, sent_at))


class HeartbeatThread:
    """Runs a heartbeat in a thread of its own."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="heartbeat", daemon=True)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts it; call on the worker's loop."""
        worker_loop = asyncio.get_running_loop()
        self._heartbeat.across_threads(lambda call: _call(worker_loop, call), lambda call: _call(self._loop, call))
        self._thread.start()

    async def stop(self) -> None:
        """Returns once it has stopped."""
        _call(self._loop, self._cancel)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _work(self) -> None:
        self._task = self._loop.create_task(self._heartbeat.beat_forever())
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()


def _call(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Calls on another thread's loop; a loop that is closed has nobody left to tell."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
