"""F-67: the one way out, against real servers: what it connects to, what it carries where, and how much it takes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gzip
import ipaddress
import ssl
import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from runward.core.errors import DefinitionError
from runward.ports.outbound import Incoming, OutboundError, OutboundRefused, Outgoing, Unanswered, Unreachable
from runward.tools.destinations import Destinations, places_of
from runward.tools.names import MAX_ABANDONED, MAX_LOOKUPS, Resolver
from runward.tools.outbound import MAX_REDIRECTS, GuardedClient
from tests.engine.rig import Heard
from tests.support.servers import free_port
from tests.support.wire import Request
from tests.tools.web import Web, answer, drips, floods, redirect, reset, silence

PUBLIC = "93.184.216.34"


class Names:
    """A name server: each name has answers that are given in order, the last one for ever."""

    def __init__(self, **names: Sequence[Sequence[str]]) -> None:
        self._names = {name.replace("_", "."): list(answers) for name, answers in names.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self._names.get(host)
        if answers is None:
            raise OSError("unknown")
        return answers.pop(0) if len(answers) > 1 else answers[0]


def client(*opened: str, names: Names | None = None, heard: Heard | None = None, **options: Any) -> GuardedClient:
    places = places_of(opened, setting="RUNWARD_OUTBOUND_HOSTS")
    if names is not None:
        options["resolve"] = names
    return GuardedClient(Destinations(opened=places), telemetry=heard or Heard(), **options)


async def send(found: GuardedClient, url: str, method: str = "GET", *, seconds: float = 20, most: int = 100_000, **given: Any) -> Incoming:
    return await found.send(Outgoing(method=method, url=url, timeout_seconds=seconds, max_bytes=most, **given))


# -- where it goes -----------------------------------------------------------------------------------------------------------


async def test_an_opened_host_is_called_as_it_was_asked() -> None:
    async with Web({"/stock/a%2Fb": answer(200, {"count": 3})}) as web:
        came = await send(client(web.place), f"{web.url}/stock/a%2Fb?x=1%262", "POST", headers=[("X-Key", "k")], body=b'{"a":1}')
        assert (came.status, came.content_type, came.body, came.fault) == (200, "application/json", b'{"count": 3}', None)
        [request] = web.requests
        assert (request.method, request.path, request.body) == ("POST", "/stock/a%2Fb?x=1%262", b'{"a":1}')
        assert (request.headers["host"], request.headers["x-key"]) == (web.place, "k")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "0177.0.0.1"])
async def test_this_machine_is_closed_unless_it_is_opened(host: str) -> None:
    async with Web() as web:
        heard = Heard()
        with pytest.raises(OutboundRefused) as error:
            await send(client(heard=heard), f"http://{host}:{web.port}/")
        assert not error.value.sent and web.connections == 0 and heard.names == ["outbound_refused"]


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "fd00::1"]
)
async def test_a_name_is_refused_where_any_of_its_addresses_is(address: str) -> None:
    sent: list[str] = []
    found = client(names=Names(rebound_example=[[PUBLIC, address]]), transport=lambda _: Recorded(sent))
    with pytest.raises(OutboundRefused, match="RUNWARD_OUTBOUND_HOSTS"):
        await send(found, "https://rebound.example/")
    assert sent == []


class Recorded(httpx.AsyncBaseTransport):
    """A connection that writes down to which host it goes, and answers in order."""

    def __init__(self, sent: list[str], answers: Sequence[httpx.Response] = ()) -> None:
        self._sent = sent
        self._answers = list(answers)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._sent.append(f"{request.url.host} {request.headers['host']} {request.extensions.get('sni_hostname')}")
        return self._answers.pop(0) if self._answers else httpx.Response(200, stream=httpx.ByteStream(b"ok"))


async def test_a_name_that_changes_after_the_check_changes_nothing() -> None:
    """DNS rebinding: the address that was looked at is the one that is connected to, by number."""
    sent: list[str] = []
    names = Names(rebound_example=[[PUBLIC], ["127.0.0.1"]])
    found = client(names=names, transport=lambda _: Recorded(sent))
    await send(found, "https://rebound.example/")
    assert sent == [f"{PUBLIC} rebound.example rebound.example"] and names.asked == ["rebound.example"]
    with pytest.raises(OutboundRefused):
        await send(found, "https://rebound.example/")
    assert len(sent) == 1


async def test_a_name_is_resolved_once_for_each_request_and_no_more() -> None:
    async with Web({"/": answer(200)}) as web:
        names = Names(erp_internal=[["127.0.0.1"], ["127.0.0.9"]])
        assert (await send(client("erp.internal", names=names), f"http://erp.internal:{web.port}/")).status == 200
        assert names.asked == ["erp.internal"] and web.requests[0].headers["host"] == f"erp.internal:{web.port}"


async def test_of_several_addresses_the_next_is_tried_while_nothing_was_sent() -> None:
    async with Web({"/": answer(200)}) as web:
        found = client("erp.internal", names=Names(erp_internal=[["127.1.1.1", "127.0.0.1"]]))
        assert (await send(found, f"http://erp.internal:{web.port}/")).status == 200


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Web({"/": answer(200)}) as web, Web() as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert (await send(client(web.place), f"{web.url}/")).status == 200
        assert proxy.connections == 0


# -- redirects ---------------------------------------------------------------------------------------------------------------

INSIDE = [
    "http://169.254.169.254/latest/meta-data/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:a9fe:a9fe]/",
    "http://127.0.0.1:1/",
    "//127.0.0.1:1/",
    "http://localhost:1/",
    "http://0/",
    "http://2852039166/",
    "file:///etc/passwd",
    "http://user@example.com/",
    "http://rebound.example/",
    "https://rebound.example/",
    "http://exa\\mple.com",
    "http://[",
]


@pytest.mark.parametrize("location", INSIDE)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_every_redirect_is_looked_at_like_the_first_url(status: int, location: str) -> None:
    async with Web({"/": redirect(status, location)}) as web:
        names = Names(rebound_example=[["10.0.0.1"]], localhost=[["127.0.0.1"]])
        with pytest.raises(OutboundRefused):
            await send(client(web.place, names=names), f"{web.url}/")
        assert web.connections == 1


async def test_what_belongs_to_one_host_is_not_carried_to_another() -> None:
    async with Web({"/b": answer(200, "there")}) as other, Web({"/": redirect(302, f"{other.url}/b")}) as web:
        headers = [("Authorization", "Bearer k"), ("X-Api-Key", "k"), ("Cookie", "k"), ("Idempotency-Key", "k")]
        came = await send(client(web.place, other.place), f"{web.url}/", headers=headers)
        assert came.body == b"there" and web.requests[0].headers["authorization"] == "Bearer k"
        assert set(other.requests[0].headers) == {"host", "user-agent", "accept-encoding", "connection"}


async def test_on_the_same_host_headers_go_along() -> None:
    async with Web({"/": redirect(302, "/b?x=1"), "/b": answer(200, "there")}) as web:
        await send(client(web.place), f"{web.url}/", headers=[("X-Key", "k")])
        assert (web.requests[1].path, web.requests[1].headers["x-key"]) == ("/b?x=1", "k")


async def test_headers_come_back_with_no_redirect_that_returns_home() -> None:
    """They go to the origin of the URL alone, and there they belong, however often somebody else sends it back."""
    async with Web() as other, Web() as web:
        other.answers["/b"] = redirect(302, f"{web.url}/c")
        web.answers.update({"/": redirect(302, f"{other.url}/b"), "/c": answer(200)})
        await send(client(web.place, other.place), f"{web.url}/", headers=[("X-Key", "k")])
        assert "x-key" not in other.requests[0].headers and web.requests[1].headers["x-key"] == "k"


OUTSIDE = httpx.Response(302, headers={"Location": "https://erp.internal/delete?all"}, stream=httpx.ByteStream(b""))


@pytest.mark.parametrize("through", ["https://erp.internal/delete?all", "https://public.example/"])
async def test_no_redirect_from_outside_leads_to_what_is_opened_inside(through: str) -> None:
    """Also by way of another host; a tool that names the host itself gets there."""
    sent: list[str] = []
    names = Names(outside_example=[[PUBLIC]], public_example=[[PUBLIC]], erp_internal=[["10.0.0.1"]])
    web = Recorded(sent, [httpx.Response(302, headers={"Location": through}, stream=httpx.ByteStream(b"")), OUTSIDE])
    found = client("erp.internal", "public.example", names=names, transport=lambda _: web)
    with pytest.raises(OutboundRefused, match="a host that is not in RUNWARD_OUTBOUND_HOSTS redirects to one that is"):
        await send(found, "https://outside.example/")
    assert [place.split()[1] for place in sent] == (["outside.example"] if "erp" in through else ["outside.example", "public.example"])
    await send(client("erp.internal", names=names, transport=lambda _: Recorded(sent)), "https://erp.internal/")
    assert sent[-1] == "10.0.0.1 erp.internal erp.internal"


async def test_what_is_opened_inside_may_redirect_inside() -> None:
    async with Web({"/b": answer(200, "there")}) as other, Web({"/": redirect(302, f"{other.url}/b")}) as web:
        assert (await send(client(web.place, other.place), f"{web.url}/")).body == b"there"


@pytest.mark.parametrize(
    "location",
    [
        "https://[",
        "https://a]b/",
        "https://[v1.a]/",
        "https://\u2100/",
        "https://a:b:c/",
        "\x00",
        "https://xn--/",
        "\udc80",
        "%",
        "?" * 9_000,
        "http:",
    ],
)
async def test_whatever_it_redirects_to_is_refused_or_followed_and_never_breaks(location: str) -> None:
    head = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + location.encode("utf-8", "surrogateescape") + b"\r\n\r\n"
    async with Web({"/": head}) as web:
        with contextlib.suppress(OutboundError):
            await send(client(web.place, names=Names()), f"{web.url}/")
        assert web.connections >= 1


async def test_redirects_are_bounded() -> None:
    async with Web({"/": redirect(302, "/")}) as web:
        with pytest.raises(OutboundRefused, match="again and again"):
            await send(client(web.place), f"{web.url}/")
        assert len(web.requests) == MAX_REDIRECTS + 1


@pytest.mark.parametrize(
    ("status", "methods", "final"), [(301, ["POST"], 301), (302, ["POST"], 302), (303, ["POST", "GET"], 200), (307, ["POST", "POST"], 200)]
)
async def test_a_write_is_sent_on_only_where_it_was_not_done(status: int, methods: list[str], final: int) -> None:
    async with Web({"/": redirect(status, "/b"), "/b": answer(200)}) as web:
        came = await send(client(web.place), f"{web.url}/", "POST", body=b"{}")
        assert (came.status, [request.method for request in web.requests]) == (final, methods)
        assert status != 303 or web.requests[1].body == b""


@pytest.mark.parametrize("status", [307, 308])
async def test_a_body_is_not_carried_to_another_host(status: int) -> None:
    async with Web({"/b": answer(200)}) as other, Web({"/": redirect(status, f"{other.url}/b")}) as web:
        came = await send(client(web.place, other.place), f"{web.url}/", "POST", body=b"{}")
        assert came.status == status and other.connections == 0


@pytest.mark.parametrize(("status", "sent"), [(303, True), (307, False)])
async def test_what_a_hop_may_have_done_is_not_forgotten_when_the_next_fails(status: int, sent: bool) -> None:
    async with Web({"/": redirect(status, "http://169.254.169.254/")}) as web:
        with pytest.raises(OutboundRefused) as error:
            await send(client(web.place), f"{web.url}/", "POST" if sent else "GET", body=b"{}")
        assert error.value.sent is sent


# -- how far it came ---------------------------------------------------------------------------------------------------------


async def test_nobody_listens() -> None:
    port = free_port()
    with pytest.raises(Unreachable) as error:
        await send(client("127.0.0.1"), f"http://127.0.0.1:{port}/", "POST")
    assert not error.value.sent


async def test_nobody_knows_the_name() -> None:
    with pytest.raises(Unreachable) as error:
        await send(client(names=Names()), "https://nowhere.example/", "POST")
    assert not error.value.sent


async def test_a_name_server_that_says_nothing_is_not_waited_for() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(Unreachable) as error:
        await send(client(resolve=resolve), "https://slow.example/", "POST", seconds=0.2)
    assert not error.value.sent


async def test_name_servers_that_say_nothing_hold_up_nobody_else() -> None:
    """Their threads are others than those in which the rest of the process looks names up, and only so many."""
    asked, answered = threading.Semaphore(0), threading.Event()

    def look_up(host: str, port: int) -> Sequence[str]:
        asked.release()
        answered.wait()
        return ["127.0.0.1"]

    async with Web({"/": answer(200)}) as web:
        found = client("erp.internal", resolve=Resolver(look_up))
        sending = [asyncio.ensure_future(send(found, f"http://erp.internal:{web.port}/")) for _ in range(MAX_LOOKUPS + 1)]
        for _ in range(MAX_LOOKUPS):
            assert await asyncio.get_running_loop().run_in_executor(None, lambda: asked.acquire(timeout=5))
        assert not asked.acquire(blocking=False)
        assert await asyncio.get_running_loop().getaddrinfo("localhost", 80)
        answered.set()
        assert {came.status for came in await asyncio.gather(*sending)} == {200}


async def test_look_ups_that_nobody_waits_for_any_more_are_bounded() -> None:
    answered = threading.Event()

    def look_up(host: str, port: int) -> Sequence[str]:
        answered.wait()
        return ["127.0.0.1"]

    resolver = Resolver(look_up)
    for _ in range(MAX_ABANDONED):
        asking = asyncio.ensure_future(resolver("slow.example", 443))
        await asyncio.sleep(0)  # it has begun, and waits
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    with pytest.raises(OSError, match="Too many"):
        await resolver("slow.example", 443)
    answered.set()


async def test_a_name_is_really_looked_up() -> None:
    assert "127.0.0.1" in await Resolver()("localhost", 80)
    with pytest.raises((OSError, UnicodeError)):
        await Resolver()("a" * 64, 80)


@pytest.mark.parametrize("handler", [reset, silence], ids=["reset", "silence"])
async def test_the_connection_ends_after_the_request_was_sent(handler: Any) -> None:
    async with Web({"/": handler}) as web:
        with pytest.raises(Unanswered) as error:
            await send(client(web.place), f"{web.url}/", "POST", seconds=0.5)
        assert error.value.sent


async def test_who_is_cancelled_lets_go_of_the_connection() -> None:
    async with Web({"/": silence}) as web:
        sending = asyncio.ensure_future(send(client(web.place), f"{web.url}/", "POST"))
        await asyncio.wait_for(web.asked.wait(), 5)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await asyncio.wait_for(web.gone.wait(), 5)


async def test_a_body_that_is_cut_off_is_a_fault_of_an_answer_whose_status_is_known() -> None:
    async def half(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")

    async with Web({"/": half}) as web:
        came = await send(client(web.place), f"{web.url}/")
        assert (came.status, came.body, came.fault) == (200, b"", "cut_off")


# -- how much it takes -------------------------------------------------------------------------------------------------------

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_body_that_drips_takes_no_longer_than_the_whole_may() -> None:
    async with Web({"/": drips(CHUNKED, b"1\r\nx\r\n")}) as web:
        before = asyncio.get_running_loop().time()
        came = await send(client(web.place), f"{web.url}/", seconds=0.4)
        assert came.fault == "cut_off" and asyncio.get_running_loop().time() - before < 5
        await asyncio.wait_for(web.gone.wait(), 5)


@pytest.mark.parametrize("drop", [b"X-Drip: 1\r\n", b""], ids=["headers", "nothing"])
async def test_a_head_that_drips_neither(drop: bytes) -> None:
    async with Web({"/": drips(b"HTTP/1.1 200 OK\r\n", drop)}) as web:
        with pytest.raises(Unanswered):
            await send(client(web.place), f"{web.url}/", seconds=0.4)


async def test_answers_before_the_answer_are_not_waited_through() -> None:
    async with Web({"/": floods(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n")}) as web:
        with pytest.raises(Unanswered):
            await send(client(web.place), f"{web.url}/", seconds=0.4)


async def test_an_endless_body_is_read_up_to_its_bound() -> None:
    async with Web({"/": floods(CHUNKED, b"1000\r\n" + b"x" * 4096 + b"\r\n")}) as web:
        came = await send(client(web.place), f"{web.url}/", most=50_000)
        assert (came.status, came.body, came.fault) == (200, b"", "too_large")
        await asyncio.wait_for(web.gone.wait(), 5)


async def test_a_body_in_a_million_pieces_is_not_read_to_its_end() -> None:
    """Each piece costs time that other runs of the process are then without."""
    crumbs = floods(CHUNKED, b"1\r\nx\r\n" * 1_000)
    async with Web({"/": crumbs, "/few": CHUNKED + b"1\r\nx\r\n" * 1_000 + b"0\r\n\r\n"}) as web:
        came = await send(client(web.place), f"{web.url}/", most=1_000_000)
        assert (came.status, came.fault) == (200, "undecodable")
        await asyncio.wait_for(web.gone.wait(), 5)
        assert (await send(client(web.place), f"{web.url}/few")).body == b"x" * 1_000


@pytest.mark.parametrize("most", [999, 1_000])
async def test_the_bound_is_exact(most: int) -> None:
    async with Web(
        {"/": answer(200, b"x" * 1_000), "/z": answer(200, gzip.compress(b"x" * 1_000), headers={"Content-Encoding": "gzip"})}
    ) as web:
        for path in ("/", "/z"):
            came = await send(client(web.place), f"{web.url}{path}", most=most)
            assert (came.fault, len(came.body)) == ((None, 1_000) if most == 1_000 else ("too_large", 0))


async def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    async with Web({"/": answer(200, bomb, headers={"Content-Encoding": "gzip"})}) as web:
        tracemalloc.start()
        try:
            came = await send(client(web.place), f"{web.url}/", most=100_000)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(bomb) < 100_000 and came.fault == "too_large" and most < 20_000_000


GZIPPED = gzip.compress(b"text", mtime=0)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("gzip", b"no gzip"), ("gzip", GZIPPED[:-4]), ("gzip", GZIPPED * 2), ("br", b"x"), ("deflate", b"x"), ("gzip, gzip", GZIPPED)],
)
async def test_what_cannot_be_unpacked_is_a_fault(encoding: str, body: bytes) -> None:
    async with Web({"/": answer(200, body, headers={"Content-Encoding": encoding})}) as web:
        assert (await send(client(web.place), f"{web.url}/")).fault == "undecodable"


async def test_huge_headers_are_no_answer() -> None:
    async with Web({"/": answer(200, headers={"X-Huge": "x" * 1_000_000})}) as web:
        with pytest.raises(Unanswered):
            await send(client(web.place), f"{web.url}/")


# -- TLS ---------------------------------------------------------------------------------------------------------------------


def test_authorities_that_cannot_be_read_stop_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (tmp_path / "missing.pem", Path(__file__)):
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        with pytest.raises(DefinitionError, match="SSL_CERT_FILE"):
            client()


def certificate(folder: Path, *names: str) -> tuple[ssl.SSLContext, Path]:
    """A server that has a certificate for these names, and the file of the authority that says so."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general(each) for each in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    both, file = folder / "server.pem", folder / "authority.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    both.write_bytes(secret + file.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return context, file


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize(("host", "fits"), [("erp.internal", True), ("127.0.0.1", True), ("other.internal", False)])
async def test_certificates_are_checked_for_the_name(
    host: str, fits: bool, trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for the number that is connected to, and never not at all."""
    context, authority = certificate(tmp_path, "erp.internal", "127.0.0.1")
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    names = Names(erp_internal=[["127.0.0.1"]], other_internal=[["127.0.0.1"]])
    async with Web({"/": answer(200)}, tls=context) as web:
        heard = Heard()
        sending = send(client(host, names=names, heard=heard), f"https://{host}:{web.port}/", "POST", headers=[("X-Key", "k")])
        if fits and trusted:
            assert (await sending).status == 200
        else:
            with pytest.raises(Unreachable) as error:
                await sending
            assert not error.value.sent and web.requests == []
            assert "certificate" in error.value.detail and heard.names == ["outbound_failed"]
