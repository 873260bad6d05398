"""The secret values that this process was given by name, so that no text that leaves it holds one.

The one place that knows them: whoever lets text out that came from elsewhere asks `redact`.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, quote_plus

REDACTED: Final = "[redacted]"
SHORTEST: Final = 6
"""Values with fewer characters are not looked for: they would be found in words that mean something else."""


class KnownSecrets:
    """Learns values, and takes them out of texts, in whatever case, also where they are percent-encoded, in base64 (of a longer text, too),
    in hexadecimal, or escaped for JSON or HTML."""

    def __init__(self) -> None:
        self._forms: set[str] = set()
        self._lowered: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None

    def learn(self, value: str) -> None:
        """From here on this value is secret."""
        if len(value) >= SHORTEST:
            self._forms.update(_forms(value))
            forms = sorted(self._forms, key=len, reverse=True)
            self._lowered = tuple({form.lower() for form in forms})
            self._pattern = re.compile("|".join(map(re.escape, forms)), re.IGNORECASE)

    def redact(self, text: str) -> str:
        """A text without any of the secrets. Do this before it is cut: half of a secret is not found."""
        if self._pattern is None:
            return text
        lowered = text.lower()  # to look for each is much quicker than the pattern, and most texts hold none
        return self._pattern.sub(REDACTED, text) if any(form in lowered for form in self._lowered) else text

    def redact_json(self, value: Any) -> Any:
        """`redact` applied to every text, key and whole number of a JSON value."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, list):
            return [self.redact_json(item) for item in value]
        if isinstance(value, dict):
            return {self.redact(key): self.redact_json(item) for key, item in value.items()}
        if isinstance(value, int) and not isinstance(value, bool) and str(value) in self._forms:
            return REDACTED
        return value


def _forms(value: str) -> Iterator[str]:
    """How a value may be written where it comes back."""
    yield value
    yield from (quote(value, safe=""), quote(value), quote_plus(value))
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield html.escape(value)
    raw = value.encode()
    yield raw.hex()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(raw).decode().rstrip("=")
        for before in range(3):
            yield _inside(encode(b"\0" * before + raw).decode().rstrip("="), before, len(raw))


def _inside(encoded: str, before: int, length: int) -> str:
    """Of base64 the characters that are of these bytes alone, and so are the same whatever comes before and after them."""
    first = -(-before * 8 // 6)
    last = (before + length) * 8 // 6
    return encoded[first:last]
