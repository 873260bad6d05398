"""Asking a tool what became of an unknown effect, and whether somebody's evidence about it holds. Neither has an effect of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from runward.core.errors import RunwardError
from runward.core.runs.calls import Result
from runward.core.runs.decide import CheckEvidence, Probe
from runward.core.runs.facts import Broke, EvidenceChecked, Happening, Probed
from runward.core.runs.unsettled import ProbeStatus, UnknownEffect
from runward.core.text import clean, shorten
from runward.engine.services import Services
from runward.engine.timing import finished_within
from runward.engine.tool_calls import Invocation, files_of
from runward.ports.tools import BadResult, Found, NotFound, ProbeAnswer, Unclear

DETAIL_LIMIT = 1_024
NO_ANSWER = "the probe did not answer in time"
BROKE = "the probe failed unexpectedly"
UNRECORDABLE = "what the probe found cannot be recorded"
DOES_NOT_HOLD = "the tool does not accept it"
UNCHECKED = "it could not be checked"
T = TypeVar("T")


class ProbeCall:
    """Asks a tool's probe within the tool's own time. Whatever is not a clear answer leaves the effect unknown (I-29)."""

    def __init__(self, activity: Probe, *, prepare: Callable[[], Awaitable[Invocation]], services: Services) -> None:
        self._activity = activity
        self._prepare = prepare
        self._services = services

    def stop(self) -> None:
        """Nothing to stop: a run that ends does not wait for it."""

    async def outcome(self) -> Happening:
        try:
            invocation = await self._prepare()
        except RunwardError as error:
            return Broke(at=self._services.time.now(), code=error.code, message=error.detail, details={})
        if (faults := self._services.faults) is not None:
            await faults.reach("before_probe")
        key = invocation.context.idempotency_key
        ask = invocation.tool.probe(key, invocation.arguments, invocation.context)
        try:
            answer = await _within(ask, invocation.timeout_seconds, self._services)
        except TimeoutError:
            return self._probed(ProbeStatus.FAILED, NO_ANSWER)
        except BadResult:
            return self._probed(ProbeStatus.CANNOT_TELL, UNRECORDABLE)
        except Exception as error:  # noqa: BLE001 - author code: whatever it raises says nothing about the effect
            self._services.telemetry.problem("probe_failed", error, tool=invocation.tool.traits.name)
            return self._probed(ProbeStatus.FAILED, BROKE)
        if faults is not None:
            await faults.reach("after_probe")
        return self._answered(answer, invocation)

    def _answered(self, answer: ProbeAnswer, invocation: Invocation) -> Probed:
        match answer:
            case Found(returned=returned):
                result = Result(output=returned.value, files=files_of(returned))
                raw = returned.value if invocation.projects else None
                return self._probed(ProbeStatus.HAPPENED, result=result, raw=raw)
            case NotFound():
                return self._probed(ProbeStatus.DID_NOT_HAPPEN)
            case Unclear(why=why):
                return self._probed(ProbeStatus.CANNOT_TELL, shorten(clean(why), DETAIL_LIMIT))

    def _probed(self, status: ProbeStatus, detail: str = "", result: Result | None = None, raw: Any = None) -> Probed:
        return Probed(
            at=self._services.time.now(),
            call_id=self._activity.call_id,
            attempt=self._activity.attempt,
            status=status,
            detail=detail,
            result=result,
            raw=raw,
        )


class EvidenceCheck:
    """Shows a tool the evidence of a settlement. What it does not clearly accept does not hold."""

    def __init__(
        self, activity: CheckEvidence, effect: UnknownEffect, *, prepare: Callable[[], Awaitable[Invocation]], services: Services
    ) -> None:
        self._activity = activity
        self._effect = effect
        self._prepare = prepare
        self._services = services

    def stop(self) -> None:
        """Nothing to stop: a run that ends does not wait for it."""

    async def outcome(self) -> Happening:
        claim = self._effect.claim
        assert claim is not None
        try:
            invocation = await self._prepare()
            holds = await _within(
                invocation.tool.evidence_holds(claim.evidence or {}, invocation.context), invocation.timeout_seconds, self._services
            )
        except Exception as error:  # noqa: BLE001 - author code, or a context that cannot be made: the evidence was not accepted
            self._services.telemetry.problem("evidence_check_failed", error, tool=self._effect.tool_name)
            return self._checked(UNCHECKED)
        return self._checked(None if holds else DOES_NOT_HOLD)

    def _checked(self, refusal: str | None) -> EvidenceChecked:
        at = self._services.time.now()
        return EvidenceChecked(at=at, call_id=self._activity.call_id, attempt=self._activity.attempt, refusal=refusal)


async def _within(work: Awaitable[T], seconds: float, services: Services) -> T:
    """What `work` gives, if it does within so many seconds. Raises TimeoutError, and what `work` raises."""
    task = asyncio.ensure_future(work)
    try:
        if not await finished_within(services.clock, task, seconds):
            raise TimeoutError
        return await task
    finally:
        task.cancel()
