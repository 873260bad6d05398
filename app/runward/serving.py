"""The HTTP side of a process: the address it listens on, who may come in, and uvicorn as the service needs it.

Only a process that serves imports this: a worker starts in half the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn

from runward.api.app import Door, create_app
from runward.api.connections import Connection
from runward.api.rates import Rate
from runward.core.errors import DefinitionError
from runward.engine.service import Service
from runward.settings import Settings

if TYPE_CHECKING:
    from runward.engine.bearers import Bearers

STREAM_GRACE_SECONDS = 3
"""How long open streams and requests may take to end once the process stops."""


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: ours drain first, and a clean stop is exit code 0. Calls `up` once it listens."""

    def __init__(self, config: uvicorn.Config, up: Callable[[], None]) -> None:
        super().__init__(config)
        self._up = up

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._up()


def server_of(settings: Settings, service: Service, bearers: Bearers | None, *, closing: asyncio.Event, up: Callable[[], None]) -> Server:
    """A server of the API, not listening yet. Set `closing` before it is told to exit."""
    door = Door(
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
        services=service.services,
        ready=service.ready,
        closing=closing,
        max_body_bytes=settings.max_body_bytes,
        cors_origins=settings.cors_origins,
        may_be_open=is_loopback(settings.host),
        bearers=bearers,
        rate=rate_of(settings),
    )
    config = uvicorn.Config(
        create_app(door),
        http=Connection,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=STREAM_GRACE_SECONDS,
    )
    return Server(config, up)


def rate_of(settings: Settings) -> Rate | None:
    """How many requests a tenant may make of this process. Without a burst it may make those of two seconds at once."""
    if settings.rate_limit is None:
        return None
    return Rate(per_second=settings.rate_limit, burst=settings.rate_burst or max(1, math.ceil(2 * settings.rate_limit)))


def bound(settings: Settings) -> socket.socket:
    """The socket that callers will come to, bound and not listening yet. Raises DefinitionError, naming the address."""
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise DefinitionError(f"There is no address {host} here: {error.strerror}. Choose RUNWARD_HOST or --host.") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        found.close()
        raise DefinitionError(f"Nobody can listen on {host}, port {port}: {error.strerror}. Choose RUNWARD_PORT or --port.") from error
    return found


def url_of(listening: socket.socket) -> str:
    """Where a bound socket is reached."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def check_keys(settings: Settings, service: Service) -> None:
    """Loopback only until a key exists, or a provider; a secret key once one does (docs/api.md, "Who calls"). Raises DefinitionError."""
    if settings.approval_tokens == "required" and settings.secret is None:
        raise DefinitionError("RUNWARD_APPROVAL_TOKENS=required needs RUNWARD_SECRET_KEY: nobody could decide anything.")
    if settings.jwt_issuer is not None or await service.services.directory.authentication():
        if settings.secret is None:
            raise DefinitionError(
                "API keys or tokens of a provider are in use: set RUNWARD_SECRET_KEY (the same in every process), and start again."
            )
    elif not is_loopback(settings.host):
        raise DefinitionError(
            f"Nobody needs a key yet, so the service binds loopback only, not {settings.host}. "
            "Make a key with `runward keys create --tenant … --permission …`, and start again."
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
