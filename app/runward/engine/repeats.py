"""What makes a request that was sent again the same request (R42)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from runward.core.errors import Invalid
from runward.core.ids import canonical_json, digest
from runward.core.kernel.mail import Mail

_MARK = "request"
"""Where the principal of a letter keeps which request brought it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeatable:
    """The caller's key, and the digest of the canonical body as it was sent."""

    key: str
    fingerprint: str

    def marked(self, principal: str) -> str:
        """Who sends a letter, and with which request."""
        return canonical_json({**json.loads(principal), _MARK: {"key": digest(self.key), "body": self.fingerprint}})

    def came_in(self, mail: Iterable[Mail]) -> bool:
        """Whether a letter of this very request is among some mail. Raises Invalid where its key brought another body."""
        for item in mail:
            mark = json.loads(item.principal).get(_MARK) if item.principal else None
            if mark is not None and mark["key"] == digest(self.key):
                if mark["body"] != self.fingerprint:
                    message = "This Idempotency-Key was used for another request. Use a new key for a new request."
                    raise Invalid(message, code="idempotency_key_reused")
                return True
        return False


def sender_shown(principal: str | None) -> dict[str, Any] | None:
    """Who sent a letter, as callers see it."""
    return None if principal is None else {name: value for name, value in json.loads(principal).items() if name != _MARK}
