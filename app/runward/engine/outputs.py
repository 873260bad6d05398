"""The typed answer: what a model's text stands for, and what its verifier says of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_jsonable_python

from runward.agents.complaints import complaint_of
from runward.agents.costs import turns_of
from runward.agents.output import Output, Verdict
from runward.agents.schemas import Schema
from runward.agents.wrapping import VALUE, as_object, is_object
from runward.core.errors import DefinitionError, RunwardError
from runward.core.ids import canonical_json
from runward.core.kernel.frames import Frame
from runward.core.runs.calls import MAX_DEPTH
from runward.core.runs.facts import Broke, Happening, VerdictGiven
from runward.core.text import clean, shorten, within_depth
from runward.engine.authors import AuthorFailed, call_author
from runward.engine.reading import TooDeep, cleaned, read_json
from runward.engine.services import Services
from runward.engine.timing import finished_within
from runward.ports.clock import Clock
from runward.ports.models import ModelClient, ModelDelta, ToolSpec

FEEDBACK_LIMIT = 4_096
NOT_JSON = "it is not JSON"
TOO_DEEP = "it is nested too deep"
NO_VERDICT = "The verifier gave no verdict."
TOO_SLOW = "The verifier did not answer in time."
DRAFT_SECONDS = 0.1
"""A draft is shown at most this often: each one holds all of it."""
DRAFT_CHARACTERS = 65_536
"""Of longer answers no more drafts are shown."""

FENCE = "```"


@dataclass(frozen=True, slots=True)
class Read:
    """What a text stands for: a JSON `value`, or a `complaint` for the model, which never holds the value itself (R46)."""

    value: Any = None
    complaint: str | None = None


class OutputReader:
    """Reads answers of one declared type. Compiled once per leg."""

    def __init__(self, output: Output) -> None:
        self.name = output.name
        self.mode = output.mode
        self.json_schema = output.json_schema
        self._model = output.schema if isinstance(output.schema, type) else None
        self._adapter: TypeAdapter[BaseModel] | None = None if self._model is None else TypeAdapter(self._model)
        self._schema = None if self._model is not None else Schema(output.json_schema, of="The output's schema")
        self._shape = None if self._model is None else _shape(output.json_schema)

    def read(self, text: str, *, wrapped: bool = False) -> Read:
        """The value, as JSON, that an answer's text stands for. `wrapped`: it was asked for as a property of an object."""
        try:
            value = read_json(_bare(text))
        except TooDeep:
            return Read(complaint=TOO_DEEP)
        except (ValueError, RecursionError):
            return Read(complaint=NOT_JSON)
        return self._fitted(value[VALUE] if wrapped and isinstance(value, dict) and value.keys() == {VALUE} else value)

    def _fitted(self, value: Any) -> Read:
        if self._adapter is None:
            assert self._schema is not None
            complaint = self._schema.complaint(value)
            return Read(value=value) if complaint is None else Read(complaint=complaint)
        if self._shape is not None and (complaint := self._shape.tangled(value)) is not None:
            return Read(complaint=complaint)
        try:
            made = self._adapter.validate_python(value)
            dumped = self._adapter.dump_python(made, mode="json", by_alias=True)
            return Read(value=dumped if dumped == value else cleaned(dumped))
        except ValidationError as error:
            return Read(complaint=complaint_of(error, whole="the whole"))
        except Exception:  # noqa: BLE001 - a validator of the author's broke: what it says is not for the model
            return Read(complaint="it cannot be read")

    def reread(self, value: Any) -> Read:
        """The same of a value that an author has made: of their model, or JSON."""
        try:
            return self.read(json.dumps(to_jsonable_python(value, by_alias=True), allow_nan=False))
        except (PydanticSerializationError, ValueError, TypeError, RecursionError):
            return Read(complaint=NOT_JSON)

    def typed(self, value: Any) -> Any:
        """A recorded value as authors get it: of their model, where they have one."""
        return value if self._adapter is None else self._adapter.validate_python(value)

    def draft(self, text: str, *, wrapped: bool = False) -> Any:
        """As much of a value as the beginning of a text holds; None when there is nothing yet."""
        begun = text.lstrip()
        begun = begun.split("\n", 1)[1] if begun.startswith("```") and "\n" in begun else begun
        try:
            value = from_json(begun, allow_partial="trailing-strings", allow_inf_nan=False)
        except ValueError:
            return None
        value = value.get(VALUE) if wrapped and isinstance(value, dict) else value
        return value if isinstance(value, dict | list) and value and within_depth(value, MAX_DEPTH) else None


def _shape(schema: Mapping[str, Any]) -> Schema | None:
    """What finds at once that a value does not fit a model whose mistakes may be countless. None for models that have no such mistakes,
    and for those that cannot be checked without their code."""
    if turns_of(schema) < 2:
        return None
    try:
        return Schema(schema, of="The output's schema")
    except DefinitionError:
        return None


