"""Times: milliseconds since 1970 inside, RFC 3339 in UTC with milliseconds outside."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)\Z", re.ASCII)


def rfc3339(ms: int) -> str:
    """`2026-01-31T12:00:00.250Z` for a time in milliseconds."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def optional_rfc3339(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


def milliseconds(moment: datetime) -> int:
    """A moment with a time zone as milliseconds since 1970."""
    return round((moment - _EPOCH) / timedelta(milliseconds=1))


def from_rfc3339(text: str) -> int | None:
    """A time as RFC 3339 writes it, its zone included, as milliseconds since 1970.

    None when it is not one, or not in the years 1 to 9999 of UTC.
    """
    if not _RFC3339.match(text):
        return None
    try:
        moment = milliseconds(datetime.fromisoformat(text.upper()))
        rfc3339(moment)
    except (ValueError, OverflowError):
        return None
    return moment
