"""Reads a request's body: bounded in bytes and in time, JSON and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import ClientDisconnect, Request

from runward.api import strict_json
from runward.core.errors import Invalid

BODY_SECONDS = 30.0
"""How long a body may take to arrive, from the first part of it to the last."""
LONGEST_LENGTH = 12
"""Digits of a Content-Length worth reading as a number."""


async def read_json(request: Request, limit: int, *, optional: bool) -> Any:
    """The value of a JSON body, or None when there is none and it is `optional`.

    Raises Invalid: `body_too_large`, as soon as that is known; `unsupported_media_type`; `request_timeout`; and what `strict_json` does.
    """
    raw = await _read(request, limit)
    if not raw and optional:
        return None
    _check_type(request)
    if not raw:
        raise Invalid("The body is empty; a JSON object was expected.", code="invalid_json")
    return strict_json.parse(raw)


def _check_type(request: Request) -> None:
    for value in request.headers.getlist("content-encoding"):
        if value.strip().lower() != "identity":
            raise Invalid("Compressed bodies are not read. Send the JSON as it is.", code="unsupported_media_type")
    given = request.headers.getlist("content-type")
    if len(given) != 1 or not _is_json(given[0]):
        raise Invalid("Send JSON, and say so: Content-Type: application/json", code="unsupported_media_type")


def _is_json(content_type: str) -> bool:
    if content_type == "application/json":
        return True
    kind, *parameters = [part.strip().lower() for part in content_type.split(";")]
    return kind == "application/json" and all(part in ("charset=utf-8", 'charset="utf-8"') for part in parameters)


async def _read(request: Request, limit: int) -> bytes:
    said = request.headers.get("content-length")
    if said is not None and said.isdecimal() and (len(said) > LONGEST_LENGTH or int(said) > limit):
        raise _too_large(limit)
    body, more = await _part(request)
    if more:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _rest(request, bytearray(body), limit)
        except TimeoutError:
            raise Invalid(f"The body did not arrive within {BODY_SECONDS:g} s.", code="request_timeout") from None
    if len(body) > limit:
        raise _too_large(limit)
    return body


async def _rest(request: Request, body: bytearray, limit: int) -> bytes:
    more = True
    while more:
        if len(body) > limit:
            raise _too_large(limit)
        part, more = await _part(request)
        body += part
    return bytes(body)


async def _part(request: Request) -> tuple[bytes, bool]:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit: int) -> Invalid:
    return Invalid(f"The body is larger than {limit} bytes.", code="body_too_large")
