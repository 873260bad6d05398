"""R43, on every store: whoever may not see something is answered, at every address of the OpenAPI document, as if it were not there.

The document decides what is walked: a route that comes later is walked from the day it is in it, and this module asks for what it lacks.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from runward.api import openapi
from runward.api.permissions import OPENED_BY_TOKENS
from runward.engine.callers import Permission
from tests.api.desk import ASK, CHARGE, PICK, REFUND, Desk, asked_id, desk
from tests.api.test_callers import key

MARK = "plum-7731"
"""What only the owner's runs have in them."""
OWNER = {"user": "ann-1182", "namespace": "eu-9304"}
CALLS = ["events", "tool-results", "answers", "cancel"]

BODIES: Mapping[str, tuple[str, Any]] = {
    "POST /runs/{run_id}/approvals": ("refund", {"approvals": [{"approval_id": "{approval_id}", "approved": True}]}),
    "POST /runs/{run_id}/tool-results": ("pick", {"tool_results": [{"tool_call_id": "1.1", "output": {"path": "/a"}}]}),
    "POST /runs/{run_id}/answers": ("ask", {"answers": [{"question_id": "{question_id}", "answer": "red"}]}),
    "POST /runs/{run_id}/reconcile": ("charge", {"reconcile": [{"tool_call_id": "1.1", "decision": "retry"}]}),
    "POST /runs/{run_id}/resume": ("refund", {"approvals": [{"approval_id": "{approval_id}", "approved": True}]}),
    "POST /runs/{run_id}/cancel": ("refund", {"reason": "mine"}),
    "POST /runs/{run_id}/drain": ("refund", {"hold": True}),
    "POST /runs/{run_id}/access-tokens": ("refund", {"allow": CALLS}),
    "POST /approvals/{approval_id}": ("refund", {"approved": True}),
    "POST /approvals/{approval_id}/access-tokens": ("refund", {}),
    "POST /ops/workers/{worker_id}/drain": ("refund", None),
    "POST /ops/runs/{run_id}/limits": ("refund", {"limits": {"max_steps": 900}}),
    "DELETE /runs/{run_id}": ("done", None),
    "PATCH /budgets/{key}": ("refund", {"max_total_tokens": 9_000_000}),
}
"""What the owner could do right now: which of the runs it is for, and the body. A route that is not here is asked about `refund`."""

NAMING = {
    "POST /runs/cancel": {"run_ids": ["{run_id}"]},
    "POST /ops/recover": {"run_id": "{run_id}", "force": True},
    "POST /ops/rebind": {"run_id": "{run_id}", "from": "{binding}", "to": "next"},
}
"""Calls that name a run in their body."""

EVERYTHING = {
    "POST /runs/cancel": {"filter": {"agent": "desk"}},
    "POST /ops/recover": {"limit": 100},
    "POST /ops/rebind": {"agent": "desk", "from": "{binding}", "to": "next"},
}
"""Calls that are about all the runs that the caller may see."""

SHARED = ("GET /agents", "GET /agents/{name}", "GET /ops/workers")
"""What is the same for every tenant: what can be run, and by whom."""

OWN = ("PUT /budgets/{key}",)
"""What makes something of the caller's own where there is nothing: `test_budgets.py` looks at whose it is."""

NOTHING = {"run_id": "0198c1d2-nothing", "approval_id": "ap_0198c1d2nothing", "worker_id": "nobody", "key": "nothing-91"}
"""What is not there."""

WHOLE_TENANTS = ("another tenant", "an operator looking elsewhere")
"""Those of the strangers who are confined to no user and no namespace: others have no say in budgets, whatever there is."""


