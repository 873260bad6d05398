"""The journal as it is stored: the frames of one write are one row, deflated where that makes it smaller.

A frame repeats most of the one before it, and a row and its index entry cost more than a small frame: so a run's frames take a quarter of
the space and of the write-ahead log that they would take one by one. A row is named by its last frame, so that the frames behind a place
are found by one range scan.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from runward.core.errors import InvariantViolated, SchemaMismatch
from runward.core.kernel.frames import StoredFrame
from runward.ports.reads import PAGE_BYTES

LINES: Final = 1
"""Format: the frames' lines, joined by line feeds."""

DEFLATED: Final = 2
"""Format: the same, deflated (RFC 1951, without a header) with `VOCABULARY`."""

VOCABULARY: Final = (
    b'"reasoning-delta","tool-input-delta","tool-progress","warning","reset-step","file","source","code":"","message":""'
    b'"finish_reason":"tool_calls","cache_read_tokens":0,"cache_write_tokens":0,"reasoning_tokens":0,"total_tokens":,"model_calls":1}}'
    b'"status":"suspended","task_outcome":"needs_reconciliation","stop":{"reason":"cancelled","details":{"calls":[]}},"error":{"code":"'
    b'"status":"completed","phase":"loop","steps":1,"task_outcome":"resolved","pending":{"approvals":[],"client_calls":[],"questions":[],'
    b'"timers":[],"tasks":[],"children":[],"unknown_effects":[],"budget":null,"hold":null},"text":"","usage":{"input_tokens":,'
    b'"output_tokens":0,"output":null,"final":true}},"output":{"is_error":false},"effect":"read","requires_approval":false}'
    b'"tool_call_id":"1.1","tool_name":"","arguments":{},"state":"executing","attempt":1}"state":"completed","phase":"loop","agent":"'
    b'{"type":"finish-step","seq":{"type":"finish","seq":{"type":"start","seq":{"type":"tool-call","seq":{"type":"tool-output","seq":'
    b'{"type":"tool-state","seq":,"run_id":"","at":"{"type":"start-step","seq":,"run_id":"","at":"{"type":"data-agent","seq":,"run_id":"'
    b'","at":"20T00:00:00.000Z","data":{"run_id":"","seq":,"status":"running","phase":"loop","steps":0}}'
    b'{"type":"text-delta","seq":1,"run_id":"","at":"2026-01-01T00:00:00.000Z","step":1,"attempt":1,"delta":"'
)
"""What frames are mostly made of, the most frequent last. It is part of the stored format: another one needs another format number."""

MAX_FRAMES: Final = 64
"""How many frames one row holds at most, and ..."""

MAX_BYTES: Final = 65_536
"""... how many bytes of them, unless a single frame is longer: a reader that needs one of them reads them all."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """One row of `frames`. `seq` is the last frame's."""

    seq: int
    format: int
    data: bytes


def pack(frames: Sequence[StoredFrame]) -> list[Bundle]:
    """Frames as rows, in order. Raises InvariantViolated for one that is not a single line: it would break the stream's framing, too."""
    return [_bundle(part) for part in _parts(frames)]


def unpack(rows: Iterable[Sequence[Any]], *, after: int, limit: int | None = None) -> list[StoredFrame]:
    """The frames of rows `(seq, format, data)` in order, from behind `after` on, at most `limit`, and none more behind `PAGE_BYTES`."""
    frames: list[StoredFrame] = []
    size = 0
    for last, format, data in rows:
        lines = _inflated(format, data).split(b"\n")
        first = last - len(lines) + 1
        for seq, line in enumerate(lines, first):
            if seq > after:
                frames.append(StoredFrame(seq=seq, data=line))
                size += len(line)
                if len(frames) == limit or size >= PAGE_BYTES:
                    return frames
    return frames


def _parts(frames: Sequence[StoredFrame]) -> Iterator[Sequence[StoredFrame]]:
    start, size = 0, 0
    for index, frame in enumerate(frames):
        size += len(frame.data)
        if index > start and (size > MAX_BYTES or index - start == MAX_FRAMES):
            yield frames[start:index]
            start, size = index, len(frame.data)
    if start < len(frames):
        yield frames[start:]


def _bundle(frames: Sequence[StoredFrame]) -> Bundle:
    lines = b"\n".join([frame.data for frame in frames])
    if lines.count(b"\n") != len(frames) - 1:
        raise InvariantViolated("a frame is one line")
    deflater: Any = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=VOCABULARY)
    deflated = deflater.compress(lines) + deflater.flush()
    if len(deflated) < len(lines):
        return Bundle(frames[-1].seq, DEFLATED, deflated)
    return Bundle(frames[-1].seq, LINES, lines)


def _inflated(format: int, data: bytes) -> bytes:
    if format == LINES:
        return data
    if format != DEFLATED:
        raise SchemaMismatch("This journal was written by a newer version of Runward.")
    inflater: Any = zlib.decompressobj(-zlib.MAX_WBITS, zdict=VOCABULARY)
    return bytes(inflater.decompress(data) + inflater.flush())
