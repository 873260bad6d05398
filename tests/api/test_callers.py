"""Who calls, what they may do, and whose runs they see."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runward.api import auth
from runward.api.permissions import PERMISSIONS
from runward.api.routes import ROUTES
from runward.core.errors import Invalid, Unavailable
from runward.core.kernel.actor import Scope
from runward.engine import key_uses, keys
from runward.engine.callers import Permission
from runward.stores.memory import Faults
from tests.api.house import House, house, until

READ = (Permission.RUNS_READ,)
WRITE = (Permission.RUNS_READ, Permission.RUNS_WRITE)


async def key(house: House, tenant: str = "acme", permissions: tuple[Permission, ...] = WRITE, **more: object) -> dict[str, str]:
    """The headers of a caller with a new key."""
    scope = Scope(tenant=tenant, user=more.pop("user", None), namespace=more.pop("namespace", None))  # type: ignore[arg-type]
    _, text = await keys.create(house.service.services, scope=scope, permissions=permissions, **more)  # type: ignore[arg-type]
    await asyncio.sleep(0)  # the bus hands a hint over in the loop's next round
    return {"Authorization": f"Bearer {text}"}


GOOD_BODIES: Mapping[str, object] = {
    "POST /runs/{run_id}/approvals": {"approvals": [{"approval_id": "ap_1", "approved": True}]},
    "POST /runs/{run_id}/tool-results": {"tool_results": [{"tool_call_id": "1.1", "output": 1}]},
    "POST /runs/{run_id}/answers": {"answers": [{"question_id": "1.1.1", "answer": "yes"}]},
    "POST /runs/{run_id}/reconcile": {"reconcile": [{"tool_call_id": "1.1", "decision": "retry"}]},
    "POST /runs/{run_id}/resume": {"retry_failed": True},
    "POST /approvals/{approval_id}": {"approved": True},
    "POST /ops/runs/{run_id}/limits": {"limits": {"max_steps": 9}, "reason": "More room."},
}


HANDED_ON: Mapping[str, tuple[Permission, ...]] = {"POST /runs/{run_id}/access-tokens": (Permission.RUNS_READ,)}
"""What a caller has to be permitted because they hand it on."""


OPERATORS_ONLY = ("POST /ops/workers/{worker_id}/drain",)
"""What concerns every tenant at once, and takes an operator key."""


def address(name: str, id: str) -> tuple[str, str]:
    """Method and path of a route, every id in it being this one."""
    method, path = re.sub(r"\{\w+\}", id, name).split(" ")
    return method, path


def test_every_route_has_its_permission_in_the_table() -> None:
    assert {f"{route.method} {route.path}" for route in ROUTES} == PERMISSIONS.keys()
    assert {name for name, permission in PERMISSIONS.items() if permission is None} == {"GET /healthz", "GET /readyz", "GET /openapi.json"}


async def test_without_any_key_everybody_is_local(open_house: House) -> None:
    run = await open_house.created()
    assert run["scope"] == {"tenant": "default", "user": None, "namespace": None}
    assert (await open_house.http.get("/runs", headers={"Authorization": "Bearer nonsense"})).status_code == 200


STRANGERS = [
    [],
    [b""],
    [b"Bearer"],
    [b"Bearer "],
    [b"Bearer wrong"],
    [b"Basic cndfOg=="],
    [b"bearer \xe9\xff\x80"],
    [b"Bearer rw_0123456789abcdef_" + b"A" * 43],
    [b"Bearer rw_0123456789abcdef_" + b"A" * 42 + b"\xc3\xa9"],
    [b"Bearer " + b"x" * 20_000],
    [b"Bearer a b"],
]


@pytest.mark.parametrize("sent", STRANGERS, ids=range(len(STRANGERS)))
async def test_once_a_key_exists_nobody_comes_in_without_one(quiet_house: House, sent: list[bytes]) -> None:
    assert (await quiet_house.http.get("/runs")).status_code == 200
    await key(quiet_house)
    for name in PERMISSIONS:
        method, path = address(name, "r-1")
        answer = await quiet_house.http.request(method, path, headers=[(b"Authorization", value) for value in sent])
        if PERMISSIONS[name] is None:
            assert answer.status_code == 200
        else:
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated"), name
            assert answer.headers["www-authenticate"] == 'Bearer realm="runward"'
    assert quiet_house.heard.problems == []


async def test_two_authorizations_are_none(quiet_house: House) -> None:
    headers = await key(quiet_house)
    twice = [("Authorization", headers["Authorization"])] * 2
    assert (await quiet_house.http.get("/runs", headers=headers)).status_code == 200
    assert (await quiet_house.http.get("/runs", headers=twice)).status_code == 401


@pytest.mark.parametrize("name", [name for name, permission in PERMISSIONS.items() if permission is not None])
async def test_a_key_does_what_it_permits_and_nothing_else(quiet_house: House, name: str) -> None:
    needs = PERMISSIONS[name]
    needed = needs if isinstance(needs, tuple) else (needs,)
    method, path = address(name, "nope")
    others = await key(quiet_house, permissions=tuple(permission for permission in Permission if permission not in needed))
    answer = await quiet_house.http.request(method, path, headers=others)
    assert (answer.status_code, answer.json()["code"]) == (403, "not_permitted")
    for permission in needed:
        assert permission is not None
        right = await key(quiet_house, permissions=(permission, *HANDED_ON.get(name, ())), operator=name in OPERATORS_ONLY)
        assert (await quiet_house.http.request(method, path, headers=right)).status_code in (200, 400, 404, 415)


async def test_R43_another_tenant_sees_404_through_every_door(open_house: House) -> None:
    acme, globex = await key(open_house), await key(open_house, "globex", permissions=tuple(Permission))
    body = {"agent": "support", "input": "hi", "run_id": "r-1"}
    run = (await open_house.http.post("/runs", json=body, headers={**acme, "Prefer": "wait=20"})).json()
    assert (run["status"], run["scope"]["tenant"]) == ("completed", "acme")
    for name in PERMISSIONS:
        if "{run_id}" in name or "{approval_id}" in name:
            sent = GOOD_BODIES.get(name)
            theirs, nobodys = [await open_house.http.request(*address(name, id), json=sent, headers=globex) for id in ("r-1", "r-2")]
            assert (theirs.status_code, nobodys.status_code) == (404, 404), name
            assert {**theirs.json(), "instance": ""} == {**nobodys.json(), "instance": ""}
    assert (await open_house.http.get("/runs", headers=globex)).json()["data"] == []
    assert (await open_house.http.get("/runs/r-1", headers=acme)).json() == run


async def test_R42_keys_and_run_ids_do_not_cross_tenants(quiet_house: House) -> None:
    body = {"agent": "support", "input": "hi", "run_id": "order-7"}
    tenants = {}
    for tenant in ("acme", "globex"):
        headers = {**await key(quiet_house, tenant), "Idempotency-Key": "same"}
        answers = [await quiet_house.http.post("/runs", json=body, headers=headers) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [202, 200]
        tenants[answers[0].json()["scope"]["tenant"]] = answers[0].json()["run_id"]
    assert tenants == {"acme": "order-7", "globex": "order-7"}


async def test_a_key_of_one_user_stays_with_that_user(quiet_house: House) -> None:
    ann, all_of_acme = await key(quiet_house, user="ann"), await key(quiet_house)
    body = {"agent": "support", "input": "hi"}
    mine = (await quiet_house.http.post("/runs", json=body, headers=ann)).json()
    assert mine["scope"] == {"tenant": "acme", "user": "ann", "namespace": None}
    asked = await quiet_house.http.post("/runs", json={**body, "scope": {"user": "bob"}}, headers=ann)
    assert (asked.status_code, asked.json()["code"]) == (403, "not_permitted")
    bobs = (await quiet_house.http.post("/runs", json={**body, "scope": {"user": "bob"}}, headers=all_of_acme)).json()
    assert (await quiet_house.http.get(f"/runs/{bobs['run_id']}", headers=ann)).status_code == 404
    listed = (await quiet_house.http.get("/runs?user=bob", headers=ann)).json()["data"]
    assert (listed, len((await quiet_house.http.get("/runs", headers=all_of_acme)).json()["data"])) == ([], 2)


async def test_an_operator_sees_every_tenant_and_may_name_one(quiet_house: House) -> None:
    acme, operator = await key(quiet_house), await key(quiet_house, "ops", operator=True)
    run = (await quiet_house.http.post("/runs", json={"agent": "support", "input": "hi"}, headers=acme)).json()
    address = f"/runs/{run['run_id']}"
    assert (await quiet_house.http.get(address, headers=operator)).json() == run
    assert (await quiet_house.http.get(f"{address}?tenant=acme", headers=operator)).json() == run
    assert (await quiet_house.http.get(f"{address}?tenant=globex", headers=operator)).status_code == 404
    for tenant, count in (("acme", 1), ("globex", 0)):
        assert len((await quiet_house.http.get(f"/runs?tenant={tenant}", headers=operator)).json()["data"]) == count
    made = await quiet_house.http.post("/runs?tenant=globex", json={"agent": "support", "input": "hi"}, headers=operator)
    assert made.json()["scope"]["tenant"] == "globex"
    for path in ("/runs?tenant=acme", "/runs?tenant=globex"):
        answer = await quiet_house.http.get(path, headers=acme)
        assert (answer.status_code, answer.json()["code"]) == (403, "not_permitted")


async def test_a_revoked_or_expired_key_is_no_key(quiet_house: House) -> None:
    services = quiet_house.service.services
    made, text = await keys.create(services, scope=Scope(tenant="acme"), permissions=READ)
    headers = {"Authorization": f"Bearer {text}"}
    assert (await quiet_house.http.get("/runs", headers=headers)).status_code == 200
    assert await keys.revoke(services, made.id)
    await asyncio.sleep(0)
    assert (await quiet_house.http.get("/runs", headers=headers)).status_code == 401
    assert not await keys.revoke(services, made.id)
    soon = await services.store.now() + 50
    _, text = await keys.create(services, scope=Scope(tenant="acme"), permissions=READ, expires_at=soon)
    headers = {"Authorization": f"Bearer {text}"}
    assert (await quiet_house.http.get("/runs", headers=headers)).status_code == 200
    await until(lambda: services.time.now() >= soon)
    assert (await quiet_house.http.get("/runs", headers=headers)).status_code == 401


async def test_a_key_counts_at_once_and_without_a_hint_within_a_second(quiet_house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    services = quiet_house.service.services
    assert (await quiet_house.http.get("/runs")).status_code == 200
    await key(quiet_house)
    assert (await quiet_house.http.get("/runs")).status_code == 401
    await keys.open_to_all(services)
    await asyncio.sleep(0)
    assert (await quiet_house.http.get("/runs")).status_code == 200
    monkeypatch.setattr(auth, "FRESH_SECONDS", 0.05)
    await services.directory.set_authentication(True)  # by a process whose hints do not arrive
    before = services.clock.monotonic()
    while (await quiet_house.http.get("/runs")).status_code == 200:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert services.clock.monotonic() - before < 1


class Counted(Faults):
    """Counts what the store is asked, and lets something happen between a read and its answer, once."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.during: dict[str, Callable[[], Awaitable[object]]] = {}
        self.broken = False

    @property
    def reads(self) -> list[str]:
        return [name for name in self.asked if name in ("authentication", "key_by_hash")]

    async def before(self, name: str) -> None:
        self.asked.append(name)
        if self.broken and name == "note_key_uses":
            raise Unavailable("The store is away.")

    async def after(self, name: str) -> None:
        change = self.during.pop(name, None)
        if change is not None:
            await change()
            await asyncio.sleep(0)


