"""What applying a fact leaves to be said and stored, beside the new state."""

from __future__ import annotations

from dataclasses import dataclass

from runward.core.kernel.frames import Frame
from runward.core.kernel.mail import Letter
from runward.core.kernel.records import ApprovalClosing, ApprovalRow, Receipt, Stage
from runward.core.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """Frames in order, messages for the transcript, receipts by their newest row, requests for approval that are made or closed, the
    letters by which the service itself closes a wait (R19a), and the mail that had no use any more.

    `before_message` counts the frames up to the newest message: what they say is in the transcript.
    """

    frames: tuple[Frame, ...] = ()
    messages: tuple[Message, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    approvals: tuple[ApprovalRow, ...] = ()
    approval_closings: tuple[ApprovalClosing, ...] = ()
    closings: tuple[Letter, ...] = ()
    ignored: tuple[int, ...] = ()
    before_message: int = 0

    def __add__(self, other: Emitted) -> Emitted:
        return Emitted(
            frames=self.frames + other.frames,
            messages=self.messages + other.messages,
            receipts=self.receipts + other.receipts,
            approvals=self.approvals + other.approvals,
            approval_closings=self.approval_closings + other.approval_closings,
            closings=self.closings + other.closings,
            ignored=self.ignored + other.ignored,
            before_message=len(self.frames) + other.before_message if other.messages else self.before_message,
        )

    def __bool__(self) -> bool:
        return bool(self.frames) or not self.only_frames

    @property
    def got_on(self) -> bool:
        """Whether the run got on: a model's answer or a tool's own outcome is among it (R40)."""
        return any(message.role == "assistant" for message in self.messages) or any(
            receipt.stage in _OUTCOMES and receipt.attempt > 0 and receipt.outcome not in ("cancelled", "unknown", "reconciled")
            for receipt in self.receipts
        )

    @property
    def only_frames(self) -> bool:
        stored = (self.messages, self.receipts, self.approvals, self.approval_closings, self.closings, self.ignored)
        return not any(stored)


NOTHING = Emitted()
_OUTCOMES = frozenset({Stage.EXECUTED, Stage.COMPLETED, Stage.FAILED})
