"""What a hostile newcomer sends (docs of the catalogue: F-01 … F-17): a problem with a code, nothing stored, and the service stays up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from runward.api import bodies, connections
from tests.api.corpus import BODIES, CURSORS, HEADERS, IDS, JSON, QUERIES, RUN
from tests.api.house import House, house, served


@pytest.mark.parametrize(("body", "status", "code"), BODIES.values(), ids=BODIES.keys())
async def test_R46_a_hostile_body_is_refused_with_a_code_and_nothing_is_stored(
    quiet_house: House, body: bytes, status: int, code: str
) -> None:
    answer = await quiet_house.http.post("/runs", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    check_problem(answer)
    assert quiet_house.database.actors == {}
    assert quiet_house.heard.problems == []


@pytest.mark.parametrize(("headers", "body", "status"), HEADERS.values(), ids=HEADERS.keys())
async def test_only_plain_json_is_read(quiet_house: House, headers: dict[str, str], body: bytes, status: int) -> None:
    answer = await quiet_house.http.post("/runs", content=body, headers=headers)
    assert answer.status_code == status
    if status == 415:
        assert check_problem(answer)["code"] == "unsupported_media_type"


async def test_numbers_come_back_as_they_were(quiet_house: House) -> None:
    numbers = {"a": 2**53 + 1, "b": 2**63 - 1, "c": -(2**63), "d": 1, "e": 1.0, "f": -0.0, "g": 1e22, "h": 0.1}
    run = await quiet_house.created(metadata=numbers)
    answer = await quiet_house.http.get(f"/runs/{run['run_id']}")
    assert json.loads(answer.text)["metadata"] == numbers
    assert '"d":1,"e":1.0,"f":-0.0' in answer.text


@pytest.mark.parametrize("characters", ["x", "\U0001f600"])
async def test_R48_the_cap_of_a_body_is_in_bytes(characters: str) -> None:
    limit = 2_048
    async with house(worker=False, max_body_bytes=limit) as made:
        frame = len(RUN % b"") - 2
        text = (characters * limit).encode()[: limit - frame]
        body = b'{"agent":"support","input":"' + text.decode("utf-8", "ignore").encode().ljust(limit - frame, b" ") + b'"}'
        assert len(body) == limit
        assert (await made.http.post("/runs", content=body, headers=JSON)).status_code == 202
        answer = await made.http.post("/runs", content=body + b" ", headers=JSON)
        assert (answer.status_code, check_problem(answer)["code"]) == (413, "body_too_large")


async def test_R48_a_body_that_is_too_large_is_refused_before_it_has_come(quiet_house: House) -> None:
    async with served(quiet_house) as port:
        said = b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        by_length = await spoken(port, said + b"Content-Length: 10000000\r\n\r\n{")
        chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        by_counting = await spoken(port, said + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 20)
    for answer in (by_length, by_counting):
        assert answer.startswith(b"HTTP/1.1 413")
        assert b'"code":"body_too_large"' in answer


async def test_R48_a_chunked_body_is_counted_and_never_gathered(quiet_house: House) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b"x" * 65_536

    answer = await quiet_house.http.post("/runs", content=endless(), headers=JSON)
    assert (answer.status_code, check_problem(answer)["code"]) == (413, "body_too_large")
    assert sent <= 18


async def test_a_body_that_dawdles_is_given_up(quiet_house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.1)
    async with served(quiet_house) as port:
        head = b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        answer = await spoken(port, head)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"code":"request_timeout"' in answer


@pytest.mark.parametrize("id", IDS)
async def test_an_id_has_one_spelling(quiet_house: House, id: str) -> None:
    await quiet_house.created(run_id="run-1")
    for path in (f"/runs/{id}", f"/runs/{id}/events", f"/runs/{id}/messages", f"/agents/{id}", "/runs/run-1/", "//runs/run-1"):
        answer = await quiet_house.http.get(httpx.URL("http://localhost").copy_with(raw_path=path.encode()))
        assert answer.status_code == 404, path
        check_problem(answer)
    assert (await quiet_house.http.get("/runs/run-1")).status_code == 200


@pytest.mark.parametrize("query", QUERIES)
async def test_a_query_is_read_as_strictly_as_a_body(quiet_house: House, query: str) -> None:
    answer = await quiet_house.http.get(httpx.URL("http://localhost").copy_with(raw_path=f"/runs?{query}".encode()))
    assert answer.status_code == 422, answer.text
    check_problem(answer)


@pytest.mark.parametrize("cursor", CURSORS)
async def test_a_cursor_that_was_never_given_is_refused(quiet_house: House, cursor: str) -> None:
    run = await quiet_house.created()
    for path in ("/runs", f"/runs/{run['run_id']}/messages", f"/runs/{run['run_id']}/receipts"):
        answer = await quiet_house.http.get(path, params={"cursor": cursor})
        assert (answer.status_code, check_problem(answer)["code"]) == (400, "invalid_cursor")
    assert quiet_house.heard.problems == []


async def test_a_cursor_that_was_tampered_with_is_refused(open_house: House) -> None:
    import base64

    for _ in range(2):
        await open_house.completed()
    cursor = (await open_house.http.get("/runs", params={"limit": 1})).json()["next_cursor"]
    mark, at, uid = json.loads(base64.urlsafe_b64decode(cursor + "==="))
    for changed in ([mark, 10**30, uid], [mark, at, "\0"], [mark, at, 7], [mark, True, uid], [mark, at], ["x", at, uid], [mark, 1.5, uid]):
        text = base64.urlsafe_b64encode(json.dumps(changed).encode()).decode().rstrip("=")
        answer = await open_house.http.get("/runs", params={"limit": 1, "cursor": text})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor"), changed
    other_order = await open_house.http.get("/runs", params={"limit": 1, "cursor": cursor, "order": "created_at"})
    assert other_order.status_code == 400


REQUESTS: dict[str, tuple[bytes, tuple[bytes, ...]]] = {
    "F-14 2 MB of one header": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 2_000_000 + b"\r\n\r\n", (b"431", b"400")),
    "F-14 2 MB of headers": (b"GET /healthz HTTP/1.1\r\n" + b"X-A: b\r\n" * 250_000 + b"\r\n", (b"431", b"400")),
    "F-14 40 KB of headers": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 40_000 + b"\r\n\r\n", (b"431",)),
    "F-14 a head that never ends": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 200_000, (b"431",)),
    "F-14 blank lines for ever": (b"\r\n" * 100_000, (b"431", b"400")),
    "F-14 a long address": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", (b"431", b"400")),
    "F-14 a line feed in a request id": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\n b\r\n\r\n", (b"400", b"200")),
    "F-15 two lengths": (b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", (b"400",)),
    "F-15 a length and chunks": (
        b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        (b"400",),
    ),
    "F-15 a length that is none": (b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: +2\r\n\r\n{}", (b"400",)),
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", (b"400",)),
    "a method nobody knows": (b"BREW /runs HTTP/1.1\r\nHost: localhost\r\n\r\n", (b"400", b"405")),
    "CONNECT": (b"CONNECT example.org:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", (b"400", b"404", b"405")),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", (b"400", b"404", b"405")),
    "a byte in the address": (b"GET /runs/\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", (b"400", b"404")),
    "an upgrade": (b"GET /runs HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", (b"200", b"400")),
}


@pytest.mark.parametrize(("said", "statuses"), REQUESTS.values(), ids=REQUESTS.keys())
async def test_what_is_hardly_http_is_answered_or_cut_off(quiet_house: House, said: bytes, statuses: tuple[bytes, ...]) -> None:
    async with served(quiet_house) as port:
        answer = await spoken(port, said)
        assert answer == b"" or answer.split()[1] in statuses, answer[:300]
        if answer and answer.split()[1] >= b"400":
            assert b"application/problem+json" in answer
        alive = await spoken(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert alive.startswith(b"HTTP/1.1 200")
    assert quiet_house.heard.problems == []


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHost:", b"\r\n"])
async def test_a_connection_that_dawdles_is_closed(quiet_house: House, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)
    async with served(quiet_house) as port:
        answer = await spoken(port, said)
    assert answer.startswith(b"HTTP/1.1 408")


async def test_a_hundred_dawdlers_disturb_nobody(quiet_house: House) -> None:
    async with served(quiet_house) as port:
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        for _, writer in slow:
            writer.write(b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        alive = await spoken(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert alive.startswith(b"HTTP/1.1 200")
        for _, writer in slow:
            writer.close()


async def spoken(port: int, said: bytes, seconds: float = 5) -> bytes:
    """Everything a server answers to some bytes until it closes, or has answered and waits for more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        async with asyncio.timeout(seconds):
            writer.write(said)
            while part := await reader.read(65_536):
                answer += part
                if b"\r\n\r\n" in answer and answer.endswith(b"}"):
                    break
    except ConnectionError:
        pass
    finally:
        writer.close()
    return answer


def check_problem(answer: httpx.Response) -> dict[str, object]:
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, object] = json.loads(answer.content.decode("utf-8"))
    assert {"type", "title", "status", "detail", "code", "instance"} <= problem.keys()
    assert problem["status"] == answer.status_code
    assert problem["instance"] == f"urn:runward:request:{answer.headers['x-request-id']}"
    return problem
