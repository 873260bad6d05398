"""What people and clients send to a run, item by item: a letter for its mailbox, or what is wrong with it (R15, R19, R24, R26)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from runward.agents.schemas import Schema
from runward.core.errors import Problem
from runward.core.ids import canonical_json
from runward.core.kernel.mail import Letter, Mail, MailKind, approval_key, client_key, question_key, unknown_key
from runward.core.redaction import holds_mark
from runward.core.runs.calls import Awaited, Awaits, Call, CallStage, Gate
from runward.core.runs.state import RunState
from runward.core.runs.view import key_of
from runward.core.times import rfc3339

MAX_QUESTION_ANSWER = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictIn:
    """A person's verdict on one call. `decided_by` names them where the caller speaks for somebody else."""

    approval_id: str
    approved: bool
    reason: str | None = None
    edited_arguments: Mapping[str, Any] | None = None
    decided_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultIn:
    """What came of a client call."""

    tool_call_id: str
    output: Any
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerIn:
    """The user's answer to a question; None declines it."""

    question_id: str
    answer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementIn:
    """How an unknown effect is to be settled. `output` goes with a result, and may go with an error. `attempt`: refuse it unless this very
    attempt of the call is unknown, so that a decision never counts for a later one."""

    tool_call_id: str
    decision: Literal["retry", "result", "error"]
    output: Any = None
    attempt: int | None = None
    note: str | None = None
    evidence: Mapping[str, Any] | None = None


Item = VerdictIn | ResultIn | AnswerIn | SettlementIn


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressed:
    """An item with the letter it would be: its key says what it closes. `problem`: why it cannot be sent, were the key still free."""

    item: Item
    pointer: str
    letter: Letter
    problem: Problem | None = None
    settles_after_end: bool = False


def id_of(item: Item) -> dict[str, str]:
    """What an item is about, as answers name it."""
    match item:
        case VerdictIn():
            return {"approval_id": item.approval_id}
        case AnswerIn():
            return {"question_id": item.question_id}
        case _:
            return {"tool_call_id": item.tool_call_id}


