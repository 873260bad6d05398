"""F-67: what kind of an address it is, and how a host may be spelled."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runward.core.errors import DefinitionError
from runward.ports.outbound import OutboundRefused
from runward.tools.addresses import Kind, kind_of
from runward.tools.destinations import Destinations, places_of, target_of

KINDS = {
    Kind.PUBLIC: ("8.8.8.8", "93.184.216.34", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "2606:4700::1", "64:ff9b::8.8.8.8"),
    Kind.PRIVATE: ("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "fc00::1", "fd12::1", "64:ff9b::10.0.0.1"),
    Kind.LOOPBACK: ("127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1", "64:ff9b::127.0.0.1"),
    Kind.LINK_LOCAL: ("169.254.0.1", "fe80::1"),
    Kind.METADATA: ("169.254.169.254", "168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd00:ec2::23", "::ffff:169.254.169.254"),
    Kind.MULTICAST: ("224.0.0.1", "239.255.255.250", "ff02::1"),
    Kind.RESERVED: (
        "0.0.0.0",
        "0.1.2.3",
        "192.0.0.192",
        "192.0.2.1",
        "198.18.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::127.0.0.1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "2001:0:7f00:1::",
        "2001:db8::1",
        "64:ff9b:1::10.0.0.1",
        "100::1",
        "fec0::1",
        "::ffff:0:7f00:1",
    ),
}


@pytest.mark.parametrize(("address", "kind"), [(address, kind) for kind, listed in KINDS.items() for address in listed])
def test_an_address_is_of_a_kind(address: str, kind: Kind) -> None:
    assert kind_of(ip_address(address)) is kind


@given(st.ip_addresses())
def test_what_is_public_to_us_is_public_to_python(address: object) -> None:
    """Ours is never the laxer of the two."""
    found = ip_address(str(address))
    assert kind_of(found) is not Kind.PUBLIC or found.is_global


ODD = [
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.1/",
    "http://0177.0.0.1/",
    "http://127.1/",
    "http://127.0.0.1./",
    "http://1.2.3.4.5/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[fe80::1%25eth0]/",
    "http://user@example.com/",
    "http://user:password@example.com/",
    "http://example.com@127.0.0.1/",
    "http://exa mple.com/",
    "http://example.com\\@127.0.0.1/",
    "http://example.com%00.evil/",
    "http://exa\nmple.com/",
    "http://\uff11\uff12\uff17.0.0.1/",
    "http://a:0/",
    "http://\u2460\u2461\u2466.0.0.1/",
    "http:///path",
    "http://",
    "http://-/",
    "http://a..b/",
    "http://a:99999/",
    "http://a:b/",
    "file:///etc/passwd",
    "ftp://example.com/",
    "gopher://example.com/",
    "//example.com/",
    "example.com",
    "",
    "http://" + "a" * 300 + ".com/",
    "http://example.com/" + "a" * 9_000,
]


@pytest.mark.parametrize("url", ODD)
def test_odd_spellings_are_refused(url: str) -> None:
    with pytest.raises(OutboundRefused):
        target_of(url)


@pytest.mark.parametrize(
    ("url", "host", "port", "authority"),
    [
        ("http://Example.COM/x", "example.com", 80, "example.com"),
        ("https://example.com.", "example.com", 443, "example.com"),
        ("https://example.com:8443/x?y", "example.com", 8443, "example.com:8443"),
        ("https://[2606:4700:0::1]:443/", "2606:4700::1", 443, "[2606:4700::1]"),
        ("https://8.8.8.8/", "8.8.8.8", 443, "8.8.8.8"),
        ("https://bücher.example/", "xn--bcher-kva.example", 443, "xn--bcher-kva.example"),
        ("http://127\u30020\u30020\u30021/", "127.0.0.1", 80, "127.0.0.1"),
        ("https://my_host/", "my_host", 443, "my_host"),
    ],
)
def test_usual_spellings_are_read(url: str, host: str, port: int, authority: str) -> None:
    target = target_of(url)
    assert (target.host, target.port, target.authority) == (host, port, authority)


# -- settings ----------------------------------------------------------------------------------------------------------------


def destinations(opened: str = "", only: str = "", *, plain_http: bool = False) -> Destinations:
    return Destinations(
        opened=places_of(opened.split(), setting="RUNWARD_OUTBOUND_HOSTS"),
        only=places_of(only.split(), setting="RUNWARD_OUTBOUND_ONLY"),
        plain_http=plain_http,
    )


@pytest.mark.parametrize(
    ("opened", "url", "address", "refused"),
    [
        ("", "https://erp.internal/", "8.8.8.8", None),
        ("", "https://erp.internal/", "10.0.0.1", "RUNWARD_OUTBOUND_HOSTS"),
        ("erp.internal", "https://erp.internal/", "10.0.0.1", None),
        ("ERP.internal.", "https://erp.internal/", "127.0.0.1", None),
        ("erp.internal", "https://erp.internal/", "::1", None),
        ("erp.internal", "https://other.internal/", "10.0.0.1", "RUNWARD_OUTBOUND_HOSTS"),
        ("erp.internal", "https://x.erp.internal/", "10.0.0.1", "RUNWARD_OUTBOUND_HOSTS"),
        ("*.internal", "https://x.erp.internal/", "10.0.0.1", None),
        ("*.internal", "https://internal/", "10.0.0.1", "RUNWARD_OUTBOUND_HOSTS"),
        ("*.internal", "https://notinternal/", "10.0.0.1", "RUNWARD_OUTBOUND_HOSTS"),
        ("erp.internal:8443", "https://erp.internal:8443/", "10.0.0.1", None),
        ("erp.internal:8443", "https://erp.internal/", "10.0.0.1", "RUNWARD_OUTBOUND_HOSTS"),
        ("erp.internal", "https://erp.internal/", "169.254.169.254", "metadata"),
        ("erp.internal", "https://erp.internal/", "fd00:ec2::23", "metadata"),
        ("erp.internal", "https://erp.internal/", "fe80::1", "link-local"),
        ("erp.internal", "https://erp.internal/", "0.0.0.0", "reserved"),
        ("10.0.0.1", "https://erp.internal/", "10.0.0.1", "RUNWARD_OUTBOUND_HOSTS"),
        ("10.0.0.1", "https://10.0.0.1/", "10.0.0.1", None),
        ("[fd00::1]:443", "https://[fd00:0::1]/", "fd00::1", None),
        ("169.254.169.254", "http://169.254.169.254/", "169.254.169.254", None),
    ],
)
def test_a_setting_opens_named_hosts(opened: str, url: str, address: str, refused: str | None) -> None:
    settings, target = destinations(opened), target_of(url)
    if refused is None:
        settings.admit(target)
        settings.admit_address(target, ip_address(address))
    else:
        with pytest.raises(OutboundRefused, match=refused) as error:
            settings.admit_address(target, ip_address(address))
        assert target.host not in error.value.why and target.host in error.value.detail


@pytest.mark.parametrize(
    ("settings", "url", "refused"),
    [
        (destinations(), "https://example.com/", None),
        (destinations(), "http://example.com/", "RUNWARD_OUTBOUND_PLAIN_HTTP"),
        (destinations(plain_http=True), "http://example.com/", None),
        (destinations("example.com"), "http://example.com/", None),
        (destinations(only="example.com"), "https://example.com/", None),
        (destinations(only="example.com"), "https://other.com/", "RUNWARD_OUTBOUND_ONLY"),
        (destinations(only="*.example.com"), "https://api.example.com/", None),
        (destinations("erp.internal", "example.com"), "https://erp.internal/", None),
        (destinations(only="10.0.0.1"), "https://10.0.0.1/", "RUNWARD_OUTBOUND_HOSTS"),
        (destinations(), "https://127.0.0.1/", "RUNWARD_OUTBOUND_HOSTS"),
    ],
)
def test_hosts_and_schemes_are_looked_at_before_a_name_is_resolved(settings: Destinations, url: str, refused: str | None) -> None:
    if refused is None:
        settings.admit(target_of(url))
    else:
        with pytest.raises(OutboundRefused, match=refused):
            settings.admit(target_of(url))


@pytest.mark.parametrize(
    ("settings", "url", "address", "refused"),
    [
        (destinations("erp.internal"), "https://erp.internal/", "10.0.0.1", "redirects"),
        (destinations("erp.internal"), "https://erp.internal/", "8.8.8.8", None),
        (destinations("erp.internal"), "http://erp.internal/", "8.8.8.8", "redirects"),
        (destinations("erp.internal", plain_http=True), "http://erp.internal/", "8.8.8.8", None),
        (destinations("10.0.0.1"), "https://10.0.0.1/", "10.0.0.1", "redirects"),
        (destinations("erp.internal", "example.com"), "https://erp.internal/", "8.8.8.8", None),
        (destinations(), "https://erp.internal/", "10.0.0.1", "RUNWARD_OUTBOUND_HOSTS"),
    ],
)
def test_nobody_outside_leads_inside(settings: Destinations, url: str, address: str, refused: str | None) -> None:
    """What is opened is opened to those who name it themselves."""
    target = target_of(url)
    if refused is None:
        settings.admit(target, led=True)
        settings.admit_address(target, ip_address(address), led=True)
    else:
        with pytest.raises(OutboundRefused, match=refused):  # noqa: PT012 - one of the two does
            settings.admit(target, led=True)
            settings.admit_address(target, ip_address(address), led=True)


@pytest.mark.parametrize(
    "entry", ["http://erp", "erp/x", "a:0", "a:65536", "*", "*.", "*.10.0.0.1", "0x7f.1", "user@erp", "::1", "a b", "10.0.0.0/8"]
)
def test_an_entry_that_is_none_stops_the_start(entry: str) -> None:
    with pytest.raises(DefinitionError, match="RUNWARD_OUTBOUND_HOSTS"):
        places_of([entry], setting="RUNWARD_OUTBOUND_HOSTS")
