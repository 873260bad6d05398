"""What author code is given: `RunContext`, and `ToolContext` in tools. The engine makes them; tests make them with `runward.testing`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Protocol, overload

from typing_extensions import TypeVar

from runward.core.kernel.actor import Scope
from runward.core.messages import Message

Resources = TypeVar("Resources", default=Any)
Context = TypeVar("Context", default=Any)
T = TypeVar("T")


class RunHost(Protocol):
    """What the engine does for a context, on its own loop."""

    async def generate(self, prompt: str | Sequence[Message], *, model: str | None, output: Any) -> Any:
        """A model call inside the run's ledger, bounds and cancel."""
        ...


class CallHost(RunHost, Protocol):
    """What the engine does for a call under way. Once the call is over every method raises RuntimeError."""

    @property
    def cancelled(self) -> bool:
        """Whether the call is to stop. Read from any thread."""
        ...

    @property
    def checkpoint(self) -> str | None:
        """The text saved last, by this attempt or an earlier one. Read from any thread."""
        ...

    async def progress(self, data: Any) -> None: ...

    async def save_checkpoint(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext(Generic[Resources, Context]):
    """Where a run stands, for instructions, predicates, guardrails and verifiers. Read-only.

    - `run_id`, `agent`, `agent_version`: which run of which agent. `scope` is whose it is: `scope.tenant`, `.user`, `.namespace`.
    - `step`: the model call in hand, counted from 1.
    - `resources`: what the agent's `lifespan` yielded in this process. `context`: the run's context, as the agent's model where it has one.
    - `messages`: the transcript so far. `deadline`: when the run has to be over, in UTC on the store's clock; None when nothing bounds it.

    `RunContext[Shop, ShopContext]` tells a type checker what `resources` and `context` are; both may be left out::

        def instructions(ctx: RunContext[Shop, ShopContext]) -> str:
            return f"Answer in {ctx.context.language}."
    """

    run_id: str
    agent: str
    agent_version: str
    scope: Scope
    step: int
    resources: Resources = field(repr=False)
    context: Context = field(repr=False)
    messages: Sequence[Message] = field(default=(), repr=False)
    deadline: datetime | None = None
    host: RunHost = field(repr=False)

    @overload
    async def generate(self, prompt: str | Sequence[Message], *, model: str | None = None, output: None = None) -> str: ...

    @overload
    async def generate(self, prompt: str | Sequence[Message], *, model: str | None = None, output: type[T]) -> T: ...

    @overload
    async def generate(self, prompt: str | Sequence[Message], *, model: str | None = None, output: Mapping[str, Any]) -> Any: ...

    async def generate(self, prompt: str | Sequence[Message], *, model: str | None = None, output: Any = None) -> Any:
        """Asks a model, inside the run's ledger, bounds and cancel, and returns its answer.

        `model` is a `provider:model`, the run's own when left out. With `output` (a Pydantic model or a JSON Schema) the answer is a
        value of it, else its text. Raises `ModelCallError` when there is no answer of that type, and `BudgetExceeded` when the run's bounds
        leave too little for it. One call is one request: it is not tried again::

            title = await ctx.generate("A title for: " + text, model="openai:gpt-5-mini")
        """
        return await self.host.generate(prompt, model=model, output=output)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext(RunContext[Resources, Context]):
    """A tool's view of its call: a parameter typed `ToolContext` gets it, and is not part of the tool's schema.

    - `tool_call_id`: the call's id in its run (`<step>.<index>`). `attempt`: 1 for the first start of this call.
    - `idempotency_key`: the same on every attempt of this call and shared with no other. Give it to what has the effect.
    - `tool_context`: what the request's `tool_context` held for this tool, None when nothing.
    - `answers`: the user's answers to this call's `NeedsInput` questions, in order.
    - `cancelled`: whether the call is to stop; look at it in long loops. `checkpoint`: the text saved last, by any attempt of this call.

    Example::

        @tool(effect="idempotent_write")
        async def ship(order_id: int, ctx: ToolContext[Shop, ShopContext]) -> str:
            return await ctx.resources.parcels.send(order_id, key=ctx.idempotency_key)
    """

    tool_call_id: str
    attempt: int
    idempotency_key: str
    tool_context: Mapping[str, Any] | None = field(default=None, repr=False)
    answers: tuple[str, ...] = field(default=(), repr=False)
    host: CallHost = field(repr=False)
    home: asyncio.AbstractEventLoop | None = field(default_factory=_running_loop, repr=False)

    @property
    def cancelled(self) -> bool:
        """Whether the call is to stop soon: the run was cancelled. A task is cancelled a grace later, a thread is left behind."""
        return self.host.cancelled

    @property
    def checkpoint(self) -> str | None:
        """The text that `save_checkpoint` stored last for this call, by this attempt or an earlier one; None when there is none."""
        return self.host.checkpoint

    def progress(self, data: Any) -> Awaitable[None]:
        """Shows `data` (JSON) on the run's stream as `tool-progress`. Several in short order: the latest wins. Await it in `async def`
        tools; in `def` tools the plain call does it. Raises RuntimeError once the call is over::

            await ctx.progress({"rows": 1200})
        """
        return _from_anywhere(self.host.progress(data), self.home)

    def save_checkpoint(self, text: str) -> Awaitable[None]:
        """Stores a text for later attempts of this call; durable when it returns. Await it in `async def` tools; in `def` tools the
        plain call returns once it is stored. Raises RuntimeError once the call is over::

            await ctx.save_checkpoint(str(page))
        """
        return _from_anywhere(self.host.save_checkpoint(text), self.home)


class _Done:
    """Something that may be awaited and is over."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


def _from_anywhere(work: Coroutine[Any, Any, None], home: asyncio.AbstractEventLoop | None) -> Awaitable[None]:
    """Does `work` on the loop it belongs to. Called in a thread without a loop it is done on return; elsewhere it is to be awaited."""
    here = _running_loop()
    if here is not None and home in (None, here):
        return work
    if home is None:
        asyncio.run(work)
        return _Done()
    future = asyncio.run_coroutine_threadsafe(work, home)
    if here is not None:
        return asyncio.wrap_future(future)
    future.result()
    return _Done()
