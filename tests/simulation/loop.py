"""An event loop in virtual time that runs several simulated processes, and can stop any of them between two of its steps.

Nothing here reads a clock, a socket or a thread: the same coroutines give the same order of steps, every time. A step belongs to the
process that `PROCESS` names in its context. A process that does not run keeps its steps: one that was frozen takes them later, all at
once, as after SIGCONT; one that was killed never does, so that nothing of it happens any more, not even a `finally`.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from random import Random
from typing import Any, Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Steps(Protocol):
    """A simulated process, as the loop sees it."""

    runs: bool

    def keep(self, step: Step) -> None:
        """A step that is due while the process does not run."""
        ...

    def began(self, task: asyncio.Task[Any]) -> None:
        """The process has begun a task."""
        ...


PROCESS: contextvars.ContextVar[Steps | None] = contextvars.ContextVar("process", default=None)
"""The process that runs this code; None for the world outside."""


MOST_STEPS = 1_000_000


class Stuck(Exception):
    """Nothing is left to happen, or the same goes on for ever, and what was waited for has not happened."""


class Step:
    """A callback that is due, now or later; what asyncio calls a handle."""

    __slots__ = ("arguments", "callback", "context", "dropped", "owner")

    def __init__(self, callback: Callable[..., Any], arguments: tuple[Any, ...], context: contextvars.Context) -> None:
        self.callback = callback
        self.arguments = arguments
        self.context = context
        self.owner = context.get(PROCESS)
        self.dropped = False

    def cancel(self) -> None:
        self.dropped = True

    def cancelled(self) -> bool:
        return self.dropped


class SimulatedLoop(asyncio.AbstractEventLoop):
    """See the module. `chance` decides which of several timers goes first that are due at the same moment."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._now = 0.0
        self._order = 0
        self._ready: deque[Step] = deque()
        self._timers: list[tuple[float, float, int, Step]] = []
        self.complaints: list[str] = []
        """What asyncio would have logged: exceptions nobody retrieved, callbacks that raised."""

    # -- running -----------------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """What `main` returns, once it is over. Raises Stuck."""
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(main)
            for _ in range(MOST_STEPS):
                if task.done():
                    return task.result()
                self._turn()
            raise Stuck("the same goes on for ever")
        finally:
            asyncio._set_running_loop(None)

    def _turn(self) -> None:
        if not self._ready:
            self._next_timer()
            return
        step = self._ready.popleft()
        if step.dropped:
            return
        owner = step.owner
        if owner is not None and not owner.runs:
            owner.keep(step)
            return
        try:
            step.context.run(step.callback, *step.arguments)
        except Exception as error:  # noqa: BLE001 - as asyncio does: the loop goes on, and says so
            self.complaints.append(f"a callback raised {error!r}")

    def _next_timer(self) -> None:
        while self._timers:
            at, _, _, step = heapq.heappop(self._timers)
            if not step.dropped:
                self._now = max(self._now, at)
                self._ready.append(step)
                return
        raise Stuck("nothing is left to happen")

    def resume(self, steps: list[Step]) -> None:
        """Steps that were kept are due now, in their order."""
        self._ready.extend(steps)

    # -- what asyncio needs of a loop ----------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None) -> Any:
        step = Step(callback, args, contextvars.copy_context() if context is None else context)
        self._ready.append(step)
        return step

    def call_later(self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None) -> Any:
        step = Step(callback, args, contextvars.copy_context() if context is None else context)
        self._order += 1
        heapq.heappush(self._timers, (when, self._chance.random(), self._order, step))
        return step

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        owner = PROCESS.get() if context is None else context.get(PROCESS)
        if owner is not None:
            owner.began(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")


async def sleep(seconds: float) -> None:
    """Sleeps in virtual time; 0 gives the others a turn."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(seconds, _wake, woken)
    try:
        await woken
    finally:
        timer.cancel()


async def first(*waited: Awaitable[Any]) -> None:
    """Returns once one of these is over."""
    await asyncio.wait([asyncio.ensure_future(each) for each in waited], return_when=asyncio.FIRST_COMPLETED)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
