"""A call as its receipt, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from runward.core.kernel.actor import FORMAT
from runward.core.kernel.records import Receipt, Stage
from runward.core.runs.calls import Call, CallStage, Result
from runward.core.runs.sentences import UNKNOWN_TO_MODEL
from runward.core.runs.state import RunState
from runward.core.runs.unsettled import Settlement, UnknownEffect
from runward.core.values import replace

TOLD = Result(output=UNKNOWN_TO_MODEL, is_error=True, outcome="unknown", effect_certain=False)
"""What the model reads of a call whose effect nobody knows."""


def receipt_of(call: Call, arguments: str) -> Receipt:
    """The receipt of a call as it stands. `arguments` is the canonical text that runs, also after the call has ended.

    A call that was refused before it started has one too, with attempt 0: its result has to survive like any other.
    """
    result = call.result
    detail = {
        "worker": call.worker,
        "leg": call.leg,
        "failures": call.failures,
        "provider_id": call.provider_id,
        "effect_certain": result.effect_certain if result else call.stage is not CallStage.UNKNOWN,
        "checkpoint": call.checkpoint,
        "files": list(result.files) if result and result.files else None,
        "approval": approval_of(call),
        "answers": list(call.answers) or None,
        "reconciled": dict(call.settled) if call.settled else None,
    }
    return Receipt(
        tool_call_id=call.id,
        step=call.step,
        position=call.position,
        tool_name=call.name,
        stage=_stage(call),
        effect=call.effect.value,
        attempt=call.attempt,
        arguments=arguments,
        raw=None if call.raw is None else to_text(call.raw),
        output=None if result is None else to_text(result.output),
        is_error=result.is_error if result else False,
        outcome="unknown" if call.stage is CallStage.UNKNOWN else result.outcome if result else None,
        started_at=call.started_at,
        ended_at=call.ended_at,
        detail=to_text({key: value for key, value in detail.items() if value is not None}),
        format=FORMAT,
    )


def settled_receipt(effect: UnknownEffect, settlement: Settlement, record: Mapping[str, Any]) -> Receipt:
    """The receipt of a call whose effect was settled after the model had been told that nobody knows: what the model saw stays."""
    result = settlement.result
    is_error = result is not None and result.is_error
    step, position = effect.tool_call_id.split(".")
    read = effect.read or TOLD
    detail: dict[str, Any] = {
        "worker": effect.worker,
        "effect_certain": True,
        "read": {"is_error": read.is_error, "outcome": read.outcome},
        "reconciled": dict(record),
    }
    if effect.approval is not None:
        detail["approval"] = dict(effect.approval)
    return Receipt(
        tool_call_id=effect.tool_call_id,
        step=int(step),
        position=int(position),
        tool_name=effect.tool_name,
        stage=Stage.FAILED if is_error else Stage.COMPLETED,
        effect=effect.effect.value,
        attempt=effect.attempt,
        arguments=effect.arguments,
        raw=None if result is None else to_text(result.output),
        output=to_text(read.output),
        is_error=is_error,
        outcome="failed" if is_error else "reconciled",
        started_at=effect.started_at,
        ended_at=settlement.at,
        detail=to_text(detail),
        format=FORMAT,
    )


def with_results(run: RunState, receipts: Sequence[Receipt]) -> RunState:
    """The run with what its stored state leaves to the receipts: raw results, outcomes and checkpoints of the turn in hand."""
    by_id = {receipt.tool_call_id: receipt for receipt in receipts}
    return replace(run, turn=tuple(_filled(call, by_id[call.id]) if call.id in by_id else call for call in run.turn))


def to_text(value: Any) -> str:
    """JSON as it is stored: compact, keys in their order."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _filled(call: Call, receipt: Receipt) -> Call:
    raw = None if receipt.raw is None else json.loads(receipt.raw)
    detail = json.loads(receipt.detail)
    call = replace(call, raw=raw, checkpoint=detail.get("checkpoint"), settled=detail.get("reconciled"))
    if receipt.output is None:
        return call
    if "read" in detail:  # what became of the effect is known by now, and the model has read something else
        return replace(call, raw=None, result=Result(output=json.loads(receipt.output), effect_certain=False, **detail["read"]))
    result = Result(
        output=json.loads(receipt.output),
        is_error=receipt.is_error,
        outcome=receipt.outcome,
        effect_certain=detail["effect_certain"],
        files=tuple(detail.get("files", ())),
    )
    return replace(call, result=result)


def _stage(call: Call) -> Stage:
    match call.stage:
        case CallStage.EXECUTED:
            return Stage.EXECUTED
        case CallStage.ENDED:
            return Stage.FAILED if call.result is None or call.result.is_error else Stage.COMPLETED
        case CallStage.EXECUTING | CallStage.UNKNOWN:
            return Stage.EXECUTING
        case _:
            return Stage.SUSPENDED


def approval_of(call: Call) -> dict[str, Any] | None:
    """Who decided about the call, and what they were shown where they changed it (R21, R23)."""
    verdict = call.gate.verdict if call.gate else None
    if call.gate is None or verdict is None:
        return None
    record = {"approval_id": call.gate.id, "approved": verdict.approved, "at": verdict.at, "by": verdict.by, "reason": verdict.reason}
    if verdict.issued is not None:
        record["requested_arguments"] = json.loads(verdict.issued)
    return {key: value for key, value in record.items() if value is not None}
