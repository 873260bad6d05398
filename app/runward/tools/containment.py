"""Author code runs contained: whatever it raises becomes a value first, and then an exception the engine can handle."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from runward.agents.limitations import Unsupported
from runward.core.errors import NeedsInput, ToolError, UnknownOutcome
from runward.core.text import clean, shorten
from runward.ports.tools import BadResult

T = TypeVar("T")

MESSAGE_LENGTH = 4_000
"""How long the message of a ToolError, an UnknownOutcome or a question may be, in characters."""


class ToolBroke(Exception):
    """The tool raised something that is no ordinary exception: it cancelled itself, say, or asked the process to exit."""


@dataclass(frozen=True, slots=True)
class Raised:
    """What author code raised."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Gave(Generic[T]):
    """What author code returned."""

    value: T


Caught = Gave[T] | Raised


def caught(function: Callable[[], T]) -> Caught[T]:
    """Calls a function; never raises."""
    try:
        return Gave(function())
    except BaseException as error:  # noqa: BLE001 - a tool may raise anything, and a thread must not die of it
        return Raised(error)


async def contained(work: Callable[[], Awaitable[T]]) -> Caught[T]:
    """Awaits author code in a task of its own, so that what it does to its task it does to itself.

    Cancelling passes on to it and waits for its end; raises CancelledError only if it then was cancelled.
    """

    async def attempt() -> Caught[T]:
        try:
            return Gave(await work())
        except BaseException as error:  # noqa: BLE001 - a task that raised SystemExit would end the whole event loop
            return Raised(error)

    task = asyncio.ensure_future(attempt())
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
            task.cancel()
    outcome = Raised(asyncio.CancelledError()) if task.cancelled() else task.result()
    if cancelled and isinstance(outcome, Raised) and isinstance(outcome.error, asyncio.CancelledError):
        raise asyncio.CancelledError
    return outcome


async def finished(given: Awaitable[Any], record: Callable[[Any], T]) -> Caught[T]:
    """`contained`, of what author code has returned already; a coroutine is closed also where a cancel came before it began."""

    async def recorded() -> T:
        return record(await given)

    try:
        return await contained(recorded)
    finally:
        if inspect.iscoroutine(given):
            given.close()


def value_of(outcome: Caught[T]) -> T:
    """The value, or else raises: `ToolError`, `UnknownOutcome` and `NeedsInput` with a clean, short message; `BadResult`, `Unsupported` and
    other exceptions as they are; `ToolBroke` for what is none."""
    if isinstance(outcome, Gave):
        return outcome.value
    error = outcome.error
    match error:
        case ToolError():
            raise ToolError(_message(error, "The tool reported an error.")) from error
        case UnknownOutcome():
            raise UnknownOutcome(_message(error, "The tool cannot tell.")) from error
        case NeedsInput():
            choices = tuple(shorten(clean(str(choice)), MESSAGE_LENGTH) for choice in error.choices)
            raise NeedsInput(_message(error, "The tool asks for input."), choices=choices) from error
        case BadResult() | Unsupported():
            raise error
        case StopIteration() | StopAsyncIteration():
            raise ToolBroke("The tool raised an iterator's end.") from error
        case Exception():
            raise error
        case _:
            raise ToolBroke(f"The tool raised {type(error).__name__}.") from error


def _message(error: Exception, otherwise: str) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the author's own error cannot even be printed
        return otherwise
    return shorten(clean(text), MESSAGE_LENGTH) if text.strip() else otherwise
