"""A browser's `EventSource`, as the WHATWG describes it, on a bare socket.

It comes back after any end of a 200 stream and after any network error, with `Last-Event-ID` and after the time that `retry:` said; it
gives up for good on any other status or content type. An event that is not ended by a blank line when the stream ends is dropped. Like a
page that knows nothing of `[DONE]` it comes back after that, too, and is only stopped by the 204 it gets then.
"""

from __future__ import annotations

import codecs
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO
from urllib.parse import urlsplit

RECONNECTION_SECONDS = 3.0
"""Until `retry:` says otherwise; browsers have about this."""
NETWORK_SECONDS = 60.0


class EventSource:
    """Runs in a thread of its own until it gives up."""

    def __init__(self, url: str) -> None:
        self.where = urlsplit(url)
        self.events: list[tuple[str, str]] = []
        """What `onmessage` got: the last event id, and the data."""
        self.opens = 0
        self.retries: list[float] = []
        self.status: int | None = None
        """The answer on which it gave up."""
        self._last_id = ""
        self._wait = RECONNECTION_SECONDS
        self._news = threading.Condition()
        self._given_up = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def gives_up(self, seconds: float) -> bool:
        """Whether it gives up within some seconds."""
        return self._given_up.wait(seconds)

    def got(self, count: int, seconds: float = 30) -> None:
        """Returns once it has got so many events."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.events) >= count, seconds), f"{len(self.events)} events so far"

    # -- the connection -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with suppress(OSError):  # a network error: the connection is established again
                self._connect()
            if self.status is not None:
                self._given_up.set()
                return
            self._given_up.wait(self._wait)

    def _connect(self) -> None:
        assert self.where.hostname and self.where.port
        address = (self.where.hostname, self.where.port)
        with socket.create_connection(address, NETWORK_SECONDS) as connection, connection.makefile("rb") as read:
            last = [f"Last-Event-ID: {self._last_id}"] if self._last_id else []
            path = f"{self.where.path}?{self.where.query}".rstrip("?")
            head = [f"GET {path} HTTP/1.1", f"Host: {self.where.netloc}", "Accept: text/event-stream", "Cache-Control: no-store", *last]
            connection.sendall("".join(f"{line}\r\n" for line in [*head, ""]).encode())
            status = int(_got(read.readline()).split()[1])
            headers = dict(line.decode().rstrip().lower().split(": ", 1) for line in iter(lambda: _got(read.readline()), b"\r\n"))
            if status != 200 or headers["content-type"].split(";")[0] != "text/event-stream":
                self.status = status
            else:
                self.opens += 1
                self._dispatch(_lines(_chunks(read)))

    # -- the stream -----------------------------------------------------------------------------------------------------

    def _dispatch(self, lines: Iterator[str]) -> None:
        data: list[str] = []
        id = self._last_id
        for line in lines:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not line:
                self._last_id = id
                if data:
                    with self._news:
                        self.events.append((id, "\n".join(data)))
                        self._news.notify_all()
                data = []
            elif name == "data":
                data.append(value)
            elif name == "id" and "\0" not in value:
                id = value
            elif name == "retry" and value.isascii() and value.isdigit():
                self._wait = int(value) / 1000
                self.retries.append(self._wait)


def _chunks(read: BinaryIO) -> Iterator[bytes]:
    """The body of a chunked answer, as it comes. A connection that breaks in its midst is a network error."""
    while size := int(_got(read.readline()).split(b";")[0], 16):
        yield _got(read.read(size))
        _got(read.readline())


def _got(part: bytes) -> bytes:
    if not part:
        raise ConnectionResetError("the answer is not complete")
    return part


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """The lines of a stream, ended by LF, CR or CRLF; a byte order mark is skipped, and what is not ended is dropped."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    rest = ""
    for chunk in chunks:
        rest += decoder.decode(chunk)
        while ends := [place for place in (rest.find("\n"), rest.find("\r")) if place >= 0]:
            end = min(ends)
            if rest[end:] == "\r":
                break  # an LF may follow
            yield rest[:end]
            rest = rest[end + (2 if rest[end : end + 2] == "\r\n" else 1) :]
