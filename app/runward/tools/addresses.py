"""What kind of an address it is: only those that the whole internet shares are open to everybody.

From IANA's registries of special-purpose addresses, not from `ipaddress.is_global`, which differs between versions of Python. An IPv6
address that carries an IPv4 address is what the carried one is.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

Address = IPv4Address | IPv6Address


class Kind(StrEnum):
    """What an address is for, as people are told."""

    PUBLIC = "public"
    PRIVATE = "private"
    LOOPBACK = "loopback"
    LINK_LOCAL = "link-local"
    METADATA = "metadata"
    MULTICAST = "multicast"
    RESERVED = "reserved"


INTERNAL: Final = frozenset({Kind.PRIVATE, Kind.LOOPBACK})
"""What a name may lead to once operators have opened it. The others are nobody's host; a cloud's metadata service gives keys away."""

_V4: Final[Mapping[str, Kind]] = {
    "168.63.129.16/32": Kind.METADATA,
    "169.254.169.254/32": Kind.METADATA,
    "100.100.100.200/32": Kind.METADATA,
    "0.0.0.0/8": Kind.RESERVED,
    "10.0.0.0/8": Kind.PRIVATE,
    "100.64.0.0/10": Kind.PRIVATE,
    "127.0.0.0/8": Kind.LOOPBACK,
    "169.254.0.0/16": Kind.LINK_LOCAL,
    "172.16.0.0/12": Kind.PRIVATE,
    "192.0.0.0/24": Kind.RESERVED,
    "192.0.2.0/24": Kind.RESERVED,
    "192.88.99.0/24": Kind.RESERVED,
    "192.168.0.0/16": Kind.PRIVATE,
    "198.18.0.0/15": Kind.RESERVED,
    "198.51.100.0/24": Kind.RESERVED,
    "203.0.113.0/24": Kind.RESERVED,
    "224.0.0.0/4": Kind.MULTICAST,
    "240.0.0.0/4": Kind.RESERVED,
}
_V6: Final[Mapping[str, Kind]] = {
    "::1/128": Kind.LOOPBACK,
    "fd00:ec2::/32": Kind.METADATA,
    "fd20:ce::254/128": Kind.METADATA,
    "fc00::/7": Kind.PRIVATE,
    "fe80::/10": Kind.LINK_LOCAL,
    "ff00::/8": Kind.MULTICAST,
    "2001::/23": Kind.RESERVED,
    "2001:db8::/32": Kind.RESERVED,
    "2002::/16": Kind.RESERVED,
    "3fff::/20": Kind.RESERVED,
    "2000::/3": Kind.PUBLIC,
}
"""Of IPv6 only 2000::/3 is given out. Teredo (in 2001::/23) and 6to4 (2002::/16) carry IPv4 addresses, and nobody uses them any more."""

_V4_NETWORKS: Final = tuple((IPv4Network(network), kind) for network, kind in _V4.items())
_V6_NETWORKS: Final = tuple((IPv6Network(network), kind) for network, kind in _V6.items())
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")
"""NAT64: what is behind it is the IPv4 address in its last 32 bits."""


def kind_of(address: Address) -> Kind:
    """What an address is; of several kinds the first in the tables."""
    if isinstance(address, IPv6Address):
        carried = carried_by(address)
        if carried is None:
            return next((kind for network, kind in _V6_NETWORKS if address in network), Kind.RESERVED)
        address = carried
    return next((kind for network, kind in _V4_NETWORKS if address in network), Kind.PUBLIC)


def carried_by(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that packets to an IPv6 address end at: `::ffff:10.0.0.1`, `64:ff9b::10.0.0.1`."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(int(address) & 0xFFFF_FFFF) if address in _TRANSLATED else None
