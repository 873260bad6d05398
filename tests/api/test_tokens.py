"""Access tokens: each opens what it is for, and nothing else."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from runward.api.permissions import OPENED_BY_TOKENS, PERMISSIONS
from runward.api.schemas.tokens import DEFAULT_TTL_SECONDS
from runward.core.kernel.actor import Scope
from runward.core.times import from_rfc3339
from runward.engine.callers import Allow, Grant, Permission
from runward.engine.tokens import MAX_LENGTH, MAX_TTL_SECONDS, Signer
from tests.api.desk import ASK, PICK, REFUND, Desk, asked_id, desk
from tests.api.house import served, until
from tests.api.test_callers import GOOD_BODIES, address, key
from tests.api.test_inputs import refused, result, verdict

ALL = tuple(Permission)
RUN_CALLS = ["events", "tool-results", "answers", "cancel"]


@pytest.fixture
async def guarded() -> AsyncIterator[tuple[Desk, dict[str, str]]]:
    """A service whose callers need keys, and the headers of one who may do everything for acme."""
    async with desk() as made:
        yield made, await key(made.house, permissions=ALL)


async def granted(made: Desk, keyed: dict[str, str], run: dict[str, Any], *allow: str, **more: Any) -> str:
    """A token for a run."""
    body = {**({"allow": list(allow)} if allow else {}), **more}
    answer = await made.http.post(f"/runs/{run['run_id']}/access-tokens", json=body, headers=keyed)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


async def link(made: Desk, keyed: dict[str, str], id: str, **body: Any) -> str:
    """A token for a request for approval."""
    answer = await made.http.post(f"/approvals/{id}/access-tokens", json=body, headers=keyed)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_browser_follows_one_run_with_a_token(guarded: tuple[Desk, dict[str, str]]) -> None:
    made, keyed = guarded
    run = await made.run([{"text": "hello"}], headers=keyed)
    answer = await made.http.post(f"/runs/{run['run_id']}/access-tokens", headers=keyed)
    issued = answer.json()
    assert issued["events_url"] == f"/runs/{run['run_id']}/events?token={issued['token']}"
    left = (from_rfc3339(issued["expires_at"]) or 0) - made.house.service.services.time.now()
    assert DEFAULT_TTL_SECONDS * 1000 - 5_000 < left <= DEFAULT_TTL_SECONDS * 1000
    events = f"/runs/{run['run_id']}/events"
    for stream in (await made.http.get(issued["events_url"]), await made.http.get(events, headers=bearer(issued["token"]))):
        assert (stream.status_code, "[DONE]" in stream.text, issued["token"] in stream.text) == (200, True, False)
    assert (await made.http.head(issued["events_url"])).status_code == 200
    assert (await made.http.get(issued["events_url"] + "&after=1&until=ended")).status_code == 200


async def test_a_token_answers_and_cancels_what_it_allows(guarded: tuple[Desk, dict[str, str]]) -> None:
    made, keyed = guarded
    run = await made.waiting(PICK, headers=keyed)
    token = bearer(await granted(made, keyed, run, "tool-results"))
    assert (await made.post(run, "tool-results", result("1.1", {"path": "a"}), **token)).status_code == 202
    run = await made.waiting(ASK, headers=keyed)
    token = bearer(await granted(made, keyed, run, "answers", "cancel"))
    assert (await made.post(run, "answers", {"answers": [{"question_id": "1.1.1", "answer": "red"}]}, **token)).status_code == 202
    assert (await made.post(run, "cancel", {}, **token)).status_code in (200, 202)
    inbox = (await made.http.get(f"/runs/{run['run_id']}/inbox", headers=keyed)).json()["data"]
    assert inbox[0]["principal"].keys() == {"by", "from", "token"}
    assert inbox[0]["principal"]["by"] in keyed["Authorization"]


@pytest.mark.parametrize("name", [name for name, needs in PERMISSIONS.items() if needs is not None])
async def test_a_token_opens_nothing_else(guarded: tuple[Desk, dict[str, str]], name: str) -> None:
    """Not one call beside those it allows, whoever made it; and of those, only of its own run or request."""
    made, keyed = guarded
    run, other = [await made.waiting(REFUND, headers=keyed) for _ in range(2)]
    tokens = {allow: await granted(made, keyed, run, allow) for allow in RUN_CALLS}
    tokens["decide"] = await link(made, keyed, asked_id(run))
    ids = {"{run_id}": (run["run_id"], other["run_id"]), "{approval_id}": (asked_id(run), asked_id(other))}
    mine, theirs = next((found for part, found in ids.items() if part in name), ("x", "x"))
    method, path = address(name, mine)
    for allow, token in tokens.items():
        if OPENED_BY_TOKENS.get(name) == allow:
            theirs_path = address(name, theirs)[1]
            foreign = await made.http.request(method, theirs_path, json=GOOD_BODIES.get(name), headers=bearer(token))
            nobodys = await made.http.request(method, address(name, "nope")[1], json=GOOD_BODIES.get(name), headers=bearer(token))
            assert refused(foreign) == (404, "not_found"), name
            assert {**foreign.json(), "instance": ""} == {**nobodys.json(), "instance": ""}
            continue
        answer = await made.http.request(method, path, json=GOOD_BODIES.get(name), headers=bearer(token))
        assert refused(answer) == (403, "not_permitted"), (name, allow)
        if method == "GET":
            assert refused(await made.http.get(path, params={"token": token})) == (403, "not_permitted")
    for each in (run, other):
        assert (await made.http.get(f"/runs/{each['run_id']}", headers=keyed)).json() == each


async def test_a_token_in_an_address_only_reads(guarded: tuple[Desk, dict[str, str]]) -> None:
    """Addresses are logged, kept in histories and fetched ahead: a token in one decides and sends nothing."""
    made, keyed = guarded
    run = await made.waiting(REFUND, headers=keyed)
    token, decides = await granted(made, keyed, run, *RUN_CALLS), await link(made, keyed, asked_id(run))
    sent = [(f"/runs/{run['run_id']}/cancel", token, {}), (f"/approvals/{asked_id(run)}", decides, {"approved": True})]
    for path, used, body in sent:
        assert refused(await made.http.post(path, params={"token": used}, json=body)) == (401, "unauthenticated")
        assert refused(await made.http.post(path, params={"token": used}, json=body, headers=keyed)) == (422, "unknown_field")
    for _ in range(3):
        assert (await made.http.get(f"/approvals/{asked_id(run)}", params={"token": decides})).json()["status"] == "pending"
    assert (await made.http.get(f"/runs/{run['run_id']}", headers=keyed)).json() == run


async def test_one_credential_at_a_time_and_no_key_in_an_address(guarded: tuple[Desk, dict[str, str]]) -> None:
    made, keyed = guarded
    run = await made.waiting(REFUND, headers=keyed)
    events, token = f"/runs/{run['run_id']}/events?until=suspended", await granted(made, keyed, run)
    assert (await made.http.get(f"{events}&token={token}")).status_code == 200
    assert refused(await made.http.get(f"{events}&token={token}", headers=keyed)) == (401, "unauthenticated")
    assert refused(await made.http.get(f"{events}&token={token}&token={token}")) == (401, "unauthenticated")
    assert refused(await made.http.get(events, params={"token": keyed["Authorization"].split()[1]})) == (401, "unauthenticated")
    assert refused(await made.http.get(f"{events}&token={token}&tenant=acme")) == (403, "not_permitted")


def forged(token: str) -> dict[str, str]:
    """What somebody may make of a token of theirs, or without any."""
    granted, signature = token.removeprefix("rwt_").split(".")
    payload = json.loads(base64.urlsafe_b64decode(granted + "==="))
    grant = Grant(id="x", of=payload[1], scope=Scope(tenant="acme"), allows=frozenset(Allow), expires_at=2**60, by="x", decides_as=None)

    def changed(place: int, value: Any) -> str:
        text = json.dumps([*payload[:place], value, *payload[place + 1 :]], separators=(",", ":"))
        return f"rwt_{base64.urlsafe_b64encode(text.encode()).decode().rstrip('=')}.{signature}"

    return {
        "another key": Signer("another secret key").token(grant),
        "the secret key itself as key": Signer("").token(grant),
        "another run": changed(1, "0" * 32),
        "another tenant": changed(2, "globex"),
        "more calls": changed(5, [*RUN_CALLS, "decide"]),
        "more time": changed(6, 2**60),
        "no signature": f"rwt_{granted}.",
        "no dot": f"rwt_{granted}{signature}",
        "half a signature": f"rwt_{granted}.{signature[:20]}",
        "a longer signature": f"rwt_{granted}.{signature}A",
        "a signature spelled otherwise": f"rwt_{granted}.{signature[:-1]}{chr(ord(signature[-1]) + 1)}",
        "padding": f"rwt_{granted}.{signature}=",
        "two signatures": f"rwt_{granted}.{signature}.{signature}",
        "nothing granted": f"rwt_.{signature}",
        "no JSON": f"rwt_AAAA.{signature}",
        "not base64": f"rwt_!!!.{signature}",
        "another case": token.upper(),
        "a prefix alone": "rwt_",
        "too long": "rwt_" + "A" * MAX_LENGTH + f".{signature}",
    }


async def test_a_token_that_was_not_signed_here_is_none(guarded: tuple[Desk, dict[str, str]]) -> None:
    made, keyed = guarded
    run = await made.run([{"text": "hello"}], headers=keyed)
    token = await granted(made, keyed, run, *RUN_CALLS)
    events = f"/runs/{run['run_id']}/events"
    for what, text in forged(token).items():
        assert refused(await made.http.get(events, headers=bearer(text))) == (401, "unauthenticated"), what
        in_address = await made.http.get(events, params={"token": text})
        assert in_address.status_code == 401, what
        assert text not in in_address.text
    for raw in (b"\xff\xfe", b"rwt_\xc3\xa9.\xc3\xa9"):
        answer = await made.http.get(events, headers=[(b"Authorization", b"Bearer " + raw)])
        assert refused(answer) == (401, "unauthenticated")
    for query in ("token=%FF", "token=%00", "token", "token=", "token=%E9%9B%AA", "token=" + "x" * 5_000):
        assert (await made.http.get(f"{events}?{query}")).status_code == 401
    assert (await made.http.get(events, headers=bearer(token))).status_code == 200
    assert made.house.heard.problems == []


async def test_a_token_ends(guarded: tuple[Desk, dict[str, str]]) -> None:
    """When its time is up, and with its run: a run of the same id that is made later is another one."""
    made, keyed = guarded
    run = await made.run([{"text": "hello"}], headers=keyed, run_id="again")
    short, long = await granted(made, keyed, run, ttl_seconds=1), await granted(made, keyed, run)
    events = f"/runs/{run['run_id']}/events"
    assert (await made.http.get(events, headers=bearer(short))).status_code == 200
    time = made.house.service.services.time
    end = time.now() + 1_000
    await until(lambda: time.now() > end)
    assert refused(await made.http.get(events, headers=bearer(short))) == (401, "unauthenticated")
    assert (await made.http.get(events, headers=bearer(long))).status_code == 200
    assert (await made.http.delete("/runs/again", headers=keyed)).status_code == 204
    assert refused(await made.http.get(events, headers=bearer(long))) == (404, "not_found")
    await made.run([{"text": "hello"}], headers=keyed, run_id="again")
    assert refused(await made.http.get(events, headers=bearer(long))) == (404, "not_found")


async def test_nobody_hands_on_more_than_they_have(guarded: tuple[Desk, dict[str, str]]) -> None:
    made, keyed = guarded
    run = await made.waiting(REFUND, headers=keyed)
    writer = await key(made.house, permissions=(Permission.RUNS_WRITE,))
    address = f"/runs/{run['run_id']}/access-tokens"
    assert refused(await made.http.post(address, json={}, headers=writer)) == (403, "not_permitted")
    assert (await made.http.post(address, json={"allow": ["cancel"]}, headers=writer)).json()["events_url"] is None
    globex = await key(made.house, "globex", permissions=ALL)
    for path in (address, f"/approvals/{asked_id(run)}/access-tokens"):
        assert refused(await made.http.post(path, json={}, headers=globex)) == (404, "not_found")
    token = await granted(made, keyed, run)
    assert refused(await made.http.post(address, json={}, headers=bearer(token))) == (403, "not_permitted")


BODIES: list[Any] = [
    {"allow": []},
    {"allow": ["decide"]},
    {"allow": ["events", "events"]},
    {"allow": ["approvals"]},
    {"allow": "events"},
    {"ttl_seconds": 0},
    {"ttl_seconds": -1},
    {"ttl_seconds": MAX_TTL_SECONDS + 1},
    {"ttl_seconds": "60"},
    {"ttl_seconds": 1.5},
    {"for": "ann"},
]


@pytest.mark.parametrize("body", BODIES)
async def test_what_a_run_s_token_is_asked_for_is_read_strictly(open_desk: Desk, body: Any) -> None:
    run = await open_desk.waiting(REFUND)
    assert (await open_desk.post(run, "access-tokens", body)).status_code == 422


LINKS: list[Any] = [{"for": ""}, {"for": 7}, {"for": "x" * 129}, {"decides_as": "ann"}, {"allow": ["decide"]}, {"ttl_seconds": 0}]


@pytest.mark.parametrize("body", LINKS)
async def test_what_an_approval_s_token_is_asked_for_is_read_strictly(open_desk: Desk, body: Any) -> None:
    run = await open_desk.waiting(REFUND)
    assert (await open_desk.http.post(f"/approvals/{asked_id(run)}/access-tokens", json=body)).status_code == 422


async def test_R20_a_link_decides_its_request_in_the_name_of_whom_it_is_for(guarded: tuple[Desk, dict[str, str]]) -> None:
    made, keyed = guarded
    run = await made.waiting(REFUND, headers=keyed)
    id = asked_id(run)
    issued = (await made.http.post(f"/approvals/{id}/access-tokens", json={"for": "ann", "ttl_seconds": 600}, headers=keyed)).json()
    other = await link(made, keyed, id, **{"for": "bob"})
    token = bearer(issued["token"])
    assert (await made.http.get(issued["url"])).json()["arguments"] == {"order_id": 7, "amount": 5}
    somebody_else = await made.http.post(f"/approvals/{id}", json={"approved": True, "decided_by": "bob"}, headers=token)
    assert refused(somebody_else) == (422, "invalid_value")
    decided = await made.http.post(f"/approvals/{id}", json={"approved": True}, headers=token)
    assert (decided.status_code, decided.json()["decided_by"]) == (200, "ann")
    assert issued["token"] not in decided.text
    assert (await made.over(run, headers=keyed))["text"] == "refunded"
    stored = await made.house.service.services.reads.approval(None, id)
    assert stored is not None
    decision = json.loads(stored.decision or "{}")
    assert decision.keys() == {"by", "key", "from", "token"}
    assert decision["key"] in keyed["Authorization"]
    # it has done its work: only the very same verdict is answered once more, to who sent it
    assert refused(await made.http.get(issued["url"])) == (401, "unauthenticated")
    assert (await made.http.post(f"/approvals/{id}", json={"approved": True}, headers=token)).json() == decided.json()
    assert refused(await made.http.post(f"/approvals/{id}", json={"approved": False}, headers=token)) == (409, "already_answered")
    for approved in (True, False):
        late = await made.http.post(f"/approvals/{id}", json={"approved": approved}, headers=bearer(other))
        assert refused(late) == (401, "unauthenticated")
    assert refused(await made.http.post(f"/approvals/{id}/access-tokens", json={}, headers=keyed)) == (409, "not_pending")


async def test_R20_where_a_token_is_required_a_key_alone_decides_nothing() -> None:
    for open_to_all in (True, False):
        async with desk(verdicts_take_tokens=True) as made:
            keyed = {} if open_to_all else await key(made.house, permissions=ALL)
            run = await made.waiting(REFUND, headers=keyed)
            body = verdict(asked_id(run))
            own, of_run = f"/approvals/{asked_id(run)}", f"/runs/{run['run_id']}"
            for path, sent in ((own, {"approved": True}), (f"{of_run}/approvals", body), (f"{of_run}/resume", body)):
                assert refused(await made.http.post(path, json=sent, headers=keyed)) == (403, "not_permitted")
            token = bearer(await link(made, keyed, asked_id(run)))
            assert refused(await made.http.post(f"/runs/{run['run_id']}/approvals", json=body, headers=token)) == (403, "not_permitted")
            assert made.effects == []
            assert (await made.http.post(f"/approvals/{asked_id(run)}", json={"approved": True}, headers=token)).status_code == 200
            assert (await made.over(run, headers=keyed))["text"] == "refunded"


async def test_F_46_of_two_links_one_decides(open_desk: Desk) -> None:
    for _ in range(20):
        run = await open_desk.waiting(REFUND)
        tokens = [await link(open_desk, {}, asked_id(run)) for _ in range(2)]
        posts = [
            open_desk.http.post(f"/approvals/{asked_id(run)}", json={"approved": approved}, headers=bearer(token))
            for token, approved in zip(tokens, (True, False), strict=True)
        ]
        assert sorted(answer.status_code for answer in await asyncio.gather(*posts)) == [200, 401]


async def test_without_a_secret_key_there_are_no_tokens() -> None:
    async with desk(secret_key=None) as made:
        run = await made.waiting(REFUND)
        for path in (f"/runs/{run['run_id']}/access-tokens", f"/approvals/{asked_id(run)}/access-tokens"):
            answer = await made.http.post(path, json={})
            assert refused(answer) == (409, "secret_key_missing")
            assert "RUNWARD_SECRET_KEY" in answer.json()["detail"]
        grant = Grant(id="x", of="x", scope=Scope(tenant="default"), allows=frozenset(Allow), expires_at=2**60, by="x", decides_as=None)
        forged = Signer("").token(grant)
        assert refused(await made.http.get(f"/runs/{run['run_id']}/events", headers=bearer(forged))) == (401, "unauthenticated")


async def test_a_token_is_in_no_log_and_no_answer(guarded: tuple[Desk, dict[str, str]], caplog: pytest.LogCaptureFixture) -> None:
    made, keyed = guarded
    caplog.set_level(logging.DEBUG)
    run = await made.waiting(REFUND, headers=keyed)
    token = await granted(made, keyed, run, *RUN_CALLS)
    async with served(made.house) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        answers = [
            await http.get(f"/runs/{run['run_id']}/events", params={"token": token, "until": "suspended"}),
            await http.get(f"/runs/{run['run_id']}", params={"token": token}),
            await http.get(f"/nope?token={token}"),
            await http.post(f"/runs/{run['run_id']}/cancel?token={token}"),
        ]
    assert [answer.status_code for answer in answers] == [200, 403, 404, 401]
    for answer in answers:
        assert token not in answer.text + str(answer.headers)
    ours = [record for record in caplog.records if not record.name.startswith("http")]  # httpx is the test's own client
    assert token not in repr([record.getMessage() for record in ours]) + repr(made.house.heard.events) + repr(made.house.heard.problems)
    (rows, *_) = made.house.database.actors.values()
    assert token.split(".")[1] not in repr(rows)


def test_the_longest_names_fit_into_a_token_and_one_has_one_spelling() -> None:
    long = "\U0001f600" * 128
    grant = Grant(
        id="0" * 32,
        of="ap_" + "0" * 40,
        scope=Scope(tenant=long, user=long, namespace=long),
        allows=frozenset(Allow),
        expires_at=2**53,
        by="0" * 16,
        decides_as=long,
    )
    signer = Signer("a secret key for tests")
    token = signer.token(grant)
    assert len(token) <= MAX_LENGTH
    assert re.fullmatch(r"rwt_[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{43}", token)
    assert signer.grant(token) == grant
    assert signer.grant(token + "\n") is None


async def test_a_token_ends_with_the_key_that_made_it(guarded: tuple[Desk, dict[str, str]]) -> None:
    """Whoever revokes a key that leaked ends what was handed on with it."""
    made, keyed = guarded
    run = await made.run(REFUND, headers=keyed)
    (request,) = run["pending"]["approvals"]
    asked = [
        (await link(made, keyed, request["approval_id"]), f"/approvals/{request['approval_id']}", {"approved": True}),
        (await granted(made, keyed, run, "cancel"), f"/runs/{run['run_id']}/cancel", {}),
    ]
    (maker,) = await made.house.service.services.directory.keys(Scope(tenant="acme"))
    assert await made.house.service.services.directory.revoke_key(maker.id)
    for token, path, body in asked:
        answer = await made.http.post(path, json=body, headers=bearer(token))
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
