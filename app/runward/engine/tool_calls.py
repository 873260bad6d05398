"""An attempt of a tool call: runs the tool within its time, stops it when asked to, and says how it ended (stations 6 and 7)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from runward.agents.limitations import Unsupported
from runward.agents.rules import ModelNotAllowed
from runward.core.errors import NeedsInput, RunwardError, ToolError, UnknownOutcome
from runward.core.ids import canonical_json
from runward.core.runs.calls import How, Result
from runward.core.runs.decide import Project, RunCall
from runward.core.runs.facts import AttemptEnded, Broke, Guarded, Happening, Projected
from runward.core.text import clean, clean_json, shorten
from runward.engine.call_host import LegCallHost
from runward.engine.guarding import GuardrailFailed, Guards
from runward.engine.hold import Hold, LeaseLost
from runward.engine.services import Services
from runward.engine.timing import finished_within, wait_for
from runward.ports.tools import BadResult, Returned, Tool

MESSAGE_LIMIT = 4_096
"""How much of a tool's own error the model reads, in characters."""
LAST_WORD_SECONDS = 0.1
"""How long a cancelled tool may take to have the last word."""
PROJECTION_ATTEMPTS = 3
PROJECTION_BACKOFF_SECONDS = 0.25
UNSHOWN = "The call finished, but its result could not be shown."


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A tool call ready to be made."""

    tool: Tool
    arguments: Mapping[str, Any]
    context: Any
    timeout_seconds: float
    projects: bool


class ToolAttempt:
    """One attempt. `stop` lets it go on for the cancel's grace; with no grace it is broken off at once and left to the next leg."""

    def __init__(
        self,
        activity: RunCall,
        *,
        prepare: Callable[[], Awaitable[Invocation]],
        host: LegCallHost,
        grace: Callable[[], float | None],
        hold: Hold,
        services: Services,
    ) -> None:
        self._activity = activity
        self._prepare = prepare
        self._host = host
        self._grace = grace
        self._hold = hold
        self._services = services
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._stopped.set()

    async def outcome(self) -> Happening:
        try:
            return await self._outcome()
        except LeaseLost:
            return self._ended(How.NOT_STARTED)
        except RunwardError as error:
            self._services.telemetry.problem("tool_call_impossible", error)
            return Broke(at=self._services.time.now(), code=error.code, message=error.detail, details={})
        finally:
            self._host.over()

    async def _outcome(self) -> Happening:
        if self._activity.not_before is not None:
            await wait_for(self._services.clock, self._stopped, self._services.time.seconds_until(self._activity.not_before))
        invocation = await self._prepare()
        if (faults := self._services.faults) is not None:
            await faults.reach("before_effect")
        await self._hold.fresh()
        if self._stopped.is_set():
            return self._ended(How.NOT_STARTED)
        running = asyncio.ensure_future(invocation.tool.invoke(invocation.arguments, invocation.context))
        try:
            how = await self._watch(running, invocation.timeout_seconds)
        except asyncio.CancelledError:
            running.cancel()
            running.add_done_callback(_forget)
            raise
        if how is not None:
            running.cancel()
            await finished_within(self._services.clock, running, LAST_WORD_SECONDS)
        if faults is not None:
            await faults.reach("after_effect")
        return self._classified(running, how, invocation)

    async def _watch(self, running: asyncio.Task[Returned], timeout_seconds: float) -> How | None:
        """Waits for the tool, its time, or a stop. None means that the tool has ended by itself."""
        clock = self._services.clock
        sleeping = asyncio.ensure_future(clock.sleep(timeout_seconds))
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait((running, sleeping, stopped), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return None
            if sleeping.done():
                return How.TIMED_OUT
            grace = self._grace()
            if grace is None:
                return How.ABANDONED
            self._host.cancel()
            return None if await finished_within(clock, running, grace) else How.CANCELLED
        finally:
            sleeping.cancel()
            stopped.cancel()

    def _classified(self, running: asyncio.Task[Returned], how: How | None, invocation: Invocation) -> Happening:
        """What the tool returned or raised itself is an outcome; anything else is how it was stopped (R16)."""
        if not running.done():
            running.add_done_callback(_forget)
            return self._ended(how or How.RAISED)
        error = None if running.cancelled() else running.exception()
        match error:
            case None if not running.cancelled():
                returned = running.result()
                result = Result(output=returned.value, files=files_of(returned))
                return self._ended(How.RETURNED, result, raw=returned.value if invocation.projects else None)
            case ToolError():
                return self._ended(How.TOOL_ERROR, Result(output=_said(error), is_error=True, outcome="failed"))
            case UnknownOutcome():
                return self._ended(How.CANNOT_TELL)
            case BadResult():
                return self._ended(How.BAD_RESULT, Result(output=error.message, is_error=True, outcome=error.outcome))
            case Unsupported() | ModelNotAllowed():
                return Broke(at=self._services.time.now(), code=error.code, message=error.detail, details={})
            case NeedsInput():
                return replace(self._ended(How.ASKS), question=_said(error), choices=error.choices)
        if error is not None:
            self._services.telemetry.problem("tool_failed", error, tool=invocation.tool.traits.name, key=invocation.context.idempotency_key)
        return self._ended(how or How.RAISED)

    def _ended(self, how: How, result: Result | None = None, raw: Any = None) -> AttemptEnded:
        return AttemptEnded(
            at=self._services.time.now(),
            call_id=self._activity.call_id,
            attempt=self._activity.attempt,
            how=how,
            result=result,
            raw=raw,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Showing:
    """What is shown of a call's raw result, and by whom: `project` is the author's function of its tool, None where there is none.
    `guard_seconds` bounds how long guardrails look at it."""

    project: Callable[[Any, Any], Awaitable[Returned]] | None
    guards: Guards
    context: Any
    tool_name: str
    guard_seconds: float


class Projection:
    """Shows an executed call to the model as its author and the guardrails want it. What fails of that is tried again; the effect is not
    (station 7)."""

    def __init__(self, activity: Project, *, prepare: Callable[[], Awaitable[Showing]], raw: Any, services: Services) -> None:
        self._activity = activity
        self._prepare = prepare
        self._raw = raw
        self._services = services

    def stop(self) -> None:
        """Nothing to stop: a run that ends does not wait for it."""

    async def outcome(self) -> Happening:
        try:
            showing = await self._prepare()
            if (faults := self._services.faults) is not None:
                await faults.reach("before_projection")
            result = await self._shown(showing)
            return self._projected(result) if result.is_error else await self._guarded(result, showing)
        except GuardrailFailed as error:
            return Broke(at=self._services.time.now(), code=error.code, message=error.detail, details={})

    async def _shown(self, showing: Showing) -> Result:
        if showing.project is None:
            return Result(output=self._raw)
        for attempt in range(1, PROJECTION_ATTEMPTS + 1):
            try:
                returned = await showing.project(self._raw, showing.context)
                return Result(output=returned.value, files=files_of(returned))
            except BadResult as error:
                return Result(output=error.message, is_error=True, outcome=error.outcome)
            except Exception as error:  # noqa: BLE001 - author code: any failure is tried again, then recorded
                self._services.telemetry.problem("projection_failed", error, tool=showing.tool_name, attempt=attempt)
                await self._services.clock.sleep(PROJECTION_BACKOFF_SECONDS * attempt)
        return Result(output=UNSHOWN, is_error=True, outcome="invalid_result")

    async def _guarded(self, result: Result, showing: Showing) -> Projected:
        """Guardrails change only what the model sees: what the tool returned is on the receipt."""
        passage = await showing.guards.result(result.output, showing.context, seconds=showing.guard_seconds)
        if passage.blocked is not None:
            return self._projected(Result(output=passage.blocked, is_error=True, outcome="blocked"), passage.said)
        if any(each.action == "rewrite" for each in passage.said):
            result = replace(result, output=_as_json(passage.value))
        return self._projected(result, passage.said)

    def _projected(self, result: Result, guarded: tuple[Guarded, ...] = ()) -> Projected:
        return Projected(at=self._services.time.now(), call_id=self._activity.call_id, result=result, guarded=guarded)


def _as_json(value: Any) -> Any:
    """What a guardrail made of a result. Raises GuardrailFailed for what is not JSON."""
    try:
        return clean_json(json.loads(canonical_json(value)))
    except (TypeError, ValueError, RecursionError):
        raise GuardrailFailed("A guardrail rewrote a result to what is not JSON.") from None


def files_of(returned: Returned) -> tuple[Mapping[str, Any], ...]:
    return tuple(file.model_dump(exclude_none=True) for file in returned.files)


def _said(error: Exception) -> str:
    return shorten(clean(str(error)), MESSAGE_LIMIT)


def _forget(task: asyncio.Task[Returned]) -> None:
    """A tool that was given up has ended after all: nobody waits for what it says."""
    if not task.cancelled():
        task.exception()
