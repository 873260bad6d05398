"""The processes of the service: an API with or without a worker, and a worker alone."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import ipaddress
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator

import uvicorn

from runward.api.app import Door, create_app
from runward.core.errors import DefinitionError
from runward.engine.service import Service
from runward.ports.telemetry import Telemetry
from runward.settings import Settings
from runward.stores.sql.migrate import is_sqlite, migrate
from runward.telemetry import logging_telemetry
from runward.wiring import registry_of, service_of, services_of

STALLED_EXIT_CODE = 70
"""What a worker exits with when its event loop has stood still for `RUNWARD_LOOP_STALL_SECONDS`."""
STREAM_GRACE_SECONDS = 3
"""How long open streams and requests may take to end once the process stops."""


def serve(settings: Settings, *, worker: bool) -> None:
    """An API on `settings.host` and `settings.port`, with a worker in the same process unless told not to. Returns after a drain.

    Migrates a SQLite file by itself. Raises what keeps it from starting.
    """
    _run(_serve(settings, worker=worker))


def work(settings: Settings) -> None:
    """A worker only. Returns after a drain. Raises what keeps it from starting."""
    _run(_work(settings))


async def _serve(settings: Settings, *, worker: bool) -> None:
    telemetry = logging_telemetry(settings.log_format)
    registry = registry_of(settings)
    if is_sqlite(settings.database_url):
        await migrate(settings.database_url)
    services = services_of(settings, telemetry)
    service = await service_of(settings, registry, services, worker=worker, on_stall=lambda: _give_up(telemetry))
    try:
        await service.start()
        await _check_doors(settings, service)
        closing = asyncio.Event()
        door = Door(
            commands=service.commands,
            queries=service.queries,
            catalog=service.catalog,
            services=services,
            ready=service.ready,
            closing=closing,
            max_body_bytes=settings.max_body_bytes,
            cors_origins=settings.cors_origins,
        )
        server = _Server(_uvicorn(settings, create_app(door)))
        with _signals() as stop:
            serving = asyncio.ensure_future(server.serve())
            stopping = asyncio.ensure_future(stop.asked.wait())
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            await _drained(service, stop)
            closing.set()
            server.should_exit = True
            await serving
            stopping.cancel()
    finally:
        await service.stop()


async def _work(settings: Settings) -> None:
    telemetry = logging_telemetry(settings.log_format)
    registry = registry_of(settings)
    services = services_of(settings, telemetry)
    service = await service_of(settings, registry, services, worker=True, on_stall=lambda: _give_up(telemetry))
    try:
        await service.start()
        with _signals() as stop:
            telemetry.event("worker_started", agents=len(registry.agents), slots=settings.worker_concurrency)
            await stop.asked.wait()
            await _drained(service, stop)
    finally:
        await service.stop()


async def _drained(service: Service, stop: _Stop) -> None:
    """Drains; a second signal ends it at once, and what is still driven is left to its lease."""
    draining = asyncio.ensure_future(service.drain())
    insisted = asyncio.ensure_future(stop.insisted.wait())
    await asyncio.wait((draining, insisted), return_when=asyncio.FIRST_COMPLETED)
    insisted.cancel()
    if not draining.done() and service.worker is not None:
        await service.worker.stop()
    await draining


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: ours drain first, and a clean stop is exit code 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Stop:
    """`asked` at the first SIGTERM or SIGINT, `insisted` at the second."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    def signalled(self) -> None:
        if self.asked.is_set():
            self.insisted.set()
        self.asked.set()


@contextlib.contextmanager
def _signals() -> Iterator[_Stop]:
    """Handles SIGTERM and SIGINT from here on: a process that handles them is up."""
    stop, loop = _Stop(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.signalled)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _uvicorn(settings: Settings, app: Callable[..., object]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=STREAM_GRACE_SECONDS,
    )


async def _check_doors(settings: Settings, service: Service) -> None:
    """Loopback only until a key exists; a secret key once one does (docs/api.md, "Who calls")."""
    if await service.services.directory.authentication():
        if settings.secret is None:
            raise DefinitionError("API keys are in use: set RUNWARD_SECRET_KEY (the same in every process), and start again.")
    elif not _is_loopback(settings.host):
        raise DefinitionError(
            f"Nobody needs a key yet, so the service binds loopback only, not {settings.host}. "
            "Make a key with `runward keys create --tenant … --permission …`, and start again."
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _give_up(telemetry: Telemetry) -> None:
    """The event loop stands still: say where, and exit; the leases run out and other workers take over."""
    telemetry.problem("loop_stalled")
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    os._exit(STALLED_EXIT_CODE)


def _run(process: Coroutine[object, object, None]) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(process)
