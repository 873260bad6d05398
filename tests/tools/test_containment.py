"""Nothing a tool does can hurt its worker."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from runward import NeedsInput, ToolError, UnknownOutcome, Unsupported
from runward.testing import make_context
from runward.tools.containment import MESSAGE_LENGTH, Gave, ToolBroke, finished
from runward.tools.threads import Threads
from tests.tools.doubles import call, local, until


def as_tools(error: Callable[[], BaseException]) -> list[Callable[[], Any]]:
    """The same failure from an `async def` and from a `def`."""

    async def on_the_loop() -> None:
        raise error()

    def in_a_thread() -> None:
        raise error()

    return [on_the_loop, in_a_thread]


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class Own(BaseException):
    pass


# -- what is raised ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration, Own],
    ids=lambda error: str(error.__name__),
)
async def test_what_is_no_ordinary_exception_becomes_one(error: type[BaseException]) -> None:
    for function in as_tools(error):
        with pytest.raises((ToolBroke, RuntimeError)) as raised:
            await call(function)
        assert not isinstance(raised.value, asyncio.CancelledError)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_other_exceptions_are_handed_on_as_they_are() -> None:
    for function in as_tools(lambda: KeyError("password=hunter2")):
        with pytest.raises(KeyError):
            await call(function)
    for function in as_tools(Silent):
        with pytest.raises(Silent):
            await call(function)
    for function in as_tools(lambda: Unsupported("not yet")):
        with pytest.raises(Unsupported):
            await call(function)


async def test_endless_recursion_and_lack_of_memory_are_failures_like_others() -> None:
    async def recurse() -> None:
        await recurse()

    def recurse_in_thread() -> None:
        recurse_in_thread()

    for function in (recurse, recurse_in_thread, *as_tools(MemoryError)):
        with pytest.raises((RecursionError, MemoryError)):
            await call(function)


@pytest.mark.parametrize("kind", [ToolError, UnknownOutcome, NeedsInput])
async def test_messages_for_the_model_are_clean_and_short(kind: type[Exception]) -> None:
    for function in as_tools(lambda: kind("a\0b\ud800 " + "x" * 10_000)):
        with pytest.raises(kind) as raised:
            await call(function)
        assert str(raised.value).startswith("a\ufffdb\ufffd x") and len(str(raised.value)) == MESSAGE_LENGTH
    for function in as_tools(lambda: kind(" ")):
        with pytest.raises(kind, match=r"^The tool "):
            await call(function)


async def test_a_tool_error_that_cannot_be_printed_is_still_one() -> None:
    class Mute(ToolError):
        def __str__(self) -> str:
            raise ValueError

    for function in as_tools(Mute):
        with pytest.raises(ToolError, match="reported an error"):
            await call(function)


async def test_choices_are_cleaned_too() -> None:
    for function in as_tools(lambda: NeedsInput("Which?", choices=["a\0", 3])):  # type: ignore[list-item]
        with pytest.raises(NeedsInput) as raised:
            await call(function)
        assert (raised.value.question, raised.value.choices) == ("Which?", ("a\ufffd", "3"))


# -- cancelling ----------------------------------------------------------------------------------------------------------------------


async def test_cancelling_cancels_a_coroutine_and_waits_for_its_end() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    task = asyncio.ensure_future(call(wait))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_R16_what_a_tool_returns_in_spite_of_being_cancelled_counts() -> None:
    started = asyncio.Event()

    async def finish_anyway() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done after all"
        return ""

    task = asyncio.ensure_future(call(finish_anyway))
    await started.wait()
    task.cancel()
    assert await task == "done after all"


async def test_a_tool_that_cancels_its_own_task_hurts_nobody_else() -> None:
    async def suicide() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(ToolBroke):
        await call(suicide)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_cancelled_before_it_began() -> None:
    ran: list[int] = []

    async def never() -> None:
        ran.append(1)

    task = asyncio.ensure_future(call(never))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == []


async def _answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def test_what_a_function_gave_to_be_awaited_is_awaited_and_recorded() -> None:
    assert await finished(_answer(20), lambda value: value + 1) == Gave(21)


async def test_a_coroutine_that_never_began_is_closed_with_who_waited_for_it() -> None:
    given = _answer(20)
    waiting = finished(given, lambda value: value)
    waiting.send(None)
    assert inspect.getcoroutinestate(given) == inspect.CORO_CREATED
    waiting.close()
    assert inspect.getcoroutinestate(given) == inspect.CORO_CLOSED


async def test_a_timeout_around_it_stays_a_timeout() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await call(wait)


# -- threads -------------------------------------------------------------------------------------------------------------------------


async def test_cancelling_leaves_a_thread_behind() -> None:
    threads = Threads()
    started, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def stuck() -> None:
        loop.call_soon_threadsafe(started.set)
        go.wait(30)
        loop.call_soon_threadsafe(ended.set)

    task = asyncio.ensure_future(call(stuck, threads=threads))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert threads.abandoned == 1
    go.set()
    await ended.wait()
    await until(lambda: not threads.abandoned)


async def test_threads_are_bounded_and_a_place_is_free_again_once_one_is_left_behind() -> None:
    threads = Threads(limit=2)
    go = threading.Event()
    running = 0
    most = 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go.wait(30)
        with lock:
            running -= 1

    tasks = [asyncio.ensure_future(call(work, threads=threads)) for _ in range(6)]
    await until(lambda: running == 2)
    tasks[0].cancel()
    tasks[1].cancel()
    await until(lambda: running == 4)
    go.set()
    assert [result for result in await asyncio.gather(*tasks, return_exceptions=True) if result is None] == [None] * 4
    assert most == 4


async def test_too_many_left_behind_refuse_further_ones_for_certain() -> None:
    threads = Threads(most_abandoned=1)
    go, started = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def stuck() -> None:
        loop.call_soon_threadsafe(started.set)
        go.wait(30)

    task = asyncio.ensure_future(call(stuck, threads=threads))
    await started.wait()
    task.cancel()
    await asyncio.wait({task})
    with pytest.raises(ToolError, match="was not started"):
        await call(stuck, threads=threads)
    go.set()


async def test_no_thread_to_be_had_is_a_tool_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    def look() -> None: ...

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ToolError, match="was not started"):
        await local(look).invoke({}, make_context())


def test_a_thread_that_never_ends_does_not_keep_the_process() -> None:
    script = """
import asyncio, threading
from runward import tool
from runward.testing import make_context
from runward.tools.local import LocalTool
from runward.tools.threads import Threads

started = threading.Event()

@tool(effect="read")
def stuck() -> None:
    started.set()
    threading.Event().wait()

async def main():
    body = LocalTool(stuck, max_result_bytes=1000, threads=Threads())
    task = asyncio.ensure_future(body.invoke({}, make_context()))
    while not started.is_set():
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})

asyncio.run(main())
print("over")
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "over", "")


def test_an_answer_after_the_end_of_the_loop_is_dropped() -> None:
    go, ended = threading.Event(), threading.Event()

    def late() -> None:
        go.wait(30)
        ended.set()

    async def main() -> None:
        task = asyncio.ensure_future(call(late))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(main())
    before = {thread for thread in threading.enumerate() if thread.name == "runward-tool"}
    go.set()
    for thread in before:
        thread.join(10)
    assert ended.is_set()
