"""Mail: everything that arrives for an actor, in order, each applied once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MailKind(StrEnum):
    """What an input is."""

    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    APPROVAL = "approval"
    CLIENT = "client"
    QUESTION = "question"
    RECONCILE = "reconcile"
    RETRY = "retry"
    LIMITS = "limits"
    REBIND = "rebind"
    BUDGET = "budget"
    CHILD = "child"
    STEER = "steer"
    TAKEOVER = "takeover"


NEEDS_NO_AUTHOR_CODE = frozenset({MailKind.CANCEL, MailKind.HOLD, MailKind.RELEASE, MailKind.REBIND, MailKind.LIMITS, MailKind.TAKEOVER})
"""What any worker can apply, whatever agents it has (R41)."""

OPENS_AN_ENDED_ACTOR = frozenset({MailKind.RETRY, MailKind.RECONCILE})
"""What may be appended after the end (R6, R10)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One item to be put into a mailbox. `key` is unique per mailbox: whoever closes a wait takes its key (R19a). `data` is JSON text.

    `principal` is JSON text saying who sent it, None for the service itself.
    """

    kind: MailKind
    key: str
    data: str = "{}"
    principal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """One item of a mailbox as stored. `applied_revision` is the revision of the commit that applied it, None until then; `ignored` says
    that it had no use any more when it was (R6a)."""

    seq: int
    kind: MailKind
    key: str
    data: str
    principal: str | None
    received_at: int
    applied_revision: int | None = None
    ignored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MailTo:
    """Mail from one actor to another, part of the sender's commit. Dropped, never an error, when the key is taken or the recipient is gone,
    `completed` or `stopped`."""

    uid: str
    letter: Letter


def cancel_key() -> str:
    return "cancel"


def approval_key(approval_id: str) -> str:
    return f"approval:{approval_id}"


def client_key(tool_call_id: str) -> str:
    return f"client:{tool_call_id}"


def question_key(question_id: str) -> str:
    return f"question:{question_id}"


def unknown_key(tool_call_id: str, attempt: int, refused: int = 0) -> str:
    """The key of whatever settles this attempt's effect. `refused` counts the settlements of it whose evidence did not hold."""
    return f"unknown:{tool_call_id}:{attempt}" + (f".{refused}" if refused else "")


def hold_key(releases: int) -> str:
    """The key of a hold after the `releases`-th release."""
    return f"hold:{releases}"


def release_key(holds: int) -> str:
    """The key of the release of the `holds`-th hold."""
    return f"release:{holds}"


def retry_key(revision: int) -> str:
    return f"retry:{revision}"


def budget_key(reservation_id: str) -> str:
    """The key of what tells a run that a budget that refused this reservation has other terms now."""
    return f"budget:{reservation_id}"


def child_key(uid: str) -> str:
    return f"child:{uid}"
