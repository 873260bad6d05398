"""A model call of a leg: builds the request, streams the answer into the journal, and says what happened as a fact."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from runward.core.errors import RunwardError
from runward.core.ids import call_id
from runward.core.kernel.frames import Frame
from runward.core.runs import frames
from runward.core.runs.decide import CallModel
from runward.core.runs.facts import AnswerReceived, Broke, CallAsked, CallRefused, Happening, ModelBrokenOff, ModelFailed
from runward.engine.allowance import TooLittleLeft
from runward.engine.authors import AuthorFailed
from runward.engine.circuits import Circuits, Passage
from runward.engine.hold import Hold, LeaseLost
from runward.engine.journal import Journal
from runward.engine.outputs import Drafts, OutputReader
from runward.engine.services import Services
from runward.ports.models import ModelAnswer, ModelCallError, ModelClient, ModelDelta, ModelRequest

UNEXPECTED = "The model client failed unexpectedly."


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A model call ready to be made. `reader` reads its answer, where that is to be of the run's type, as a property of an object if it
    was asked for so (`wrapped`), and `draft` shows as much of it as is there. `withheld`: nothing of it is shown before guardrails have
    seen it whole. `waits`: there is no other model to ask, so that it is worth waiting for this one. `cut`: the answer may be less long
    than the agent asks for, to keep the run's bounds."""

    client: ModelClient
    request: ModelRequest
    reader: OutputReader | None = None
    wrapped: bool = False
    draft: Callable[[Any], Frame] | None = None
    withheld: bool = False
    waits: bool = True
    cut: bool = False


