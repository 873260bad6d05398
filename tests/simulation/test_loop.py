"""The simulator itself: what is killed never runs again, what is frozen goes on later, and time passes only when nothing is left to do."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from tests.simulation.loop import PROCESS, SimulatedLoop, Step, Stuck, first, sleep


class Program:
    """A process that may be stopped."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.runs = True
        self.kept: list[Step] = []
        self.log: list[str] = []
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)

    def keep(self, step: Step) -> None:
        self.kept.append(step)

    def began(self, task: asyncio.Task[Any]) -> None:
        self.log.append("began")

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.loop.create_task(work, context=self.context.copy())

    async def count(self) -> None:
        """Counts seconds, and says so if it ends."""
        try:
            for number in range(10):
                self.log.append(f"{number} at {self.loop.time():g}")
                await sleep(1)
        finally:
            self.log.append("ends")


def looped() -> SimulatedLoop:
    return SimulatedLoop(Random(0))  # type: ignore[abstract] # of a loop it has what is needed here


def test_nothing_of_a_killed_process_happens_any_more_not_even_a_finally() -> None:
    loop = looped()
    program = Program(loop)

    async def main() -> None:
        task = program.begin(program.count())
        await sleep(2.5)
        program.runs = False
        task.cancel()
        await sleep(100)

    loop.run(main())
    assert program.log == ["began", "0 at 0", "1 at 1", "2 at 2"]
    assert program.kept


def test_a_frozen_process_goes_on_where_it_was_and_finds_that_time_has_passed() -> None:
    loop = looped()
    program = Program(loop)

    async def main() -> None:
        task = program.begin(program.count())
        await sleep(2.5)
        program.runs = False
        await sleep(50)
        program.runs = True
        loop.resume(program.kept)
        await task

    loop.run(main())
    assert program.log[3:6] == ["2 at 2", "3 at 52.5", "4 at 53.5"]
    assert program.log[-1] == "ends"


def test_other_processes_are_not_touched() -> None:
    loop = looped()
    one, two = Program(loop), Program(loop)

    async def main() -> None:
        stopped = one.begin(one.count())
        other = two.begin(two.count())
        await sleep(2.5)
        one.runs = False
        await other
        assert not stopped.done()

    loop.run(main())
    assert (len(one.log), two.log[-1]) == (4, "ends")


def test_time_passes_only_when_nothing_is_left_to_do() -> None:
    loop = looped()
    times: list[float] = []

    async def main() -> None:
        sleeping = asyncio.ensure_future(sleep(1))
        for _ in range(1_000):
            await asyncio.sleep(0)
        times.append(loop.time())
        await sleeping
        times.append(loop.time())
        waiting = asyncio.ensure_future(sleep(1_000))
        await first(waiting, sleep(5))
        times.append(loop.time())
        waiting.cancel()

    loop.run(main())
    assert times == [0, 1, 6]


def test_asyncio_s_own_tools_work() -> None:
    loop = looped()

    async def main() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        lock, event = asyncio.Lock(), asyncio.Event()

        async def produce() -> None:
            async with lock:
                await asyncio.sleep(2)
                event.set()
            for number in range(3):
                await queue.put(number)

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            await event.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await asyncio.Event().wait()
        assert loop.time() == 5
        return [await queue.get() for _ in range(3)]

    assert loop.run(main()) == [0, 1, 2]


def test_waiting_for_nothing_and_going_on_for_ever_are_told() -> None:
    async def nothing() -> None:
        await asyncio.Event().wait()

    async def everything() -> None:
        while True:
            await sleep(0)

    with pytest.raises(Stuck, match="nothing is left"):
        looped().run(nothing())
    with pytest.raises(Stuck, match="for ever"):
        looped().run(everything())


def test_what_fails_unseen_is_kept() -> None:
    loop = looped()

    async def main() -> None:
        loop.call_soon(int, "x")
        failing = loop.create_task(_fails())
        await sleep(1)
        del failing

    loop.run(main())
    assert ["ValueError" in loop.complaints[0], "ZeroDivisionError" in loop.complaints[1]] == [True, True]


async def _fails() -> None:
    raise ZeroDivisionError
