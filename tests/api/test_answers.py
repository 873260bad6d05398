"""What every answer has: ids, problems, CORS; and what the smaller routes answer."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from runward.api import middleware, problems
from runward.core.errors import Unavailable
from runward.stores.memory import Faults
from tests.api.house import House, house

ROOT = Path(__file__).resolve().parents[2]


async def test_an_id_is_on_every_answer(quiet_house: House) -> None:
    made = [(await quiet_house.http.get(path)).headers["x-request-id"] for path in ("/healthz", "/nope", "/runs/nope", "/runs")]
    assert len(set(made)) == 4
    assert all(len(id) == 32 for id in made)


@pytest.mark.parametrize("id", ["abc-1", "0192f8c1:7/x=", "a" * 128])
async def test_a_caller_s_request_id_is_honoured(quiet_house: House, id: str) -> None:
    answer = await quiet_house.http.get("/runs/nope", headers={"X-Request-Id": id})
    assert (answer.headers["x-request-id"], answer.json()["instance"]) == (id, f"urn:runward:request:{id}")


@pytest.mark.parametrize("id", ["", " ", "a b", "a" * 129, "é", "<script>", 'a"b', "a,b"])
async def test_what_cannot_be_a_request_id_is_replaced(quiet_house: House, id: str) -> None:
    answer = await quiet_house.http.get("/healthz", headers={b"X-Request-Id": id.encode()})
    assert (answer.status_code, len(answer.headers["x-request-id"])) == (200, 32)


async def test_log_lines_of_a_request_have_its_id(quiet_house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    from structlog.contextvars import get_contextvars

    seen = []

    async def ready() -> bool:
        seen.append(get_contextvars()["request_id"])
        return True

    monkeypatch.setattr(type(quiet_house.door), "ready", property(lambda _: ready))
    await quiet_house.http.get("/readyz", headers={"X-Request-Id": "abc"})
    assert seen == ["abc"]
    assert "request_id" not in get_contextvars()


class Broken(Faults):
    """A store with a bug, or one that is away."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    async def before(self, name: str) -> None:
        if self.error is not None and name in ("find", "list", "create"):
            raise self.error


async def test_what_nobody_expected_is_told_to_operators_only() -> None:
    faults = Broken()
    async with house(worker=False, faults=faults) as made:
        faults.error = RuntimeError("password=hunter2")
        answer = await made.http.get("/runs/nope")
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert "hunter2" not in answer.text + str(answer.headers)
        assert answer.headers["x-request-id"] in answer.json()["instance"]
        assert made.heard.problems == [("request_failed", faults.error)]


async def test_an_error_of_the_service_itself_is_internal_too() -> None:
    from runward.core.errors import InvariantViolated

    faults = Broken()
    async with house(worker=False, faults=faults) as made:
        faults.error = InvariantViolated("a receipt of another tenant: 7")
        answer = await made.http.get("/runs")
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert "tenant" not in answer.text
        assert made.heard.problems == [("request_failed", faults.error)]


async def test_a_store_that_is_away_is_503_with_retry_after() -> None:
    faults = Broken()
    async with house(worker=False, faults=faults) as made:
        faults.error = Unavailable("The store is away.")
        for answer in (await made.http.get("/runs"), await made.http.post("/runs", json={"agent": "support", "input": "hi"})):
            assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "unavailable", "1")
        assert made.heard.problems == [("request_unavailable", faults.error)] * 2


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/runs", "GET, HEAD, POST"),
        ("POST", "/runs/r-1", "DELETE, GET, HEAD"),
        ("GET", "/runs/r-1/cancel", "POST"),
        ("OPTIONS", "/agents", "GET, HEAD"),
        ("TRACE", "/healthz", "GET, HEAD"),
    ],
)
async def test_a_method_that_is_not_there_is_405_with_allow(quiet_house: House, method: str, path: str, allow: str) -> None:
    answer = await quiet_house.http.request(method, path)
    assert (answer.status_code, answer.json()["code"], answer.headers["allow"]) == (405, "method_not_allowed", allow)


@pytest.mark.parametrize("path", ["/", "/nope", "/runs/r-1/nope", "/docs", "/redoc", "/runs/", "/Runs", "/runs//events"])
async def test_a_path_that_is_not_there_is_404(quiet_house: House, path: str) -> None:
    answer = await quiet_house.http.get(path)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_head_is_get_without_the_body(open_house: House) -> None:
    run = await open_house.completed()
    for path in ("/runs", f"/runs/{run['run_id']}", "/agents", "/healthz", "/openapi.json"):
        head, get = await open_house.http.head(path), await open_house.http.get(path)
        assert (head.status_code, head.headers["content-length"]) == (200, get.headers["content-length"])


