"""What people, clients and operators can send to a run, as the run shows itself to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runward.core.kernel.mail import MailKind, approval_key, client_key, hold_key, question_key, release_key
from runward.core.runs.inputs import with_holds
from runward.core.runs.unsettled import Decision
from runward.core.runs.view import key_of
from tests.unit.core.storing import Store


@dataclass(frozen=True)
class Input:
    """One item of mail. `helps`: whoever sends it wants the run to go on. `permits`: the attempt after which a call may be made again."""

    kind: MailKind
    key: str
    data: Mapping[str, Any]
    helps: bool = True
    permits: tuple[str, int] | None = None


def answers(store: Store) -> list[Input]:
    """Everything that what is pending can be answered with: each of it has to be accepted."""
    pending = store.pending
    return [
        *(item for gate in pending["approvals"] for item in _verdicts(gate)),
        *(item for call in pending["client_calls"] for item in _results(call)),
        *(item for question in pending["questions"] for item in _replies(question)),
        *(item for effect in pending["unknown_effects"] for item in _decisions(store, effect)),
    ]


def hand_of_an_operator(store: Store) -> list[Input]:
    """What an operator can do to a run that has not ended: release or hold it first, then all the rest."""
    run, number = with_holds(store.run, store.mail[store.mail_applied :]), len(store.mail)
    held = Input(MailKind.RELEASE, release_key(run.holds), {}) if run.hold else Input(MailKind.HOLD, hold_key(run.releases), {})
    other = "c" if store.binding == "b" else "b"
    return [
        held,
        held,
        Input(MailKind.LIMITS, f"m{number}", {"limits": {"max_steps": 5}}),
        Input(MailKind.REBIND, f"m{number}", {"from": store.binding, "to": other}),
    ]


def _verdicts(gate: Mapping[str, Any]) -> list[Input]:
    kind, key, verdict = MailKind.APPROVAL, approval_key(gate["approval_id"]), {"approval_id": gate["approval_id"], "approved": True}
    given = [Input(kind, key, verdict), Input(kind, key, {**verdict, "approved": False, "reason": "no"})]
    if gate["editable"]:
        given.append(Input(kind, key, {**verdict, "edited_arguments": {"edited": 1}}))
    return given


def _results(call: Mapping[str, Any]) -> list[Input]:
    key, result = client_key(call["tool_call_id"]), {"tool_call_id": call["tool_call_id"], "output": {"n": 1}}
    return [Input(MailKind.CLIENT, key, result), Input(MailKind.CLIENT, key, {**result, "is_error": True})]


def _replies(question: Mapping[str, Any]) -> list[Input]:
    key, id = question_key(question["question_id"]), question["question_id"]
    return [
        Input(MailKind.QUESTION, key, {"question_id": id, "answer": "a"}),
        Input(MailKind.QUESTION, key, {"question_id": id, "declined": True}),
    ]


def _decisions(store: Store, shown: Mapping[str, Any]) -> list[Input]:
    effect = store.run.unknown(shown["tool_call_id"])
    assert effect is not None and effect.attempt == shown["attempt"]
    attempt = (effect.tool_call_id, effect.attempt)
    base = {"tool_call_id": effect.tool_call_id, "attempt": effect.attempt, "evidence": {"proof": 1}}
    found = {"output": {"raw": effect.tool_call_id}}
    again = None if effect.wants_evidence else attempt
    return [
        Input(MailKind.RECONCILE, key_of(effect), {**base, "decision": Decision.RESULT.value, **found}),
        Input(MailKind.RECONCILE, key_of(effect), {**base, "decision": Decision.ERROR.value, "note": "no"}),
        Input(MailKind.RECONCILE, key_of(effect), {**base, "decision": Decision.RETRY.value}, helps=False, permits=again),
    ]
