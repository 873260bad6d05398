"""Where a Redis is, and how a connection to it is made. Nothing here repeats anything by itself."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from runward.core.errors import DefinitionError, Unavailable

CONNECT_SECONDS: Final = 3.0
COMMAND_SECONDS: Final = 2.0
"""How long Redis may take to let us in, and to answer."""

OPTIONS: Final = frozenset(
    ["db", "ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile", "username", "password"]
)
"""What a URL may add behind its `?`. Time-outs and repetition are not a URL's to change."""

FAILURES: Final = (RedisError, OSError, TimeoutError)
"""What the driver raises when a connection fails, or is refused something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A Redis' address and how to connect to it."""

    kind: type[AbstractConnection]
    options: dict[str, Any] = field(repr=False)

    async def connect(self) -> AbstractConnection:
        """A new connection, authenticated. Raises Unavailable."""
        connection = self.kind(**self.options)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.connect()  # type: ignore[no-untyped-call]  # it has no annotations
        except BaseException as error:
            await leave(connection)
            if isinstance(error, FAILURES):
                raise unavailable(error) from error
            raise
        return connection


def address_of(url: str) -> Address:
    """The address that a URL names. Raises DefinitionError, never showing what is in the URL: it may hold a password."""
    try:
        parts = urlsplit(url)
        options: dict[str, Any] = dict(parse_url(url))
        known = parts.path if parts.scheme == "unix" else parts.hostname
        database = parts.path.strip("/") if parts.scheme != "unix" else ""
    except ValueError:
        raise _no_url() from None
    if not known or not (database == "" or database.isdecimal()):
        raise _no_url()
    if not OPTIONS.issuperset(parse_qs(parts.query)):  # which ones is not said: it may be half a password with a `?` in it
        raise DefinitionError(f"RUNWARD_REDIS_URL has an option that it cannot have. It may have these: {', '.join(sorted(OPTIONS))}.")
    kind = options.pop("connection_class", Connection)
    options |= _behaviour()
    try:
        kind(**options)
    except (RedisError, TypeError, ValueError):
        raise DefinitionError("RUNWARD_REDIS_URL has options that do not belong to its kind of address.") from None
    return Address(kind=kind, options=options)


def _behaviour() -> dict[str, Any]:
    """What a URL cannot choose. Who uses a connection bounds it in time: the driver's own time-outs may swallow a cancellation."""
    return {
        "protocol": 2,
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": None,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
        "driver_info": None,
    }


def _no_url() -> DefinitionError:
    return DefinitionError(
        "RUNWARD_REDIS_URL is not the URL of a Redis: redis://user:password@host:6379/0, rediss://… over TLS, or unix:///path/to/its/socket."
    )


async def leave(connection: AbstractConnection) -> None:
    """Ends a connection, whatever state it is in, without waiting for the other side."""
    await connection.disconnect(nowait=True)


def unavailable(error: BaseException) -> Unavailable:
    return Unavailable(f"Redis cannot be reached: {_reason(error)}.")


def _reason(error: BaseException) -> str:
    """What went wrong, for people. Never in Redis' own words: they may repeat what it was sent, and that may be a password."""
    causes = [error, *(cause for cause in (error.__cause__, error.__context__) if cause is not None)]
    for cause in causes:
        match cause:
            case AuthenticationError():
                return "it does not accept the user or the password of RUNWARD_REDIS_URL, or asks for one"
            case NoPermissionError():
                return "the user of RUNWARD_REDIS_URL may not do what hints need: PUBLISH, SUBSCRIBE and the channels runward:*"
            case BusyLoadingError():
                return "it is still loading its data"
            case RedisTimeout() | TimeoutError():
                return "it does not answer in time"
            case ResponseError():
                return "it refuses what it was asked; is it a Redis, and has it the database of RUNWARD_REDIS_URL?"
            case ssl.SSLError():
                return f"TLS fails: {getattr(cause, 'verify_message', None) or cause.reason or 'no TLS is spoken there'}"
            case OSError() if cause.strerror:
                return cause.strerror[0].lower() + cause.strerror[1:]
    return "the connection was closed"
