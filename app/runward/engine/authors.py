"""Calling what authors wrote: instructions, model functions, predicates. Sync or async; whatever they raise stays inside."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from runward.agents.limitations import Unsupported
from runward.agents.rules import ModelNotAllowed


class AuthorFailed(Exception):
    """A function of the agent raised. `what` names it; the cause is for the log, its text is shown to nobody."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


async def call_author(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function, awaits what it returns if need be. Raises AuthorFailed, also where the function wants to end its task or the
    process. What passes through is a cancel that comes from outside, Unsupported and
    ModelNotAllowed."""
    try:
        value = function(*arguments)
        return await value if inspect.isawaitable(value) else value
    except (KeyboardInterrupt, GeneratorExit, Unsupported, ModelNotAllowed):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise AuthorFailed(what) from error
    except BaseException as error:
        raise AuthorFailed(what) from error
