"""A whole service for a test: commands, queries and a worker, on the memory store and in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from runward.agents.agent import Agent
from runward.agents.registry import Registry
from runward.core.messages import Message, TextPart
from runward.core.runs.limits import TighterLimits
from runward.engine.callers import LOCAL, Caller
from runward.engine.clock import SystemChance
from runward.engine.commands import NewRun
from runward.engine.deliveries import Input
from runward.engine.deployment import Deployed
from runward.engine.letters import AnswerIn, ResultIn, VerdictIn
from runward.engine.sealing import Seal
from runward.engine.service import Lifespan, Service, Workforce
from runward.engine.services import Services, WorkerSettings
from runward.engine.timing import StoreTime
from runward.models.clients import ModelClients
from runward.models.prices import PriceTable
from runward.ports.telemetry import Telemetry
from runward.stores.memory import LocalBus, MemoryBudgets, MemoryDatabase, MemoryDirectory, MemoryReads, MemorySingletons, MemoryStore
from runward.telemetry import logging_telemetry
from runward.testing.clock import VirtualClock
from runward.testing.tools import WatchedTool, watched
from runward.wiring import deployed, outward_of

if TYPE_CHECKING:
    from runward.tools.outward import Outward

T = TypeVar("T")

MAX_RESULT_BYTES = 1_048_576
PATIENCE_SECONDS = 3_600.0
"""How much virtual time a test waits for a run by itself; `advance` moves further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """A run as `GET /runs/{id}` shows it, in `view`, with what tests look at most at hand."""

    __test__ = False

    view: Mapping[str, Any]

    @property
    def run_id(self) -> str:
        return str(self.view["run_id"])

    @property
    def status(self) -> str:
        return str(self.view["status"])

    @property
    def text(self) -> str | None:
        """The last answer's text."""
        text: str | None = self.view["text"]
        return text

    @property
    def stop_reason(self) -> str | None:
        """Why it is `stopped`, else None."""
        return None if self.view["stop"] is None else str(self.view["stop"]["reason"])

    @property
    def pending(self) -> Mapping[str, Any]:
        """What it waits for."""
        pending: Mapping[str, Any] = self.view["pending"]
        return pending


