"""Turns what `decide` wants into tasks: the only place where a leg meets the agent's code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from runward.agents.contexts import RunContext, ToolContext
from runward.agents.models import is_choice, model_name
from runward.agents.rules import ModelNotAllowed
from runward.core.errors import RunwardError
from runward.core.kernel.actor import Envelope
from runward.core.messages import Message
from runward.core.runs.calls import Call, CallStage
from runward.core.runs.decide import (
    CallModel,
    CheckEvidence,
    ChooseModel,
    GuardInput,
    GuardOutput,
    Performed,
    Probe,
    Project,
    RunCall,
    Screen,
    VerifyOutput,
    due_ending,
)
from runward.core.runs.facts import Broke, CheckpointSaved, Happening, ModelChosen
from runward.core.runs.ledger import CallTerms, Rates
from runward.core.runs.state import Phase, RunState
from runward.core.runs.unsettled import UnknownEffect
from runward.core.runs.view import draft_frame
from runward.engine.activities import Running
from runward.engine.allowance import allowance
from runward.engine.authors import AuthorFailed, call_author
from runward.engine.call_host import LegCallHost
from runward.engine.circuits import Circuits
from runward.engine.contexts import Contexts
from runward.engine.deployment import Deployed
from runward.engine.generating import Books, Generator
from runward.engine.guarded import Guarding, InputGuarding, OutputGuarding
from runward.engine.guarding import Guards
from runward.engine.hold import Hold
from runward.engine.journal import Journal
from runward.engine.model_call import ModelCall, Prepared
from runward.engine.model_requests import request_of
from runward.engine.outputs import OutputReader, Verification, asked_for
from runward.engine.probing import EvidenceCheck, ProbeCall
from runward.engine.screening import Screener
from runward.engine.sealing import Seal
from runward.engine.services import Services
from runward.engine.tool_calls import Invocation, Projection, Showing, ToolAttempt
from runward.engine.transcript import Transcript
from runward.ports.models import Settings, ToolSpec
from runward.ports.tools import Offer


class Driver(Books, Protocol):
    """The leg, as what it performs sees it."""

    @property
    def journal(self) -> Journal: ...


class Performer:
    """Begins activities of one run, with one deployed agent."""

    def __init__(
        self, row: Envelope, deployed: Deployed, *, hold: Hold, services: Services, seal: Seal, cancel_grace: float, circuits: Circuits
    ) -> None:
        self._row = row
        self._deployed = deployed
        self._services = services
        self._cancel_grace = cancel_grace
        self._circuits = circuits
        self._generator = Generator(row, deployed, services, circuits=circuits, policy=lambda: self._contexts.policy)
        self._contexts = Contexts(row, deployed, seal, self._generator)
        self._guards = Guards(deployed.agent.guardrails, services.telemetry, services.clock)
        self._output_reader: OutputReader | None = None
        self._requested_tools: Mapping[str, Offer] | None = None
        self.transcript = Transcript(services, hold, row.uid)

    def begin(self, activity: Performed, run: RunState, driver: Driver) -> Running:
        """The activity, ready to run. `run` is the state that asked for it."""
        self._generator.bind(driver)
        match activity:
            case ChooseModel():
                return _ModelChoice(self, run, self._services)
            case CallModel():
                return ModelCall(
                    activity,
                    prepare=lambda: self._model_call(run, driver),
                    journal=driver.journal,
                    hold=driver.hold,
                    services=self._services,
                    circuits=self._circuits,
                )
            case GuardInput():
                return InputGuarding(
                    lambda: self._contexts.input,
                    prepare=lambda: self._guarding(run, lambda: self._contexts.input),
                    services=self._services,
                )
            case GuardOutput():
                answer = run.unguarded
                assert answer is not None, "only an answer that waits for guardrails is shown to them"
                return OutputGuarding(
                    activity.step,
                    answer,
                    reader=lambda: None if run.outputs is None else self._reader(),
                    prepare=lambda: self._guarding(run),
                    services=self._services,
                )
            case Screen():
                return Screener(
                    run,
                    deployed=self._deployed,
                    policy=lambda: self._contexts.policy,
                    requested=self._requested,
                    guards=self._guards,
                    context_of=lambda call: self._predicate_context(run, call, driver),
                    services=self._services,
                )
            case RunCall():
                return self._attempt(activity, run, driver)
            case Project():
                call = run.call(activity.call_id)
                host = self._host(call, driver)
                return Projection(activity, prepare=lambda: self._showing(run, call, host), raw=call.raw, services=self._services)
            case VerifyOutput():
                return self._verification(activity, run)
            case Probe():
                effect = self._effect(run, activity.call_id)
                return ProbeCall(activity, prepare=lambda: self._looking_back(run, effect, driver), services=self._services)
            case CheckEvidence():
                effect = self._effect(run, activity.call_id)
                return EvidenceCheck(activity, effect, prepare=lambda: self._looking_back(run, effect, driver), services=self._services)

    @property
    def guards_output(self) -> bool:
        """Whether the agent's guardrails look at answers."""
        return self._guards.of_output

    async def _guarding(self, run: RunState, input: Callable[[], tuple[Message, ...]] | None = None) -> Guarding:
        """What guardrails are asked with; where they look at the `input`, that is all there is of the transcript."""
        messages = await self.transcript.messages() if input is None else input()
        context = self._contexts.of_run(run, messages)
        return Guarding(guards=self._guards, context=context, timeout_seconds=run.limits.model_timeout_seconds)

    # -- models ------------------------------------------------------------------------------------------------------------

    def terms(self, run: RunState) -> CallTerms:
        """What this worker knows of the run's model calls."""
        names = (*(() if run.model is None else (run.model,)), *run.fallbacks)
        known = {name: self.rates(name) for name in names}
        rates = {name: rates for name, rates in known.items() if rates is not None}
        return CallTerms(max_output_tokens=self._deployed.agent.model_settings.max_output_tokens, rates=rates)

    def rates(self, model: str) -> Rates | None:
        """What a model costs, as far as this worker knows."""
        return self._services.prices.rates(model, self._services.time.now())

    async def choose_model(self, run: RunState) -> str:
        """The name of the model this run uses. Raises AuthorFailed, and DefinitionError for what is not a model."""
        model = self._deployed.agent.model
        if callable(model) and is_choice(model):
            name = await call_author("model function", model, await self._run_context(run))
            return self._deployed.client(name).name
        return model_name(model)

    async def _model_call(self, run: RunState, driver: Driver) -> Prepared:
        agent = self._deployed.agent
        assert run.model is not None, "a model is chosen before it is asked"
        if not self._contexts.policy.permits_model(run.model):
            raise ModelNotAllowed(f"The policy does not allow the model {run.model!r}, which this run would ask.")
        client = self._deployed.client(run.model)
        messages = await self.transcript.messages()
        settings = agent.model_settings
        reader = self._reader() if run.phase is Phase.FINALIZING else None
        asked = asked_for(
            reader, client, instructions=await self._instructions(run), tools=await self._offered(run), choice=settings.tool_choice
        )
        allowed = allowance(driver.run, asked, messages, settings.max_output_tokens)
        sent_with = Settings(
            temperature=settings.temperature,
            max_output_tokens=allowed.output_tokens,
            reasoning_effort=settings.reasoning_effort,
            tool_choice=settings.tool_choice,
            provider_options=settings.provider_options,
        )
        return Prepared(
            client=client,
            request=request_of(run, asked, messages, reader, sent_with),
            reader=reader,
            wrapped=asked.wrapped,
            draft=lambda value: draft_frame(run, value),
            withheld=run.withholds,
            waits=not run.fallbacks,
            cut=allowed.cut,
        )

    def _reader(self) -> OutputReader:
        """What reads the run's typed answers, made once per leg."""
        if self._output_reader is None:
            output = self._contexts.output
            assert output is not None, "only a run with an output finalizes"
            self._output_reader = OutputReader(output)
        return self._output_reader

    def _verification(self, activity: VerifyOutput, run: RunState) -> Verification:
        verify, candidate = self._deployed.verify, run.candidate
        assert verify is not None and candidate is not None

        async def arguments() -> tuple[Any, RunContext[Any, Any]]:
            return self._reader().typed(candidate.value), await self._run_context(run)

        return Verification(
            activity.attempt,
            verify=verify,
            arguments=arguments,
            timeout_seconds=run.limits.model_timeout_seconds,
            services=self._services,
        )

    async def _instructions(self, run: RunState) -> str:
        instructions = self._deployed.agent.instructions
        if isinstance(instructions, str):
            return instructions
        return str(await call_author("instructions function", instructions, await self._run_context(run)))

    async def _offered(self, run: RunState) -> tuple[ToolSpec, ...]:
        """The tools the model is shown: those that are enabled now."""
        offered = []
        for tool in (*self._deployed.agent.tools, *self._contexts.client_tools):
            enabled = tool.offered
            if callable(enabled):
                enabled = await call_author(f"enabled function of tool {tool.name!r}", enabled, await self._run_context(run))
            if enabled:
                offered.append(ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters))
        return tuple(offered)

    # -- tools -------------------------------------------------------------------------------------------------------------

    def _attempt(self, activity: RunCall, run: RunState, driver: Driver) -> ToolAttempt:
        call = run.call(activity.call_id)
        host = self._host(call, driver)
        return ToolAttempt(
            activity,
            prepare=lambda: self._invocation(run, call, host),
            host=host,
            grace=lambda: None if driver.run.hurried and due_ending(driver.run) is None else self._cancel_grace,
            hold=driver.hold,
            services=self._services,
        )

    def _host(self, call: Call, driver: Driver) -> LegCallHost:
        async def save(text: str) -> None:
            await driver.keep(CheckpointSaved(at=self._services.time.now(), call_id=call.id, attempt=call.attempt, text=text))

        return LegCallHost(call.id, call.checkpoint, driver.journal, save, self._generator)

    async def _invocation(self, run: RunState, call: Call, host: LegCallHost) -> Invocation:
        return Invocation(
            tool=self._deployed.tools[call.name],
            arguments=json.loads(call.arguments),
            context=self._contexts.of_call(run, call, await self.transcript.messages(), host),
            timeout_seconds=call.timeout_seconds,
            projects=call.projects,
        )

    async def _showing(self, run: RunState, call: Call, host: LegCallHost) -> Showing:
        tool = self._deployed.tools.get(call.name)
        return Showing(
            project=tool.project if tool is not None and tool.traits.projects else None,
            guards=self._guards,
            context=self._contexts.of_call(run, call, await self.transcript.messages(), host),
            tool_name=call.name,
            guard_seconds=run.limits.model_timeout_seconds,
        )

    def _requested(self) -> Mapping[str, Offer]:
        """The client tools of the request, compiled once per leg."""
        if self._requested_tools is None:
            self._requested_tools = self._deployed.offers_of(self._contexts.client_tools)
        return self._requested_tools

    async def _predicate_context(self, run: RunState, call: Call, driver: Driver) -> ToolContext[Any, Any]:
        """What a predicate gets: the call has not started, so it can neither report progress nor save."""
        host = self._host(call, driver)
        host.looks_on()
        return self._contexts.of_call(run, call, await self.transcript.messages(), host)

    @staticmethod
    def _effect(run: RunState, call_id: str) -> UnknownEffect:
        effect = run.unknown(call_id)
        assert effect is not None, "only unknown effects are looked into"
        return effect

    async def _looking_back(self, run: RunState, effect: UnknownEffect, driver: Driver) -> Invocation:
        """The call of an unknown effect as its attempt saw it, also when its turn is over."""
        call = Call(
            id=effect.tool_call_id,
            provider_id="",
            name=effect.tool_name,
            arguments=effect.arguments,
            effect=effect.effect,
            stage=CallStage.UNKNOWN,
            attempt=effect.attempt,
            projects=self._deployed.tools[effect.tool_name].traits.projects,
        )
        host = self._host(call, driver)
        host.looks_on()
        return await self._invocation(run, call, host)

    async def _run_context(self, run: RunState) -> RunContext[Any, Any]:
        return self._contexts.of_run(run, await self.transcript.messages())


class _ModelChoice:
    """Asks the agent which model this run uses. No effect: a leg that dies asks again."""

    def __init__(self, performer: Performer, run: RunState, services: Services) -> None:
        self._performer = performer
        self._run = run
        self._services = services

    def stop(self) -> None:
        """Nothing to stop."""

    async def outcome(self) -> Happening:
        try:
            model = await self._performer.choose_model(self._run)
        except AuthorFailed as error:
            self._services.telemetry.problem("agent_function_failed", error.__cause__, function=error.what)
            return self._broke("internal", f"The agent's {error.what} failed unexpectedly.")
        except RunwardError as error:
            return self._broke(error.code, error.detail)
        return ModelChosen(at=self._services.time.now(), model=model, rates=self._performer.rates(model))

    def _broke(self, code: str, message: str) -> Broke:
        return Broke(at=self._services.time.now(), code=code, message=message, details={})