async def test_other_origins_are_let_in_where_they_are_named() -> None:
    async with house(worker=False, cors_origins=("https://app.example",)) as made:
        asked = {
            "Origin": "https://app.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "idempotency-key",
        }
        preflight = await made.http.options("/runs", headers=asked)
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, "https://app.example")
        answer = await made.http.get("/runs/nope", headers={"Origin": "https://app.example"})
        exposed = {name.strip() for name in answer.headers["access-control-expose-headers"].split(",")}
        assert {"Location", "ETag", "Retry-After", "X-Request-Id", "Idempotent-Replayed"} <= exposed
        assert "x-request-id" in preflight.headers
        stranger = await made.http.get("/runs", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in stranger.headers


async def test_other_origins_are_not_let_in_by_default(quiet_house: House) -> None:
    answer = await quiet_house.http.get("/runs", headers={"Origin": "https://app.example"})
    assert not any(name.startswith("access-control") for name in answer.headers)


async def test_large_headers_are_refused(quiet_house: House) -> None:
    answer = await quiet_house.http.get("/healthz", headers={"X-A": "a" * middleware.MAX_HEADER_BYTES})
    assert (answer.status_code, answer.json()["code"]) == (431, "headers_too_large")


async def test_health_and_readiness(quiet_house: House) -> None:
    assert (await quiet_house.http.get("/healthz")).json() == {"status": "ok"}
    assert (await quiet_house.http.get("/readyz")).json() == {"status": "ready"}
    quiet_house.service.draining.set()
    draining = await quiet_house.http.get("/readyz")
    assert (draining.status_code, draining.json()["code"]) == (503, "unavailable")
    quiet_house.service.draining.clear()
    quiet_house.door.closing.set()
    assert (await quiet_house.http.get("/readyz")).headers["retry-after"] == "1"
    assert (await quiet_house.http.get("/healthz")).status_code == 200
    assert quiet_house.heard.problems == []


async def test_agents_are_shown_with_all_their_versions(quiet_house: House) -> None:
    listed = (await quiet_house.http.get("/agents")).json()["data"]
    assert [agent["name"] for agent in listed] == ["stuck", "support"]
    support = (await quiet_house.http.get("/agents/support")).json()
    assert support == listed[1]
    assert (support["version"], support["versions"], support["tools"][0]["effect"]) == ("1", ["1"], "read")
    assert (await quiet_house.http.get("/agents/support?version=1")).json() == support
    for path in ("/agents/nobody", "/agents/support?version=2"):
        assert (await quiet_house.http.get(path)).status_code == 404


async def test_messages_come_with_the_place_to_follow_from(open_house: House) -> None:
    run = await open_house.completed()
    address = f"/runs/{run['run_id']}/messages"
    whole = (await open_house.http.get(address)).json()
    assert [message["seq"] for message in whole["data"]] == [1, 2, 3, 4]
    assert [message["role"] for message in whole["data"]] == ["user", "assistant", "tool", "assistant"]
    assert (whole["next_cursor"], whole["events_after"]) == (None, run["events_after"])
    seen, cursor = [], None
    while True:
        page = (await open_house.http.get(address, params={"limit": 3, **({"cursor": cursor} if cursor else {})})).json()
        seen += page["data"]
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == whole["data"]


async def test_messages_are_those_that_the_place_to_follow_from_knows(quiet_house: House) -> None:
    run = await quiet_house.created()
    (rows,) = quiet_house.database.actors.values()
    rows.messages[2] = replace(
        rows.messages[1], seq=2, role="assistant"
    )  # committed between two reads: its state is not the one that was read
    page = (await quiet_house.http.get(f"/runs/{run['run_id']}/messages")).json()
    assert [message["seq"] for message in page["data"]] == [1]
    assert (page["events_after"], page["next_cursor"]) == (run["events_after"], None)


async def test_receipts_are_listed_in_the_model_s_order(open_house: House) -> None:
    run = await open_house.completed()
    page = (await open_house.http.get(f"/runs/{run['run_id']}/receipts", params={"limit": 1})).json()
    assert [(receipt["tool_call_id"], receipt["stage"]) for receipt in page["data"]] == [("1.1", "completed")]
    assert page["next_cursor"] is None
    assert (await open_house.http.get(f"/runs/{run['run_id']}/receipts", params={"cursor": "1.1"})).json()["data"] == []


def test_every_code_that_is_raised_is_in_the_table() -> None:
    errors = ("Invalid", "Conflict", "NotFound", "NotPermitted", "Throttled", "Unauthenticated", "Problem")
    files = [file for folder in ("api", "engine") for file in (ROOT / "app" / "runward" / folder).rglob("*.py")]
    calls = [node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    words = [word for call in calls if isinstance(call.func, ast.Name) and call.func.id in errors for word in call.keywords]
    raised = {word.value.value for word in words if word.arg == "code" and isinstance(word.value, ast.Constant)}
    assert len(raised) >= 10
    assert raised <= problems.STATUSES.keys()


async def test_answers_hold_what_the_document_says(open_house: House) -> None:
    import jsonschema_rs

    document = (await open_house.http.get("/openapi.json")).json()
    run = await open_house.completed()
    stuck = await open_house.created("stuck")
    address = f"/runs/{run['run_id']}"
    asked: list[tuple[str, httpx.Response]] = [
        ("Run", await open_house.http.get(address)),
        ("RunPage", await open_house.http.get("/runs")),
        ("MessagePage", await open_house.http.get(f"{address}/messages")),
        ("ReceiptPage", await open_house.http.get(f"{address}/receipts")),
        ("AgentList", await open_house.http.get("/agents")),
        ("AgentView", await open_house.http.get("/agents/support")),
        ("Cancelled", await open_house.http.post(f"/runs/{stuck['run_id']}/cancel")),
        ("ProblemView", await open_house.http.get("/runs/nope")),
        ("ProblemView", await open_house.http.post("/runs", json={"agnt": 1})),
    ]
    for name, answer in asked:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        check = jsonschema_rs.validator_for(schema, offline=True)
        assert [error.message for error in check.iter_errors(answer.json())] == [], name
    for name, shown in (("Run", run), ("MessageView", asked[2][1].json()["data"][0]), ("ReceiptView", asked[3][1].json()["data"][0])):
        assert shown.keys() <= document["components"]["schemas"][name]["properties"].keys()
        assert shown.keys() >= set(document["components"]["schemas"][name]["required"])
    assert json.dumps(document) == json.dumps((await open_house.http.get("/openapi.json")).json())
