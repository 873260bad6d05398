"""What applying a fact leaves to be said and stored, beside the new state."""

from __future__ import annotations

from dataclasses import dataclass

from runward.core.kernel.frames import Frame
from runward.core.kernel.records import Receipt
from runward.core.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """Frames in order, messages for the transcript, receipts by their newest row, and the mail that had no use any more."""

    frames: tuple[Frame, ...] = ()
    messages: tuple[Message, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    ignored: tuple[int, ...] = ()

    def __add__(self, other: Emitted) -> Emitted:
        return Emitted(
            frames=self.frames + other.frames,
            messages=self.messages + other.messages,
            receipts=self.receipts + other.receipts,
            ignored=self.ignored + other.ignored,
        )


NOTHING = Emitted()
