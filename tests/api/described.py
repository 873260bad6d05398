"""Holds real answers against the OpenAPI document: everything it promises is there, and nothing that it does not know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import httpx
import jsonschema_rs

from runward.api import openapi
from runward.api.routes import ROUTES

JSON_TYPES = ("application/json", "application/problem+json")
PATTERNS = [(route.method, route.path, re.compile(re.sub(r"\{\w+\}", "[^/]+", route.path) + r"\Z")) for route in ROUTES]


async def check(answer: httpx.Response) -> None:
    """A hook of httpx: raises AssertionError for an answer that is not as it is described."""
    kind = answer.headers.get("content-type", "")
    asked, at = answer.request.method, answer.request.url.path
    path = next((path for method, path, pattern in PATTERNS if method == asked and pattern.match(at)), None)
    if path is None or kind not in JSON_TYPES or path == "/openapi.json":
        return
    operation = _document()["paths"][path][asked.lower()]
    described = operation["responses"].get(str(answer.status_code))
    assert described or answer.status_code >= 400, f"{asked} {path} never answers {answer.status_code}"
    content = (described or operation["responses"]["default"])["content"][kind]
    errors = [f"{error.instance_path}: {error.message}" for error in _validator(content["schema"]["$ref"]).iter_errors(await _json(answer))]
    assert not errors, (asked, path, errors)


async def _json(answer: httpx.Response) -> Any:
    await answer.aread()
    return answer.json()


@cache
def _document() -> Mapping[str, Any]:
    return openapi.document()


@cache
def _validator(reference: str) -> jsonschema_rs.Draft202012Validator:
    schemas = {name: _closed(schema) for name, schema in _document()["components"]["schemas"].items()}
    return jsonschema_rs.Draft202012Validator({"$ref": reference, "components": {"schemas": schemas}})


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Views may grow, and tell so; what is answered today has nothing that the document does not name."""
    return {**schema, "additionalProperties": False} if "properties" in schema else schema
