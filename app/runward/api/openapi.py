"""The OpenAPI document: made from the routes, always the same for the same code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from runward.api.headers import MAX_IDEMPOTENCY_KEY
from runward.api.permissions import spelled
from runward.api.problems import MEDIA_TYPE
from runward.api.query_strings import TOKEN, Query
from runward.api.routes import ROUTES
from runward.api.routing import Answer, DoorRoute, Route
from runward.api.schemas.values import LABEL_PATTERN
from runward.api.schemas.views import ProblemView, RunEvent

TITLE = "Runward"
DESCRIPTION = """Durable runs of LLM agents. `docs/api.md` is the guide; the rules of the run itself are in `docs/semantics.md`."""

HEADERS: Mapping[str, str] = {
    "ETag": "The run's revision. Not a validator: it never makes a 304.",
    "Idempotent-Replayed": "`true` when the run was made by an earlier request with the same key and body.",
    "Location": "Where the run is found.",
    "Preference-Applied": "Which preference was honoured.",
    "Retry-After": "When to look again, in seconds.",
    "Idempotency-Key": "1 to 255 visible ASCII characters. Makes creating a run repeatable; what is sent to a run is repeatable by itself.",
    "Last-Event-ID": "The id of the last event that was seen; a plain decimal number.",
    "Prefer": "`wait=N`: answer once the run is over, or after N seconds, 60 at most.",
}
"""What each header means, of requests and of answers."""

_FORMS: Mapping[str, Mapping[str, Any]] = {
    "Idempotency-Key": {"minLength": 1, "maxLength": MAX_IDEMPOTENCY_KEY, "pattern": "^[!-~]*$"},
    "Last-Event-ID": {"maxLength": 18, "pattern": "^(0|[1-9][0-9]*)$"},
}
"""What a request's header has to look like, where that is known."""

_REF = "#/components/schemas/{model}"
_STREAM = {
    "itemSchema": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "The event's seq."},
            "data": {
                "anyOf": [
                    {"type": "string", "contentMediaType": "application/json", "contentSchema": {"$ref": _REF.format(model="RunEvent")}},
                    {"const": "[DONE]"},
                ]
            },
        },
        "required": ["data"],
    }
}
"""An event stream, in the words of OpenAPI 3.2: 3.1 has none of its own, and tools read these."""
_TENANT = {
    "name": "tenant",
    "in": "query",
    "required": False,
    "description": Query.model_fields["tenant"].description,
    "schema": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": LABEL_PATTERN},
}
_PROBLEM = {
    "description": "A problem.",
    "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(model="ProblemView")}}},
}


def document() -> dict[str, Any]:
    """The document of the whole API."""
    routes = [described(route) for route in ROUTES]
    made = get_openapi(title=TITLE, version=version("runward"), description=DESCRIPTION, routes=routes)
    components = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for model in (ProblemView, RunEvent):
        schemas |= _schemas(model)
    components["schemas"] = dict(sorted(schemas.items()))
    components["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "An API key, made with `runward keys create`, or a signed token (JWT) of the provider that is set.",
        },
        "token": {"type": "http", "scheme": "bearer", "description": "An access token of this run or request for approval."},
        "token_in_address": {"type": "apiKey", "in": "query", "name": TOKEN, "description": "The same, for who cannot set headers."},
    }
    return made


@cache
def text() -> bytes:
    """The document as it is kept in `openapi/openapi.json` and served, with a line feed at the end."""
    return (json.dumps(document(), ensure_ascii=False, indent=2) + "\n").encode()


def described(route: Route) -> DoorRoute:
    """A route as FastAPI serves and describes it."""
    status, first = next(iter(route.answers.items()))
    options: dict[str, Any] = {
        "methods": [route.method],
        "operation_id": route.endpoint.__name__,
        "summary": route.summary,
        "tags": [route.tag],
        "status_code": status,
        "response_description": first.description,
        "responses": {**{status: _answer(answer) for status, answer in route.answers.items()}, "default": _PROBLEM},
        "openapi_extra": {
            "parameters": [*map(_header, route.headers), *([_TENANT] if route.permission and not route.reads_query else [])],
            "security": _security(route),
            "x-permission": spelled(route.permission),
        },
    }
    return DoorRoute(route.path, route.endpoint, route=route, **options)


def _security(route: Route) -> list[dict[str, list[str]]]:
    if route.permission is None:
        return []
    names = ["key"]
    if route.opened_by is not None:
        names += ["token", "token_in_address"] if route.method == "GET" else ["token"]
    return [{}, *({name: list[str]()} for name in names)]


def _answer(answer: Answer) -> dict[str, Any]:
    described: dict[str, Any] = {"description": answer.description}
    if answer.model is not None:
        described["model"] = answer.model
    if answer.media_type is not None:
        described["content"] = {answer.media_type: _STREAM if answer.media_type == "text/event-stream" else {"schema": {"type": "object"}}}
    if answer.headers:
        described["headers"] = {name: {"description": HEADERS[name], "schema": {"type": "string"}} for name in answer.headers}
    return described


def _header(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": HEADERS[name],
        "schema": {"type": "string", **_FORMS.get(name, {})},
    }


def _schemas(model: type[BaseModel]) -> dict[str, Any]:
    made = model.model_json_schema(ref_template=_REF)
    return {**made.pop("$defs", {}), model.__name__: made}
