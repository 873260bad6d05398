"""What is taken out of texts, what stays, and that no text makes it slow."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runward.core.errors import DefinitionError
from runward.core.redaction import MARK, PERSONAL_KINDS, RULES, SECRET_KINDS, SECRETS, Redactor, holds_mark, knowing

ALL = Redactor(kinds=tuple(RULES))
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
BLOCK = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("kind", "secret"),
    [
        ("email", "ann.o'hara+x@mail.example.co.uk".removeprefix("ann.o'")),
        ("email", "a@b.de"),
        ("phone", "+49 30 1234567"),
        ("phone", "+1 (415) 555-2671"),
        ("phone", "(415) 555-2671"),
        ("phone", "415-555-2671"),
        ("card", "4111111111111111"),
        ("card", "4111 1111 1111 1111"),
        ("card", "5500-0000-0000-0004"),
        ("card", "3782 822463 10005"),
        ("key", "sk-proj-abcdefghijklmnopqrstuvwx"),
        ("key", "sk-ant-api03-abcdefghijklmnop_qrstuvwx"),
        ("key", "sk_live_abcdefghijklmnop"),
        ("key", "AKIAIOSFODNN7EXAMPLE"),
        ("key", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"),
        ("key", "github_pat_abcdefghijklmnopqrstuv_wxyz"),
        ("key", "glpat-abcdefghijklmnopqrst"),
        ("key", "xoxb-123456789012-abcdef"),
        ("key", "AIzaSyA-abcdefghijklmnopqrstuvwxyz01234"),
        ("key", "hf_abcdefghijklmnopqrstuvwxyz0123456789"),
        ("key", "rw_0123456789abcdef_abcdefghijklmnopqrstuv"),
        ("token", JWT),
        ("token", "rwt_eyJhIjoxfQ.c2lnbmF0dXJl"),
        ("private_key", BLOCK),
        ("private_key", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNza"),
    ],
)
def test_what_is_taken_out(kind: str, secret: str) -> None:
    assert ALL.text(secret) == f"{MARK}{kind}]"
    for around in ('"{}"', "say {}, please", "\n{}\n", "key={}", "({})"):
        left = ALL.text(around.format(secret))
        assert left.startswith(around.format(f"{MARK}{kind}]").split("]")[0]) and secret not in left
    others = Redactor(kinds=tuple(each for each in RULES if each != kind))
    assert kind not in others.text(secret)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Authorization: Bearer abcdefghijklmnopqrst", "Authorization: Bearer [redacted token]"),
        ("postgresql+asyncpg://ann:hunter2@db/runward", "postgresql+asyncpg://ann:[redacted password]@db/runward"),
        ("redis://:hunter2@cache:6379/0", "redis://:[redacted password]@cache:6379/0"),
        (f"a {BLOCK} b {BLOCK} c", "a [redacted private_key] b [redacted private_key] c"),
        ("12 4111 1111 1111 1111 7", "12 [redacted card] 7"),
        ("1234 4111 1111 1111 1111", "1234 [redacted card]"),
        ("two: a@b.de, c@d.de.", "two: [redacted email], [redacted email]."),
    ],
)
def test_what_stands_around_it_stays(text: str, left: str) -> None:
    assert ALL.text(text) == left and ALL.text(left) == left


@pytest.mark.parametrize(
    "text",
    [
        "order 7 has shipped on 2026-05-28 10:20:30.123",
        "task-list-of-a-very-long-name-with-dashes",
        "4111111111111112",
        "0000 0000 0000 0000",
        "uid 01890a5d-ac96-774b-bcce-b302099a8057",
        "1.2345678901234567",
        "https://example.com:8080/a@b?x=1",
        "1748438400123456789012345",
        "the bearer of news",
        "risk-averse people ask-me-anything-about-it",
        "-----BEGIN CERTIFICATE-----",
        "192.168.100.200",
        "user@localhost",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert ALL.text(text) == text


def test_secrets_are_taken_out_of_json_by_shape_and_by_name() -> None:
    given = {
        "to": "ann@example.com",
        "api_key": "x",
        "db_password": 7,
        "nested": [{"Client-Secret": "y", "note": f"use {JWT}"}, 3, None, True],
        "token_count": 9,
        "password": "",
        "secretary": "Bob",
    }
    assert SECRETS.json(given) == {
        "to": "ann@example.com",
        "api_key": "[redacted password]",
        "db_password": "[redacted password]",
        "nested": [{"Client-Secret": "[redacted password]", "note": "use [redacted token]"}, 3, None, True],
        "token_count": 9,
        "password": "",
        "secretary": "Bob",
    }
    assert holds_mark(SECRETS.json(given)) and not holds_mark(given)


def test_numbers_of_cards_are_taken_out_of_json_as_numbers_too() -> None:
    given = [4111111111111111, 4111111111111112, 4111111111111111.0, 7, True, 10**40]
    assert ALL.json(given) == ["[redacted card]", *given[1:]] and SECRETS.json(given) == given


def test_values_a_process_knows_are_taken_out_wherever_they_stand() -> None:
    redactor = knowing(["a value of its own", "a value of its own, and more", "short", ""])
    assert redactor.text("<a value of its own, and more> a value of its own short") == "<[redacted secret]> [redacted secret] short"
    assert "value" not in repr(redactor)


def test_kinds_are_known_and_asked_in_one_order() -> None:
    assert {*SECRET_KINDS, *PERSONAL_KINDS} == {*RULES}
    assert Redactor(kinds=("email", "key")) == Redactor(kinds=("key", "email"))
    with pytest.raises(DefinitionError, match="'emails'"):
        Redactor(kinds=("emails",))


SECONDS = 30
"""Of this process' own time, for what takes a part of a second: what grew with the square of a megabyte would take hours."""

HOSTILE = [
    "a",
    "1",
    "1 ",
    "1-",
    "1234 ",
    "1234-123456-1234-",
    "4111111111111111 ",
    "@",
    "a@",
    "a@b.",
    "a.",
    "a@a.a",
    "+1",
    "+1 (",
    "(415) ",
    "415-",
    "eyJ",
    "eyJaaaaaa.",
    "_eyJaaaaaa",
    "-eyJaaaaaa.aa",
    "sk-",
    "sk-aaaaaaaaaaaaaaaa ",
    "ghp_",
    "AKIA",
    "AKIAAAAAAAAAAAAAAAAA",
    "xoxb-",
    "Bearer ",
    "Bearer aaaaaaaaaaaaaaaa",
    "://",
    "://a:",
    "://a:b@",
    "-",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN ",
    "-----BEGIN RSA PRIVATE KEY----- -----END RSA PRIVATE KEY-----",
    "-----END PRIVATE KEY-----",
    " ",
    "password",
    "\u00e4",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_megabyte_of_anything_takes_a_moment(piece: str) -> None:
    """In proportion to the text: twice as much takes about twice as long, and a megabyte is done before anybody notices."""
    text = (piece * (1_048_576 // len(piece) + 1))[:1_048_576]
    began = time.process_time()
    ALL.text(text)
    assert time.process_time() - began < SECONDS, "quadratic in the length of its text"


def test_a_megabyte_of_names_takes_a_moment() -> None:
    began = time.process_time()
    ALL.json({"_" * 500_000: "x", **{f"{'api_' * 15}{number}": "y" for number in range(5_000)}})
    assert time.process_time() - began < SECONDS


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([JWT, "a@b.de"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
def test_what_is_left_is_json_and_has_nothing_more_to_lose(value: Any) -> None:
    left = ALL.json(value)
    assert json.loads(json.dumps(left)) == left and ALL.json(left) == left