class Addressing:
    """Addresses items to a run as it stands now.

    `schemas` are those of arguments that may be edited, by approval id; `output_schema` that of a tool's results. `settled` is the run's
    mail, where effects are to be settled.
    """

    def __init__(
        self,
        run: RunState,
        *,
        principal: str,
        now: int,
        schemas: Mapping[str, Any],
        output_schema: Callable[[str], Mapping[str, Any] | None],
        settled: Sequence[Mail],
    ) -> None:
        self._run = run
        self._principal = principal
        self._now = now
        self._schemas = schemas
        self._output_schema = output_schema
        self._settled = settled

    def address(self, item: Item, pointer: str) -> Addressed:
        match item:
            case VerdictIn():
                return self._verdict(item, pointer)
            case ResultIn():
                return self._result(item, pointer)
            case AnswerIn():
                return self._answer(item, pointer)
            case SettlementIn():
                return self._settlement(item, pointer)

    def _verdict(self, item: VerdictIn, pointer: str) -> Addressed:
        data: dict[str, Any] = {"approval_id": item.approval_id, "approved": item.approved}
        if item.edited_arguments is not None:
            data["edited_arguments"] = item.edited_arguments
        told = {"reason": item.reason, "decided_by": item.decided_by}
        data |= {name: value for name, value in told.items() if value is not None}
        letter = self._letter(MailKind.APPROVAL, approval_key(item.approval_id), data)
        gate = next((call.gate for call in self._run.turn if call.stage is CallStage.GATED and _is(call.gate, item.approval_id)), None)
        problem = self._not_pending(pointer) if gate is None or self._over(gate.expires_at) else self._edit(item, gate, pointer)
        return Addressed(item=item, pointer=pointer, letter=letter, problem=problem)

    def _edit(self, item: VerdictIn, gate: Gate, pointer: str) -> Problem | None:
        """What is wrong with edited arguments, if they are."""
        if item.edited_arguments is None:
            return None
        pointer += "/edited_arguments"
        if not gate.editable or not item.approved:
            detail = "The arguments of this call cannot be edited." if item.approved else "A denied call has no arguments to edit."
            return Problem(pointer=pointer, code="invalid_value", detail=detail)
        if holds_mark(item.edited_arguments):
            detail = "These arguments hold a mark in place of a secret. Give the whole value, or approve the call without editing it."
            return Problem(pointer=pointer, code="invalid_value", detail=detail)
        return _mismatch(self._schemas.get(gate.id), item.edited_arguments, pointer, "edited_arguments")

    def _result(self, item: ResultIn, pointer: str) -> Addressed:
        data = {"tool_call_id": item.tool_call_id, "output": item.output, "is_error": item.is_error}
        letter = self._letter(MailKind.CLIENT, client_key(item.tool_call_id), data)
        call, awaited = self._waiting(Awaits.RESULT, lambda call, _: call.id == item.tool_call_id)
        if call is None or awaited is None or self._over(awaited.expires_at):
            problem: Problem | None = self._not_pending(pointer)
        elif item.is_error or awaited.output_schema is None:
            problem = None
        else:
            problem = _mismatch(awaited.output_schema, item.output, pointer + "/output", "output_schema")
        return Addressed(item=item, pointer=pointer, letter=letter, problem=problem)

    def _answer(self, item: AnswerIn, pointer: str) -> Addressed:
        data: dict[str, Any] = {"question_id": item.question_id}
        data |= {"declined": True} if item.answer is None else {"answer": item.answer}
        letter = self._letter(MailKind.QUESTION, question_key(item.question_id), data)
        call, awaited = self._waiting(Awaits.ANSWER, lambda _, awaited: awaited.question_id == item.question_id)
        if call is None or awaited is None or self._over(awaited.expires_at):
            problem: Problem | None = self._not_pending(pointer)
        else:
            problem = _wrong_answer(item.answer, awaited, pointer + "/answer")
        return Addressed(item=item, pointer=pointer, letter=letter, problem=problem)

    def _settlement(self, item: SettlementIn, pointer: str) -> Addressed:
        told = {"output": item.output, "note": item.note, "evidence": item.evidence}
        data = {name: value for name, value in told.items() if value is not None}
        data |= {"tool_call_id": item.tool_call_id, "decision": item.decision}
        effect = self._run.unknown(item.tool_call_id)
        if effect is None:  # settled, or never unknown: the newest letter about it says which
            recorded = next((mail for mail in reversed(self._settled) if _about(mail, item.tool_call_id)), None)
            attempt = 0 if recorded is None else json.loads(recorded.data)["attempt"]
            key = unknown_key(item.tool_call_id, 0) if recorded is None else recorded.key
            letter = self._letter(MailKind.RECONCILE, key, {**data, "attempt": attempt})
            return Addressed(item=item, pointer=pointer, letter=letter, problem=self._not_pending(pointer))
        letter = self._letter(MailKind.RECONCILE, key_of(effect), {**data, "attempt": effect.attempt})
        problem = None
        if item.attempt not in (None, effect.attempt):
            detail = f"Attempt {effect.attempt} of this call is unknown now, not attempt {item.attempt}: look at it again, then decide."
            problem = Problem(pointer=pointer + "/attempt", code="not_pending", detail=detail)
        elif item.decision == "retry" and (effect.told or self._run.status.ended):
            detail = "This call was answered already: the model was told that nobody knows. Settle it with `result` or `error`."
            problem = Problem(pointer=pointer + "/decision", code="not_pending", detail=detail)
        elif effect.wants_evidence and not item.evidence:
            detail = "This tool wants evidence of how the call ended: operation_id, source or proof."
            problem = Problem(pointer=pointer + "/evidence", code="invalid_value", detail=detail)
        elif item.decision == "result":
            problem = _mismatch(self._output_schema(effect.tool_name), item.output, pointer + "/output", "output_schema")
        return Addressed(item=item, pointer=pointer, letter=letter, problem=problem, settles_after_end=item.decision != "retry")

    def _letter(self, kind: MailKind, key: str, data: Mapping[str, Any]) -> Letter:
        return Letter(kind=kind, key=key, data=canonical_json(data), principal=self._principal)

    def _waiting(self, what: Awaits, wanted: Any) -> tuple[Call | None, Awaited | None]:
        for call in self._run.turn:
            awaited = call.awaited
            if call.stage is CallStage.WAITING and awaited is not None and awaited.what is what and wanted(call, awaited):
                return call, awaited
        return None, None

    def _over(self, expires_at: int | None) -> bool:
        """Whether nobody's answer counts any more, though the run may not have noticed yet."""
        return expires_at is not None and expires_at <= self._now

    def _not_pending(self, pointer: str) -> Problem:
        return not_pending(pointer, ended=self._run.status.ended)


def not_pending(pointer: str, *, ended: bool) -> Problem:
    """Nothing waits for this item."""
    if ended:
        return Problem(pointer=pointer, code="run_ended", detail="The run has ended: it takes no more input.")
    return Problem(pointer=pointer, code="not_pending", detail="Nothing of this id waits. GET the run: `pending` shows what does.")


def same(letter: Letter, recorded: Mail) -> bool:
    """Whether a letter says what was recorded under its key: reasons and names may differ, what was decided may not (R19)."""
    mine, theirs = json.loads(letter.data), json.loads(recorded.data)
    return canonical_json(_said(mine)) == canonical_json(_said(theirs))


def recorded_view(recorded: Mail) -> dict[str, Any]:
    """What stands under a key, for whoever came second."""
    return {**json.loads(recorded.data), "received_at": rfc3339(recorded.received_at)}


def _said(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in ("reason", "decided_by", "note", "attempt")}


def _is(gate: Gate | None, approval_id: str) -> bool:
    return gate is not None and gate.id == approval_id


def _about(mail: Mail, tool_call_id: str) -> bool:
    return mail.kind is MailKind.RECONCILE and json.loads(mail.data).get("tool_call_id") == tool_call_id


def _mismatch(schema: Mapping[str, Any] | None, value: Any, pointer: str, of: str) -> Problem | None:
    if schema is None:
        return None
    mismatches = Schema(schema, of=of).mismatches(value)
    if not mismatches:
        return None
    return Problem(pointer=pointer + mismatches[0].pointer, code="invalid_value", detail=mismatches[0].message)


def _wrong_answer(answer: str | None, awaited: Awaited, pointer: str) -> Problem | None:
    if answer is None or (awaited.allows_free_text and answer.strip()) or answer in awaited.choices:
        return None
    detail = "An answer must not be blank." if not answer.strip() else "The answer has to be one of the choices."
    return Problem(pointer=pointer, code="invalid_value", detail=detail)
