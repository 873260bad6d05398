"""Rows that belong to an actor beside its envelope: messages, receipts, approvals. All text comes back byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """How far a tool call's receipt has come."""

    EXECUTING = "executing"
    EXECUTED = "executed"
    COMPLETED = "completed"
    FAILED = "failed"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """One message of the transcript: append-only, never rewritten (R7). `content` is a JSON list of parts.

    `opaque` is what the provider wants to see again, unchanged, written by the model client that `opaque_format` names.
    """

    seq: int
    role: str
    step: int | None
    content: str
    format: int
    opaque: bytes | None = None
    opaque_format: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The durable record of one tool call. Texts are JSON; `raw` is what the tool returned, `output` what the model sees.

    `raw` is None where nothing stands between the two. `detail` is JSON: what nobody filters by.
    """

    tool_call_id: str
    step: int
    position: int
    tool_name: str
    stage: Stage
    effect: str
    attempt: int
    arguments: str
    raw: str | None
    output: str | None
    is_error: bool
    outcome: str | None
    started_at: int | None
    ended_at: int | None
    detail: str
    format: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRow:
    """One request for approval as the inbox shows it; `data` is the JSON of what nobody filters by, redacted. Inserted once."""

    id: str
    tool: str
    created_at: int
    expires_at: int | None
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalClosing:
    """How a request for approval ended: `approved`, `denied`, `expired` or `cancelled`. `decision` is JSON: who, why, edited arguments."""

    id: str
    status: str
    decided_at: int
    decision: str
