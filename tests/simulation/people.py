"""The people and clients of a simulated run: they answer what it waits for, sooner or later, twice, late, wrongly, or both ways at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runward.core.errors import Conflict, Invalid, NotFound, Refused
from runward.core.kernel.mail import MailKind, approval_key, client_key, question_key
from runward.engine.callers import LOCAL
from runward.engine.deliveries import Input
from runward.engine.letters import AnswerIn, Item, ResultIn, SettlementIn, VerdictIn, id_of
from runward.engine.queries import RunView
from runward.stores.memory.database import Rows
from tests.simulation.loop import sleep
from tests.simulation.spending import raised

if TYPE_CHECKING:
    from tests.simulation.callers import Caller

EXPECTED = {"already_answered", "not_pending", "run_ended", "revision_conflict", "approval_expired", "not_transient"}
"""What a conflict may be called."""

MOST_RETRIES = 2


class People:
    """Whoever answers for one run. `look` at its view now and then."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.world = caller.world
        self._chance = caller.world.chance_of(caller.run_id, "people")
        self._sent: list[Input] = []
        self._retries = 0

    async def look(self, view: RunView) -> None:
        """Answers some of what waits, or, once nothing goes wrong any more, all of it."""
        if not self.world.troubled and not self.world.diligent:
            return
        items = [item for item in self._items(view) if self._thorough or self._chance.random() < 0.5]
        if self._chance.random() < 0.3:  # everything in one request
            exact = any(map(_reruns, items)) or self._chance.random() < 0.5
            await self.send(Input(**_lists(items), expected_revision=view.revision if exact else None))
        else:
            for item in items:
                await self._answer(item, view.revision)
        if self._sent and self._chance.random() < 0.1:
            await self.send(self._chance.choice(self._sent))
        if view.shown["pending"]["hold"] is not None and self._thorough:
            await self.send(Input(release_hold=True))
        budget = view.shown["pending"]["budget"]
        if budget is not None and (self._thorough or self._chance.random() < 0.2):
            await self._caller.ask_again(lambda service: raised(service, budget["budget"]))

    async def tries_again(self, view: RunView) -> bool:
        """Whether somebody has a failed run tried again, if its failure may pass."""
        failed = view.shown["error"]
        if failed is None or self._retries == MOST_RETRIES or self._chance.random() < 0.3:
            return False
        self._retries += 1
        return await self.send(Input(retry_failed=True)) and failed["transient"]

    @property
    def _thorough(self) -> bool:
        return not self.world.troubled and self.world.diligent

    # -- what they say -----------------------------------------------------------------------------------------------------

    def _items(self, view: RunView) -> list[Item]:
        pending = view.shown["pending"]
        return [
            *(self._verdict(each) for each in pending["approvals"]),
            *(self._result(each) for each in pending["client_calls"]),
            *(self._reply(each) for each in pending["questions"]),
            *(self._settlement(each, ended=view.status.ended) for each in pending["unknown_effects"]),
        ]

    def _verdict(self, asked: Mapping[str, Any]) -> VerdictIn:
        approved = self._chance.random() < 0.7
        edited = None
        if (approved and asked["editable"] and self._chance.random() < 0.5) or (self._errs and not self._thorough):
            edited = {"n": "one" if self._errs else self._chance.randrange(9)}
        return VerdictIn(approval_id=asked["approval_id"], approved=approved, edited_arguments=edited, reason="so be it")

    def _result(self, asked: Mapping[str, Any]) -> ResultIn:
        output = {"wrong" if self._errs else "picked": self._chance.randrange(9)}
        return ResultIn(tool_call_id=asked["tool_call_id"], output=output, is_error=self._chance.random() < 0.2)

    def _reply(self, asked: Mapping[str, Any]) -> AnswerIn:
        if self._errs:
            return AnswerIn(question_id=asked["question_id"], answer=" ")
        answer = None if self._chance.random() < 0.2 else self._chance.choice(asked["choices"] or ("because",))
        return AnswerIn(question_id=asked["question_id"], answer=answer)

    def _settlement(self, asked: Mapping[str, Any], *, ended: bool) -> SettlementIn:
        """They look it up, and say what is so; now and then they have it run again all the same."""
        key, ledger = asked["idempotency_key"], self.world.ledger
        found, call = ledger.found(key, asked["attempt"]), asked["tool_call_id"]
        holds = self._thorough or self._chance.random() < 0.6
        evidence = {"source": "till" if holds else self._chance.choice(("hearsay", "breaks"))}
        shown = evidence if asked["evidence_required"] and not self._errs else None
        if not ended and self._chance.random() < (0.5 if found is None else 0.1):
            ledger.risky[key] += found is not None
            return SettlementIn(tool_call_id=call, decision="retry", evidence=shown)
        if found is None:
            return SettlementIn(tool_call_id=call, decision="error", note="It did not happen.", evidence=shown)
        return SettlementIn(tool_call_id=call, decision="result", output={"token": found}, evidence=shown)

    @property
    def _errs(self) -> bool:
        """Whether somebody makes a mistake; not for ever."""
        return self._chance.random() < 0.05

    # -- how they say it -----------------------------------------------------------------------------------------------------

    async def _answer(self, item: Item, revision: int) -> None:
        """One item: perhaps twice, or at once with somebody who says the opposite. Who has a call run again says what they have seen: else
        it might run again for an attempt that they have not looked at."""
        drawn = self._chance.random()
        if _reruns(item):
            await self.send(Input(**_lists([item]), expected_revision=revision))
        elif isinstance(item, VerdictIn) and drawn < 0.2:
            other = VerdictIn(approval_id=item.approval_id, approved=not item.approved)
            await asyncio.gather(self.send(_input(item)), self.send(_input(other)))
        elif isinstance(item, VerdictIn) and drawn < 0.4:
            await self._decide(item)
        elif drawn < 0.5:
            await asyncio.gather(self.send(_input(item)), self.send(_input(item)))
        else:
            await self.send(_input(item))
        if self._chance.random() < 0.3:
            await sleep(self._chance.choice((0.01, 0.5)))

    async def send(self, given: Input) -> bool:
        """Sends it until somebody knows what became of it; whether it was taken."""
        if given.is_empty:
            return False
        for item, _ in given.items:
            self._note(item)
        if given.items:
            self._sent.append(given)
        try:
            delivered = await self._caller.ask_again(lambda service: service.deliveries.deliver(LOCAL, self._caller.run_id, given))
        except Refused as refused:
            self._refused(given, refused)
            return False
        for (item, _), answered in zip(given.items, delivered.items, strict=False):
            self._taken(item, answered["result"])
        if {"input": "retry_failed", "result": "accepted"} in delivered.items:
            self.world.watch.inputs.stored(self._rows(), MailKind.RETRY, {}, self._caller.run_id)
        return True

    async def _decide(self, verdict: VerdictIn) -> None:
        """A verdict at its own address."""
        self._note(verdict)
        try:
            shown = await self._caller.ask_again(lambda service: service.approvals.decide(LOCAL, verdict))
        except Refused as refused:
            self._refused(_input(verdict), refused)
            return
        right = shown["status"] == ("approved" if verdict.approved else "denied")
        self._caller.check(right, "I-30 the answer shows what was decided", f"{verdict}: {shown['status']}")
        self._taken(verdict, "duplicate")

    def _note(self, item: Item) -> None:
        """Whatever is said may count from now on, also when nobody answers."""
        if isinstance(item, VerdictIn):
            said = {"approved": item.approved, "edited": item.edited_arguments}
            self.world.ledger.verdicts[item.approval_id].append(said)
        if isinstance(item, SettlementIn):
            uid = self._caller.uid
            self.world.ledger.decisions[f"{uid}/{item.tool_call_id}"].add((self._attempt_of(item), item.decision))

    def _rows(self) -> Rows | None:
        """The run as it is stored; None when it is gone."""
        return self.world.database.actors.get(self._caller.uid or "")

    def _attempt_of(self, item: SettlementIn) -> int:
        rows = self._rows()
        receipt = None if rows is None else rows.receipts.get(item.tool_call_id)
        return 0 if receipt is None else receipt.attempt

    def _taken(self, item: Item, result: str) -> None:
        rows, inputs = self._rows(), self.world.watch.inputs
        key, said, where = _key(item), _said(item), f"{self._caller.run_id}: {id_of(item)} was {result}"
        if key is None:
            inputs.stored(rows, MailKind.RECONCILE, said, where)
        elif result == "accepted":
            inputs.accepted(rows, key, said, where)
        else:
            inputs.duplicate(rows, key, said, where)

    def _refused(self, given: Input, refused: Refused) -> None:
        known = refused.code in EXPECTED if isinstance(refused, Conflict) else isinstance(refused, Invalid)
        gone = isinstance(refused, NotFound) and self._caller.gone
        self._caller.check(known or gone, "I-49 a refusal says why", f"{given}: {refused.code}: {refused.detail}")
        rows = self._rows()
        if len(given.items) == 1 and (key := _key(given.items[0][0])) is not None:
            said = _said(given.items[0][0])
            self.world.watch.inputs.refused(rows, key, said, refused.code, f"{self._caller.run_id}: {refused.code}")


