"""The application: routes, and what is around them."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from runward.api import openapi
from runward.api.auth import Authenticator
from runward.api.door import Door
from runward.api.middleware import RequestIds, Shield
from runward.api.problems import is_internal, problem, problem_of
from runward.api.rates import Rates
from runward.api.routes import ROUTES
from runward.api.routing import DoorRoute
from runward.api.sse import Streams
from runward.core.errors import RunwardError, Unavailable

__all__ = ["Door", "create_app"]

ALLOWED_HEADERS = ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "Prefer", "X-Request-Id", "traceparent")
EXPOSED_HEADERS = ("Location", "ETag", "Retry-After", "X-Request-Id", "Idempotent-Replayed", "Preference-Applied")


def create_app(door: Door) -> FastAPI:
    """The ASGI application. It starts and stops nothing: the process does, and sets `door.closing` before it ends."""
    services = door.services
    app = FastAPI(
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.door = door
    app.state.streams = Streams(services.clock, door.closing, door.max_streams)
    app.state.authenticator = Authenticator(services, door.tokens, door.key_uses, door.bearers, may_be_open=door.may_be_open)
    app.state.rates = Rates(services.clock, door.rate)
    app.state.document = openapi.text
    for route in ROUTES:
        app.router.routes.append(openapi.described(route))
        if route.method == "GET":
            app.router.routes.append(DoorRoute(route.path, route.endpoint, route=route, methods=["HEAD"], include_in_schema=False))
    app.add_exception_handler(RunwardError, _refused)
    app.add_exception_handler(HTTPException, _no_such_route)
    app.add_middleware(Shield, telemetry=services.telemetry)
    if door.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=door.cors_origins,
            allow_methods=sorted({route.method for route in ROUTES}),
            allow_headers=ALLOWED_HEADERS,
            expose_headers=EXPOSED_HEADERS,
        )
    app.add_middleware(RequestIds, chance=services.chance)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RunwardError)
    telemetry = request.app.state.door.services.telemetry
    if is_internal(error):
        telemetry.problem("request_failed", error, code=error.code)
    elif isinstance(error, Unavailable):
        telemetry.problem("request_unavailable", error)
    return problem_of(error, request.scope)


async def _no_such_route(request: Request, error: Exception) -> Response:
    """Starlette's own refusals: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    methods = _methods(request)
    if not methods:
        return problem("not_found", "There is nothing at this address.", request.scope)
    detail = f"There is no {request.method} here, but {', '.join(methods)}." if request.method.isalpha() else "Not with this method."
    return problem("method_not_allowed", detail, request.scope, headers={"Allow": ", ".join(methods)})


def _methods(request: Request) -> list[str]:
    """The methods that this path has."""
    found: set[str] = set()
    for route in request.app.router.routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            found |= route.methods
    return sorted(found)
