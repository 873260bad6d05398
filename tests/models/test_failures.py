"""What a call's failure is called, on the real wires: one request each, and nothing of the provider's own words (F-58, F-59)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from runward.engine.clock import SystemClock
from runward.models.clients import ModelClients
from runward.models.kinds import TRANSIENT
from runward.ports.models import ModelCallError, ModelDelta
from tests.fakes import HTML, KEY, Answer, Call, Ending, NoAnswer, Plain, Reply
from tests.models.calls import CHAT, CLAUDE, RESPONSES, WIRES, Line, line, request

SECRET = f"Incorrect API key provided: {KEY}, see https://gateway.internal/?token={KEY}"


def told(error: ModelCallError) -> dict[str, object]:
    """What a failure says of itself, but for its sentence."""
    return {
        "kind": error.kind,
        "transient": error.transient,
        "billed": error.billed,
        "after_content": error.after_content,
        "retry_after": error.retry_after,
        "status": error.status,
    }


def expected(kind: str, **fields: object) -> dict[str, object]:
    base: dict[str, object] = {"transient": True, "billed": False, "after_content": False, "retry_after": None, "status": None}
    return {"kind": kind, **base, **fields}


async def failure_after(wire: Line, reply: Reply, calls: int = 1) -> dict[str, object]:
    """The failure that this reply leads to; it must have cost one request and must not quote it."""
    wire.fake.reply(reply)
    silent = isinstance(reply, NoAnswer)
    hanging = isinstance(reply, Answer) and reply.ending is Ending.HANG
    patience = {"first_event_timeout_seconds": 1 if silent else 20, "chunk_timeout_seconds": 0.3 if hanging else 20}
    error = await wire.fail(request(**patience))
    assert len(wire.fake.requests) == calls
    assert error.__cause__ is None and error.__context__ is None, "the SDK's error, with the provider's words, hangs on to nothing"
    assert "KEY" not in f"{error!r} {error} {error.message}" and "http" not in error.message
    return told(error)


def refusal(status: int, code: str = "", message: str = SECRET, kind: str = "", **headers: str) -> Plain:
    error = {"message": message, "type": kind, "code": code}
    return Plain(
        status=status, body={"type": "error", "error": error}, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )


@pytest.mark.parametrize("model", WIRES)
@pytest.mark.parametrize(
    ("reply", "told_of"),
    [
        (refusal(429, retry_after="7"), expected("rate_limited", status=429, retry_after=7.0)),
        (refusal(429, retry_after_ms="1500"), expected("rate_limited", status=429, retry_after=1.5)),
        (refusal(500), expected("server_error", status=500)),
        (refusal(502), expected("server_error", status=502)),
        (refusal(503, retry_after="2"), expected("server_error", status=503, retry_after=2.0)),
        (refusal(529, kind="overloaded_error"), expected("server_error", status=529)),
        (refusal(408), expected("server_error", status=408)),
        (refusal(409), expected("server_error", status=409)),
        (refusal(401), expected("auth", status=401, transient=False)),
        (refusal(403), expected("auth", status=403, transient=False)),
        (refusal(402), expected("quota", status=402, transient=False)),
        (refusal(400), expected("rejected", status=400, transient=False)),
        (refusal(404), expected("rejected", status=404, transient=False)),
        (refusal(413), expected("rejected", status=413, transient=False)),
        (refusal(422), expected("rejected", status=422, transient=False)),
        (HTML, expected("bad_response", billed=True)),
        (Plain(status=200, body={"error": {"message": SECRET}}), expected("bad_response", billed=True)),
        (Plain(status=200, body="{nope"), expected("bad_response", billed=True)),
        (Plain(status=200, body=""), expected("bad_response", billed=True)),
        (NoAnswer(), expected("network", billed=True)),
        (NoAnswer(hang=True), expected("timeout", billed=True)),
    ],
    ids=str,
)
async def test_F58_before_the_first_content(model: str, reply: Reply, told_of: dict[str, object]) -> None:
    async with line(model) as wire:
        assert await failure_after(wire, reply) == told_of


@pytest.mark.parametrize(
    ("model", "reply", "kind"),
    [
        (CHAT, refusal(429, code="insufficient_quota"), "quota"),
        (CHAT, refusal(400, code="context_length_exceeded"), "context_overflow"),
        (RESPONSES, refusal(400, code="context_length_exceeded"), "context_overflow"),
        (
            CLAUDE,
            refusal(400, kind="invalid_request_error", message="prompt is too long: 210000 tokens > 200000 maximum"),
            "context_overflow",
        ),
        (CLAUDE, refusal(400, kind="invalid_request_error", message="Your credit balance is too low to access the API."), "quota"),
        (CHAT, refusal(400, code="content_filter"), "content_filter"),
        (RESPONSES, refusal(400, code="content_policy_violation"), "content_filter"),
        (RESPONSES, refusal(400, code="invalid_prompt"), "rejected"),
    ],
)
async def test_what_only_the_providers_words_tell(model: str, reply: Reply, kind: str) -> None:
    async with line(model) as wire:
        assert await failure_after(wire, reply) == expected(
            kind, transient=False, status=reply.status if isinstance(reply, Plain) else None
        )


BROKEN = {
    Ending.NO_FINISH: "cut_off",
    Ending.NO_END: "cut_off",
    Ending.CUT: "network",
    Ending.RESET: "network",
    Ending.HANG: "timeout",
    Ending.TWO_FINISHES: "bad_response",
    Ending.CHANGED_FINISH: "bad_response",
    Ending.BAD_JSON: "bad_response",
    Ending.OVERLOADED: "server_error",
}


@pytest.mark.parametrize("content", ["text", "arguments", "thinking"])
@pytest.mark.parametrize("ending", BROKEN)
@pytest.mark.parametrize("model", WIRES)
async def test_F59_a_broken_stream_is_never_an_answer(model: str, ending: Ending, content: str) -> None:
    """Also A-17: a stream that closes cleanly without a finish mark."""
    if model == RESPONSES and ending in (Ending.TWO_FINISHES, Ending.CHANGED_FINISH):
        ending = Ending.NO_FINISH  # its end is one event, with the whole response
    call = Call(name="weather", arguments='{"city": "Paris"}')
    answer = {
        "text": Answer(text="It is sunny", ending=ending),
        "arguments": Answer(calls=[call], ending=ending),
        "thinking": Answer(thinking="They want the weather.", encrypted="enc", ending=ending),
    }[content]
    status = {CLAUDE: 529}.get(model, 503) if ending is Ending.OVERLOADED else None
    async with line(model) as wire:
        assert await failure_after(wire, answer) == expected(BROKEN[ending], billed=True, after_content=True, status=status)


def inside(**error: Any) -> Mapping[str, Any]:
    return {"message": SECRET, **error}


SAID_INSIDE: list[tuple[list[str], Mapping[str, Any], str, int | None]] = [
    ([CLAUDE], inside(type="rate_limit_error"), "rate_limited", 429),
    ([CLAUDE], inside(type="api_error"), "server_error", 500),
    ([CLAUDE], inside(type="timeout_error"), "server_error", 504),
    ([CLAUDE], inside(type="overloaded_error"), "server_error", 529),
    ([CLAUDE], inside(type="invalid_request_error"), "rejected", 400),
    ([CLAUDE], inside(type="authentication_error"), "auth", 401),
    ([CLAUDE], inside(type="billing_error"), "quota", 402),
    ([CLAUDE], inside(type="permission_error"), "auth", 403),
    ([CLAUDE], inside(type="request_too_large"), "rejected", 413),
    ([CLAUDE], inside(type="nobody_knows_it"), "bad_response", None),
    ([CHAT, RESPONSES], inside(code="rate_limit_exceeded"), "rate_limited", 429),
    ([CHAT, RESPONSES], inside(code="server_error"), "server_error", 500),
    ([CHAT, RESPONSES], inside(code="insufficient_quota"), "quota", 429),
    ([CHAT, RESPONSES], inside(code="context_length_exceeded"), "context_overflow", 400),
    ([CHAT, RESPONSES], inside(code="content_filter"), "content_filter", None),
    ([CHAT], inside(code=502), "server_error", 502),
    ([RESPONSES], inside(code="invalid_prompt"), "rejected", None),
    ([RESPONSES], inside(code="image_content_policy_violation"), "content_filter", None),
    ([CHAT, RESPONSES], inside(code="nobody_knows_it"), "bad_response", None),
    ([CHAT, RESPONSES], inside(code=None), "bad_response", None),
]


@pytest.mark.parametrize("text", ["", "It is sunny"], ids=["before", "within"])
@pytest.mark.parametrize(
    ("model", "error", "kind", "status"),
    [(model, error, kind, status) for models, error, kind, status in SAID_INSIDE for model in models],
    ids=lambda value: str(value.get("type") or value.get("code")) if isinstance(value, dict) else str(value),
)
async def test_F59_what_a_provider_says_inside_its_stream(
    model: str, error: Mapping[str, Any], kind: str, status: int | None, text: str
) -> None:
    """Under a status of 200 it is the same failure, and before the first content another model may take over; it may be billed."""
    for ending in (Ending.OVERLOADED, Ending.ERROR_EVENT) if model == RESPONSES else (Ending.OVERLOADED,):
        async with line(model) as wire:
            assert await failure_after(wire, Answer(text=text, ending=ending, error=error)) == expected(
                kind, transient=kind in TRANSIENT, billed=True, after_content=bool(text), status=status
            )


@pytest.mark.parametrize("model", WIRES)
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "86400"}, 86_400.0),
        ({"retry-after": "Fri, 31 Dec 2106 23:59:59 GMT"}, 1e9),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after-ms": "inf"}, None),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({}, None),
    ],
    ids=str,
)
async def test_R30_patience_is_asked_for_in_several_ways(model: str, headers: dict[str, str], seconds: float | None) -> None:
    async with line(model) as wire:
        wire.fake.reply(Plain(status=429, body={"error": {"message": "slow down"}}, headers=headers))
        told = (await wire.fail()).retry_after
    assert (told is not None and told > 1e9) if seconds == 1e9 else told == seconds


@pytest.mark.parametrize("model", [CHAT, CLAUDE])
async def test_F59_a_finish_mark_that_is_merely_repeated_is_fine(model: str) -> None:
    """OpenRouter and some gateways send theirs again beside the usage."""
    async with line(model) as wire:
        wire.fake.reply(Answer(text="It is sunny", ending=Ending.FINISH_TWICE))
        assert (await wire.ask()).text == "It is sunny"


@pytest.mark.parametrize("model", [CHAT, CLAUDE])
async def test_a_finish_mark_nobody_knows_is_no_answer(model: str) -> None:
    async with line(model) as wire:
        wire.fake.reply(Answer(text="It is sunny", finish="shrug"))
        assert (await wire.fail()).kind == "bad_response"


async def test_calls_that_are_announced_and_missing_are_no_answer() -> None:
    async with line(CHAT) as wire:
        wire.fake.reply(Answer(text="Let me look", finish="tool_calls"))
        assert (await wire.fail()).kind == "bad_response"


async def test_F60_a_call_without_a_name_is_no_answer() -> None:
    """The library would leave it out, and half of what the model wanted would run."""
    async with line(CHAT) as wire:
        wire.fake.reply(Answer(calls=[Call(name="weather", arguments="{}"), Call(name=None, arguments="{}")]))
        assert (await wire.fail()).kind == "bad_response"


@pytest.mark.parametrize("model", WIRES)
async def test_nobody_listens_at_the_address(model: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        environ = {"OPENAI_BASE_URL": address, "ANTHROPIC_BASE_URL": address, "OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}
        clients = ModelClients(SystemClock(), environ)
        with pytest.raises(ModelCallError) as caught:
            await clients.client(model).call(request(), _ignored)
        await clients.close()
    assert told(caught.value) == expected("network")


async def test_a_host_that_speaks_no_tls() -> None:
    async with line(CHAT) as wire:
        clients = ModelClients(SystemClock(), {**wire.fake.environ, "OPENAI_BASE_URL": wire.fake.url.replace("http://", "https://")})
        with pytest.raises(ModelCallError) as caught:
            await clients.client(CHAT).call(request(), _ignored)
        await clients.close()
    assert told(caught.value) == expected("network")


@pytest.mark.parametrize("model", WIRES)
async def test_a_redirect_is_not_followed(model: str) -> None:
    """It would take the key to another host."""
    async with line(model) as wire, line(model) as other:
        wire.fake.reply(Plain(status=307, body="", headers={"location": f"{other.fake.url}/elsewhere"}))
        assert not (await wire.fail()).after_content
        assert other.fake.requests == []


@pytest.mark.parametrize("model", WIRES)
async def test_the_whole_call_has_an_end(model: str) -> None:
    """Chunks that keep coming do not put it off."""
    async with line(model) as wire:
        wire.fake.reply(Answer(text="word " * 100, delay=0.02))
        error = await wire.fail(request(timeout_seconds=1))
    assert told(error) == expected("timeout", billed=True, after_content=True)


@pytest.mark.parametrize(
    ("reply", "first", "chunk"),
    [(NoAnswer(hang=True), 0.2, 60), (Answer(text="It is sunny", ending=Ending.HANG), 60, 0.2)],
    ids=["first", "chunk"],
)
@pytest.mark.parametrize("model", WIRES)
async def test_the_first_event_and_every_further_one_have_their_own_time(model: str, reply: Reply, first: float, chunk: float) -> None:
    async with line(model) as wire, asyncio.timeout(10):
        wire.fake.reply(reply)
        error = await wire.fail(request(timeout_seconds=60, first_event_timeout_seconds=first, chunk_timeout_seconds=chunk))
    assert error.kind == "timeout"


@pytest.mark.parametrize("model", WIRES)
async def test_slow_chunks_within_their_time_are_fine(model: str) -> None:
    async with line(model) as wire:
        wire.fake.reply(Answer(text="one two three", delay=0.05))
        answer = await wire.ask(request(first_event_timeout_seconds=20, chunk_timeout_seconds=5))
    assert answer.text == "one two three"


@pytest.mark.parametrize("reply", [NoAnswer(hang=True), Answer(text="It is sunny", ending=Ending.HANG)], ids=["before", "within"])
@pytest.mark.parametrize("model", WIRES)
async def test_cancelling_closes_the_connection_at_once(model: str, reply: Reply) -> None:
    async with line(model) as wire:
        wire.fake.reply(reply)
        all_heard = asyncio.Event()

        async def heard(delta: ModelDelta) -> None:
            await wire.heard(delta)
            if wire.streamed("text") == "It is sunny":
                all_heard.set()

        call = asyncio.ensure_future(wire.client.call(request(), heard))
        await wire.fake.received()
        if isinstance(reply, Answer):
            await asyncio.wait_for(all_heard.wait(), 5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(wire.fake.requests[0].disconnected.wait(), 1)


@pytest.mark.parametrize("model", WIRES)
async def test_a_client_works_on_after_every_failure(model: str) -> None:
    async with line(model) as wire:
        replies: list[Reply] = [refusal(500), NoAnswer(), Answer(text="half", ending=Ending.RESET), HTML]
        for number, reply in enumerate(replies, 1):
            await failure_after(wire, reply, calls=number)
        assert (await wire.ask()).text == "ok"


async def test_F58_a_thought_that_fits_no_more_costs_no_second_request() -> None:
    """The library would ask again; see `with_anthropic._binding_options` for what is done instead."""
    message = "messages.1.content.0: The block is bound to a different conversation"
    async with line("anthropic:claude-opus-5-5") as wire:
        assert await failure_after(wire, refusal(400, kind="invalid_request_error", message=message)) == expected(
            "rejected", status=400, transient=False
        )


async def _ignored(delta: object) -> None:
    pass


@pytest.mark.parametrize("model", WIRES)
async def test_a_provider_that_cannot_be_connected_to_has_a_time_of_its_own(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was sent, so that nothing is billed; it may pass."""
    monkeypatch.setattr("runward.models.opened.CONNECT_SECONDS", 0.3)
    with full_house() as port:
        async with line(model, url=f"http://127.0.0.1:{port}") as wire, asyncio.timeout(10):
            error = await wire.fail(request(timeout_seconds=60, first_event_timeout_seconds=60))
    assert (error.kind, error.transient, error.billed, error.after_content) == ("timeout", True, False, False)


@contextmanager
def full_house() -> Iterator[int]:
    """A port whose queue is full: whoever comes hears nothing."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listening.getsockname()
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        yield address[1]