async def test_keys_are_remembered_for_a_moment_and_what_was_tried_is_not() -> None:
    faults = Counted()
    async with house(worker=False, faults=faults) as made:
        headers = await key(made)
        faults.asked.clear()
        for _ in range(20):
            assert (await made.http.get("/runs", headers=headers)).status_code == 200
        assert faults.reads == ["authentication", "key_by_hash"]
        for _ in range(3):
            await made.http.get("/runs", headers={"Authorization": "Bearer rw_0123456789abcdef_" + "A" * 43})
            await made.http.get("/runs", headers={"Authorization": "Bearer not-even-a-key"})
        assert faults.reads == ["authentication", "key_by_hash", *["key_by_hash"] * 3]


async def test_a_key_that_is_revoked_while_it_is_read_is_not_remembered() -> None:
    faults = Counted()
    async with house(worker=False, faults=faults) as made:
        own, text = await keys.create(made.service.services, scope=Scope(tenant="acme"), permissions=READ)
        await asyncio.sleep(0)
        faults.during["key_by_hash"] = lambda: keys.revoke(made.service.services, own.id)
        headers = {"Authorization": f"Bearer {text}"}
        assert (await made.http.get("/runs", headers=headers)).status_code == 200
        assert (await made.http.get("/runs", headers=headers)).status_code == 401


