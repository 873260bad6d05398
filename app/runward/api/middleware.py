"""What every request passes, inside out: errors become problems, and everything gets a request id."""

from __future__ import annotations

import re

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from runward.api.problems import REQUEST_ID, internal, problem
from runward.api.sse import SERVER_SEND
from runward.ports.clock import Chance
from runward.ports.telemetry import Telemetry

MAX_HEADER_BYTES = 32_768

_REQUEST_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}\Z")


class RequestIds:
    """Gives every request an id: the caller's `X-Request-Id` where it can be one, else a new one. It is on the answer and on log lines."""

    def __init__(self, app: ASGIApp, chance: Chance) -> None:
        self._app = app
        self._chance = chance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size, given = 0, b""
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            if name == b"x-request-id":
                given = value
        id = given if _REQUEST_ID.match(given) else self._chance.uid().encode()
        scope[REQUEST_ID] = id.decode()
        scope[SERVER_SEND] = send

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", id)]
            await send(message)

        with bound_contextvars(request_id=scope[REQUEST_ID]):
            if size > MAX_HEADER_BYTES:
                detail = f"The headers are larger than {MAX_HEADER_BYTES} bytes."
                await problem("headers_too_large", detail, scope)(scope, receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)


class Shield:
    """What nobody expected is told to operators, and to callers only that it happened. A caller who left is no error."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - the last line: it is logged, and answered
            self._telemetry.problem("request_failed", error, method=scope["method"])
            if not started:
                await internal(scope)(scope, receive, send)
