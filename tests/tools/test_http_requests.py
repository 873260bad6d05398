"""Arguments become a part of a URL, a query or a body, and change nothing about where the request goes."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runward.tools.http_requests import MAX_URL_LENGTH, Misfit, Template

STOCK = "https://erp.internal/stock/{sku}/now"


def filled(url: str, arguments: dict[str, Any], *, in_query: bool = True, **values: str) -> tuple[str, dict[str, Any]]:
    return Template(url, values, in_query=in_query).fill(arguments)


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("a1", "a1"),
        (7, "7"),
        (1.5, "1.5"),
        (True, "true"),
        ("A/B", "A%2FB"),
        ("a b&c=d?e#f", "a%20b%26c%3Dd%3Fe%23f"),
        ("@evil.example", "%40evil.example"),
        ("//evil.example/", "%2F%2Fevil.example%2F"),
        (":443", "%3A443"),
        ("100%", "100%25"),
        ("{other}", "%7Bother%7D"),
        ("${KEY}", "%24%7BKEY%7D"),
        ("é", "%C3%A9"),
        ("a..b", "a..b"),
        ("..a", "..a"),
        ("a..;", "a..%3B"),
        ("...", "..."),
    ],
)
def test_an_argument_is_one_part_of_the_path(value: Any, part: str) -> None:
    assert filled(STOCK, {"sku": value}) == (f"https://erp.internal/stock/{part}/now", {})


ASTRAY: list[Any] = [
    "",
    ".",
    "..",
    "../x",
    "a/../b",
    "..\\x",
    "%2e%2e",
    "%2E.",
    "%252e%252e",
    "a/..",
    "..;",
    ".;a=b",
    "..;/x",
    "..%3b",
    ".. ",
    "..%20/x",
    "..%00",
    "\r\nHost: evil",
    "a\x00",
    "a\x7f",
    "\ud800",
    None,
    [],
    {},
    ["a"],
]


@pytest.mark.parametrize("value", ASTRAY)
def test_what_would_lead_elsewhere_is_refused_and_not_shown(value: Any) -> None:
    with pytest.raises(Misfit) as error:
        filled(STOCK, {"sku": value})
    assert "Host" not in str(error.value)


def test_two_arguments_cannot_make_dots_together() -> None:
    with pytest.raises(Misfit):
        filled("https://erp.internal/{a}{b}/", {"a": ".", "b": "."})


@given(st.text(max_size=20) | st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_no_argument_changes_host_path_or_query(value: Any) -> None:
    try:
        url, _ = filled(f"{STOCK}?as=json", {"sku": value})
    except Misfit:
        return
    seen = httpx.URL(url)
    assert (seen.scheme, seen.raw_host, seen.userinfo, seen.fragment) == ("https", b"erp.internal", b"", "")
    path, _, query = seen.raw_path.decode().partition("?")
    assert query == "as=json" and path.count("/") == 3 and path.startswith("/stock/") and path.endswith("/now")
    if isinstance(value, str):
        assert unquote(path.split("/")[2]) == value


@pytest.mark.parametrize(
    ("arguments", "query"),
    [
        ({"sku": "a"}, ""),
        ({"sku": "a", "q": "x y&z", "n": 3, "yes": True}, "q=x%20y%26z&n=3&yes=true"),
        ({"sku": "a", "tags": ["x", "y"], "none": None, "empty": []}, "tags=x&tags=y"),
        ({"sku": "a", "deep": {"b": [1]}}, "deep=%7B%22b%22%3A%5B1%5D%7D"),
        ({"sku": "a", "a=b&c": "\r\n"}, "a%3Db%26c=%0D%0A"),
        ({"sku": "a", "\ud800": "\udfff"}, "%3F=%3F"),
    ],
)
def test_other_arguments_are_the_query(arguments: dict[str, Any], query: str) -> None:
    url, rest = filled("https://erp.internal/stock/{sku}", arguments)
    assert urlsplit(url).query == query and rest == {}


def test_a_query_of_the_authors_own_is_kept() -> None:
    url, _ = filled("https://erp.internal/stock?sku={sku}&as=json", {"sku": "a&as=xml", "n": 1})
    assert parse_qsl(urlsplit(url).query) == [("sku", "a&as=xml"), ("as", "json"), ("n", "1")]


@pytest.mark.parametrize("query", ["as=json", "%61s=json", "a=1&as=", "as=${KEY}", "as={sku}"])
def test_no_argument_says_again_what_the_author_has_said(query: str) -> None:
    """Which of two a server takes is its own to choose."""
    with pytest.raises(Misfit, match="set by the tool itself"):
        filled(f"https://erp.internal/?{query}", {"sku": "a", "as": "xml"}, KEY="k")
    url, _ = filled(f"https://erp.internal/?{query}", {"sku": "a", "As": "xml"}, KEY="k")
    assert url.endswith("&As=xml") or "sku=a&As=xml" in url
    assert filled(f"https://erp.internal/?{query}", {"sku": "a", "as": "xml"}, in_query=False, KEY="k")[1]["as"] == "xml"


def test_other_arguments_are_the_body() -> None:
    url, rest = filled(STOCK, {"sku": "a", "count": 3, "note": None}, in_query=False)
    assert url == "https://erp.internal/stock/a/now" and rest == {"count": 3, "note": None}


def test_the_environments_values_are_escaped_too_and_not_filled_again() -> None:
    url, _ = filled("https://erp.internal/{sku}?key=${KEY}", {"sku": "${KEY}"}, KEY="a&b={sku}")
    assert url == "https://erp.internal/%24%7BKEY%7D?key=a%26b%3D%7Bsku%7D"


def test_a_url_has_a_bound() -> None:
    with pytest.raises(Misfit, match="longer"):
        filled("https://erp.internal/", {"q": "x" * MAX_URL_LENGTH})
