"""The guarded client: `ports.outbound.Outbound` over sockets.

A name is resolved once for each hop; its addresses are looked at, and it is those that are connected to, by number: no second answer of a
name server counts. The certificate is still checked for the name. Each hop has a connection of its own, so none is ever shared between
names, and what was sent before it broke is known. Proxies that the environment names are not used: they would resolve names themselves.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

import httpx

from runward.core.errors import DefinitionError
from runward.ports.outbound import Incoming, OutboundError, OutboundRefused, Outgoing, Unanswered, Unreachable
from runward.ports.telemetry import Telemetry
from runward.tools.addresses import Address
from runward.tools.answers import received
from runward.tools.destinations import Destinations, Target, target_of
from runward.tools.names import Resolve, Resolver

CONNECT_SECONDS: Final = 5.0
"""How long a name may take to be resolved, and each of its addresses to be connected to, TLS included."""
SILENCE_SECONDS: Final = 30.0
"""How long the other side may say nothing, or take nothing, in the middle of a request."""
MAX_ADDRESSES: Final = 4
MAX_REDIRECTS: Final = 5

REPEATED: Final = frozenset({307, 308})
"""Nothing was done here: the same request belongs elsewhere."""
SEE_OTHER: Final = 303
"""It was done: what came of it is elsewhere."""
FOLLOWED: Final = frozenset({301, 302, SEE_OTHER, *REPEATED})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hop:
    """A request to one place. `origin` is where its headers belong. `led`: somebody outside has redirected to here."""

    method: str
    target: Target
    origin: tuple[str, str, int]
    body: bytes | None
    led: bool = False


class GuardedClient:
    """`ports.outbound.Outbound`. What it logs goes through `redact`. `resolve` and `transport` are the real ones but in tests.

    Raises DefinitionError for authorities of certificates that cannot be read.
    """

    def __init__(
        self,
        destinations: Destinations,
        *,
        telemetry: Telemetry,
        redact: Callable[[str], str] = str,
        resolve: Resolve | None = None,
        transport: Callable[[ssl.SSLContext], httpx.AsyncBaseTransport] | None = None,
    ) -> None:
        self._destinations = destinations
        self._telemetry = telemetry
        self._redact = redact
        self._resolve = resolve or Resolver()
        self._transport = transport or _transport
        self._tls = _tls()

    async def send(self, outgoing: Outgoing) -> Incoming:
        """Raises OutboundError, and nothing else but CancelledError."""
        deadline = asyncio.get_running_loop().time() + outgoing.timeout_seconds
        try:
            return await self._travel(outgoing, deadline)
        except OutboundRefused as error:
            self._telemetry.problem("outbound_refused", error, reason=self._redact(error.detail))
            raise
        except OutboundError as error:
            self._telemetry.problem("outbound_failed", error, reason=self._redact(error.detail))
            raise

    async def _travel(self, outgoing: Outgoing, deadline: float) -> Incoming:
        target = target_of(outgoing.url)
        hop = _Hop(method=outgoing.method, target=target, origin=target.origin, body=outgoing.body)
        done = False
        """Whether a hop before this one may have done what was asked for."""
        for _ in range(MAX_REDIRECTS + 1):
            try:
                async with self._answer(hop, outgoing, deadline) as response:
                    done = done or response.status_code not in REPEATED
                    onward = _onward(hop, response)
                    if onward is None:
                        return await received(response, outgoing.max_bytes, deadline)
                    hop = replace(onward, led=hop.led or not self._destinations.is_opened(hop.target))
            except OutboundError as error:
                error.sent = error.sent or done
                raise
        raise OutboundRefused(f"{hop.target.host} redirects again and again.", why="it is redirected again and again", sent=done)

    @asynccontextmanager
    async def _answer(self, hop: _Hop, outgoing: Outgoing, deadline: float) -> AsyncIterator[httpx.Response]:
        """The head of a hop's answer. Nothing is sent before the address has been looked at."""
        transport = self._transport(self._tls)
        try:
            response = await self._asked(transport, hop, outgoing, deadline)
            try:
                yield response
            finally:
                await response.aclose()
        finally:
            with suppress(httpx.HTTPError, OSError):  # it is over either way
                await transport.aclose()

    async def _asked(self, transport: httpx.AsyncBaseTransport, hop: _Hop, outgoing: Outgoing, deadline: float) -> httpx.Response:
        sent = _Sent()
        failure: OutboundError | None = None
        try:
            async with asyncio.timeout_at(deadline):
                for address in await self._addresses(hop, outgoing.timeout_seconds):
                    try:
                        return await transport.handle_async_request(_request(hop, address, outgoing, sent))
                    except (httpx.HTTPError, ssl.SSLError, OSError) as error:
                        failure = _failure(hop.target, error, sent=sent.begun)
                        if sent.begun:
                            break
        except TimeoutError:
            kind = Unanswered if sent.begun else Unreachable
            failure = kind(f"{hop.target.host} did not answer in time.", sent=sent.begun)
        raise failure or Unreachable(f"The name {hop.target.host} has no address.")

    async def _addresses(self, hop: _Hop, within: float) -> Sequence[Address]:
        """The addresses to connect to, each of them looked at. Raises OutboundRefused where one of them is not to be, and Unreachable."""
        target = hop.target
        self._destinations.admit(target, led=hop.led)
        if target.address is not None:
            return (target.address,)
        try:
            async with asyncio.timeout(min(CONNECT_SECONDS, within / 2)):
                found = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"The name {target.host} cannot be resolved.") from error
        addresses = [ip_address(each) for each in found]
        for address in addresses:
            self._destinations.admit_address(target, address, led=hop.led)
        return addresses[:MAX_ADDRESSES]


