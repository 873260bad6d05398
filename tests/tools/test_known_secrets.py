"""What was given as a secret is found again, in whatever form."""

from __future__ import annotations

import base64
import html
import json
import time
from typing import Any
from urllib.parse import quote, quote_plus

from hypothesis import given
from hypothesis import strategies as st

from runward.tools.known_secrets import REDACTED, SHORTEST, KnownSecrets

VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=SHORTEST, max_size=30).filter(
    lambda text: text == text.strip()
)


def knowing(*values: str) -> KnownSecrets:
    secrets = KnownSecrets()
    for value in values:
        secrets.learn(value)
    return secrets


@given(
    VALUES,
    st.sampled_from(
        [
            str,
            quote,
            quote_plus,
            html.escape,
            lambda text: text.encode().hex(),
            lambda text: quote(text, safe=""),
            lambda text: json.dumps(text)[1:-1],
            str.upper,
            str.lower,
        ]
    ),
)
def test_a_secret_is_found_in_every_form(value: str, form: object) -> None:
    assert callable(form)
    assert knowing(value).redact(f"<{form(value)}>") == f"<{REDACTED}>"


@given(VALUES)
def test_and_in_base64(value: str) -> None:
    encoded = base64.b64encode(value.encode()).decode()
    assert knowing(value).redact(f"<{encoded}>") in (f"<{REDACTED}>", f"<{REDACTED}=>", f"<{REDACTED}==>")


@given(VALUES, st.binary(max_size=9), st.binary(max_size=9), st.sampled_from([base64.b64encode, base64.urlsafe_b64encode]))
def test_and_in_base64_of_a_longer_text(value: str, before: bytes, after: bytes, encode: Any) -> None:
    """`Basic user:secret`, say, or a whole request that is given back so. What is left holds no more than a byte of it."""
    left = knowing(value).redact(encode(before + value.encode() + after).decode())
    assert left.count(REDACTED) == 1
    first, last = (len(part.rstrip("=")) for part in left.split(REDACTED))
    assert first * 6 < len(before) * 8 + 16 and last * 6 < len(after) * 8 + 16


def test_most_texts_are_looked_through_at_once() -> None:
    """A result of a megabyte, in which there is no secret, keeps nobody waiting: the pattern alone takes a second."""
    secrets = knowing(*(f"secret-number-{number}/of+many" for number in range(20)))
    text = "the quick brown fox jumps over the lazy dog. " * 25_000
    before = time.process_time()
    assert secrets.redact(text) == text
    assert time.process_time() - before < 0.25


def test_the_longer_of_two_is_taken_out_whole() -> None:
    assert knowing("secret", "secret-and-more").redact("a secret-and-more b secret c") == f"a {REDACTED} b {REDACTED} c"


def test_who_knows_nothing_changes_nothing() -> None:
    value = {"a": ["secret", 7, None, True, 1.5]}
    assert knowing().redact_json(value) is value and knowing().redact("secret") == "secret"
    assert knowing("short").redact("short") == "short"


def test_json_is_looked_through_everywhere() -> None:
    found = knowing("secret-1", "1234567").redact_json({"secret-1": ["a secret-1", 1234567, 12345678, True, None, 1.5]})
    assert found == {REDACTED: [f"a {REDACTED}", REDACTED, 12345678, True, None, 1.5]}