class Drafts:
    """Shows an answer while it is being written, as far as it can be read: drafts, never the typed value (R27)."""

    def __init__(self, reader: OutputReader, show: Callable[[Any], Frame], clock: Clock, *, wrapped: bool = False) -> None:
        self._reader = reader
        self._wrapped = wrapped
        self._show = show
        self._clock = clock
        self._text = ""
        self._shown: Any = None
        self._shown_at = clock.monotonic() - DRAFT_SECONDS

    def after(self, delta: ModelDelta) -> Frame | None:
        """The frame to be shown after a piece of the answer; None when it is too soon, or nothing is new."""
        if delta.kind == "reasoning":
            return None
        self._text += delta.text
        if self._clock.monotonic() - self._shown_at < DRAFT_SECONDS or len(self._text) > DRAFT_CHARACTERS:
            return None
        draft = self._reader.draft(self._text, wrapped=self._wrapped)
        if draft is None or draft == self._shown:
            return None
        self._shown, self._shown_at = draft, self._clock.monotonic()
        return self._show(draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a model call offers and asks for. `schema` is what the answer has to fit; `wrapped`: the answer's value is a property of it."""

    instructions: str
    tools: tuple[ToolSpec, ...]
    tool_choice: str
    mode: Literal["native", "tool", "prompted"] = "native"
    schema: Mapping[str, Any] | None = None
    wrapped: bool = False


def asked_for(
    reader: OutputReader | None, client: ModelClient, *, instructions: str, tools: tuple[ToolSpec, ...], choice: str | None
) -> Asked:
    """A turn of the loop offers its tools. A turn of finalization shows them, so that the conversation stays the same, and none of them may
    be called; how the model is held to the answer's type is the output's mode, or what its provider can."""
    if reader is None:
        return Asked(instructions=instructions, tools=tools, tool_choice=choice or "auto")
    schema, mode = reader.json_schema, reader.mode
    if mode == "auto":
        holds = getattr(client, "holds_to", None)
        mode = "native" if holds is None or holds(as_object(schema)) else "tool"
    if mode == "tool":
        answer = ToolSpec(name=reader.name, description="Give the final answer.", parameters=as_object(schema))
        wrapped = not is_object(schema)
        return Asked(instructions=instructions, tools=(answer,), tool_choice=reader.name, mode=mode, schema=schema, wrapped=wrapped)
    if mode == "prompted":
        form = f"The final answer is JSON that fits this JSON Schema, and nothing else: {canonical_json(dict(schema))}"
        instructions = f"{instructions}\n\n{form}" if instructions else form
    if mode == "native" and not is_object(schema) and getattr(client, "objects_only", False):
        return Asked(instructions=instructions, tools=tools, tool_choice="none", schema=as_object(schema), wrapped=True)
    return Asked(instructions=instructions, tools=tools, tool_choice="none", mode=mode, schema=schema)


class Verification:
    """Asks the agent's verifier about the candidate. One that raises, takes too long or says nothing has not certified it (R28)."""

    def __init__(
        self,
        attempt: int,
        *,
        verify: Callable[..., Any],
        arguments: Callable[[], Awaitable[tuple[Any, Any]]],
        timeout_seconds: float,
        services: Services,
    ) -> None:
        self._attempt = attempt
        self._verify = verify
        self._arguments = arguments
        self._timeout_seconds = timeout_seconds
        self._services = services

    def stop(self) -> None:
        """Nothing to stop: a run that ends does not wait for it."""

    async def outcome(self) -> Happening:
        try:
            candidate, context = await self._arguments()
        except (RunwardError, ValidationError) as error:
            self._services.telemetry.problem("verifier_impossible", error)
            code = error.code if isinstance(error, RunwardError) else "internal"
            return Broke(at=self._services.time.now(), code=code, message="The candidate cannot be verified.", details={})
        asking = asyncio.ensure_future(call_author("verifier", self._verify, candidate, context))
        try:
            if not await finished_within(self._services.clock, asking, self._timeout_seconds):
                return self._given("inconclusive", TOO_SLOW)
            verdict = await asking
        except AuthorFailed as error:
            self._services.telemetry.problem("agent_function_failed", error.__cause__, function=error.what)
            return self._given("inconclusive", NO_VERDICT)
        except RunwardError as error:  # it asked for what the run may not have
            return Broke(at=self._services.time.now(), code=error.code, message=error.detail, details={})
        finally:
            asking.cancel()
        if not isinstance(verdict, Verdict):
            return self._given("inconclusive", NO_VERDICT)
        return self._given(verdict.kind, shorten(clean(str(verdict.message)), FEEDBACK_LIMIT))

    def _given(self, kind: Any, message: str) -> VerdictGiven:
        return VerdictGiven(at=self._services.time.now(), attempt=self._attempt, kind=kind, message=message)


def _bare(text: str) -> str:
    """The text without the fence that models like to put around JSON. No regular expression: each would take its time over some text."""
    stripped = text.strip()
    if not (stripped.startswith(FENCE) and stripped.endswith(FENCE)):
        return text
    opening, _, rest = stripped.partition("\n")
    language = opening[len(FENCE) :].strip()
    return rest[: -len(FENCE)] if rest and (not language or language.isalpha()) else text