def _reruns(item: Item) -> bool:
    return isinstance(item, SettlementIn) and item.decision == "retry"


def _input(item: Item) -> Input:
    return Input(**_lists([item]))


def _lists(items: Sequence[Item]) -> dict[str, Any]:
    return {
        "approvals": [item for item in items if isinstance(item, VerdictIn)],
        "tool_results": [item for item in items if isinstance(item, ResultIn)],
        "answers": [item for item in items if isinstance(item, AnswerIn)],
        "reconcile": [item for item in items if isinstance(item, SettlementIn)],
    }


def _key(item: Item) -> str | None:
    """The key that the item takes; None where it depends on what was settled before."""
    match item:
        case VerdictIn():
            return approval_key(item.approval_id)
        case ResultIn():
            return client_key(item.tool_call_id)
        case AnswerIn():
            return question_key(item.question_id)
        case SettlementIn():
            return None


def _said(item: Item) -> dict[str, Any]:
    """What the stored input has to say."""
    match item:
        case VerdictIn():
            edited = {} if item.edited_arguments is None else {"edited_arguments": item.edited_arguments}
            return {"approved": item.approved, **edited}
        case ResultIn():
            return {"output": item.output, "is_error": item.is_error}
        case AnswerIn():
            return {"declined": True} if item.answer is None else {"answer": item.answer}
        case SettlementIn():
            return {"tool_call_id": item.tool_call_id, "decision": item.decision}