@dataclass(kw_only=True)
class Estate:
    """A service with runs of one owner, in all the states there are to be attacked, and strangers with keys of their own."""

    desk: Desk
    owner: dict[str, str]
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    strangers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name: headers, and what is in the query."""

    @property
    def names(self) -> dict[str, str]:
        """What there is to be known, as bodies and addresses name it."""
        refund = self.runs["refund"]
        return {
            "run_id": refund["run_id"],
            "approval_id": asked_id(refund),
            "question_id": self.runs["ask"]["pending"]["questions"][0]["question_id"],
            "worker_id": self.desk.house.service.worker.owner if self.desk.house.service.worker else "",
            "binding": next(iter(self.desk.house.service.registry.bindings)),
            "name": "desk",
            "key": "team-5521",
        }

    async def seen(self) -> Mapping[str, Any]:
        """All that the owner sees of the estate."""
        addresses = ["/runs?limit=1000", "/approvals?limit=1000"]
        for run in self.runs.values():
            addresses += [f"/runs/{run['run_id']}{part}" for part in ("", "/inbox", "/messages", "/receipts")]
        return {address: (await self.desk.http.get(address, headers=self.owner)).json() for address in addresses}

    async def ask(self, stranger: str, name: str, body: Any, values: Mapping[str, str]) -> httpx.Response:
        """A stranger's request, about what `values` name."""
        method, path = filled(name, values).split(" ")
        who = self.strangers[stranger]
        return await self.desk.http.request(
            method, path, json=filled(body, values), headers=who["headers"], params=who["query"] if "?" not in path else None
        )


def filled(template: Any, values: Mapping[str, str]) -> Any:
    """A template with names put in."""
    if isinstance(template, str):
        return re.sub(r"\{(\w+)\}", lambda found: values[found[1]], template)
    if isinstance(template, dict):
        return {name: filled(value, values) for name, value in template.items()}
    return [filled(value, values) for value in template] if isinstance(template, list) else template


def routes() -> Iterator[str]:
    """Every call of the OpenAPI document that needs a caller, and each `GET` as a `HEAD`, too."""
    for path, item in openapi.document()["paths"].items():
        for method, operation in item.items():
            if operation.get("x-permission") is not None:
                yield f"{method.upper()} {path}"
                if method == "get":
                    yield f"HEAD {path}"


def told(answer: httpx.Response, named: str | None = None) -> tuple[int, Any, Mapping[str, str]]:
    """All of an answer that a caller can compare: whatever is of this one request left out, and what they `named` themselves."""
    headers = {name: value for name, value in answer.headers.items() if name not in ("x-request-id", "content-length")}
    text = answer.text if named is None else answer.text.replace(named, "…")
    return answer.status_code, {**json.loads(text), "instance": ""} if text else None, headers


@pytest.fixture
async def estate(url: str | None) -> AsyncIterator[Estate]:
    async with desk(url=url) as made:
        house = made.house
        owner = await key(house, permissions=tuple(Permission), **OWNER)
        estate = Estate(desk=made, owner=owner)
        turns_of: dict[str, Any] = {"charge": CHARGE, "refund": REFUND, "pick": PICK, "ask": ASK, "done": [{"text": MARK}]}
        for name, turns in turns_of.items():
            estate.runs[name] = await made.run(turns, headers=owner, metadata={"mark": MARK})
        strangers: dict[str, dict[str, str]] = {
            "another tenant": {"tenant": "globex"},
            "another user": {"user": "bob"},
            "another namespace": {"namespace": "us"},
            "the user elsewhere": {"user": OWNER["user"], "namespace": "us"},
            "an operator looking elsewhere": {},
        }
        for name, scope in strangers.items():
            is_operator = name.startswith("an operator")
            headers = await key(house, permissions=tuple(Permission), operator=is_operator, **scope)
            estate.strangers[name] = {"headers": headers, "query": {"tenant": "globex"} if is_operator else None}
        terms = {"max_total_tokens": 5_000_000}
        made_by_ops = await key(house, permissions=(Permission.OPS,))
        assert (await made.http.put(f"/budgets/{estate.names['key']}", headers=made_by_ops, json=terms)).status_code == 200
        (agent,) = await house.service.services.directory.agents()
        manifest = json.dumps({**json.loads(agent.manifest), "version": "2", "fingerprint": "next"})
        await house.service.services.directory.publish_agents([replace(agent, version="2", fingerprint="next", manifest=manifest)])
        house.service.catalog._read_at = None
        yield estate
        assert house.heard.problems == []