async def test_a_first_key_that_is_made_while_it_is_asked_whether_there_is_one_counts_from_then_on() -> None:
    faults = Counted()
    async with house(worker=False, faults=faults) as made:
        faults.during["authentication"] = lambda: keys.create(made.service.services, scope=Scope(tenant="acme"), permissions=READ)
        assert (await made.http.get("/runs")).status_code == 200
        assert (await made.http.get("/runs")).status_code == 401


async def test_the_store_is_not_asked_for_what_cannot_be_an_id() -> None:
    faults = Counted()
    async with house(worker=False, faults=faults) as made:
        for id in ("x" * 129, "-run", "'or'1'='1", "%00", "a%20b", "(run)"):
            for path in ("", "/events", "/messages", "/receipts"):
                address = httpx.URL("http://localhost").copy_with(raw_path=f"/runs/{id}{path}".encode())
                assert (await made.http.get(address)).status_code == 404
        assert "find" not in faults.asked


async def test_only_the_hash_of_a_key_is_kept(quiet_house: House) -> None:
    services = quiet_house.service.services
    made, text = await keys.create(services, scope=Scope(tenant="acme"), permissions=(Permission.RUNS_WRITE, Permission.RUNS_READ))
    secret = text.rsplit("_", 1)[0] and text.split("_", 2)[2]
    assert keys.is_key(text)
    assert text.startswith(f"rw_{made.id}_") and made.prefix == f"rw_{made.id}"
    assert secret not in repr(made)
    assert made.permissions == ("runs:read", "runs:write")
    assert await keys.listed(services, "acme") == [made]
    assert await keys.listed(services, "globex") == []
    with pytest.raises(Invalid):
        await keys.create(services, scope=Scope(tenant="acme"), permissions=())
    with pytest.raises(Invalid):
        await keys.create(services, scope=Scope(tenant="acme"), permissions=READ, expires_at=1)


