"""What a hostile newcomer sends (docs of the catalogue: F-01 … F-17): a problem with a code, nothing stored, and the service stays up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from runward.api import bodies, connections
from tests.api.house import House, house, served

JSON = {"Content-Type": "application/json"}
RUN = b'{"agent":"support","input":"hi"%s}'


def field(text: str) -> bytes:
    """A request that is good but for one more field."""
    return RUN % b"," + text.encode() if not text else RUN % (b"," + text.encode())


BODIES: dict[str, tuple[bytes, int, str]] = {
    "F-01 empty": (b"", 400, "invalid_json"),
    "F-01 blank": (b"  \n", 400, "invalid_json"),
    "F-01 truncated": (b'{"agent": "support", ', 400, "invalid_json"),
    "F-01 trailing garbage": (RUN % b"" + b" x", 400, "invalid_json"),
    "F-01 two values": (RUN % b"" + RUN % b"", 400, "invalid_json"),
    "F-01 an array": (b"[]", 422, "invalid_value"),
    "F-01 a string": (b'"run"', 422, "invalid_value"),
    "F-01 null": (b"null", 422, "invalid_value"),
    "F-01 single quotes": (b"{'agent':'support','input':'hi'}", 400, "invalid_json"),
    "F-01 a comment": (RUN % b"/* */", 400, "invalid_json"),
    "F-02 nested 65": (field('"metadata":{"a":' + "[" * 63 + "]" * 63 + "}"), 422, "invalid_value"),
    "F-02 nested 90": (field('"metadata":{"a":' + "[" * 90 + "]" * 90 + "}"), 422, "invalid_value"),
    "F-02 nested 900": (field('"metadata":' + '{"a":' * 900 + "1" + "}" * 900), 422, "invalid_value"),
    "F-02 nested 5,000": (field('"metadata":' + "[" * 5_000 + "]" * 5_000), 422, "invalid_value"),
    "F-02 nested 100,000": (field('"metadata":' + "[" * 100_000 + "]" * 100_000), 422, "invalid_value"),
    "F-02 open 100,000": (b'{"a":' * 100_000, 422, "invalid_value"),
    "F-03 NUL in the input": (rb'{"agent":"support","input":"a\u0000b"}', 422, "invalid_value"),
    "F-03 NUL in a value": (field(r'"metadata":{"k":"\u0000"}'), 422, "invalid_value"),
    "F-03 NUL in a key": (field(r'"metadata":{"\u0000":1}'), 422, "invalid_value"),
    "F-03 NUL in an unknown field": (field(r'"\u0000":1'), 422, "invalid_value"),
    "F-03 a raw NUL": (b'{"agent":"support","input":"a\x00b"}', 400, "invalid_json"),
    "F-03 a raw line feed": (b'{"agent":"support","input":"a\nb"}', 400, "invalid_json"),
    "F-04 half a pair": (rb'{"agent":"support","input":"\ud800"}', 422, "invalid_value"),
    "F-04 the other half": (rb'{"agent":"support","input":"\uDFFF!"}', 422, "invalid_value"),
    "F-04 in a key": (field(r'"metadata":{"\ud800":1}'), 422, "invalid_value"),
    "F-04 in a field that is wrong too": (field(r'"priority":"\ud800"'), 422, "invalid_value"),
    "F-04 deep inside": (field(r'"context":{"a":[{"b":["\udead"]}]}'), 422, "invalid_value"),
    "F-05 NaN": (field('"metadata":{"n":NaN}'), 422, "invalid_value"),
    "F-05 Infinity": (field('"metadata":{"n":Infinity}'), 422, "invalid_value"),
    "F-05 -Infinity": (field('"metadata":{"n":-Infinity}'), 422, "invalid_value"),
    "F-05 1e400": (field('"metadata":{"n":1e400}'), 422, "invalid_value"),
    "F-05 -1e400": (field('"context":{"n":[-1e400]}'), 422, "invalid_value"),
    "F-06 2^63": (field('"metadata":{"n":9223372036854775808}'), 422, "invalid_value"),
    "F-06 -2^63-1": (field('"metadata":{"n":-9223372036854775809}'), 422, "invalid_value"),
    "F-06 10^30": (field('"priority":' + "9" * 30), 422, "invalid_value"),
    "F-06 400 digits": (field('"metadata":{"n":' + "9" * 400 + "}"), 422, "invalid_value"),
    "F-06 5,000 digits": (field('"metadata":{"n":' + "9" * 5_000 + "}"), 422, "invalid_value"),
    "F-07 a key twice": (b'{"agent":"support","input":"a","input":"b"}', 400, "invalid_json"),
    "F-07 twice, deep inside": (field('"metadata":{"a":{"b":1,"b":1}}'), 400, "invalid_json"),
    "F-07 twice, escaped": (rb'{"agent":"support","input":"a","\u0069nput":"b"}', 400, "invalid_json"),
    "F-10 UTF-16": ('{"agent":"support","input":"hi"}'.encode("utf-16"), 400, "invalid_json"),
    "F-10 a byte order mark": (b"\xef\xbb\xbf" + RUN % b"", 400, "invalid_json"),
    "F-10 bad UTF-8": (b'{"agent":"support","input":"\xff"}', 400, "invalid_json"),
    "F-10 a surrogate in UTF-8": (b'{"agent":"support","input":"\xed\xa0\x80"}', 400, "invalid_json"),
    "F-10 overlong UTF-8": (b'{"agent":"support","input":"\xc0\x80"}', 400, "invalid_json"),
    "F-11 true for a number": (field('"priority":true'), 422, "invalid_value"),
    "F-11 a string for a number": (field('"priority":"1"'), 422, "invalid_value"),
    "F-11 1.0 for a number": (field('"priority":1.0'), 422, "invalid_value"),
    "F-11 a number for a string": (b'{"agent":"support","input":1}', 422, "invalid_value"),
    "F-11 true for seconds": (field('"limits":{"timeout_seconds":true}'), 422, "invalid_value"),
    "F-11 a misspelt field": (b'{"agent":"support","inputs":"hi","input":"hi"}', 422, "unknown_field"),
    "F-11 a misspelt field, inside": (field('"limits":{"max_step":1}'), 422, "unknown_field"),
    "F-11 another case": (field('"Priority":1'), 422, "unknown_field"),
    "F-12 a path for an id": (field('"run_id":"../etc/passwd"'), 422, "invalid_value"),
    "F-12 an id with a line feed": (field(r'"run_id":"run\n"'), 422, "invalid_value"),
    "F-12 an id that looks alike": (field('"run_id":"r\u0443n"'), 422, "invalid_value"),
    "F-12 an id with a mark": (field(r'"run_id":"run\u202e"'), 422, "invalid_value"),
    "F-12 an empty id": (field('"run_id":""'), 422, "invalid_value"),
    "F-12 129 characters": (field(f'"run_id":"{"x" * 129}"'), 422, "invalid_value"),
    "F-12 a control character in a user": (field(r'"scope":{"user":"a\u0007"}'), 422, "invalid_value"),
    "F-13 10,000 metadata keys": (field('"metadata":' + json.dumps({str(number): 1 for number in range(10_000)})), 422, "invalid_value"),
    "F-13 65 metadata keys": (field('"metadata":' + json.dumps({str(number): 1 for number in range(65)})), 422, "invalid_value"),
    "F-13 a long metadata key": (field('"metadata":{"' + "k" * 129 + '":1}'), 422, "invalid_value"),
    "F-13 17 KiB of metadata": (field('"metadata":{"k":"' + "x" * 17_000 + '"}'), 422, "invalid_value"),
    "F-13 65 tool contexts": (field('"tool_context":' + json.dumps({f"t{number}": {} for number in range(65)})), 422, "invalid_value"),
    "F-13 101 messages": (
        b'{"agent":"support","input":' + json.dumps([{"role": "user", "content": "x"}] * 101).encode() + b"}",
        422,
        "invalid_value",
    ),
    "a policy naming a tool nobody has": (field('"policy":{"deny_tools":["no_such_tool"]}'), 422, "unknown_tool"),
    "an output that is no schema": (field('"output":{"schema":{"type":"nonsense"}}'), 422, "invalid_value"),
    "a schema from the network": (field('"output":{"schema":{"$ref":"https://example.com/schema.json"}}'), 422, "invalid_value"),
    "a schema from the file system": (field('"output":{"schema":{"$ref":"file:///etc/passwd"}}'), 422, "invalid_value"),
    "a schema whose pattern may take for ever": (field('"output":{"schema":{"pattern":"(?=a)+$"}}'), 422, "invalid_value"),
    "a schema that points nowhere": (field('"output":{"schema":{"$ref":"#/$defs/none"}}'), 422, "invalid_value"),
    "a schema that is none": (field('"output":{"schema":true}'), 422, "invalid_value"),
    "an output without a schema": (field('"output":{"name":"answer"}'), 422, "invalid_value"),
    "an output whose name is no tool's": (field('"output":{"schema":{},"name":"a b"}'), 422, "invalid_value"),
    "an output of a mode nobody knows": (field('"output":{"schema":{},"mode":"magic"}'), 422, "invalid_value"),
    "an output that brings a verifier": (field('"output":{"schema":{},"verify":"os.system"}'), 422, "unknown_field"),
    "what comes later: budgets": (field('"budgets":["user:42"]'), 422, "unknown_field"),
    "what comes later: concurrency_key": (field('"concurrency_key":null'), 422, "unknown_field"),
    "a bound in dollars that is a number": (field('"limits":{"max_cost_usd":0.5}'), 422, "invalid_value"),
    "a bound of no dollars": (field('"limits":{"max_cost_usd":"0.000"}'), 422, "invalid_value"),
    "a bound of endless dollars": (field('"limits":{"max_cost_usd":"Infinity"}'), 422, "invalid_value"),
    "a bound in dollars on a model without a price": (field('"limits":{"max_cost_usd":"0.50"}'), 422, "unpriced_model"),
    "a bound of no tokens": (field('"limits":{"max_total_tokens":0}'), 422, "invalid_value"),
    "a time without a zone": (field('"start_at":"2030-01-01T00:00:00"'), 422, "invalid_value"),
    "a time that is a number": (field('"start_at":1893456000'), 422, "invalid_value"),
    "a time that never was": (field('"start_at":"2030-02-30T00:00:00Z"'), 422, "invalid_value"),
    "a step limit of nothing": (field('"limits":{"max_steps":0}'), 422, "invalid_value"),
    "a limit that never ends": (field('"limits":{"timeout_seconds":1e300}'), 422, "invalid_value"),
    "an agent nobody has": (b'{"agent":"nobody","input":"hi"}', 422, "unknown_agent"),
    "a version nobody has": (field('"agent_version":"99"'), 422, "unknown_agent"),
    "a context for a tool nobody has": (field('"tool_context":{"refund":{}}'), 422, "unknown_tool"),
}


@pytest.mark.parametrize(("body", "status", "code"), BODIES.values(), ids=BODIES.keys())
async def test_R46_a_hostile_body_is_refused_with_a_code_and_nothing_is_stored(
    quiet_house: House, body: bytes, status: int, code: str
) -> None:
    answer = await quiet_house.http.post("/runs", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    check_problem(answer)
    assert quiet_house.database.actors == {}
    assert quiet_house.heard.problems == []


HEADERS: dict[str, tuple[dict[str, str], bytes, int]] = {
    "F-10 no content type": ({}, RUN % b"", 415),
    "F-10 a form": ({"Content-Type": "application/x-www-form-urlencoded"}, RUN % b"", 415),
    "F-10 text": ({"Content-Type": "text/plain"}, RUN % b"", 415),
    "F-10 another charset": ({"Content-Type": "application/json; charset=utf-16"}, RUN % b"", 415),
    "F-10 gzip": ({**JSON, "Content-Encoding": "gzip"}, b"\x1f\x8b\x08\x00", 415),
    "F-10 JSON, but a patch": ({"Content-Type": "application/merge-patch+json"}, RUN % b"", 415),
    "said UTF-8": ({"Content-Type": "Application/JSON; charset=UTF-8"}, RUN % b"", 202),
    "said identity": ({**JSON, "Content-Encoding": "identity"}, RUN % b"", 202),
}


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


IDS = [
    *("%00", "..%2f", "%2e%2e", "x" * 4_096, "run%E2%80%AE", "r%D1%83n", "{run_id}", "run%0A", "%72un-1", "run-1%20", "run-1."),
    *("RUN-1", "-run", "'or'1'='1", "%25"),
]


@pytest.mark.parametrize("id", IDS)
async def test_an_id_has_one_spelling(quiet_house: House, id: str) -> None:
    await quiet_house.created(run_id="run-1")
    for path in (f"/runs/{id}", f"/runs/{id}/events", f"/runs/{id}/messages", f"/agents/{id}", "/runs/run-1/", "//runs/run-1"):
        answer = await quiet_house.http.get(httpx.URL("http://localhost").copy_with(raw_path=path.encode()))
        assert answer.status_code == 404, path
        check_problem(answer)
    assert (await quiet_house.http.get("/runs/run-1")).status_code == 200


QUERIES = [
    *("limit=0", "limit=1001", "limit=-1", "limit=1_0", "limit=+5", "limit=%205", "limit=1.0", "limit=", "limit=%D9%A1", "limit=007"),
    *(f"limit={'9' * 30}", "limit=5&limit=5", "limits=5", "order=created", "status=done", "status=", "waiting_on=nothing"),
    *("cancel_requested=1", "cancel_requested=True", "created_after=yesterday", "created_after=2026-01-01"),
    *("created_after=2026-01-01T00:00:00", "agent=", "agent=%00", "agent=%ff", "agent=%", "agent", "&&", "agent=" + "x" * 129),
    *("cursor=" + "x" * 2_000, "metadata.a=1&metadata.a=2", "metadata.a=%00", "metadata.%00=1", "metadata=1", "_named=1", "open_prefix=x"),
    "&".join(["status=failed"] * 101),
]


@pytest.mark.parametrize("query", QUERIES)
async def test_a_query_is_read_as_strictly_as_a_body(quiet_house: House, query: str) -> None:
    answer = await quiet_house.http.get(httpx.URL("http://localhost").copy_with(raw_path=f"/runs?{query}".encode()))
    assert answer.status_code == 422, answer.text
    check_problem(answer)


@pytest.mark.parametrize(
    "cursor", ["-1", "9" * 30, "1_000", "+5", "garbage", "MQ", "bnVsbA", "W10", "WzEsMiwzXQ", "e30", "%00", "\u0661", "W" * 1_000]
)
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
