"""Errors as RFC 9457 problems: which status and title a code has is one table, and this is it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Scope

from runward.core.errors import Problem, Refused, RunwardError, Throttled, Unavailable
from runward.engine.encoding import to_bytes

STATUSES: Mapping[str, tuple[int, str]] = {
    "invalid_request": (400, "Not an HTTP request"),
    "invalid_json": (400, "The body is not JSON"),
    "invalid_cursor": (400, "Not a cursor of this list or stream"),
    "invalid_idempotency_key": (400, "Not an idempotency key"),
    "unauthenticated": (401, "No valid key"),
    "not_permitted": (403, "Not permitted"),
    "not_found": (404, "Not found"),
    "method_not_allowed": (405, "Method not allowed"),
    "request_timeout": (408, "The request took too long to arrive"),
    "run_exists": (409, "The run exists"),
    "ambiguous_run": (409, "Several tenants have a run of this id"),
    "run_not_ended": (409, "The run has not ended"),
    "run_ended": (409, "The run has ended"),
    "not_pending": (409, "Nothing waits for this"),
    "already_answered": (409, "Another answer stands"),
    "revision_conflict": (409, "The run is at another revision"),
    "not_transient": (409, "Trying again would not help"),
    "binding_mismatch": (409, "The run is bound to other code"),
    "parent_was_told": (409, "The parent run knows the outcome already"),
    "secret_key_missing": (409, "The service has no secret key"),
    "approval_expired": (410, "The request for approval has expired"),
    "run_deleted": (410, "The run was deleted"),
    "body_too_large": (413, "The body is too large"),
    "unsupported_media_type": (415, "Unsupported media type"),
    "unknown_field": (422, "Unknown field"),
    "invalid_value": (422, "Invalid value"),
    "unknown_agent": (422, "Unknown agent"),
    "unknown_budget": (422, "Unknown budget"),
    "unknown_tool": (422, "Unknown tool"),
    "unpriced_model": (422, "Nobody knows what the model costs"),
    "invalid_context": (422, "The context does not fit the agent"),
    "idempotency_key_reused": (422, "The idempotency key was used for another request"),
    "rate_limited": (429, "Too much at once"),
    "headers_too_large": (431, "The headers are too large"),
    "internal": (500, "Internal error"),
    "unavailable": (503, "Unavailable"),
}
"""What each code means over HTTP. `docs/api.md` shows it to callers."""

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 1
"""When to try again after `unavailable`."""
REQUEST_ID = "runward.request_id"
"""Where the scope of a request holds its id."""

_SAID_OF_INTERNAL = "Something went wrong inside the service. It was logged under this request's id."


def problem(code: str, detail: str, scope: Scope, *, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """The response that says what is wrong. Its `instance` is the request, as logs know it."""
    status, title = STATUSES[code]
    body = {
        "type": f"urn:runward:problem:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        **more,
        "instance": f"urn:runward:request:{scope[REQUEST_ID]}",
    }
    return Response(to_bytes(body), status, {"Cache-Control": "no-store", **(headers or {})}, MEDIA_TYPE)


def problem_of(error: RunwardError, scope: Scope) -> Response:
    """The response to an error of the service. What is not meant for callers becomes `internal`, without its text."""
    if error.code not in STATUSES or STATUSES[error.code][0] == 500:
        return internal(scope)
    more: dict[str, Any] = {}
    if isinstance(error, Refused):
        if error.problems:
            more["errors"] = _items(error.problems)
        if error.recorded is not None:
            more["recorded"] = error.recorded
    return problem(error.code, error.detail, scope, headers=_headers(error), **more)


def internal(scope: Scope) -> Response:
    return problem("internal", _SAID_OF_INTERNAL, scope)


def is_internal(error: RunwardError) -> bool:
    """Whether callers see nothing of this error: operators have to be told."""
    return STATUSES.get(error.code, (500, ""))[0] == 500


def _items(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    return [
        {
            "pointer": item.pointer,
            "code": item.code,
            "detail": item.detail,
            **({} if item.recorded is None else {"recorded": item.recorded}),
        }
        for item in problems
    ]


def _headers(error: RunwardError) -> Mapping[str, str]:
    if isinstance(error, Throttled):
        return {"Retry-After": str(error.retry_after)}
    if isinstance(error, Unavailable):
        return {"Retry-After": str(RETRY_SECONDS)}
    if error.code == "unauthenticated":
        return {"WWW-Authenticate": 'Bearer realm="runward"'}
    return {}
