"""R13, R15: unknown effects, from the crash to their settlement by a probe or a person."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runward import Agent, CannotTell, DidNotHappen, Happened, ToolContext, UnknownOutcome, tool
from runward.core.errors import Conflict, Invalid
from runward.core.kernel.actor import Status
from runward.engine.letters import SettlementIn
from runward.engine.repeats import Repeatable
from tests.engine.rig import DONE, Rig, agent, calls

Answers = list[Any]


class Till:
    """A tool whose first attempts nobody knows the outcome of."""

    def __init__(self, *, unknown: int = 1, **options: Any) -> None:
        self.keys: list[str] = []

        @tool(effect="non_idempotent_write", needs_approval=False, **options)
        async def charge(ctx: ToolContext) -> dict[str, int]:
            self.keys.append(ctx.idempotency_key)
            if len(self.keys) <= unknown:
                raise UnknownOutcome("the till did not answer")
            return {"receipt": 7}

        self.tool = charge

    def agent(self, **differing: Any) -> Agent:
        return agent(calls("charge"), DONE, tools=[self.tool], **differing)


def probing(*answers: Any) -> tuple[list[str], Callable[..., Any]]:
    """A probe that gives these answers in turn; an exception is raised."""
    asked: list[str] = []

    async def probe(key: str, arguments: Any, ctx: ToolContext) -> Any:
        asked.append(key)
        answer = answers[min(len(asked), len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return asked, probe


def settle(decision: Any, **more: Any) -> SettlementIn:
    return SettlementIn(tool_call_id="1.1", decision=decision, **more)


async def test_R13_a_probe_that_knows_settles_the_effect_by_itself() -> None:
    asked, probe = probing(Happened({"receipt": 3}))
    till = Till(probe=probe)
    async with Rig(till.agent()) as rig:
        uid = await rig.run()
        assert (rig.row(uid).status, rig.row(uid).task_outcome) == (Status.COMPLETED, "resolved")
        assert till.keys == asked == [f"{uid}/1.1"]
        receipt = rig.rows(uid).receipts["1.1"]
        assert (receipt.output, receipt.outcome) == ('{"receipt":3}', "reconciled")
        assert json.loads(receipt.detail)["reconciled"]["probe"] == "happened"
        (mail,) = rig.rows(uid).mail
        assert (mail.key, mail.principal) == ("unknown:1.1:1", None), "R19a: it took the key that a person would"


async def test_R13_what_did_not_happen_runs_again_under_the_same_key() -> None:
    asked, probe = probing(DidNotHappen())
    till = Till(probe=probe)
    async with Rig(till.agent()) as rig:
        uid = await rig.run()
        assert rig.row(uid).status is Status.COMPLETED and till.keys == [f"{uid}/1.1"] * 2 and len(asked) == 1


@pytest.mark.parametrize(
    ("answer", "status", "detail"),
    [
        (CannotTell("the till is down"), "cannot_tell", "the till is down"),
        (RuntimeError("password=hunter2"), "failed", "the probe failed unexpectedly"),
        ("yes", "failed", "the probe failed unexpectedly"),
        (Happened(object()), "cannot_tell", "what the probe found cannot be recorded"),
    ],
)
async def test_I29_whatever_is_no_clear_answer_leaves_the_effect_to_a_person(answer: Any, status: str, detail: str) -> None:
    """R15: and is shown to them."""
    _, probe = probing(answer)
    till = Till(probe=probe)
    async with Rig(till.agent()) as rig:
        uid = await rig.run()
        (unknown,) = rig.view(uid)["pending"]["unknown_effects"]
        assert (unknown["probe"]["status"], unknown["probe"]["detail"]) == (status, detail)
        assert rig.row(uid).status is Status.SUSPENDED and len(till.keys) == 1
        await rig.deliver(uid, reconcile=[settle("result", output={"receipt": 1})])
        assert (await rig.over(uid)).status is Status.COMPLETED and len(till.keys) == 1


async def test_R13_a_probe_is_asked_again_later_without_holding_a_worker() -> None:
    """What was down when the call was may be up in half a minute."""
    asked, probe = probing(CannotTell("down"), CannotTell("down"), Happened({"receipt": 3}))
    till = Till(probe=probe)
    async with Rig(till.agent()) as rig:
        uid = await rig.run()
        assert rig.row(uid).lease_owner is None and len(asked) == 1
        await rig.pass_seconds(31)
        assert len(asked) == 2
        await rig.pass_seconds(61)
        assert (await rig.over(uid)).status is Status.COMPLETED and len(asked) == 3 and len(till.keys) == 1


async def test_a_model_is_told_only_after_the_probe_could_not_tell() -> None:
    """R13: `on_unknown="tell_model"`."""
    _, probe = probing(CannotTell("down"))
    till = Till(probe=probe, on_unknown="tell_model")
    async with Rig(till.agent()) as rig:
        uid = await rig.run()
        assert (rig.row(uid).status, rig.row(uid).task_outcome) == (Status.COMPLETED, "needs_reconciliation")
        assert rig.results(uid)[0]["is_error"] and "unknown" in rig.results(uid)[0]["output"]


async def test_R15_a_person_who_was_first_is_not_overruled_by_a_probe() -> None:
    _, probe = probing(CannotTell("down"), Happened({"receipt": 3}))
    till = Till(probe=probe)
    async with Rig(till.agent()) as rig:
        uid = await rig.run()
        rig.clock.advance(29.99)
        await rig.deliver(uid, reconcile=[settle("result", output={"receipt": 1})])
        await rig.over(uid)
        assert rig.results(uid)[0]["output"] == {"receipt": 1}


@pytest.mark.parametrize(
    ("item", "output", "is_error", "attempts"),
    [
        (settle("result", output={"receipt": 1}), {"receipt": 1}, False, 1),
        (settle("error", note="they refused it"), "they refused it", True, 1),
        (settle("retry"), {"receipt": 7}, False, 2),
    ],
)
async def test_R15_each_decision_does_what_it_says_once(item: SettlementIn, output: Any, is_error: bool, attempts: int) -> None:
    till = Till()
    async with Rig(till.agent()) as rig:
        uid = await rig.run()
        answers = [(await rig.deliver(uid, reconcile=[item])).items[0]["result"]]
        await rig.over(uid)
        answers.append((await rig.deliver(uid, reconcile=[item])).items[0]["result"])
        assert answers == ["accepted", "duplicate"]
        (result,) = rig.results(uid)
        assert (result["output"], result["is_error"], len(till.keys)) == (output, is_error, attempts)
        assert rig.row(uid).task_outcome == "resolved" and set(till.keys) == {f"{uid}/1.1"}
        with pytest.raises(Conflict) as refused:
            await rig.deliver(uid, reconcile=[settle("result", output="another")])
        assert refused.value.code == "already_answered"


async def test_R15_a_call_that_is_unknown_again_after_a_retry_can_be_settled_again() -> None:
    till = Till(unknown=2)
    async with Rig(till.agent()) as rig:
        uid = await rig.run()
        for _ in range(2):
            await rig.deliver(uid, reconcile=[settle("retry")])
            await rig.over(uid)
        assert rig.row(uid).status is Status.COMPLETED and till.keys == [f"{uid}/1.1"] * 3
        assert [mail.key for mail in rig.rows(uid).mail] == ["unknown:1.1:1", "unknown:1.1:2"]


async def test_R15_what_is_not_unknown_or_named_twice_is_refused_whole() -> None:
    till = Till()
    async with Rig(till.agent()) as rig:
        uid = await rig.run()
        other = SettlementIn(tool_call_id="9.9", decision="retry")
        for items, error, code in (
            ([settle("retry"), other], Conflict, "not_pending"),
            ([settle("retry"), settle("error")], Invalid, "invalid_value"),
        ):
            with pytest.raises(error) as refused:
                await rig.deliver(uid, reconcile=items)
            assert refused.value.code == code
        assert rig.rows(uid).mail == [] and len(till.keys) == 1


async def test_R15_a_result_has_to_fit_and_is_projected_like_the_tools_own() -> None:
    schema = {"type": "object", "required": ["receipt"]}
    till = Till(output_schema=schema, to_model_output=lambda result: f"receipt {result['receipt']}")
    async with Rig(till.agent()) as rig:
        uid = await rig.run()
        with pytest.raises(Invalid) as refused:
            await rig.deliver(uid, reconcile=[settle("result", output={"bill": 1})])
        assert refused.value.problems[0].pointer == "/reconcile/0/output/receipt"
        await rig.deliver(uid, reconcile=[settle("result", output={"receipt": 1})])
        await rig.over(uid)
        receipt = rig.rows(uid).receipts["1.1"]
        assert (receipt.raw, receipt.output, receipt.outcome) == ('{"receipt":1}', '"receipt 1"', "reconciled")


async def test_R15_evidence_is_wanted_checked_kept_and_may_be_brought_again() -> None:
    def verify(evidence: Any, ctx: ToolContext) -> bool:
        if evidence.get("operation_id") == "boom":
            raise RuntimeError("password=hunter2")
        return bool(evidence.get("operation_id") == "op_7")

    till = Till(verify_evidence=verify)
    async with Rig(till.agent()) as rig:
        uid = await rig.run()
        with pytest.raises(Invalid) as refused:
            await rig.deliver(uid, reconcile=[settle("result", output={"receipt": 1})])
        assert refused.value.problems[0].pointer == "/reconcile/0/evidence"
        for wrong in ("op_1", "boom"):
            await rig.deliver(uid, reconcile=[settle("result", output={"receipt": 1}, evidence={"operation_id": wrong})])
            assert (await rig.over(uid)).status is Status.SUSPENDED
            assert rig.view(uid)["pending"]["unknown_effects"][0]["evidence_refused"]
        evidence = {"operation_id": "op_7", "source": "the till's journal"}
        await rig.deliver(uid, reconcile=[settle("result", output={"receipt": 1}, evidence=evidence, note="looked it up")])
        assert (await rig.over(uid)).status is Status.COMPLETED
        record = json.loads(rig.rows(uid).receipts["1.1"].detail)["reconciled"]
        assert (record["evidence"], record["verified"], record["by"], record["note"]) == (evidence, True, "local", "looked it up")
        assert [mail.key for mail in rig.rows(uid).mail] == ["unknown:1.1:1", "unknown:1.1:1.1", "unknown:1.1:1.2"]


async def test_R10_after_the_end_a_settlement_changes_records_and_nothing_else() -> None:
    till = Till()
    async with Rig(till.agent()) as rig:
        uid = await rig.run()
        await rig.cancel(uid)
        before = await rig.over(uid)
        assert (before.status, before.task_outcome) == (Status.STOPPED, "needs_reconciliation")
        with pytest.raises(Conflict) as refused:
            await rig.deliver(uid, reconcile=[settle("retry")])
        assert refused.value.code == "not_pending"
        await rig.deliver(uid, reconcile=[settle("result", output={"receipt": 1})])
        await rig.until(lambda: rig.row(uid).mail_applied == rig.row(uid).mail_received and rig.row(uid).lease_owner is None)
        after, view = rig.row(uid), rig.view(uid)
        assert (after.status, after.stop_reason, after.ended_at) == (before.status, before.stop_reason, before.ended_at)
        assert after.task_outcome == "failed" and view["pending"]["unknown_effects"] == []
        assert json.loads(rig.rows(uid).receipts["1.1"].detail)["reconciled"]["decision"] == "result"
        last = rig.frames(uid)[-1]
        assert last["type"] == "data-agent" and last["data"]["final"] is True and len(till.keys) == 1


async def test_R42_a_retry_that_was_sent_again_never_counts_for_a_later_attempt() -> None:
    """The answer to it was lost, and its attempt became unknown again meanwhile: the effect is not repeated once more."""
    till = Till(unknown=2)
    key = Repeatable(key="k-1", fingerprint="a")
    async with Rig(till.agent()) as rig:
        uid = await rig.run()
        answers = []
        for _ in range(3):
            answers.append((await rig.deliver(uid, reconcile=[settle("retry")], repeatable=key)).items[0]["result"])
            await rig.over(uid)
        assert answers == ["accepted", "duplicate", "duplicate"] and len(till.keys) == 2
        with pytest.raises(Invalid) as refused:
            await rig.deliver(uid, reconcile=[settle("error")], repeatable=replace(key, fingerprint="b"))
        assert refused.value.code == "idempotency_key_reused"
        with pytest.raises(Conflict) as late:
            await rig.deliver(uid, reconcile=[settle("retry", attempt=1)])
        assert (late.value.code, len(till.keys)) == ("not_pending", 2)
        await rig.deliver(uid, reconcile=[settle("retry", attempt=2)])
        assert (await rig.over(uid)).status is Status.COMPLETED and len(till.keys) == 3
