"""Values to bytes and back: frames, messages. Everything is encoded once; what is stored is what is sent."""

from __future__ import annotations

import json
from typing import Any

import orjson

from runward.core.kernel.actor import FORMAT
from runward.core.kernel.frames import Frame, StoredFrame
from runward.core.kernel.records import MessageRow
from runward.core.messages import PARTS, Message
from runward.core.times import rfc3339


def to_bytes(value: Any) -> bytes:
    """Compact JSON in UTF-8. Integers beyond 64 bits, which orjson refuses, are written verbatim."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def stored_frame(frame: Frame, *, seq: int, run_id: str, at: int) -> StoredFrame:
    """A frame with its number, as the one line of JSON that every subscriber gets. `type` comes first."""
    fields = frame.fields
    if frame.type == "data-agent":
        fields = {"data": {"run_id": run_id, "seq": seq, **fields["data"]}}
    return StoredFrame(seq=seq, data=to_bytes({"type": frame.type, "seq": seq, "run_id": run_id, "at": rfc3339(at), **fields}))


def message_row(message: Message) -> MessageRow:
    """A message as its row."""
    return MessageRow(
        seq=message.seq,
        role=message.role,
        step=message.step,
        content=PARTS.dump_json(message.content, exclude_none=True).decode(),
        format=FORMAT,
        opaque=message.opaque,
        opaque_format=message.opaque_format,
    )


def message_of(row: MessageRow) -> Message:
    """A row as its message. Raises ValueError when it is not one this version reads."""
    return Message.model_construct(
        seq=row.seq,
        role=row.role,
        content=PARTS.validate_json(row.content),
        step=row.step,
        opaque=row.opaque,
        opaque_format=row.opaque_format,
    )