class _Sent:
    """Whether a request has begun to leave. Told by the connection itself."""

    def __init__(self) -> None:
        self.begun = False

    async def __call__(self, event: str, _: dict[str, Any]) -> None:
        if event.startswith("http11.send_request_headers."):
            self.begun = True


def _request(hop: _Hop, address: Address, outgoing: Outgoing, sent: _Sent) -> httpx.Request:
    """A hop's request to an address, by number."""
    target = hop.target
    host = f"[{address}]" if isinstance(address, IPv6Address) else str(address)
    own = outgoing.headers if target.origin == hop.origin else ()
    agent = () if any(name.lower() == "user-agent" for name, _ in own) else (("User-Agent", "runward"),)
    silence = min(SILENCE_SECONDS, outgoing.timeout_seconds)
    connect = min(CONNECT_SECONDS, outgoing.timeout_seconds / 2)
    extensions: dict[str, Any] = {
        "timeout": {"connect": connect, "read": silence, "write": silence, "pool": connect},
        "trace": sent,
    }
    if target.scheme == "https" and target.address is None:
        extensions["sni_hostname"] = target.host
    return httpx.Request(
        hop.method,
        target.url.copy_with(host=host, fragment=None),
        headers=[("Host", target.authority), ("Accept-Encoding", "gzip"), ("Connection", "close"), *agent, *own],
        content=hop.body,
        extensions=extensions,
    )


def _onward(hop: _Hop, response: httpx.Response) -> _Hop | None:
    """Where an answer sends the request to; None where the answer is the answer.

    A reading request is sent on as it is. Another one is sent again only where nothing was done (307, 308), and never to another origin,
    which has no business with its body; what came of it elsewhere (303) is read. Raises OutboundRefused.
    """
    location = response.headers.get("location")
    if response.status_code not in FOLLOWED or location is None:
        return None
    if hop.method != "GET" and response.status_code not in (SEE_OTHER, *REPEATED):
        return None
    try:
        target = target_of(str(hop.target.url.join(location)))
    except httpx.InvalidURL:
        raise OutboundRefused(f"{hop.target.host} redirects to what is no URL.", why="it is redirected to what is no URL") from None
    onward = replace(hop, target=target)
    if response.status_code == SEE_OTHER:
        return replace(onward, method="GET", body=None)
    return onward if hop.method == "GET" or target.origin == hop.origin else None


def _failure(target: Target, error: Exception, *, sent: bool) -> OutboundError:
    """What a failure of the connection means. Its text may hold anything, and is left behind."""
    if sent:
        found: OutboundError = Unanswered(f"The connection to {target.host} ended, or was silent, before the answer had come.", sent=True)
    elif isinstance(error, httpx.TimeoutException):
        found = Unreachable(f"{target.host} port {target.port} could not be connected to in time.")
    elif _is_about_certificates(error):
        found = Unreachable(f"{target.host} port {target.port} has no valid certificate for this name (see SSL_CERT_FILE).")
    else:
        found = Unreachable(f"{target.host} port {target.port} could not be connected to.")
    found.__cause__ = error
    return found


def _is_about_certificates(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


def _tls() -> ssl.SSLContext:
    """Certificates are checked, by the authorities of `SSL_CERT_FILE` or `SSL_CERT_DIR`, else by those that come with httpx."""
    try:
        return httpx.create_ssl_context()
    except (OSError, ssl.SSLError) as error:
        raise DefinitionError("SSL_CERT_FILE or SSL_CERT_DIR names no certificates that can be read.") from error


def _transport(tls: ssl.SSLContext) -> httpx.AsyncBaseTransport:
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=0)
    return httpx.AsyncHTTPTransport(verify=tls, trust_env=False, limits=limits, retries=0)


def keep_quiet() -> None:
    """Connections log headers, which may hold anything, at lower levels than a warning."""
    for name in ("httpcore", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)


keep_quiet()
