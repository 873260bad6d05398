"""Functions as tools: `@tool` behind the port."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pydantic import ValidationError

from runward.agents.annotations import UNRESOLVED
from runward.agents.complaints import complaint_of
from runward.agents.probes import CannotTell, DidNotHappen, Happened
from runward.agents.schemas import Schema
from runward.agents.tools import Tool
from runward.core.errors import ToolError
from runward.core.runs.calls import ToolTraits
from runward.ports.tools import Found, NotFound, ProbeAnswer, Returned, Unclear
from runward.tools.asides import aside
from runward.tools.containment import caught, contained, finished, value_of
from runward.tools.results import Recorder
from runward.tools.threads import Threads

Record = Callable[[Any], Returned]


class LocalTool:
    """A function, ready to run: `async def` on the event loop, `def` in a thread.

    Its schema is compiled once. What it raises is made harmless first (`containment`); what it returns is recorded where it ran, so that
    nothing lazy in a result runs on the loop that should run in a thread.
    """

    def __init__(self, tool: Tool[Any], *, max_result_bytes: int, threads: Threads) -> None:
        of = f"Tool {tool.name!r}"
        self._traits = tool.traits
        self._signature = tool.signature
        self._function = tool.function
        self._to_model_output = tool.to_model_output
        self._probe = tool.probe
        self._verify_evidence = tool.verify_evidence
        self._schema = Schema(tool.parameters, of=of)
        self._threads = threads
        self._results = Recorder(
            tool.signature.returns, output_schema=tool.output_schema, max_bytes=max_result_bytes, projected=self._traits.projects, of=of
        )
        self._projections = Recorder(UNRESOLVED, output_schema=None, max_bytes=max_result_bytes, projected=False, of=of)

    @property
    def traits(self) -> ToolTraits:
        """What a run has to know of it."""
        return self._traits

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """What is wrong with arguments, for the model; None when they fit the schema and the function's types."""
        complaint = self._schema.complaint(arguments)
        if complaint is None:
            try:
                self._signature.build(arguments)
            except ValidationError as error:
                complaint = complaint_of(error, whole="arguments")
            except Exception:  # noqa: BLE001 - a validator of the author's broke: what it says is not for the model
                complaint = "they cannot be read"
        return None if complaint is None else f"The arguments do not fit: {complaint}."

    async def invoke(self, arguments: Mapping[str, Any], context: Any) -> Returned:
        """Runs it once. Raises what the port says; ToolError too where the arguments, which were checked, fit no more."""
        try:
            values = self._signature.build(arguments)
        except Exception as error:
            raise ToolError("The tool was not started: its arguments do not fit it any more.") from error
        positional, named = self._signature.bind(values, context)
        return await self._call(partial(self._function, *positional, **named), self._signature.is_async, self._results.record)

    async def project(self, raw: Any, context: Any) -> Returned:
        """What the model sees of a stored result. Raises BadResult, and what `to_model_output` raises."""
        assert self._to_model_output is not None
        value = self._results.rebuild(raw)
        function = self._to_model_output
        return await self._call(partial(function, value), inspect.iscoroutinefunction(function), self._projections.record)

    async def probe(self, idempotency_key: str, arguments: Mapping[str, Any], context: Any) -> ProbeAnswer:
        """What the author's probe says. Raises TypeError for what is no answer, BadResult for a result that cannot be recorded."""
        assert self._probe is not None
        answer = await aside(self._probe, self._threads)(idempotency_key, arguments, context)
        match answer:
            case Happened():
                return Found(returned=self._results.record(answer.result))
            case DidNotHappen():
                return NotFound()
            case CannotTell():
                return Unclear(why=str(answer.why))
            case _:
                raise TypeError(f"A probe answers Happened, DidNotHappen or CannotTell, not {type(answer).__name__}.")

    async def evidence_holds(self, evidence: Mapping[str, Any], context: Any) -> bool:
        """What the author says of evidence: only True counts."""
        assert self._verify_evidence is not None
        return await aside(self._verify_evidence, self._threads)(evidence, context) is True

    async def _call(self, function: Callable[[], Any], is_async: bool, record: Record) -> Returned:
        if is_async:
            return value_of(await contained(lambda: _awaited(function, record)))
        given = value_of(await self._threads.run(partial(caught, partial(_called, function, record))))
        if isinstance(given, Returned):
            return given
        return value_of(await finished(given, record))


async def _awaited(function: Callable[[], Any], record: Record) -> Returned:
    return record(await function())


def _called(function: Callable[[], Any], record: Record) -> Any:
    """In the thread. A function may return an awaitable without being `async def`: that is awaited on the loop."""
    value = function()
    return value if inspect.isawaitable(value) else record(value)