async def test_R43_who_may_not_see_it_is_answered_as_if_it_were_not_there(estate: Estate) -> None:
    before = await estate.seen()
    walked = 0
    for name in routes():
        if "{" not in name or name.replace("HEAD", "GET") in (*SHARED, *OWN):
            continue
        run, body = BODIES.get(name, ("refund", None))
        there = {**estate.names, "run_id": estate.runs[run]["run_id"]}
        for stranger in estate.strangers:
            theirs = await estate.ask(stranger, name, body, there)
            nobodys = await estate.ask(stranger, name, body, unknown(name, there))
            assert told(theirs, there["key"]) == told(nobodys, NOTHING["key"]), (stranger, name)
            confined = "{key}" in name and stranger not in WHOLE_TENANTS
            assert theirs.status_code == (403 if "worker_id" in name or confined else 404), (stranger, name)
            walked += 1
    assert walked > 100
    assert await estate.seen() == before


def unknown(name: str, values: Mapping[str, str]) -> dict[str, str]:
    """The same, but that what the address of a call names is not there."""
    return {**values, **{part: NOTHING[part] for part in re.findall(r"\{(\w+)\}", name)}}


async def test_R43_a_body_that_names_it_names_nothing(estate: Estate) -> None:
    before = await estate.seen()
    for name, body in NAMING.items():
        for run in estate.runs.values():
            there = {**estate.names, "run_id": run["run_id"]}
            for stranger in estate.strangers:
                theirs = await estate.ask(stranger, name, body, there)
                nobodys = await estate.ask(stranger, name, body, there | {"run_id": "0198c1d2-nothing"})
                assert told(theirs) == told(nobodys), (stranger, name)
                assert theirs.status_code == 404 or theirs.json()["matched"] == 0
    for name, body in EVERYTHING.items():
        for stranger in estate.strangers:
            answer = (await estate.ask(stranger, name, body, estate.names)).json()
            assert {name: count for name, count in answer.items() if count not in (0, None, [])} == {}, (stranger, name)
    assert await estate.seen() == before


async def test_R43_no_list_shows_it_and_no_cursor_leads_to_it(estate: Estate) -> None:
    """Lists, filters that name what is the owner's, and the owner's own cursors."""
    known = [*estate.names.values(), *OWNER.values(), MARK, *(run["run_id"] for run in estate.runs.values())]
    filters = [f"?user={OWNER['user']}", f"?namespace={OWNER['namespace']}", f"?metadata.mark={MARK}", "?agent=desk", "?status=suspended"]
    filters += [f"?run_id={estate.names['run_id']}", "?tool=refund", "?limit=1", "?order=created_at", "?waiting_on=approvals"]
    cursors = []
    for listed in ("/runs", "/approvals"):
        page = (await estate.desk.http.get(f"{listed}?limit=1", headers=estate.owner)).json()
        assert len(page["data"]) == 1
        cursors += [page["next_cursor"]] if page["next_cursor"] else []
    assert cursors
    for name in routes():
        if not name.startswith("GET ") or "{" in name or name in SHARED:
            continue
        for stranger in estate.strangers:
            for more in ("", *filters):
                answer = await told_list(estate, stranger, name + more)
                assert answer.status_code == 422 or answer.json()["data"] == [], (stranger, name, more)
                assert not [text for text in known if text in answer.text], (stranger, name, more)
            for cursor in cursors:
                theirs, garbage = [await told_list(estate, stranger, f"{name}?limit=1&cursor={text}") for text in (cursor, "bm90aGluZw")]
                assert told(theirs) == told(garbage), (stranger, name)
                assert theirs.json()["code"] == "invalid_cursor"


