"""The API from a terminal: one HTTP client, and tables."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runward.core.errors import RunwardError

TIMEOUT_SECONDS = 30.0
STREAM_SILENCE_SECONDS = 60.0
"""Streams carry a heartbeat every 15 s: one that is silent for so long is dead."""
PIPE_WIDTH = 10_000
RECONNECTION_SECONDS = 1.0
RECONNECTIONS = 20
_KEY = re.compile(r"[\x21-\x7e]+")
"""How often a stream that broke is asked for again in vain."""


class Api:
    """The service at a URL, with the key in `RUNWARD_API_KEY` if there is one. Raises RunwardError saying what the service said, or that
    URL or key are none: neither is shown then, because a URL may hold a password where it should not."""

    def __init__(self, url: str) -> None:
        key = os.environ.get("RUNWARD_API_KEY")
        if key and not _KEY.fullmatch(key):
            raise RunwardError("RUNWARD_API_KEY is not a key: it has spaces, or characters that are not ASCII.")
        self._http = httpx.Client(
            base_url=_checked(url), timeout=TIMEOUT_SECONDS, headers={"Authorization": f"Bearer {key}"} if key else {}, trust_env=False
        )

    def get(self, path: str, **query: Any) -> Any:
        return self._answer("GET", path, params=query).json()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._answer("POST", path, json=body).json()

    def delete(self, path: str) -> None:
        self._answer("DELETE", path)

    def frames(self, run_id: str, after: int) -> Iterator[str]:
        """The data of a run's events, until `[DONE]`. A stream that ends before, or breaks, is taken up again where it ended: services are
        restarted. Raises when there was none to begin with, or when it stays away."""
        left = 0
        while True:
            try:
                for seq, data in self._events(f"/runs/{run_id}/events", after):
                    if data == "[DONE]":
                        return
                    after, left = seq, RECONNECTIONS
                    yield data
            except httpx.HTTPError as error:
                left -= 1
                if left < 0:
                    away = _unreachable(self._http, error).detail
                    raise RunwardError(f"{away} The last frame was {after}: go on with --after {after}.") from None
            threading.Event().wait(RECONNECTION_SECONDS)

    def _events(self, path: str, after: int) -> Iterator[tuple[int, str]]:
        timeout = httpx.Timeout(TIMEOUT_SECONDS, read=STREAM_SILENCE_SECONDS)
        with self._http.stream("GET", path, params={"after": after}, timeout=timeout) as response:
            _check(response)
            if response.status_code == httpx.codes.NO_CONTENT:
                yield after, "[DONE]"
            for line in _lines(response.iter_text()):
                name, _, value = line.partition(": ")
                if name == "id":
                    after = int(value)
                elif name == "data":
                    yield after, value

    def _answer(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **request)
        except httpx.HTTPError as error:
            raise _unreachable(self._http, error) from None
        _check(response)
        return response


def _checked(text: str) -> httpx.URL:
    """The URL of a service."""
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query or url.fragment:
        raise RunwardError(
            "The service's URL (--url or RUNWARD_URL) is not one like http://127.0.0.1:8000; a key goes into RUNWARD_API_KEY."
        )
    return url


def _lines(texts: Iterator[str]) -> Iterator[str]:
    """Lines that end with LF alone: a text may hold every other character at which Python would break a line."""
    rest = ""
    for text in texts:
        *lines, rest = (rest + text).split("\n")
        yield from lines


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Prints rows as a table. The first column, which names the row, is never shortened; nothing is where no terminal shows it."""
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    shown = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        shown.add_column(column, no_wrap=number == 0, overflow="fold")
    for row in rows:
        shown.add_row(*(_cell(row.get(column)) for column in columns))
    console.print(shown)


def _cell(value: Any) -> Text:
    """A value as it is: what stands in brackets is no markup."""
    if isinstance(value, list | tuple):
        return Text(", ".join(str(each) for each in value))
    return Text("" if value is None else str(value))


def _check(response: httpx.Response) -> None:
    if response.is_success:
        return
    response.read()
    try:
        problem = response.json()
        detail = f"{problem.get('title')}: {problem.get('detail')}"
    except ValueError:
        detail = f"The service answered {response.status_code}."
    raise RunwardError(detail)


def _unreachable(http: httpx.Client, error: httpx.HTTPError) -> RunwardError:
    return RunwardError(f"The service at {http.base_url} cannot be reached ({type(error).__name__}). Is `runward serve` running there?")
