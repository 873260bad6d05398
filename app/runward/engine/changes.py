"""From what a leg has decided to what one commit writes."""

from __future__ import annotations

from runward.core.kernel.actor import Envelope, Position
from runward.core.kernel.commit import Changes
from runward.core.kernel.frames import StoredFrame
from runward.core.runs.emitted import Emitted
from runward.core.runs.face import face_of
from runward.core.runs.state import RunState
from runward.engine.encoding import message_row


def changes_of(
    row: Envelope,
    run: RunState,
    emitted: Emitted,
    *,
    follows: Position,
    frames: tuple[StoredFrame, ...],
    mail_applied: int,
    gated: bool,
    recoveries: int,
    release: bool,
    at: int,
) -> Changes:
    """The commit that makes `run` and all it `emitted` durable. `mail_applied` is the inbox's position that the leg has applied; what the
    service itself closes is numbered behind it. `gated`: nothing is written if newer mail is there (R6)."""
    receipts = {receipt.tool_call_id: receipt for receipt in emitted.receipts}
    return Changes(
        uid=row.uid,
        follows=follows,
        face=face_of(run, binding=run.binding, priority=row.priority, at=at, recoveries=recoveries),
        mail_applied=mail_applied + len(emitted.closings),
        mail_ignored=emitted.ignored,
        mail_seen=mail_applied if gated else None,
        frames=frames,
        messages=tuple(message_row(message) for message in emitted.messages),
        receipts=tuple(receipts.values()),
        approvals=emitted.approvals,
        approval_closings=emitted.approval_closings,
        closings=emitted.closings,
        release=release,
    )