async def told_list(estate: Estate, stranger: str, name: str) -> httpx.Response:
    who = estate.strangers[stranger]
    path = name.split(" ")[1]
    more = "" if who["query"] is None else ("&" if "?" in path else "?") + f"tenant={who['query']['tenant']}"
    return await estate.desk.http.get(path + more, headers=who["headers"])


async def test_R43_what_is_the_owners_means_nothing_under_a_run_of_ones_own(estate: Estate) -> None:
    """Ids of approvals, calls and questions of somebody else, sent to an own run."""
    for stranger, who in estate.strangers.items():
        own = await estate.desk.http.post(
            "/runs",
            json={"agent": "desk", "input": json.dumps(REFUND)},
            headers={**who["headers"], "Prefer": "wait=20"},
            params=who["query"],
        )
        assert own.status_code == 200
        there = {**estate.names, "run_id": own.json()["run_id"]}
        for name in ("POST /runs/{run_id}/approvals", "POST /runs/{run_id}/answers", "POST /runs/{run_id}/resume"):
            body = BODIES[name][1]
            nobodys = {**there, "approval_id": "ap_nothing", "question_id": "9.9.9"}
            theirs, unknown = [await estate.ask(stranger, name, body, values) for values in (there, nobodys)]
            assert theirs.status_code == 409
            assert (theirs.json()["code"], told(theirs)[0]) == ("not_pending", told(unknown)[0]), (stranger, name)
            assert theirs.text.replace(theirs.json()["instance"], "") == unknown.text.replace(unknown.json()["instance"], "")


async def test_R42_an_idempotency_key_of_somebody_else_is_free(estate: Estate) -> None:
    body = {"agent": "desk", "input": json.dumps([{"text": "hi"}])}
    first = await estate.desk.http.post("/runs", json=body, headers={**estate.owner, "Idempotency-Key": "same"})
    assert first.status_code == 202
    for stranger, who in estate.strangers.items():
        if stranger == "another tenant":  # an operator looking there has the same scope
            continue
        for sent in (body, {**body, "metadata": {"other": stranger}}):
            used = "same" if sent is body else "same-2"
            if sent is not body:
                await estate.desk.http.post("/runs", json=body, headers={**estate.owner, "Idempotency-Key": used})
            headers = {**who["headers"], "Idempotency-Key": used}
            made = await estate.desk.http.post("/runs", json=sent, headers=headers, params=who["query"])
            assert (made.status_code, "idempotent-replayed" in made.headers) == (202, False), (stranger, made.text)
            assert made.json()["run_id"] != first.json()["run_id"]


async def test_a_token_opens_what_it_is_for_and_everything_else_looks_alike(estate: Estate) -> None:
    """Tokens of one of the owner's runs and of one of its approvals, everywhere else."""
    before = await estate.seen()
    post = estate.desk.http.post
    run = await post(f"/runs/{estate.runs['done']['run_id']}/access-tokens", json={"allow": CALLS}, headers=estate.owner)
    other = await estate.desk.waiting(REFUND, headers=estate.owner)
    verdict = await post(f"/approvals/{asked_id(other)}/access-tokens", json={}, headers=estate.owner)
    before = await estate.seen()
    for name in routes():
        if "{" not in name or name.replace("HEAD", "GET") in SHARED:
            continue
        kind, body = BODIES.get(name, ("refund", None))
        there = {**estate.names, "run_id": estate.runs["refund" if kind == "done" else kind]["run_id"]}
        for token, opens in ((run, "run_id"), (verdict, "approval_id")):
            estate.strangers["a token"] = {"headers": {"Authorization": f"Bearer {token.json()['token']}"}, "query": None}
            theirs = await estate.ask("a token", name, body, there)
            nobodys = await estate.ask("a token", name, body, unknown(name, there))
            assert told(theirs) == told(nobodys), name
            opened = name.replace("HEAD", "GET") in OPENED_BY_TOKENS and f"{{{opens}}}" in name
            assert theirs.status_code == (404 if opened else 403), name
    assert await estate.seen() == before
