"""A request whose caller is known."""

from __future__ import annotations

from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from runward.api.auth import Authenticator
from runward.api.door import Door
from runward.api.rates import Rates
from runward.api.sse import Streams
from runward.engine.callers import Caller
from runward.engine.encoding import to_bytes


class Asked(Request):
    """A request, after it was found out who sends it and that they may."""

    caller: Caller
    sent: Any = None
    """The body's JSON, as it was sent."""

    @property
    def door(self) -> Door:
        return cast(Door, self.app.state.door)

    @property
    def authenticator(self) -> Authenticator:
        return cast(Authenticator, self.app.state.authenticator)

    @property
    def rates(self) -> Rates:
        return cast(Rates, self.app.state.rates)

    @property
    def streams(self) -> Streams:
        return cast(Streams, self.app.state.streams)


def answer(value: Any, status: int = 200, **headers: str) -> Response:
    """A JSON response; header names with `_` for `-`. Nothing here is for caches: it is one caller's, and moves."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(to_bytes(value), status, {"Cache-Control": "no-store", **named}, "application/json")
