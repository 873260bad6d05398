"""Requests that can be sent again: their key, and what they say."""

from __future__ import annotations

from runward.api.asking import Asked
from runward.api.headers import idempotency_key
from runward.core.ids import canonical_json, digest
from runward.engine.repeats import Repeatable


def repeatable(asked: Asked) -> Repeatable | None:
    """What makes this request the same when it is sent again; None without an `Idempotency-Key`. Raises Invalid for what is no key."""
    key = idempotency_key(asked.headers.getlist("idempotency-key"))
    return None if key is None else Repeatable(key=key, fingerprint=digest(canonical_json(asked.sent)))
