"""The processes of the service: an API with or without a worker, and a worker alone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from runward.agents.registry import Registry
from runward.core.errors import RunwardError
from runward.engine.service import Service
from runward.ports.telemetry import Telemetry
from runward.settings import Settings
from runward.stores.sql.migrate import is_sqlite, migrate
from runward.telemetry import LogTelemetry, logging_telemetry, stacks
from runward.wiring import bearers_of, redactor_of, registry_of, service_of, services_of

if TYPE_CHECKING:
    from runward.engine.bearers import Bearers

STALLED_EXIT_CODE = 70
"""What a worker exits with when its event loop has stood still for `RUNWARD_LOOP_STALL_SECONDS`."""


def serve(settings: Settings, *, worker: bool) -> None:
    """An API on `settings.host` and `settings.port`, with a worker in the same process unless told not to. Returns after a drain.

    Migrates a SQLite file by itself. Raises what keeps it from starting.
    """
    _run(settings, lambda telemetry: _serve(settings, telemetry, worker=worker))


def work(settings: Settings) -> None:
    """A worker only. Returns after a drain. Raises what keeps it from starting."""
    _run(settings, lambda telemetry: _work(settings, telemetry))


async def _serve(settings: Settings, telemetry: LogTelemetry, *, worker: bool) -> None:
    from runward.serving import bound, check_keys

    registry = registry_of(settings)
    with contextlib.closing(bound(settings)) as door:
        if is_sqlite(settings.database_url):
            await migrate(settings.database_url)
        services = services_of(settings, telemetry)
        bearers = bearers_of(settings, services)
        service = await service_of(settings, registry, services, worker=worker, on_stall=lambda: _give_up(telemetry))
        try:
            await service.connect()
            await check_keys(settings, service)
            if bearers is not None:
                bearers.prepare()
            await service.start()
            _keep_what_stays()
            with _signals() as stop:
                await _serve_until_stopped(settings, service, bearers, door, stop)
        finally:
            if bearers is not None:
                await bearers.close()
            await service.stop()


async def _serve_until_stopped(settings: Settings, service: Service, bearers: Bearers | None, door: socket.socket, stop: _Stop) -> None:
    """Answers callers until a signal has been answered with a drain, and until the last of their streams has ended."""
    from runward.serving import server_of, url_of

    telemetry, closing = service.services.telemetry, asyncio.Event()
    agents = _names(service.registry)
    server = server_of(settings, service, bearers, closing=closing, up=lambda: telemetry.event("serving", url=url_of(door), agents=agents))
    serving = asyncio.ensure_future(server.serve([door]))
    stopping = asyncio.ensure_future(stop.asked.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    telemetry.event("draining")
    await _drained(service, stop)
    closing.set()
    server.should_exit = True
    await serving
    stopping.cancel()


async def _work(settings: Settings, telemetry: LogTelemetry) -> None:
    registry = registry_of(settings)
    services = services_of(settings, telemetry)
    service = await service_of(settings, registry, services, worker=True, on_stall=lambda: _give_up(telemetry))
    try:
        await service.start()
        _keep_what_stays()
        with _signals() as stop:
            telemetry.event("working", agents=_names(registry), slots=settings.worker_concurrency)
            await _first(stop.asked, service.worker_left)
            if not service.worker_left.is_set():
                telemetry.event("draining")
                await _drained(service, stop)
    finally:
        await service.stop()


async def _first(*events: asyncio.Event) -> None:
    """Returns once one of some events has come."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


async def _drained(service: Service, stop: _Stop) -> None:
    """Drains; a second signal ends it at once, and what is still driven is left to its lease."""
    draining = asyncio.ensure_future(service.drain())
    insisted = asyncio.ensure_future(stop.insisted.wait())
    await asyncio.wait((draining, insisted), return_when=asyncio.FIRST_COMPLETED)
    insisted.cancel()
    if not draining.done() and service.worker is not None:
        await service.worker.stop()
    await draining


def _keep_what_stays() -> None:
    """What the start has made stays: the garbage collector need not look at it again, nor as often at what runs make, which is hardly
    ever cyclic. It took a twentieth of the service's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _names(registry: Registry) -> list[str]:
    return sorted({entry.agent.name for entry in registry.agents})


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


def _give_up(telemetry: Telemetry) -> None:
    """The event loop stands still: say where, and exit; the leases run out and other workers take over."""
    telemetry.problem("loop_stalled", threads=stacks())
    os._exit(STALLED_EXIT_CODE)


def _run(settings: Settings, process: Callable[[LogTelemetry], Coroutine[object, object, None]]) -> None:
    """Runs a process to its end. Whatever anybody in it logs, warns of or leaves uncaught is a log line of the same form."""
    import uvloop

    telemetry = logging_telemetry(settings.log_format, redactor_of(settings))
    telemetry.take_over()

    def uncaught(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        telemetry.problem("uncaught", context.get("exception"), message=context["message"])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop().set_exception_handler(uncaught)
        try:
            runner.run(process(telemetry))
        except RunwardError:
            raise
        except Exception as error:  # noqa: BLE001 - a traceback would show its text, which may hold anything
            telemetry.problem("crashed", error)
            raise SystemExit(1) from None
