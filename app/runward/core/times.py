"""Times: milliseconds since 1970 inside, RFC 3339 in UTC with milliseconds outside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(ms: int) -> str:
    """`2026-01-31T12:00:00.250Z` for a time in milliseconds."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def optional_rfc3339(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


def milliseconds(moment: datetime) -> int:
    """A moment with a time zone as milliseconds since 1970."""
    return round((moment - _EPOCH) / timedelta(milliseconds=1))
