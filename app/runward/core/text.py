"""Text that comes from models and tools is cleaned once, on entry (R47)."""

from __future__ import annotations

import re
from typing import Any

_DIRTY = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "\ufffd"


def clean(text: str) -> str:
    """Replaces NUL and lone surrogates by U+FFFD; anything else stays as it is."""
    return _DIRTY.sub(REPLACEMENT, text) if _DIRTY.search(text) else text


def is_clean(text: str) -> bool:
    """Whether every store can keep this text and give it back unchanged."""
    return "\x00" not in text if text.isascii() else _DIRTY.search(text) is None


def clean_json(value: Any) -> Any:
    """`clean` applied to every string and key of a JSON value."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [clean_json(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): clean_json(item) for key, item in value.items()}
    return value


def within_depth(value: Any, limit: int) -> bool:
    """Whether a JSON value is nested at most `limit` deep; a plain string or number is 0 deep."""
    level = [value]
    for _ in range(limit + 1):
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())]
        if not level:
            return True
    return False


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of a text, ending in an ellipsis when something was left out."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
