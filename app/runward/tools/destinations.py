"""Where the service may go: what operators have opened, and what is open to everybody."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final, NoReturn

import httpx

from runward.core.errors import DefinitionError
from runward.ports.outbound import OutboundRefused
from runward.tools.addresses import INTERNAL, Address, Kind, kind_of

OPENED: Final = "RUNWARD_OUTBOUND_HOSTS"
ONLY: Final = "RUNWARD_OUTBOUND_ONLY"
PLAIN_HTTP: Final = "RUNWARD_OUTBOUND_PLAIN_HTTP"

OUTSIDER: Final = f"a host that is not in {OPENED} redirects to one that is"

MAX_URL_LENGTH: Final = 8_192
PORTS: Final = {"http": 80, "https": 443}

_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*\.?")
_NUMBER: Final = re.compile(r"(.*\.)?(\d+|0x[0-9a-f]*)\.?")
"""What some parsers take for an IPv4 address: `2130706433`, `0x7f.1`, `0177.0.0.1`, `127.1`."""
_PLACE: Final = re.compile(r"(?P<below>\*\.)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:*/@\s]+)(:(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A URL taken apart. `address` is set where its host is one. `host` is in lower case, without a final dot or brackets."""

    url: httpx.URL
    scheme: str
    host: str
    port: int
    address: Address | None

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """What the `Host` header says."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An entry of a setting: a host, at any port or at one; `below`: every name below it, and not itself."""

    host: str
    port: int | None
    below: bool

    def covers(self, target: Target) -> bool:
        if self.port not in (None, target.port):
            return False
        return target.host.endswith(f".{self.host}") if self.below else target.host == self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class Destinations:
    """Where requests may go. `opened` hosts may be reached at private and loopback addresses, and without TLS; where there are `only` some,
    no others are reached; `plain_http` lets every host be reached without TLS."""

    opened: tuple[Place, ...] = ()
    only: tuple[Place, ...] = ()
    plain_http: bool = False

    def admit(self, target: Target, *, led: bool = False) -> None:
        """Looks at a URL, before its name is resolved. Raises OutboundRefused.

        `led`: somebody outside led here, by a redirect. Nobody outside leads inside: hosts are opened for those who name them themselves.
        """
        named = self.is_opened(target)
        opened = named and not led
        if self.only and not named and not any(place.covers(target) for place in self.only):
            _refuse(target, f"this service reaches only the hosts that are listed in {ONLY} or {OPENED}")
        if target.scheme == "http" and not opened and not self.plain_http:
            _refuse(target, OUTSIDER if named else f"it has no TLS; use https, list the host in {OPENED}, or set {PLAIN_HTTP}=any")
        if target.address is not None:
            self.admit_address(target, target.address, led=led)

    def admit_address(self, target: Target, address: Address, *, led: bool = False) -> None:
        """Looks at an address that is about to be connected to for a URL. Raises OutboundRefused.

        An opened name leads inside; to a metadata service leads only its own address, opened as such.
        """
        kind = kind_of(address)
        if kind is Kind.PUBLIC:
            return
        if not self.is_opened(target):
            _refuse(target, f"it leads to a {kind} address; if tools may go there, list the host in {OPENED}")
        if led:
            _refuse(target, OUTSIDER)
        if target.address is None and kind not in INTERNAL:
            _refuse(target, f"the name leads to a {kind} address, and an entry in {OPENED} opens those only by the address itself")

    def is_opened(self, target: Target) -> bool:
        return any(place.covers(target) for place in self.opened)


def target_of(text: str) -> Target:
    """A URL, strictly read: there is one spelling of an address, and no user in it. Raises OutboundRefused."""
    try:
        url = httpx.URL(text) if len(text) <= MAX_URL_LENGTH else None
        host = "" if url is None else url.raw_host.decode("ascii").lower()
    except (httpx.InvalidURL, UnicodeError, TypeError, ValueError):
        url, host = None, ""
    if url is None:
        raise OutboundRefused("What was to be called is not a URL.", why="it is not a URL")
    if url.scheme not in PORTS:
        raise OutboundRefused("What was to be called is neither http nor https.", why="only http and https are spoken")
    if url.userinfo:
        raise OutboundRefused(f"The URL of {host} has a user in it.", why="a URL must not have a user in it; put credentials in a header")
    port = PORTS[url.scheme] if url.port is None else url.port
    if not 0 < port < 65_536:
        raise OutboundRefused("A URL has a port that is none.", why="its port is none")
    address = _address(host)
    if address is None and (len(host) > 253 or not _NAME.fullmatch(host) or _NUMBER.fullmatch(host)):
        raise OutboundRefused("A host is no name and no address in its usual spelling.", why="its host is no name and no usual address")
    plain = host.removesuffix(".") if address is None else str(address)
    return Target(url=url, scheme=url.scheme, host=plain, port=port, address=address)


def _address(host: str) -> Address | None:
    """An address in its one spelling; IPv4 inside of IPv6 is none."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and (address.ipv4_mapped is not None or address.scope_id is not None):
        raise OutboundRefused("A host is an IPv4 address spelled as IPv6, or has a zone.", why="its host is no name and no usual address")
    return address


def _refuse(target: Target, why: str) -> NoReturn:
    raise OutboundRefused(f"{target.host} port {target.port} is not called: {why}.", why=why)


def places_of(entries: Sequence[str], *, setting: str) -> tuple[Place, ...]:
    """The entries of a setting: `erp.internal`, `127.0.0.1:9000`, `[::1]:9000`, `*.corp.example`. Raises DefinitionError, naming it."""
    return tuple(_place(entry, f"{setting}: entry {number}") for number, entry in enumerate(entries, start=1))


def _place(entry: str, which: str) -> Place:
    found = _PLACE.fullmatch(entry)
    port = int(found["port"]) if found and found["port"] else None
    if found is None or (port is not None and not 0 < port < 65_536):
        raise _malformed(which)
    try:
        target = target_of(f"https://{found['host']}/")
    except OutboundRefused:
        raise _malformed(which) from None
    if found["below"] and target.address is not None:
        raise _malformed(which)
    return Place(host=target.host, port=port, below=found["below"] is not None)


def _malformed(which: str) -> DefinitionError:
    """Its text is not shown: it may be a URL with a password in it."""
    return DefinitionError(f"{which} is not host, host:port or *.host, as in erp.internal, 127.0.0.1:9000 or *.corp.example.")
