"""Every error of the service, as one tree.

    RunwardError                     has a stable `code`, a `detail` for people, and says what to do next
    ├── Refused                      a caller asked for something that cannot be; nothing was stored
    │   ├── Invalid                    the request itself is wrong (400, 413, 415, 422)
    │   ├── Unauthenticated            no key, or not a valid one (401)
    │   ├── NotPermitted               a valid key that may not do this (403)
    │   ├── NotFound                   not there, or not the caller's: the same answer (404)
    │   ├── Conflict                   it conflicts with what is stored (409, 410)
    │   └── Throttled                  too much at once (429)
    ├── Unavailable                  the store cannot be reached, or its answer was lost (503)
    ├── SchemaMismatch               the database is newer or older than this version of the code
    ├── DefinitionError              an agent, tool or setting is declared wrongly; raised at import or start
    ├── BudgetExceeded               raised to authors' code: the run's bounds leave too little for its `ctx.generate`
    ├── InvariantViolated            a bug in the service itself: the write that would have broken a promise is refused
    └── raised by authors' tools
        ├── ToolError                it did not happen; the model reads why
        ├── UnknownOutcome           it may have happened; nobody knows
        └── NeedsInput               ask the user first

`ModelCallError` (ports.models) is how a model client says what went wrong with a call, `OutboundError` (ports.outbound) why a request that
the service makes itself has no answer. Which HTTP status a code becomes is one table in `api.problems`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class RunwardError(Exception):
    """Base of all errors of the service. `code` is stable and for programs, `detail` is for people."""

    default_code = "internal"

    def __init__(self, detail: str, *, code: str | None = None) -> None:
        super().__init__(detail)
        self.code = code or self.default_code
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong with one item of a request: a JSON pointer, a stable code, a sentence. `recorded` shows what stands instead."""

    pointer: str
    code: str
    detail: str
    recorded: Any = None


class Refused(RunwardError):
    """The request cannot be done; nothing was stored. `problems` says it item by item, `recorded` shows what stands instead."""

    default_code = "invalid_value"

    def __init__(self, detail: str, *, code: str | None = None, problems: Sequence[Problem] = (), recorded: Any = None) -> None:
        super().__init__(detail, code=code)
        self.problems = tuple(problems)
        self.recorded = recorded


class Invalid(Refused):
    """The request itself is wrong, whatever is stored."""

    default_code = "invalid_value"


class Unauthenticated(Refused):
    """There is no key, or it is not a valid one."""

    default_code = "unauthenticated"


class NotPermitted(Refused):
    """The caller is known and may not do this."""

    default_code = "not_permitted"


class NotFound(Refused):
    """It does not exist, or it is not the caller's: indistinguishable on purpose (R43)."""

    default_code = "not_found"


class Conflict(Refused):
    """It conflicts with what is stored."""

    default_code = "run_exists"


class Throttled(Refused):
    """Too much at once. `retry_after` is in seconds."""

    default_code = "rate_limited"

    def __init__(self, detail: str, *, code: str | None = None, retry_after: int = 1) -> None:
        super().__init__(detail, code=code)
        self.retry_after = retry_after


class Unavailable(RunwardError):
    """The store cannot be reached, or the answer of a write was lost: whether it happened is unknown (R2a). Repeating it is safe."""

    default_code = "unavailable"


class SchemaMismatch(RunwardError):
    """The database's schema and this version of the code do not fit: `schema_too_new`, or `schema_outdated` (run `runward migrate`)."""

    default_code = "schema_too_new"


class DefinitionError(RunwardError):
    """An agent, a tool or a setting is declared wrongly. Raised at import or at start, naming what and where."""

    default_code = "invalid_definition"


class BudgetExceeded(RunwardError):
    """The run's bounds leave too little for a `ctx.generate`: no model was asked, or its answer was cut off. The run stops
    `budget_exceeded` before its next model call, whatever becomes of this error::

        try:
            title = await ctx.generate("A title for: " + text)
        except BudgetExceeded:
            title = text[:40]
    """

    default_code = "budget_exceeded"


class InvariantViolated(RunwardError):
    """A promise of the service would have been broken (R49). The write is refused and the leg ends; it is a bug, please report it."""

    default_code = "internal"


class ToolError(Exception):
    """Raise it in a tool when **it did not happen** and the model should read why.

    Recorded as the call's outcome, given to the model as is, never retried (R16)::

        raise ToolError("There is no order 7.")
    """


class UnknownOutcome(Exception):
    """Raise it in a tool when **it may have happened** and the tool cannot tell.

    The call becomes an unknown effect (R13): it is not repeated by itself, the run waits for somebody who can find out::

        raise UnknownOutcome("the payment service did not answer") from error
    """


class NeedsInput(Exception):
    """Raise it in a tool, before any effect, to ask the user a question.

    The call waits and runs again under the same key with the answers in `ctx.answers` (R26). `choices` are offered to the user; with
    none of them any text is an answer.
    """

    def __init__(self, question: str, *, choices: Sequence[str] = ()) -> None:
        super().__init__(question)
        self.question = question
        self.choices = tuple(choices)
