"""The request headers that mean something here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runward.core.errors import Invalid

MAX_WAIT_SECONDS = 60
"""The longest that a request may wait for its run."""
MAX_IDEMPOTENCY_KEY = 255

_VISIBLE = re.compile(r"[\x21-\x7e]+\Z")
_WAIT = re.compile(r'(?:^|[,;])\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(?=[,;]|\Z)', re.ASCII | re.IGNORECASE)
_QUALITY = re.compile(r"(?:0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)\Z", re.ASCII)


def idempotency_key(values: Sequence[str]) -> str | None:
    """The key of a repeatable request: 1 to 255 visible ASCII characters. Raises Invalid, `invalid_idempotency_key`."""
    if not values:
        return None
    if len(values) > 1:
        raise Invalid("Send one Idempotency-Key.", code="invalid_idempotency_key")
    if len(values[0]) > MAX_IDEMPOTENCY_KEY or not _VISIBLE.match(values[0]):
        message = f"An Idempotency-Key is 1 to {MAX_IDEMPOTENCY_KEY} visible ASCII characters, without blanks."
        raise Invalid(message, code="invalid_idempotency_key")
    return values[0]


def preferred_wait(values: Sequence[str]) -> int | None:
    """How many seconds `Prefer: wait=N` asks for, cut to the longest there is. A preference that cannot be read is none (RFC 7240)."""
    found = _WAIT.search(",".join(values))
    return None if found is None else min(int(found[1]), MAX_WAIT_SECONDS)


def wants_stream(values: Sequence[str]) -> bool:
    """Whether `Accept` names an event stream, and does not like JSON better."""
    asked = {"text/event-stream": 0.0, "application/json": 0.0}
    for item in ",".join(values).split(","):
        kind, *parameters = [part.strip().lower() for part in item.split(";")]
        if kind in asked:
            asked[kind] = _quality(parameters)
    return asked["text/event-stream"] > 0 and asked["text/event-stream"] >= asked["application/json"]


def _quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            return float(value) if _QUALITY.match(value.strip()) else 0.0
    return 1.0
