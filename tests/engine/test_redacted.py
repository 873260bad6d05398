"""Secrets are taken out of whatever shows arguments or errors, and of nothing that runs (R9, R23)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from runward import Approval, Block, Guardrails, Output, Reply, Verdict, redact, tool
from runward.core.errors import Invalid
from runward.core.redaction import knowing
from runward.core.runs.facts import Broke
from runward.engine.approvals import Approvals
from runward.engine.callers import LOCAL
from runward.engine.queries import mail_shown, receipt_shown
from runward.ports.reads import ActorQuery, ApprovalQuery
from tests.engine.rig import DONE, Rig, agent, calls
from tests.unit.core.driving import Drive

KEY = "sk-abcdefghijklmnopqrstuv"
MARKED = {"url": "https://ann:[redacted password]@example.com/", "text": "use [redacted key]", "password": "[redacted password]"}
ARGUMENTS = {"url": "https://ann:hunter2@example.com/", "text": f"use {KEY}", "password": "hunter2"}

ran: list[Any] = []


@tool(effect="non_idempotent_write", needs_approval=Approval(editable=True))
async def send(url: str, text: str, password: str) -> str:
    ran.append({"url": url, "text": text, "password": password})
    return "sent"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


async def approvals(rig: Rig, **differing: Any) -> list[dict[str, Any]]:
    service = rig.first.service
    services = replace(service.services, **differing)
    page = await rig.passing(Approvals(services, service.deliveries).list(LOCAL, ApprovalQuery(scope=None, limit=10), None))
    return list(page.data)


async def test_R23_whoever_approves_sees_no_secret_and_what_runs_is_whole() -> None:
    async with Rig(agent(calls("send", **ARGUMENTS), DONE, tools=[send])) as rig:
        uid = await rig.run()
        (request,) = await approvals(rig)
        assert (request["arguments"], request["redacted"]) == (MARKED, True)
        assert rig.view(uid)["pending"]["approvals"][0]["arguments"] == MARKED
        said = rig.frames(uid, "tool-approval-request", "data-agent")
        assert KEY not in json.dumps(said) and "hunter2" not in json.dumps(said)
        (request,) = await approvals(rig, redactor=knowing(["https://ann"]))
        assert request["arguments"]["url"].startswith("[redacted secret]:"), "what the process was started with goes as well"
        await rig.verdict(uid, True)
        assert ran == [ARGUMENTS]


async def test_R23_plain_arguments_are_shown_as_they_are() -> None:
    plain = {"url": "https://example.com/", "text": "hello", "password": ""}
    async with Rig(agent(calls("send", **plain), DONE, tools=[send])) as rig:
        await rig.run()
        (request,) = await approvals(rig)
        assert (request["arguments"], request["redacted"]) == (plain, False)


async def test_R21_nobody_sends_back_the_marks_that_stand_for_secrets() -> None:
    """The call would run with them."""
    async with Rig(agent(calls("send", **ARGUMENTS), DONE, tools=[send])) as rig:
        uid = await rig.run()
        with pytest.raises(Invalid) as refused:
            await rig.verdict(uid, True, edited_arguments={**MARKED, "url": "https://example.com/"})
        assert "in place of a secret" in refused.value.problems[0].detail and ran == []
        edited = {**ARGUMENTS, "url": "https://example.com/"}
        await rig.verdict(uid, True, edited_arguments=edited)
        assert ran == [edited]
        (request,) = await approvals(rig)
        rows = rig.rows(uid)
        shown = [
            request,
            *(mail_shown(mail) for mail in rows.mail),
            *(receipt_shown(uid, each, raw=False) for each in rows.receipts.values()),
        ]
        assert KEY not in json.dumps(shown) and "hunter2" not in json.dumps(shown)
        assert request["edited_arguments"]["password"] == "[redacted password]"


async def test_R9_reasons_and_failures_hold_no_secret() -> None:
    block = Guardrails(on_input=lambda text, ctx: Block(f"it holds {KEY}"))
    async with Rig(agent(DONE, guardrails=block)) as rig:
        uid = await rig.run()
        assert rig.view(uid)["stop"]["details"]["reason"] == "it holds [redacted key]" and KEY not in json.dumps(rig.frames(uid))
    output = Output(schema={"type": "object"}, verify=lambda value, ctx: Verdict.inconclusive(f"ask with {KEY}"))
    async with Rig(agent(Reply(text="{}"), output=output)) as rig:
        uid = await rig.run()
        assert rig.view(uid)["stop"]["details"] == {"why": "ask with [redacted key]"} and KEY not in json.dumps(rig.frames(uid))
    drive = Drive().claim()
    drive.settle()
    drive.apply(Broke(at=drive.at, code="internal", message=f"no {KEY}", details={"header": f"Bearer {KEY}", "n": 1}))
    drive.settle()
    drive.broken_off().ended()
    error = drive.shown["error"]
    assert (error["message"], error["details"]) == ("no [redacted key]", {"header": "Bearer [redacted token]", "n": 1})


async def test_the_ready_made_redaction_works_on_every_hook() -> None:
    @tool(effect="read")
    async def look(who: str) -> dict[str, str]:
        ran.append(who)
        return {"email": "bob@example.com"}

    everywhere = Guardrails(on_input=redact(), on_tool_call=redact(), on_tool_result=redact(), on_output=redact())
    replies = (calls("look", who="ann@example.com"), Reply(text="write to bob@example.com"))
    async with Rig(agent(*replies, tools=[look], guardrails=everywhere)) as rig:
        uid = await rig.run(text="my card is 4111 1111 1111 1111")
        assert ran == ["[redacted email]"] and rig.results(uid)[0]["output"] == {"email": "[redacted email]"}
        assert rig.view(uid)["text"] == "write to [redacted email]"
        rows = json.dumps([message.content for message in rig.rows(uid).messages.values()])
        assert "4111" not in rows and "bob@" not in rows and "ann@" in rows, "history keeps what the model issued"
        hooks = [frame["hook"] for frame in rig.frames(uid, "guardrail")]
        assert hooks == ["on_input", "on_tool_call", "on_tool_result", "on_output"]


async def test_R23_what_operators_want_hidden_is_hidden_wherever_people_look() -> None:
    """Pending calls, the inbox of approvals, failures, and the stream that says the same. What runs and what the caller wrote is whole."""
    rules = knowing(["the key of this process"], ["email"])
    given = {"url": "ann@example.com", "text": "by the key of this process", "password": "x"}
    hidden = {"url": "[redacted email]", "text": "by [redacted secret]", "password": "[redacted password]"}
    wants = Reply(text="ask ann@example.com")
    async with Rig(agent(calls("send", **given), wants, tools=[send]), redactor=rules) as rig:
        uid = await rig.run(text="for ann@example.com")
        queries = rig.first.service.queries
        run = (await rig.passing(queries.run(LOCAL, rig.row(uid).public_id))).shown
        assert run["pending"]["approvals"][0]["arguments"] == hidden == (await approvals(rig))[0]["arguments"]
        assert rig.frames(uid, "tool-approval-request")[0]["arguments"] == hidden
        assert rig.frames(uid, "data-agent")[-1]["data"]["pending"]["approvals"][0]["arguments"] == hidden
        listed = await rig.passing(queries.runs(LOCAL, ActorQuery(kind="run", scope=None, limit=10), None))
        assert listed.data[0]["pending"]["approvals"][0]["arguments"] == hidden
        await rig.verdict(uid, True)
        assert ran == [given] and (await rig.passing(queries.run(LOCAL, rig.row(uid).public_id))).shown["text"] == "ask ann@example.com"


async def test_R9_a_failure_says_nothing_that_operators_want_hidden() -> None:
    blocks = Guardrails(on_input=lambda text, ctx: Block("ann@example.com is not welcome"))
    async with Rig(agent(DONE, guardrails=blocks), redactor=knowing([], ["email"])) as rig:
        uid = await rig.run()
        run = (await rig.passing(rig.first.service.queries.run(LOCAL, rig.row(uid).public_id))).shown
        reason = "[redacted email] is not welcome"
        assert (run["stop"]["details"]["reason"], rig.frames(uid, "guardrail")[0]["reason"]) == (reason, reason)
        assert "ann@example.com" not in json.dumps(rig.frames(uid))
