"""A model's arguments as a request: in the URL's path, in its query, or left for the body. They cannot change where it goes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from runward.agents.templates import has_dot_segments, placeholders, query_names, with_arguments

MAX_URL_LENGTH: Final = 8_000

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Misfit(Exception):
    """Why arguments cannot be part of a URL: a phrase for the model, without their values."""


class Template:
    """A URL with its places to be filled. `values` are those of the environment; `in_query`: what no place is for goes to the query."""

    def __init__(self, url: str, values: Mapping[str, str], *, in_query: bool) -> None:
        self._url = url
        self._values = values
        self._in_query = in_query
        self._placeholders = placeholders(url)
        self._taken = query_names(url)

    def fill(self, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The URL, and what is left for the body. Raises Misfit."""
        filled = {name: _part(name, arguments[name]) for name in self._placeholders}
        url = with_arguments(self._url, lambda name: quote(self._values[name], safe=""), lambda name: filled[name])
        path = url.partition("?")[0].split("://", 1)[1].partition("/")[2]
        if has_dot_segments(path):
            raise Misfit("they would lead to another path")
        rest = {name: value for name, value in arguments.items() if name not in filled}
        if self._in_query and not self._taken.isdisjoint(rest):
            raise Misfit("some of them are set by the tool itself")
        if self._in_query and (query := "&".join(_pairs(rest))):
            url += ("&" if "?" in url else "?") + query
        if len(url) > MAX_URL_LENGTH:
            raise Misfit(f"the URL made of them is longer than {MAX_URL_LENGTH} characters")
        return url, {} if self._in_query else rest


def _part(name: str, value: Any) -> str:
    """An argument as one part of a path or a query, with everything that has a meaning there escaped."""
    if isinstance(value, bool | int | float):
        return quote(_scalar(value), safe="")
    if not isinstance(value, str):
        raise Misfit(f"`{name}` must be a text or a number, because it becomes a part of a URL")
    if not value or _CONTROL.search(value):
        raise Misfit(f"`{name}` must not be empty or have control characters, because it becomes a part of a URL")
    return quote(value, safe="")


def _pairs(arguments: Mapping[str, Any]) -> Iterator[str]:
    """`name=value` for each; a list repeats its name, null is left out, and what is nested deeper is JSON."""
    for name, value in arguments.items():
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                yield f"{quote(name, safe='', errors='replace')}={quote(_scalar(each), safe='', errors='replace')}"


def _scalar(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
