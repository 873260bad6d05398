"""The server of the `streams` part: the app as `runward serve` has it, on SQLite and without a worker, and bare streams beside it.

Whatever says something in place of a worker runs in the same process, so that the way out of it is all that is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import orjson
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from runward.api.app import Door, create_app
from runward.api.connections import Connection
from runward.core.kernel.actor import Status
from runward.core.kernel.frames import Frame
from runward.engine.service import Service
from runward.settings import Settings
from runward.telemetry import logging_telemetry
from runward.wiring import registry_of, service_of, services_of
from tests.api.puppet import Puppet, state

TEXT = "The quick brown fox jumps over the lazy dog. " * 3
PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The service that puppets drive runs of."""

    service: Service


class Beside:
    """What is served beside the app: bare streams under `/bare/…`, and what feeds both under `/say/…`."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._readers: set[asyncio.Queue[float | None]] = set()

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/bare/stored/{frames:int}", self.bare_stored),
                Route("/bare/live", self.bare_live),
                Route("/say/stored/{run_id}/{frames:int}", self.say_stored),
                Route("/say/live/{run_id}/{frames:int}/{rate:int}", self.say_live),
            ]
        )

    async def bare_stored(self, request: Request) -> Response:
        """So many frames as fast as they go, each encoded as it goes."""

        async def frames() -> AsyncIterator[bytes]:
            for number in range(request.path_params["frames"]):
                yield encoded(number, 0)
                if not number % 64:
                    await asyncio.sleep(0)

        return StreamingResponse(frames(), media_type="text/event-stream")

    async def bare_live(self, request: Request) -> Response:
        """What `say_live` says to nobody's run."""

        async def frames() -> AsyncIterator[bytes]:
            reader: asyncio.Queue[float | None] = asyncio.Queue()
            self._readers.add(reader)
            try:
                number = 0
                while (sent := await reader.get()) is not None:
                    number += 1
                    yield encoded(number, sent)
            finally:
                self._readers.discard(reader)

        return StreamingResponse(frames(), media_type="text/event-stream")

    async def say_stored(self, request: Request) -> Response:
        """Makes a run that is over and has so many frames."""
        puppet = await Puppet.claim(self._serving, request.path_params["run_id"])
        missing = request.path_params["frames"] - len(puppet.said) - 1
        for begun in range(0, missing, PAGE):
            await puppet.say(*(delta(0) for _ in range(min(PAGE, missing - begun))))
        await puppet.say(state("completed", final=True), status=Status.COMPLETED)
        return JSONResponse("done")

    async def say_live(self, request: Request) -> Response:
        """Says so many frames a second, to our readers or, as run `bare`, to the others."""
        run_id, frames, rate = (request.path_params[name] for name in ("run_id", "frames", "rate"))
        puppet = None if run_id == "bare" else await Puppet.claim(self._serving, run_id)
        begun = time.perf_counter()
        for number in range(frames):
            await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
            sent = time.perf_counter()
            for reader in self._readers:
                reader.put_nowait(sent)
            if puppet is not None:
                await puppet.say(delta(sent))
        for reader in self._readers:
            reader.put_nowait(None)
        if puppet is not None:
            await puppet.say(state("completed", final=True), status=Status.COMPLETED)
        return JSONResponse("done")


def delta(sent: float) -> Frame:
    return Frame(type="text-delta", fields={"step": 1, "attempt": 1, "delta": TEXT, "sent": sent})


def encoded(number: int, sent: float) -> bytes:
    frame = {"type": "text-delta", "seq": number, "run_id": "0" * 32, "at": "2026-01-31T12:00:00.000Z", "step": 1, "attempt": 1}
    return b"id: %d\ndata: %b\n\n" % (number, orjson.dumps({**frame, "delta": TEXT, "sent": sent}))


async def serve() -> None:
    settings = Settings()
    telemetry = logging_telemetry("json")
    services = services_of(settings, telemetry)
    service = await service_of(settings, registry_of(settings), services, worker=False)
    await service.start()
    try:
        closing = asyncio.Event()
        ours = create_app(
            Door(
                commands=service.commands,
                operations=service.operations,
                whys=service.whys,
                oversight=service.oversight,
                rebinding=service.rebinding,
                budgets=service.budgets,
                queries=service.queries,
                deliveries=service.deliveries,
                approvals=service.approvals,
                tokens=service.tokens,
                catalog=service.catalog,
                key_uses=service.key_uses,
                services=services,
                ready=service.ready,
                closing=closing,
            )
        )
        beside = Beside(Serving(service=service)).app()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await (beside if scope["path"].startswith(("/bare/", "/say/")) else ours)(scope, receive, send)

        config = uvicorn.Config(app, port=settings.port, http=Connection, ws="none", lifespan="off", access_log=False, log_level="warning")
        await uvicorn.Server(config).serve()
    finally:
        await service.stop()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises again what ended it
        uvloop.run(serve())