class ModelCall:
    """One attempt of one model call. `stop` breaks it off; its outcome then says whether the request may have been sent."""

    def __init__(
        self,
        activity: CallModel,
        *,
        prepare: Callable[[], Awaitable[Prepared]],
        journal: Journal,
        hold: Hold,
        services: Services,
        circuits: Circuits,
    ) -> None:
        self._activity = activity
        self._prepare = prepare
        self._journal = journal
        self._hold = hold
        self._services = services
        self._circuits = circuits
        self._passage: Passage | None = None
        self._task: asyncio.Task[object] | None = None
        self._stopping = False
        self._sent = False
        self._offered: frozenset[str] = frozenset()
        self._by_tool = False
        self._drafts: Drafts | None = None

    def stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

    async def outcome(self) -> Happening:
        self._task = asyncio.current_task()
        try:
            return self._broken_off() if self._stopping else await self._outcome()
        except asyncio.CancelledError:
            if self._stopping and self._task is not None and self._task.uncancel() == 0:
                return self._broken_off()
            raise
        except LeaseLost:
            return self._broken_off()

    async def _outcome(self) -> Happening:
        step, attempt = self._activity.step, self._activity.attempt
        if self._activity.not_before is not None:
            await self._services.clock.sleep(self._services.time.seconds_until(self._activity.not_before))
        try:
            prepared = await self._prepare()
            answer = await self._asked(prepared)
        except ModelCallError as error:
            self._services.telemetry.event("model_call_failed", kind=error.kind, status=error.status, step=step, attempt=attempt)
            return self._failed(error)
        except LeaseLost:
            raise
        except TooLittleLeft as error:
            return CallRefused(at=self._services.time.now(), step=step, attempt=attempt, prompt=error.prompt)
        except AuthorFailed as error:
            self._services.telemetry.problem("agent_function_failed", error.__cause__, function=error.what)
            return self._broke("internal", f"The agent's {error.what} failed unexpectedly.")
        except RunwardError as error:
            self._services.telemetry.problem("model_call_impossible", error)
            return self._broke(error.code, error.detail)
        except Exception as error:  # noqa: BLE001 - a bug in a client fails its run, not the worker
            self._services.telemetry.problem("model_client_failed", error)
            return self._failed(ModelCallError("internal", UNEXPECTED, transient=False, billed=True))
        return replace(self._received(answer, prepared), cut=prepared.cut)

    async def _asked(self, prepared: Prepared) -> ModelAnswer:
        """Asks the model, if its circuit lets it."""
        faults = self._services.faults
        passage = self._passage = await self._circuits.of(prepared.client).admitted(waits=prepared.waits)
        try:
            if faults is not None:
                await faults.reach("before_model")
            await self._hold.fresh()
            self._sent = True
            self._offered = frozenset(tool.name for tool in prepared.request.tools)
            if prepared.reader is not None and prepared.draft is not None:
                self._drafts = Drafts(prepared.reader, prepared.draft, self._services.clock, wrapped=prepared.wrapped)
            self._by_tool = prepared.request.output_mode == "tool"
            answer = await prepared.client.call(prepared.request, self._silence if prepared.withheld else self._delta)
            passage.answered()
        except ModelCallError as error:
            passage.failed(error, waits=prepared.waits)
            raise
        finally:
            passage.over()
        if faults is not None:
            await faults.reach("after_model")
        return answer

    async def _delta(self, delta: ModelDelta) -> None:
        if self._passage is not None:
            self._passage.begins()
        self._journal.emit((self._frame(delta),))
        if self._drafts is not None and (draft := self._drafts.after(delta)) is not None:
            self._journal.emit((draft,))
        await self._journal.room()

    async def _silence(self, delta: ModelDelta) -> None:
        """Nobody hears of what may be the answer before guardrails have seen it."""
        if self._passage is not None:
            self._passage.begins()

    def _frame(self, delta: ModelDelta) -> Frame:
        step, attempt = self._activity.step, self._activity.attempt
        if delta.kind == "text":
            return frames.text_delta(step, attempt, delta.text)
        if delta.kind == "reasoning":
            return frames.reasoning_delta(step, attempt, delta.text)
        return frames.tool_input_delta(step, call_id(step, delta.index), delta.tool_name, delta.text)

    def _received(self, answer: ModelAnswer, prepared: Prepared) -> AnswerReceived:
        fact, reader = self._answered(answer), prepared.reader
        if reader is None:
            return fact
        given = next((call.arguments for call in answer.calls if call.tool_name == reader.name and self._by_tool), None)
        read = reader.read(fact.text if given is None else given, wrapped=prepared.wrapped)
        if given is not None:  # the answer came as a call: it is the text, and what the provider would see again is not
            fact = replace(fact, text=given, calls=(), finish="stop", opaque=None, opaque_format=None)
        return replace(fact, output=read.value, complaint=read.complaint)

    def _answered(self, answer: ModelAnswer) -> AnswerReceived:
        calls = tuple(
            CallAsked(
                provider_id=call.provider_id,
                tool_name=call.tool_name,
                arguments=call.arguments,
                offered=call.tool_name in self._offered,
            )
            for call in answer.calls
        )
        return AnswerReceived(
            at=self._services.time.now(),
            step=self._activity.step,
            attempt=self._activity.attempt,
            text=answer.text,
            reasoning=answer.reasoning,
            calls=calls,
            finish=answer.finish,
            usage=answer.usage,
            opaque=answer.opaque,
            opaque_format=answer.opaque_format,
        )

    def _failed(self, error: ModelCallError) -> ModelFailed:
        return ModelFailed(
            at=self._services.time.now(),
            step=self._activity.step,
            attempt=self._activity.attempt,
            code=error.kind,
            message=error.message,
            transient=error.transient,
            sent=self._sent,
            billed=error.billed,
            after_content=error.after_content,
            retry_after_ms=None if error.retry_after is None else round(error.retry_after * 1000),
        )

    def _broken_off(self) -> ModelBrokenOff:
        step, attempt = self._activity.step, self._activity.attempt
        return ModelBrokenOff(at=self._services.time.now(), step=step, attempt=attempt, started=self._sent)

    def _broke(self, code: str, message: str) -> Broke:
        return Broke(at=self._services.time.now(), code=code, message=message, details={})
