"""`ctx.generate`: model calls of the agent's own code, inside the run's ledger, bounds and cancel (R33)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from runward.agents.output import Output
from runward.agents.rules import ModelNotAllowed, Policy
from runward.core.errors import BudgetExceeded, RunwardError
from runward.core.kernel.actor import Envelope
from runward.core.messages import Message, TextPart
from runward.core.runs import budget, sharing
from runward.core.runs.asking import GenerationAsked, GenerationEnded
from runward.core.runs.facts import BudgetsAnswered, CheckpointSaved, Happening
from runward.core.runs.state import Generation, RunState
from runward.core.text import clean
from runward.engine.circuits import Circuits, Passage
from runward.engine.deployment import Deployed
from runward.engine.hold import Hold, LeaseLost
from runward.engine.model_requests import request_of
from runward.engine.outputs import Asked, OutputReader, asked_for
from runward.engine.patience import patiently
from runward.engine.services import Services
from runward.ports.budgets import Admitted, Reserving
from runward.ports.models import ModelAnswer, ModelCallError, ModelClient, ModelDelta, ModelRequest, Settings

NO_MODEL = "The run has no model yet: name one."
TOO_LITTLE = "The run's bounds leave too little for this model call."
TOO_LITTLE_SHARED = "The budgets that the run shares leave too little for this model call."
UNEXPECTED = "The model client failed unexpectedly."


class Books(Protocol):
    """The leg, as far as a model call beside the run's own needs it."""

    @property
    def hold(self) -> Hold: ...

    @property
    def run(self) -> RunState:
        """The run as it stands now."""
        ...

    async def keep(self, fact: CheckpointSaved | GenerationAsked) -> None:
        """Folds a fact, and returns once it is durable."""
        ...

    def report(self, fact: Happening) -> None:
        """Folds a fact; it becomes durable with the next commit."""
        ...


class Line:
    """The model calls of one attempt of a tool call. Whoever hangs up breaks them off, and tells their author so; no more are made."""

    def __init__(self) -> None:
        self.open = True
        self._calling: set[asyncio.Task[ModelAnswer]] = set()

    def hang_up(self) -> None:
        self.open = False
        for calling in tuple(self._calling):
            calling.cancel()

    def begin(self, call: Coroutine[Any, Any, ModelAnswer]) -> asyncio.Task[ModelAnswer]:
        calling = asyncio.ensure_future(call)
        self._calling.add(calling)
        calling.add_done_callback(self._calling.discard)
        return calling


def hung_up(*, billed: bool) -> ModelCallError:
    """What the author is told of a call that was broken off, or is not made any more."""
    return ModelCallError("cancelled", "The call is over, or its run was cancelled.", transient=False, billed=billed)


class Asking:
    """One request, if its model's circuit lets it through. `sent`: the model was asked."""

    def __init__(self, client: ModelClient, request: ModelRequest, hold: Hold, circuits: Circuits) -> None:
        self._client = client
        self._request = request
        self._hold = hold
        self._circuit = circuits.of(client)
        self._passage: Passage | None = None
        self.sent = False

    async def answer(self) -> ModelAnswer:
        passage = self._passage = await self._circuit.admitted(waits=True)
        try:
            await self._hold.fresh()
            self.sent = True
            answer = await self._client.call(self._request, self._heard)
            passage.answered()
        except ModelCallError as error:
            passage.failed(error, waits=True)
            raise
        finally:
            passage.over()
        return answer

    async def _heard(self, delta: ModelDelta) -> None:
        """Nobody follows such a call but its circuit."""
        if self._passage is not None:
            self._passage.begins()


