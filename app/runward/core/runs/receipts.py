"""A call as its receipt, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from runward.core.kernel.actor import FORMAT
from runward.core.kernel.records import Receipt, Stage
from runward.core.runs.calls import Call, CallStage, Result
from runward.core.runs.state import RunState


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
    call = replace(call, raw=raw, checkpoint=detail.get("checkpoint"))
    if receipt.output is None:
        return call
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
        case CallStage.PROPOSED | CallStage.READY:
            return Stage.SUSPENDED
