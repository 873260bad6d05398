"""The API from a terminal: one HTTP client, and tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from runward.core.errors import RunwardError

TIMEOUT_SECONDS = 30.0
STREAM_SILENCE_SECONDS = 60.0
"""Streams carry a heartbeat every 15 s: one that is silent for so long is dead."""


class Api:
    """The service at a URL, with the key in `RUNWARD_API_KEY` if there is one. Raises RunwardError saying what the service said."""

    def __init__(self, url: str) -> None:
        key = os.environ.get("RUNWARD_API_KEY")
        self._http = httpx.Client(
            base_url=url, timeout=TIMEOUT_SECONDS, headers={"Authorization": f"Bearer {key}"} if key else {}, trust_env=False
        )

    def get(self, path: str, **query: Any) -> Any:
        return self._answer("GET", path, params=query).json()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._answer("POST", path, json=body).json()

    def delete(self, path: str) -> None:
        self._answer("DELETE", path)

    def frames(self, run_id: str, after: int) -> Iterator[str]:
        """The data of a run's events, until `[DONE]`; takes up again where the service ends the stream before."""
        while True:
            for seq, data in self._events(f"/runs/{run_id}/events", after):
                if data == "[DONE]":
                    return
                after = seq
                yield data

    def _events(self, path: str, after: int) -> Iterator[tuple[int, str]]:
        timeout = httpx.Timeout(TIMEOUT_SECONDS, read=STREAM_SILENCE_SECONDS)
        seq = after
        try:
            with self._http.stream("GET", path, params={"after": after}, timeout=timeout) as response:
                _check(response)
                if response.status_code == httpx.codes.NO_CONTENT:
                    yield seq, "[DONE]"
                for line in response.iter_lines():
                    name, _, value = line.partition(": ")
                    if name == "id":
                        seq = int(value)
                    elif name == "data":
                        yield seq, value
        except httpx.HTTPError as error:
            raise RunwardError(f"{_unreachable(self._http, error).detail} The last frame was {seq}: go on with --after {seq}.") from None

    def _answer(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **request)
        except httpx.HTTPError as error:
            raise _unreachable(self._http, error) from None
        _check(response)
        return response


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Prints rows as a table."""
    shown = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        shown.add_row(*(_cell(row[column]) for column in columns))
    Console().print(shown)


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value)
    return "" if value is None else str(value)


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
