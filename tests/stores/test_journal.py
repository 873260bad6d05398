"""The journal's rows: the very bytes, whatever was written together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runward.core.errors import InvariantViolated, SchemaMismatch
from runward.core.kernel.frames import StoredFrame
from runward.stores.sql.journal import DEFLATED, LINES, MAX_BYTES, MAX_FRAMES, Bundle, pack, unpack

LINE = st.binary(max_size=300).map(lambda data: data.replace(b"\n", b""))


def numbered(lines: list[bytes], first: int = 1) -> list[StoredFrame]:
    return [StoredFrame(seq=seq, data=line) for seq, line in enumerate(lines, first)]


def rows(bundles: list[Bundle]) -> list[tuple[int, int, bytes]]:
    return [(bundle.seq, bundle.format, bundle.data) for bundle in bundles]


@given(lines=st.lists(LINE, max_size=150), first=st.integers(1, 10**9), skip=st.integers(0, 160), limit=st.none() | st.integers(1, 160))
def test_I_42_any_part_of_a_journal_is_the_bytes_that_were_written(lines: list[bytes], first: int, skip: int, limit: int | None) -> None:
    frames = numbered(lines, first)
    after = first - 1 + skip
    behind = [row for row in rows(pack(frames)) if row[0] > after]
    assert unpack(behind, after=after, limit=limit) == frames[skip:][:limit]


@given(writes=st.lists(st.lists(LINE, min_size=1, max_size=9), max_size=12), after=st.integers(0, 60))
def test_I_41_rows_of_many_writes_join_without_gaps(writes: list[list[bytes]], after: int) -> None:
    stored: list[tuple[int, int, bytes]] = []
    frames: list[StoredFrame] = []
    for lines in writes:
        written = numbered(lines, len(frames) + 1)
        stored += rows(pack(written))
        frames += written
    assert unpack([row for row in stored if row[0] > after], after=after) == frames[after:]


def test_a_row_is_bounded() -> None:
    many = numbered([b"x"] * (MAX_FRAMES * 2 + 1))
    assert [len(unpack(rows([bundle]), after=0)) for bundle in pack(many)] == [MAX_FRAMES, MAX_FRAMES, 1]
    long = numbered([b"a" * (MAX_BYTES + 1), b"b", b"c" * (MAX_BYTES - 1), b"d"])
    assert [[frame.seq for frame in unpack(rows([bundle]), after=0)] for bundle in pack(long)] == [[1], [2, 3], [4]]
    assert unpack(rows(pack(long)), after=0) == long


def test_frames_are_deflated_where_that_helps() -> None:
    frame = b'{"type":"text-delta","seq":57,"run_id":"0197f3a1c09b7e2d944c7f8a6b1d2e3f","at":"2026-05-28T20:26:40.003Z","delta":"four"}'
    (bundle,) = pack(numbered([frame] * 4))
    assert bundle.format == DEFLATED and len(bundle.data) < len(frame)
    (bundle,) = pack(numbered([bytes(value for value in range(256) if value != 10)]))
    assert bundle.format == LINES


def test_a_frame_of_two_lines_is_refused() -> None:
    with pytest.raises(InvariantViolated):
        pack(numbered([b"one\ntwo"]))


def test_R41a_a_journal_of_newer_code_is_not_misread() -> None:
    with pytest.raises(SchemaMismatch):
        unpack([(1, 3, b"?")], after=0)