class TestService:
    """Runs agents in this process: `async with TestService([agent]) as service`.

    `resources` stands in for what lifespans would yield; one that is named there is not entered. Nothing waits for real: time passes by
    itself while the test waits for a run, and with `advance`. HTTP tools are really called; `outbound_hosts` opens hosts to them as
    `RUNWARD_OUTBOUND_HOSTS` does, such as a server of the test's own.
    """

    __test__ = False

    def __init__(
        self,
        agents: Sequence[Agent],
        *,
        resources: Mapping[Lifespan, Any] | None = None,
        settings: WorkerSettings | None = None,
        caller: Caller = LOCAL,
        outbound_hosts: Sequence[str] = (),
    ) -> None:
        self.clock = VirtualClock()
        self._caller = caller
        database = MemoryDatabase(self.clock)
        services = Services(
            store=MemoryStore(database),
            reads=MemoryReads(database),
            directory=MemoryDirectory(database),
            singletons=MemorySingletons(database),
            budgets=MemoryBudgets(database),
            bus=LocalBus(),
            clock=self.clock,
            chance=SystemChance(),
            time=StoreTime(self.clock),
            telemetry=logging_telemetry(None),
            prices=PriceTable(),
        )
        registry, models = Registry(agents), ModelClients(self.clock)
        outward = cache(lambda: self._outward(services.telemetry, outbound_hosts))
        ready = deployed(registry, models, max_result_bytes=MAX_RESULT_BYTES, outward=outward)
        workforce = Workforce(
            deployed={binding: self._watched(each) for binding, each in ready.items()},
            models=models,
            settings=settings or WorkerSettings(),
            host="test",
            pid=1,
            resources=resources or {},
            own_thread=False,
        )
        self.service = Service(services=services, registry=registry, seal=Seal(None), poll=1.0, poll_with_bus=5.0, workforce=workforce)

    async def __aenter__(self) -> TestService:
        await self.service.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.service.worker is not None:
            await self.service.worker.stop()
        await self.service.stop()

    # -- runs --------------------------------------------------------------------------------------------------------------

    async def start(self, agent: str, text: str, **request: Any) -> TestRun:
        """Creates a run and returns at once. `request` are fields of `POST /runs`, such as `context`, `limits` or `metadata`."""
        limits = request.pop("limits", None)
        new = NewRun(
            agent=agent,
            messages=[Message(seq=0, role="user", content=(TextPart(text=text),))],
            limits=TighterLimits(**limits) if limits else TighterLimits(),
            **request,
        )
        created = await self.service.commands.create_run(self._caller, new)
        return await self.see(created.row.public_id)

    async def run(self, agent: str, text: str, **request: Any) -> TestRun:
        """Creates a run and returns once it has ended or waits for somebody."""
        return await self.wait(await self.start(agent, text, **request))

    async def wait(self, run: TestRun | str) -> TestRun:
        """The run once it has ended or waits for somebody. Raises TimeoutError after an hour of virtual time."""
        seen = await self.service.queries.run(self._caller, _id(run))
        waited = await self._passing(self.service.queries.wait(seen.uid, PATIENCE_SECONDS, "suspended"))
        return TestRun(view=waited.shown)

    async def see(self, run: TestRun | str) -> TestRun:
        """The run as it is now."""
        return TestRun(view=(await self.service.queries.run(self._caller, _id(run))).shown)

    async def frames(self, run: TestRun | str) -> list[dict[str, Any]]:
        """Everything the run has said so far, as its stream shows it."""
        seen = await self.service.queries.run(self._caller, _id(run))
        said: list[dict[str, Any]] = []
        while page := await self.service.services.reads.frames(seen.uid, after=len(said), limit=1_000):
            said += [json.loads(frame.data) for frame in page]
        return said

    async def messages(self, run: TestRun | str) -> list[dict[str, Any]]:
        """The transcript as `/messages` shows it."""
        return [*(await self.service.queries.messages(self._caller, _id(run), after=0, limit=1_000)).data]

    async def receipts(self, run: TestRun | str) -> list[dict[str, Any]]:
        """The tool receipts as `/receipts` shows them."""
        return [*(await self.service.queries.receipts(self._caller, _id(run), after=(0, 0), limit=1_000)).data]

    async def cancel(self, run: TestRun | str, reason: str | None = None) -> TestRun:
        """Cancels a run and returns once it has ended."""
        await self.service.commands.cancel_run(self._caller, _id(run), reason)
        return await self.wait(run)

    # -- people ------------------------------------------------------------------------------------------------------------

    async def approve(self, run: TestRun | str, *, reason: str | None = None, edited_arguments: Mapping[str, Any] | None = None) -> TestRun:
        """Approves everything that the run waits to have approved, and returns once it has ended or waits again.

        `edited_arguments` go with exactly one request. Raises AssertionError when it waits for no approval.
        """
        return await self._decide(run, VerdictIn(approval_id="", approved=True, reason=reason, edited_arguments=edited_arguments))

    async def deny(self, run: TestRun | str, *, reason: str | None = None) -> TestRun:
        """Denies it instead."""
        return await self._decide(run, VerdictIn(approval_id="", approved=False, reason=reason))

    async def answer(self, run: TestRun | str, text: str | None) -> TestRun:
        """Answers every question of the run; None declines. Raises AssertionError when it asks none."""
        questions = (await self.see(run)).pending["questions"]
        assert questions, "The run asks nothing."
        answers = [AnswerIn(question_id=question["question_id"], answer=text) for question in questions]
        return await self.deliver(run, Input(answers=answers))

    async def give_result(self, run: TestRun | str, tool_name: str, output: Any, *, is_error: bool = False) -> TestRun:
        """Answers every open call of a client tool. Raises AssertionError when there is none."""
        calls = [call for call in (await self.see(run)).pending["client_calls"] if call["tool_name"] == tool_name]
        assert calls, f"The run waits for no {tool_name}."
        results = [ResultIn(tool_call_id=call["tool_call_id"], output=output, is_error=is_error) for call in calls]
        return await self.deliver(run, Input(tool_results=results))

    async def deliver(self, run: TestRun | str, given: Input) -> TestRun:
        """Sends any input (`runward.engine.deliveries.Input`), and returns once the run has ended or waits again."""
        await self.service.deliveries.deliver(self._caller, _id(run), given)
        return await self.wait(run)

    async def _decide(self, run: TestRun | str, verdict: VerdictIn) -> TestRun:
        requests = (await self.see(run)).pending["approvals"]
        assert requests, "The run waits for no approval."
        return await self.deliver(run, Input(approvals=[replace(verdict, approval_id=each["approval_id"]) for each in requests]))

    # -- faults and time -----------------------------------------------------------------------------------------------------

    async def kill_worker(self) -> None:
        """The worker dies, as by SIGKILL, and another one starts. What it drove is recovered once its lease has run out."""
        await self.service.kill_worker()

    def advance(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Moves time."""
        self.clock.advance(seconds + 60 * minutes + 3_600 * hours + 86_400 * days)

    @staticmethod
    def _outward(telemetry: Telemetry, hosts: Sequence[str]) -> Outward:
        from runward.tools.destinations import OPENED, Destinations, places_of  # the HTTP client is for those who have HTTP tools

        return outward_of(telemetry, Destinations(opened=places_of(hosts, setting=OPENED)))

    def _watched(self, agent: Deployed) -> Deployed:
        tools = {name: WatchedTool(tool, self.clock) for name, tool in agent.tools.items()}
        return replace(agent, tools=tools, verify=None if agent.verify is None else watched(agent.verify, self.clock))

    async def _passing(self, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        try:
            await self.clock.pass_time(task.done, limit_seconds=PATIENCE_SECONDS + 60)
        finally:
            task.cancel()
        return await task


def _id(run: TestRun | str) -> str:
    return run if isinstance(run, str) else run.run_id
