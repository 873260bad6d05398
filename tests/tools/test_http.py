"""R16: HTTP tools. What is sent, and what each answer, or none, means for the effect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from runward import Agent, HttpTool, Reply, ScriptedModel, ToolCall, ToolError, UnknownOutcome
from runward.core.errors import DefinitionError
from runward.ports.outbound import Incoming, OutboundError, OutboundRefused, Outgoing, Unanswered, Unreachable
from runward.ports.tools import BadResult
from runward.ports.tools import Tool as Port
from runward.testing import TestService, make_context
from runward.tools.destinations import Destinations, places_of
from runward.tools.http import ERROR_BYTES, HttpBody, ServiceFailed
from runward.tools.outward import Outward, require_outward
from tests.support.servers import free_port
from tests.tools.web import Web, answer, reset, silence

REPEATABLE = ("read", "idempotent_write")
OTHERS = ("non_idempotent_write", "unclassified")
EFFECTS = REPEATABLE + OTHERS
KEY = "k3y-that/must not+show"
PARAMETERS = {"type": "object", "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}}, "required": ["sku"]}
STOCK: dict[str, Any] = {"name": "stock", "description": "How many?", "url": "https://erp.internal/stock/{sku}", "parameters": PARAMETERS}


class Sent:
    """`ports.outbound.Outbound` that answers in order."""

    def __init__(self, *answers: Incoming | OutboundError) -> None:
        self._answers = list(answers)
        self.sent: list[Outgoing] = []

    async def send(self, outgoing: Outgoing) -> Incoming:
        self.sent.append(outgoing)
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(found, OutboundError):
            raise found
        return found


def incoming(status: int = 200, body: Any = b"", *, kind: str = "application/json", fault: Any = None) -> Incoming:
    raw = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    return Incoming(status=status, content_type=kind, body=raw, fault=fault)


def body_of(sent: Sent, *, most: int = 10_000, environ: Mapping[str, str] | None = None, **given: Any) -> HttpBody:
    tool = HttpTool(**{**STOCK, "effect": "read", **given})
    return HttpBody(tool, Outward(client=sent, environ=environ or {}), max_result_bytes=most)


async def call(found: Incoming | OutboundError, *, attempt: int = 1, arguments: Mapping[str, Any] | None = None, **given: Any) -> Any:
    context = make_context(attempt=attempt)
    return (await body_of(Sent(found), **given).invoke(arguments or {"sku": "a"}, context)).value


async def asked(**given: Any) -> Outgoing:
    sent = Sent(incoming())
    arguments = given.pop("arguments", {"sku": "a/b", "count": 3})
    await body_of(sent, **given).invoke(arguments, make_context())
    return sent.sent[0]


def test_it_is_a_tool_of_the_port() -> None:
    body: Port = body_of(Sent(incoming()), effect="idempotent_write", timeout_seconds=5, max_attempts=2)
    assert (body.traits.effect, body.traits.timeout_seconds, body.traits.max_attempts, body.traits.probes) == (
        "idempotent_write",
        5,
        2,
        False,
    )
    assert body.refusal({"sku": "a"}) is None
    assert body.refusal({"sku": "a", "admin": True}) == "The arguments do not fit: `admin` is not allowed."
    assert body_of(Sent(incoming()), parameters={**PARAMETERS, "additionalProperties": True}).refusal({"sku": "a", "admin": True}) is None
    assert body.refusal({}) == "The arguments do not fit: `sku` is missing."
    assert body.refusal({"sku": ".."}) == "The arguments do not fit: they would lead to another path."


# -- what is sent ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_other_arguments_are_the_query_of_get_and_delete(method: str) -> None:
    sent = await asked(method=method)
    assert (sent.method, sent.url, sent.body) == (method, "https://erp.internal/stock/a%2Fb?count=3", None)
    assert sent.headers == [("Accept", "application/json, text/*;q=0.9")]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_and_the_body_of_the_others(method: str) -> None:
    sent = await asked(method=method)
    assert (sent.method, sent.url, sent.body) == (method, "https://erp.internal/stock/a%2Fb", b'{"count":3}')
    assert ("Content-Type", "application/json") in sent.headers


async def test_a_body_without_arguments_is_an_empty_object() -> None:
    assert (await asked(method="POST", arguments={"sku": "a"})).body == b"{}"


@pytest.mark.parametrize("effect", EFFECTS)
async def test_writes_carry_the_calls_key(effect: str) -> None:
    """R16: the same key on every attempt."""
    sent = await asked(effect=effect, method="POST")
    assert dict(sent.headers).get("Idempotency-Key") == (None if effect == "read" else "run-1/1.1")


async def test_headers_are_the_authors_with_the_environments_values() -> None:
    headers = {
        "Authorization": "Bearer ${ERP_KEY}",
        "Accept": "text/plain",
        "content-type": "application/x+json",
        "X-Both": "${A}-${ERP_KEY}",
    }
    sent = await asked(method="POST", headers=headers, environ={"ERP_KEY": "k", "A": "${ERP_KEY}"})
    assert dict(sent.headers) == {
        "Authorization": "Bearer k",
        "Accept": "text/plain",
        "content-type": "application/x+json",
        "X-Both": "${ERP_KEY}-k",
    }


async def test_it_has_a_little_less_time_than_the_call() -> None:
    assert 9 < (await asked(timeout_seconds=10)).timeout_seconds < 10


# -- results -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "result"),
    [
        (incoming(200, {"count": 3}), {"count": 3}),
        (incoming(201, [1, None, "é"], kind="application/vnd.erp+json; charset=utf-8"), [1, None, "é"]),
        (incoming(200, b"\xef\xbb\xbf7"), 7),
        (incoming(200, "plain", kind="text/plain"), "plain"),
        (incoming(200, '{"a":1}', kind="text/plain"), '{"a":1}'),
        (incoming(200, "é".encode("latin-1"), kind='text/plain; charset="iso-8859-1"'), "é"),
        (incoming(200, "plain", kind=""), "plain"),
        (incoming(200, "a\x00b", kind="text/plain"), "a\ufffdb"),
        (incoming(204), None),
        (incoming(200, b"", kind="text/plain"), None),
    ],
)
async def test_a_result_is_json_or_text(found: Incoming, result: Any) -> None:
    assert await call(found) == result


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (incoming(200, "{"), "invalid_result"),
        (incoming(200, "NaN"), "invalid_result"),
        (incoming(200, "[" * 9_000), "invalid_result"),
        (incoming(200, "[" * 70 + "]" * 70), "invalid_result"),
        (incoming(200, b"\x89PNG\xff", kind="image/png"), "invalid_result"),
        (incoming(200, b"\xff", kind="text/plain"), "invalid_result"),
        (incoming(200, b"x", kind="text/plain; charset=idna"), "invalid_result"),
        (incoming(200, fault="undecodable"), "invalid_result"),
        (incoming(200, fault="too_large"), "too_large"),
        (incoming(200, "x" * 10_001, kind="text/plain"), "too_large"),
        (incoming(200, "x" * 9_999, kind="text/plain"), "too_large"),
    ],
)
async def test_what_ran_and_has_no_result_that_could_be_kept(found: Incoming, outcome: str, effect: str) -> None:
    with pytest.raises(BadResult) as error:
        await call(found, effect=effect)
    assert error.value.outcome == outcome


async def test_a_result_has_to_fit_its_schema() -> None:
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
    assert await call(incoming(200, {"count": 3}), output_schema=schema) == {"count": 3}
    with pytest.raises(BadResult, match="output schema"):
        await call(incoming(200, {"count": "3"}), output_schema=schema)


# -- no result ---------------------------------------------------------------------------------------------------------------

REFUSED = OutboundRefused("erp.internal is not called: closed.", why="closed")
ELSEWHERE = OutboundRefused("evil.example is not called: closed.", why="closed", sent=True)
NOBODY = Unreachable("erp.internal could not be connected to.")
CUT = Unanswered("erp.internal was silent.", sent=True)
HALF = incoming(200, fault="cut_off")

MEANS: dict[str, tuple[Incoming | OutboundError, Sequence[type[Exception]]]] = {
    # of read and idempotent_write at the first attempt, of the same at the last one, of the others
    "refused": (REFUSED, (ToolError, ToolError, ToolError, ToolError)),
    "redirected to where nobody may go": (ELSEWHERE, (ToolError, ToolError, ToolError, UnknownOutcome)),
    "nobody there": (NOBODY, (ServiceFailed, ToolError, ToolError, ToolError)),
    "cut after it was sent": (CUT, (ServiceFailed, ToolError, ServiceFailed, UnknownOutcome)),
    "cut in the middle of the result": (HALF, (ServiceFailed, ToolError, ServiceFailed, UnknownOutcome)),
    "400": (incoming(400), (ToolError, ToolError, ToolError, ToolError)),
    "404": (incoming(404), (ToolError, ToolError, ToolError, ToolError)),
    "409": (incoming(409), (ToolError, ToolError, ToolError, ToolError)),
    "429": (incoming(429), (ServiceFailed, ToolError, ToolError, ToolError)),
    "500": (incoming(500), (ServiceFailed, ToolError, ServiceFailed, UnknownOutcome)),
    "503": (incoming(503), (ServiceFailed, ToolError, ServiceFailed, UnknownOutcome)),
    "301 of a write": (incoming(301), (ToolError, ToolError, ToolError, UnknownOutcome)),
    "307 to another host": (incoming(307), (ToolError, ToolError, ToolError, ToolError)),
    "101": (incoming(101), (ToolError, ToolError, ToolError, UnknownOutcome)),
}


@pytest.mark.parametrize("situation", MEANS)
async def test_what_it_means_for_the_effect(situation: str) -> None:
    """R16: what did not happen is a `ToolError`; what may have is tried again where that is harmless, and is unknown where it is not."""
    found, (first, last_read, last_write, others) = MEANS[situation]
    for effect in REPEATABLE:
        with pytest.raises(first):
            await call(found, effect=effect)
        with pytest.raises(last_read if effect == "read" else last_write):
            await call(found, effect=effect, attempt=3)
    for effect in OTHERS:
        with pytest.raises(others):
            await call(found, effect=effect)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (incoming(404, {"error": "no such article"}), 'The service answered 404: {"error": "no such article"}'),
        (incoming(404, " no such article\n", kind="text/plain"), "The service answered 404: no such article"),
        (incoming(404), "The service answered 404."),
        (incoming(404, "<html>", kind="text/html; charset=utf-8"), "The service answered 404."),
        (incoming(404, b"\xff", kind="text/plain"), "The service answered 404."),
        (incoming(404, "{"), "The service answered 404."),
        (incoming(404, "x" * (ERROR_BYTES + 1), kind="text/plain"), "The service answered 404."),
        (incoming(404, fault="too_large"), "The service answered 404."),
        (incoming(404, "x" * 5_000, kind="text/plain"), "The service answered 404: " + "x" * 999 + "…"),
    ],
)
async def test_a_refusal_is_what_the_model_reads_in_short(found: Incoming, said: str) -> None:
    with pytest.raises(ToolError) as error:
        await call(found)
    assert str(error.value) == said


async def test_a_closed_place_is_said_without_its_name() -> None:
    with pytest.raises(ToolError) as error:
        await call(REFUSED)
    assert str(error.value) == "The tool was not called: closed."


# -- secrets -----------------------------------------------------------------------------------------------------------------

LEAKS = [
    KEY,
    f"Bearer {KEY}",
    "k3y-that%2Fmust%20not%2Bshow",
    "k3y-that%2fmust%20not%2bshow",
    "k3y-that%2Fmust+not%2Bshow",
    "azN5LXRoYXQvbXVzdCBub3Qrc2hvdw",
]


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("status", [200, 404])
async def test_what_comes_back_holds_no_secret(leak: str, status: int) -> None:
    """R9: in whatever form the other side repeats it."""
    for found in (
        incoming(status, f"you sent {leak}!", kind="text/plain"),
        incoming(status, {"headers": {"Authorization": leak}, leak: [leak]}),
        incoming(status, json.dumps({"a": leak}).replace("/", "\\/").replace("k", "\\u006b")),
    ):
        try:
            said = json.dumps(await call(found, headers={"Authorization": "Bearer ${ERP_KEY}"}, environ={"ERP_KEY": KEY}))
        except ToolError as error:
            said = str(error)
        assert leak not in said and KEY not in said and "[redacted]" in said


async def test_a_secret_that_is_cut_in_two_does_not_show_either() -> None:
    body = "x" * 990 + KEY + "y" * 100
    with pytest.raises(ToolError) as error:
        await call(incoming(404, body, kind="text/plain"), headers={"X-Key": "${ERP_KEY}"}, environ={"ERP_KEY": KEY})
    assert "k3y" not in str(error.value)


async def test_a_secret_number_does_not_show() -> None:
    assert await call(incoming(200, {"pin": 12345678, "n": 3}), headers={"X-Pin": "${PIN}"}, environ={"PIN": "12345678"}) == {
        "pin": "[redacted]",
        "n": 3,
    }


# -- before the start --------------------------------------------------------------------------------------------------------


def required(environ: dict[str, str], *opened: str, **given: Any) -> None:
    tool = HttpTool(**{**STOCK, **given})
    require_outward([("desk", tool)], environ, Destinations(opened=places_of(opened, setting="RUNWARD_OUTBOUND_HOSTS")))


@pytest.mark.parametrize(
    ("given", "environ", "named"),
    [
        ({"headers": {"Authorization": "Bearer ${ERP_KEY}"}}, {}, ["'stock'", "'desk'", "ERP_KEY", "not set"]),
        ({"headers": {"Authorization": "Bearer ${ERP_KEY}"}}, {"ERP_KEY": ""}, ["ERP_KEY", "not set"]),
        ({"url": "https://erp.internal/{sku}?key=${ERP_KEY}"}, {}, ["ERP_KEY", "not set"]),
        ({"headers": {"Authorization": "Bearer ${ERP_KEY}"}}, {"ERP_KEY": "s3cr3t\n"}, ["ERP_KEY", "Authorization", "one line"]),
        ({"headers": {"Authorization": "Bearer ${ERP_KEY}"}}, {"ERP_KEY": "s3cr3t\u00e9"}, ["ERP_KEY", "printable ASCII"]),
        ({"url": "https://erp.internal/{sku}?key=${ERP_KEY}"}, {"ERP_KEY": "s3cr3t\udcff"}, ["ERP_KEY", "UTF-8"]),
        ({"url": "http://example.com/{sku}"}, {}, ["'stock'", "RUNWARD_OUTBOUND_PLAIN_HTTP"]),
        ({"url": "https://10.0.0.1/{sku}"}, {}, ["'stock'", "RUNWARD_OUTBOUND_HOSTS"]),
        ({"url": "https://2130706433/{sku}"}, {}, ["'stock'"]),
    ],
)
def test_a_worker_does_not_start_with_a_tool_that_cannot_be_called(given: Any, environ: dict[str, str], named: Sequence[str]) -> None:
    with pytest.raises(DefinitionError) as error:
        required(environ, **given)
    assert all(name in error.value.detail for name in named) and "s3cr3t" not in error.value.detail


def test_and_starts_with_those_that_can() -> None:
    required({"ERP_KEY": "k"}, headers={"Authorization": "Bearer ${ERP_KEY}"}, url="https://erp.internal/{sku}?key=${ERP_KEY}")
    required({}, "erp.internal", url="http://erp.internal/{sku}")


async def test_without_its_settings_a_call_does_not_start() -> None:
    """In a test's own service, which starts without them."""
    for environ in ({}, {"ERP_KEY": "\udcff"}):
        sent = Sent(incoming())
        with pytest.raises(ToolError, match="not started"):
            await body_of(sent, headers={"X-Key": "${ERP_KEY}"}, environ=environ).invoke({"sku": "a"}, make_context())
        assert sent.sent == []


