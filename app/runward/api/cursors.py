"""Cursors as callers send them. One spelling of a number only: no sign, no blanks, no underscores, no other digits than 0 to 9."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runward.core.errors import Invalid

_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,17})\Z", re.ASCII)
_CALL = re.compile(r"([1-9][0-9]{0,8})\.([1-9][0-9]{0,8})\Z", re.ASCII)


def number(text: str) -> int | None:
    """A plain non-negative decimal integer of at most 18 digits, or None."""
    return int(text) if _NUMBER.match(text) else None


def of_stream(headers: Sequence[str], after: Sequence[str], last_seq: int) -> int:
    """Where a stream starts: behind `Last-Event-ID`, else behind `?after=`, else at its beginning.

    A blank one is refused: an EventSource that has seen nothing sends no header at all. Raises Invalid, `invalid_cursor`.
    """
    given = headers or after
    if not given:
        return 0
    cursor = number(given[0]) if len(given) == 1 else None
    if cursor is None:
        raise Invalid("A cursor is the id of one event: a plain decimal number, given once.", code="invalid_cursor")
    if cursor > last_seq:
        raise Invalid("This cursor lies beyond the end of the run's journal.", code="invalid_cursor")
    return cursor


def of_numbered(cursor: str | None) -> int:
    """The seq after which messages or mail are listed. Raises Invalid, `invalid_cursor`."""
    after = 0 if cursor is None else number(cursor)
    if after is None:
        raise _foreign()
    return after


def of_receipts(cursor: str | None) -> tuple[int, int]:
    """The step and place after which receipts are listed. Raises Invalid, `invalid_cursor`."""
    if cursor is None:
        return (0, 0)
    found = _CALL.match(cursor)
    if found is None:
        raise _foreign()
    return (int(found[1]), int(found[2]))


def _foreign() -> Invalid:
    return Invalid("This cursor is not one of this list.", code="invalid_cursor")
