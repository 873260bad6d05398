"""Pages of lists, and their cursors: opaque, and bound to the filter they came from."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runward.core.errors import Invalid
from runward.core.ids import canonical_json, digest, is_id
from runward.engine.timing import StoreTime
from runward.ports.reads import Place

HORIZON_MS = 5_000
"""Ascending pages show only what happened this long ago, so that a saved cursor never steps over a commit in flight."""
MAX_TIME = 2**62
"""Beyond any time there is, and still a number that every store takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a list, and the cursor of the next; None when this was the last."""

    data: Sequence[dict[str, Any]]
    next_cursor: str | None


def horizon(time: StoreTime) -> int:
    """Up to when ascending pages show what happened."""
    return time.now() - HORIZON_MS


def mark_of(*parts: Any) -> str:
    """What binds a cursor to its caller and filters."""
    return digest(canonical_json([str(part) for part in parts]))[:16]


def cursor_of(mark: str, at: int, uid: str) -> str:
    """The cursor of the page behind a row."""
    return base64.urlsafe_b64encode(canonical_json([mark, at, uid]).encode()).decode().rstrip("=")


def opened(cursor: str, mark: str) -> Place:
    """The place a cursor stands for. Raises Invalid: `invalid_cursor`."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found, at, uid = json.loads(text)
    except (ValueError, TypeError, binascii.Error, RecursionError):
        raise _bad_cursor() from None
    if found != mark or type(at) is not int or abs(at) > MAX_TIME or not isinstance(uid, str) or not is_id(uid):
        raise _bad_cursor()
    return Place(at=at, uid=uid)


def _bad_cursor() -> Invalid:
    return Invalid("This cursor is not one of this list with these filters.", code="invalid_cursor")