class Generator:
    """Makes such calls for one run. `books` is set once a leg drives it."""

    def __init__(self, row: Envelope, deployed: Deployed, services: Services, *, circuits: Circuits, policy: Callable[[], Policy]) -> None:
        self._row = row
        self._deployed = deployed
        self._services = services
        self._circuits = circuits
        self._policy = policy
        self._home: asyncio.AbstractEventLoop | None = None
        self._books: Books | None = None

    def bind(self, books: Books) -> None:
        """A leg drives the run, on this loop."""
        self._books, self._home = books, asyncio.get_running_loop()

    async def generate(self, prompt: str | Sequence[Message], *, model: str | None, output: Any) -> Any:
        """As `RunContext.generate`: for instructions, guardrails and verifiers, whose tasks end with the run."""
        return await self.generate_within(Line(), prompt, model=model, output=output)

    async def generate_within(self, line: Line, prompt: str | Sequence[Message], *, model: str | None, output: Any) -> Any:
        """The same, until somebody hangs up. From another thread's loop it is made on the run's own."""
        work = self._generated(line, prompt, model, output)
        if self._home in (None, asyncio.get_running_loop()):
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._home))

    async def _generated(self, line: Line, prompt: str | Sequence[Message], model: str | None, output: Any) -> Any:
        books = self._books
        assert books is not None, "author code runs in a leg"
        messages = _messages(prompt)
        name = model or books.run.model
        if name is None:
            raise ValueError(NO_MODEL)
        if not self._policy().permits_model(name):
            raise ModelNotAllowed(f"The policy does not allow the model {name!r}, which the agent's code asks.")
        client = self._deployed.client(name)
        reader = None if output is None else OutputReader(Output(schema=output))
        asked = asked_for(reader, client, instructions="", tools=(), choice=None)
        generation = await self._reserved(books, name, messages, asked, reader)
        allowed = generation.output if budget.bounded(books.run) else self._deployed.agent.model_settings.max_output_tokens
        request = request_of(books.run, asked, messages, reader, Settings(max_output_tokens=allowed), purpose="generate")
        answer = await self._answer(books, generation, client, request, line)
        return _read(answer, reader, asked)

    async def _reserved(
        self, books: Books, name: str, messages: Sequence[Message], asked: Asked, reader: OutputReader | None
    ) -> Generation:
        """The call, durably reserved. Raises BudgetExceeded."""
        schema = 0 if reader is None else budget.size_of(reader.json_schema)
        characters = sum(map(budget.characters_of, messages)) + len(asked.instructions) + schema
        fact = GenerationAsked(
            at=self._services.time.now(),
            key=self._services.chance.uid(),
            model=name,
            prompt=budget.tokens_of(characters),
            wanted=self._deployed.agent.model_settings.max_output_tokens,
            rates=self._services.prices.rates(name, self._services.time.now()),
        )
        await books.keep(fact)
        generation = books.run.generation(fact.key)
        if generation is None:
            raise BudgetExceeded(_why(books.run)) if books.run.spent_out is not None else hung_up(billed=False)
        return generation

    async def _answer(self, books: Books, generation: Generation, client: ModelClient, request: ModelRequest, line: Line) -> ModelAnswer:
        """Makes the call, and settles it whatever happens."""
        asking = Asking(client, request, books.hold, self._circuits)
        billed, usage, cut_off = True, None, False
        calling: asyncio.Task[ModelAnswer] | None = None
        try:
            await self._admitted(books, generation)
            if not line.open:
                raise hung_up(billed=False)
            calling = line.begin(asking.answer())
            answer = await calling
            usage, cut_off = answer.usage, answer.finish == "length"
        except ModelCallError as error:
            billed = error.billed or error.after_content
            self._services.telemetry.event("model_call_failed", kind=error.kind, status=error.status, step=request.step, purpose="generate")
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if calling is None or not calling.cancelled() or (task is not None and task.cancelling()):
                raise
            raise hung_up(billed=asking.sent) from None
        except (LeaseLost, RunwardError):
            raise
        except Exception as error:  # noqa: BLE001 - a bug in a client is no answer
            self._services.telemetry.problem("model_client_failed", error)
            raise ModelCallError("internal", UNEXPECTED, transient=False, billed=True) from None
        finally:
            at, sent = self._services.time.now(), asking.sent
            books.report(GenerationEnded(at=at, key=generation.key, usage=usage, sent=sent, billed=sent and billed, cut_off=cut_off))
        if cut_off and generation.cut:
            raise BudgetExceeded(TOO_LITTLE)
        return answer

    async def _admitted(self, books: Books, generation: Generation) -> None:
        """Has the budgets that the run shares with others admit the call (R34). Raises BudgetExceeded."""
        run = books.run
        if run.shared is None:
            return
        asked = Reserving(
            id=sharing.id_beside(run, generation.key),
            tenant=self._row.scope.tenant,
            keys=run.shared.keys,
            amount=generation.amount,
            holder=run.uid,
            priced=budget.rates_of(run, generation.model) is not None,
        )
        answer = await patiently(lambda: self._services.budgets.reserve(asked), hold=books.hold, clock=self._services.clock)
        if not isinstance(answer, Admitted):
            raise BudgetExceeded(TOO_LITTLE_SHARED)
        if answer.crossed:
            books.report(BudgetsAnswered(at=self._services.time.now(), id=asked.id, crossed=answer.crossed))


def _why(run: RunState) -> str:
    """Why the run does not get the model call it wants."""
    ending = run.spent_out
    return TOO_LITTLE if ending is None or ending.failure is None else ending.failure.message


def _messages(prompt: str | Sequence[Message]) -> tuple[Message, ...]:
    """Raises ValueError for a conversation of nothing."""
    if isinstance(prompt, str):
        return (Message(seq=1, role="user", content=(TextPart(text=clean(prompt)),)),)
    if not prompt:
        raise ValueError("A model call needs a message.")
    return tuple(prompt)


def _read(answer: ModelAnswer, reader: OutputReader | None, asked: Asked) -> Any:
    """What the call gives: a text, or a value of the type asked for. Raises ModelCallError for what is neither."""
    if answer.finish in ("content_filter", "refusal"):
        raise ModelCallError("content_filter", "The model refused to answer.", transient=False, billed=True)
    if reader is None:
        return answer.text
    given = next((call.arguments for call in answer.calls if call.tool_name == reader.name and asked.mode == "tool"), None)
    read = reader.read(answer.text if given is None else given, wrapped=asked.wrapped)
    if read.complaint is not None:
        raise ModelCallError("bad_response", f"The answer is not of the type asked for: {read.complaint}.", transient=False, billed=True)
    return reader.typed(read.value)
