"""Tools behind a URL: `HttpTool` behind the port."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from runward.agents.annotations import UNRESOLVED
from runward.agents.elsewhere import IN_QUERY, HttpTool
from runward.agents.schemas import Schema
from runward.agents.templates import with_references
from runward.core.errors import ToolError, UnknownOutcome
from runward.core.runs.calls import MAX_DEPTH, ToolTraits
from runward.core.text import clean, shorten, within_depth
from runward.ports.outbound import Incoming, OutboundError, OutboundRefused, Outgoing
from runward.ports.tools import BadResult, ProbeAnswer, Returned
from runward.tools.http_requests import Misfit, Template
from runward.tools.outward import Outward, missing_of, references_of
from runward.tools.results import Recorder

ERROR_BYTES: Final = 65_536
"""How much of an answer that is no result is read."""
ERROR_LENGTH: Final = 1_000
"""How much of it the model reads, in characters."""
LEAD: Final = 0.98
"""Which part of its time a call uses itself, so that it can still say how far it came when that is over."""
TRANSIENT: Final = frozenset({408, 425, 429})
"""Refusals that say: not now. Nothing was done."""
MOVED: Final = frozenset({307, 308})
CHARSETS: Final = {
    "utf-8": "utf-8-sig",
    "utf8": "utf-8-sig",
    "us-ascii": "ascii",
    "iso-8859-1": "latin-1",
    "iso-8859-15": "iso-8859-15",
    "windows-1252": "cp1252",
}
"""The encodings of texts that are read, as Python names them. Of some others it takes very long to say that a text is not in them."""


class ServiceFailed(Exception):
    """The other side could not do it this time. It has no text: that may hold anything."""


class HttpBody:
    """An `HttpTool`, ready to run. Its schema is compiled and its `${NAME}` are looked up once, here; what is missing is said when it is
    called, and by `require_outward` before a worker starts."""

    def __init__(self, tool: HttpTool, outward: Outward, *, max_result_bytes: int) -> None:
        of = f"Tool {tool.name!r}"
        self._traits = tool.traits
        self._method = tool.method
        self._client = outward.client
        self._secrets = outward.secrets
        self._max_bytes = max_result_bytes
        self._missing = missing_of(tool, outward.environ)
        values = {name: "" if self._missing else outward.environ[name] for name in references_of(tool)}
        for value in values.values():
            self._secrets.learn(value)
        self._headers = tuple((name, with_references(text, values)) for name, text in tool.headers.items())
        self._template = Template(tool.url, values, in_query=tool.method in IN_QUERY)
        self._schema = Schema(tool.parameters, of=of)
        self._results = Recorder(UNRESOLVED, output_schema=tool.output_schema, max_bytes=max_result_bytes, projected=False, of=of)

    @property
    def traits(self) -> ToolTraits:
        return self._traits

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """What is wrong with arguments, for the model: they do not fit the schema, or cannot be part of a URL."""
        complaint = self._schema.complaint(arguments)
        if complaint is None:
            try:
                self._template.fill(arguments)
            except Misfit as misfit:
                complaint = str(misfit)
        return None if complaint is None else f"The arguments do not fit: {complaint}."

    async def invoke(self, arguments: Mapping[str, Any], context: Any) -> Returned:
        """Sends it once. What no answer, and which answer, means for the effect is decided here (R16)."""
        if self._missing:
            raise ToolError("The tool was not started: its settings are not complete in this deployment.")
        repeats = self._traits.effect.repeatable and context.attempt < self._traits.max_attempts
        try:
            incoming = await self._client.send(self._outgoing(arguments, context))
        except OutboundError as error:
            raise self._gone(error, repeats) from error
        if not 200 <= incoming.status < 300:
            raise self._refused(incoming, repeats)
        if incoming.fault == "cut_off":
            raise self._gone(OutboundError("The answer was cut off.", sent=True), repeats)
        return self._result(incoming)

    def _outgoing(self, arguments: Mapping[str, Any], context: Any) -> Outgoing:
        try:
            url, rest = self._template.fill(arguments)
        except Misfit as error:
            raise ToolError("The tool was not started: its arguments do not fit it any more.") from error
        given = {name.lower() for name, _ in self._headers}
        headers = [*self._headers]
        body = None
        if self._method not in IN_QUERY:
            body = json.dumps(rest, separators=(",", ":")).encode()
            if "content-type" not in given:
                headers.append(("Content-Type", "application/json"))
        if "accept" not in given:
            headers.append(("Accept", "application/json, text/*;q=0.9"))
        if self._traits.effect.writes:
            headers.append(("Idempotency-Key", context.idempotency_key))
        return Outgoing(
            method=self._method,
            url=url,
            headers=headers,
            body=body,
            timeout_seconds=self._traits.timeout_seconds * LEAD,
            max_bytes=max(self._max_bytes, ERROR_BYTES),
        )

    # -- what it means -----------------------------------------------------------------------------------------------------

    def _gone(self, error: OutboundError, repeats: bool) -> Exception:
        """There is no answer, or not all of it."""
        effect = self._traits.effect
        if error.sent and not effect.repeatable:
            return UnknownOutcome("The service was asked, and its answer did not come.")
        if isinstance(error, OutboundRefused):
            return ToolError(f"The tool was not called: {error.why}.")
        if repeats or (error.sent and effect.writes):
            return ServiceFailed()
        return ToolError("The service did not answer." if error.sent else "The service could not be reached; nothing was done.")

    def _refused(self, incoming: Incoming, repeats: bool) -> Exception:
        """There is an answer, and it is no result."""
        status, effect = incoming.status, self._traits.effect
        if status in MOVED:
            return ToolError(f"The service answered {status}: it has moved to where the tool does not follow. Nothing was done.")
        if status in TRANSIENT and repeats:
            return ServiceFailed()
        if 400 <= status < 500:
            return ToolError(f"The service answered {status}{self._shown(incoming)}")
        if not effect.repeatable:
            return UnknownOutcome(f"The service answered {status}.")
        if status >= 500 and (repeats or effect.writes):
            return ServiceFailed()
        return ToolError(f"The service answered {status}{self._shown(incoming)}")

    def _shown(self, incoming: Incoming) -> str:
        """What the model reads of an answer's body: short, without markup, and without what is secret."""
        if incoming.fault is not None or len(incoming.body) > ERROR_BYTES or "html" in incoming.content_type:
            return "."
        try:
            value = self._secrets.redact_json(_value(incoming))
        except BadResult:
            return "."
        text = clean(value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)).strip()
        return f": {shorten(text, ERROR_LENGTH)}" if text else "."

    def _result(self, incoming: Incoming) -> Returned:
        """The result, as it is stored. Raises BadResult: it ran."""
        if incoming.fault == "too_large" or len(incoming.body) > self._max_bytes:
            raise BadResult("too_large", f"The tool ran, but its result is larger than {self._max_bytes} bytes.")
        if incoming.fault is not None:
            raise _unreadable("it is in an encoding that was not asked for, or is broken")
        return self._results.record(self._secrets.redact_json(_value(incoming)))

    # -- what it has not ---------------------------------------------------------------------------------------------------

    async def project(self, raw: Any, context: Any) -> Returned:
        raise NotImplementedError("traits.projects is never set")

    async def probe(self, idempotency_key: str, arguments: Mapping[str, Any], context: Any) -> ProbeAnswer:
        raise NotImplementedError("traits.probes is never set")

    async def evidence_holds(self, evidence: Mapping[str, Any], context: Any) -> bool:
        raise NotImplementedError("traits.wants_evidence is never set")


def _value(incoming: Incoming) -> Any:
    """JSON where the answer says that it is, else text; nothing where there is nothing. Raises BadResult."""
    if not incoming.body:
        return None
    kind = incoming.content_type.partition(";")[0].strip()
    try:
        text = incoming.body.decode(CHARSETS[_charset(incoming)])
    except (UnicodeDecodeError, KeyError):
        raise _unreadable("it is neither JSON nor text") from None
    if kind != "application/json" and not kind.endswith("+json"):
        return text
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise _unreadable("it says that it is JSON, and is not") from None
    if not within_depth(value, MAX_DEPTH):
        raise _unreadable(f"it is nested deeper than {MAX_DEPTH}")
    return value


def _charset(incoming: Incoming) -> str:
    """The encoding that an answer names; UTF-8 where it names none."""
    parameters = [part.partition("=") for part in incoming.content_type.split(";")[1:]]
    return next((value.strip().strip('"') for name, _, value in parameters if name.strip() == "charset"), "utf-8")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _unreadable(why: str) -> BadResult:
    return BadResult("invalid_result", f"The tool ran, but its result cannot be recorded: {why}.")