# -- in a run, against real servers --------------------------------------------------------------------------------------------


def desk(web_url: str, **given: Any) -> Agent:
    tool = HttpTool(**{**STOCK, "url": f"{web_url}/stock/{{sku}}", **given})
    return Agent(
        name="desk", model=ScriptedModel([Reply(tool_calls=[ToolCall("stock", {"sku": "a/b"})]), Reply(text="Done.")]), tools=[tool]
    )


async def test_R16_a_run_calls_it() -> None:
    async with (
        Web({"/stock/a%2Fb": answer(200, {"count": 3})}) as web,
        TestService([desk(web.url, effect="read")], outbound_hosts=[web.place]) as service,
    ):
        run = await service.run("desk", "How many?")
        [receipt] = await service.receipts(run)
        assert (run.status, run.text, receipt["outcome"], receipt["raw"]) == ("completed", "Done.", None, {"count": 3})
        assert web.requests[0].path == "/stock/a%2Fb"


@pytest.mark.parametrize("effect", EFFECTS)
async def test_R16_one_that_nobody_was_there_for_did_not_happen(effect: str) -> None:
    place = f"127.0.0.1:{free_port()}"
    agent = desk(f"http://{place}", effect=effect, needs_approval=False, max_attempts=2)
    async with TestService([agent], outbound_hosts=[place]) as service:
        run = await service.run("desk", "How many?")
        [receipt] = await service.receipts(run)
        assert (run.status, receipt["outcome"], receipt["raw"]) == (
            "completed",
            "failed",
            "The service could not be reached; nothing was done.",
        )
        assert receipt["effect_certain"]


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("handler", [reset, silence, answer(500)], ids=["reset", "silence", "500"])
async def test_R13_one_that_may_have_happened_is_tried_again_or_unknown(effect: str, handler: Any) -> None:
    async with Web({"/stock/a%2Fb": handler}) as web:
        agent = desk(web.url, method="POST", effect=effect, needs_approval=False, timeout_seconds=0.5, max_attempts=2)
        async with TestService([agent], outbound_hosts=[web.place]) as service:
            run = await service.run("desk", "How many?")
            if effect in REPEATABLE:
                assert run.status == "completed" and len(web.requests) == 2
                assert len({request.headers.get("idempotency-key") for request in web.requests}) == 1
            else:
                assert run.status == "suspended" and [each["tool_name"] for each in run.pending["unknown_effects"]] == ["stock"]
                assert len(web.requests) == 1
            assert effect == "read" or web.requests[0].headers["idempotency-key"].endswith("/1.1")


async def test_what_is_closed_stays_closed_in_a_run() -> None:
    async with Web({"/stock/a%2Fb": answer(200)}) as web, TestService([desk(web.url, effect="read")]) as service:
        run = await service.run("desk", "How many?")
        [receipt] = await service.receipts(run)
        assert receipt["outcome"] == "failed" and "RUNWARD_OUTBOUND_HOSTS" in receipt["raw"] and "127.0.0.1" not in receipt["raw"]
        assert web.connections == 0