async def test_the_key_is_in_no_answer_and_no_record(quiet_house: House) -> None:
    headers = await key(quiet_house)
    secret = headers["Authorization"].split("_", 2)[2]
    run = (await quiet_house.http.post("/runs", json={"agent": "support", "input": "hi"}, headers=headers)).json()
    cancelled = await quiet_house.http.post(f"/runs/{run['run_id']}/cancel", json={"reason": "x"}, headers=headers)
    assert cancelled.status_code == 202
    (rows,) = quiet_house.database.actors.values()
    assert secret not in repr(rows) + cancelled.text + repr(quiet_house.heard.events)
    assert headers["Authorization"].split("_")[1] in (rows.mail[0].principal or "")


async def test_raw_results_are_for_ops(open_house: House) -> None:
    reader, ops = await key(open_house), await key(open_house, permissions=(Permission.RUNS_READ, Permission.OPS))
    body = {"agent": "support", "input": "hi"}
    run = (await open_house.http.post("/runs", json=body, headers={**reader, "Prefer": "wait=20"})).json()
    address = f"/runs/{run['run_id']}/receipts"
    (seen,), (whole,) = [(await open_house.http.get(address, headers=headers)).json()["data"] for headers in (reader, ops)]
    assert "raw" not in seen
    assert whole == {**seen, "raw": {"order_id": 7, "status": "shipped"}}


async def test_R43_an_operator_has_to_say_whose_run_is_meant_where_several_tenants_have_one(quiet_house: House) -> None:
    """What is deleted or cancelled is never another tenant's that happens to be newer."""
    operator = await key(quiet_house, "ops", (Permission.RUNS_READ, Permission.RUNS_WRITE, Permission.OPS), operator=True)
    for tenant in ("acme", "globex"):
        body = {"agent": "support", "input": "hi", "run_id": "order-7"}
        assert (await quiet_house.http.post(f"/runs?tenant={tenant}", json=body, headers=operator)).status_code == 202
    for method, path in (("GET", ""), ("POST", "/cancel"), ("DELETE", ""), ("GET", "/why"), ("POST", "/drain")):
        answer = await quiet_house.http.request(method, f"/runs/order-7{path}", headers=operator)
        assert (answer.status_code, answer.json()["code"]) == (409, "ambiguous_run"), (method, path)
    assert (await quiet_house.http.post("/runs/order-7/cancel?tenant=acme", headers=operator)).status_code == 202
    shown = await quiet_house.http.get("/runs/order-7?tenant=globex", headers=operator)
    assert (shown.status_code, shown.json()["cancel_requested_at"]) == (200, None)


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {"host": "localhost:8000"}, 200),
        ("GET", {"host": "127.0.0.1"}, 200),
        ("GET", {"host": "[::1]:8000"}, 200),
        ("GET", {"host": "evil.example"}, 403),
        ("GET", {"host": "localhost.evil.example"}, 403),
        ("GET", {"host": "127.0.0.1.evil.example:8000"}, 403),
        ("GET", {"host": "localhost:8000", "origin": "http://evil.example"}, 200),
        ("POST", {"host": "localhost:8000"}, 202),
        ("POST", {"host": "localhost:8000", "origin": "http://localhost:8000"}, 202),
        ("POST", {"host": "localhost:8000", "origin": "http://evil.example"}, 403),
        ("POST", {"host": "localhost:8000", "origin": "null"}, 403),
        ("POST", {"host": "evil.example", "origin": "http://evil.example"}, 403),
    ],
)
async def test_without_a_key_no_web_page_reaches_the_service_through_a_browser(
    quiet_house: House, method: str, headers: dict[str, str], status: int
) -> None:
    """Neither under a name of its own for a loopback address, nor with a request that needs no body."""
    run = (await quiet_house.http.post("/runs", json={"agent": "support", "input": "hi"})).json()["run_id"]
    path = f"/runs/{run}" if method == "GET" else f"/runs/{run}/cancel"
    assert (await quiet_house.http.request(method, path, headers=headers)).status_code == status


async def test_the_last_use_of_a_key_is_told_to_the_store_once_a_round_and_not_with_the_request() -> None:
    faults = Counted()
    async with house(worker=False, faults=faults) as made:
        services, uses = made.service.services, made.service.key_uses
        used = await key(made)
        await key(made)
        for _ in range(20):
            assert (await made.http.get("/runs", headers=used)).status_code == 200
            assert (await made.http.get("/runs", headers={"Authorization": "Bearer rw_0123456789abcdef_" + "A" * 43})).status_code == 401
        assert "note_key_uses" not in faults.asked
        await uses.tell()
        await uses.tell()
        assert faults.asked.count("note_key_uses") == 1
        noted = [found for found in await keys.listed(services) if found.last_used_at is not None]
        assert len(noted) == 1 and noted[0].prefix in used["Authorization"]

        faults.broken = True
        assert (await made.http.get("/runs", headers=used)).status_code == 200
        await uses.tell()
        assert made.heard.problems[-1][0] == "key_uses_failed"
        faults.broken = False
        faults.asked.clear()
        await uses.tell()
        assert "note_key_uses" in faults.asked, "what could not be told is told with the next round"


async def test_rounds_come_by_themselves_and_none_where_nobody_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_uses, "ROUND_SECONDS", 0.01)
    faults = Counted()
    async with house(worker=False, faults=faults) as made:
        used = await key(made)
        for _ in range(2):
            faults.asked.clear()
            assert (await made.http.get("/runs", headers=used)).status_code == 200
            await until(lambda: "note_key_uses" in faults.asked)
        revoked = (await keys.listed(made.service.services))[0].id
        assert await keys.revoke(made.service.services, revoked)
        await asyncio.sleep(0)
        faults.asked.clear()
        assert (await made.http.get("/runs", headers=used)).status_code == 401
        await made.service.key_uses.tell()
        assert "note_key_uses" not in faults.asked


async def test_what_was_used_is_told_before_a_process_ends() -> None:
    async with house(worker=False) as made:
        await made.http.get("/runs", headers=await key(made))
        directory = made.service.services.directory
        await made.service.stop()
        assert [found.last_used_at is not None for found in await directory.keys(None)] == [True]


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(sent=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")), scheme=st.booleans())
async def test_no_credential_makes_a_check_raise(sent: bytes, scheme: bool) -> None:
    """Neither as a key, nor as an access token, in a header or in an address."""
    async with house(worker=False) as made:
        await key(made)
        for value in (sent, b"rwt_" + sent, b"rw_0123456789abcdef_" + sent):
            header = [(b"Authorization", b"Bearer " + value if scheme else value)]
            assert (await made.http.get("/runs", headers=header)).status_code == 401
            url = httpx.URL("http://localhost").copy_with(raw_path=b"/runs/x/events?token=" + quote(value).encode())
            assert (await made.http.get(url)).status_code == 401
        assert made.heard.problems == []
