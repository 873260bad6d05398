"""HTTP/1.1 connections with bounds that uvicorn's own lack. `main` gives this class to uvicorn as its `http`."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from runward.api.problems import MEDIA_TYPE, STATUSES
from runward.api.sse import ABORT
from runward.engine.encoding import to_bytes

MAX_HEAD_BYTES = 65_536
"""The most that a request may have before its body. Smaller ones can still be refused, with an answer (`middleware.MAX_HEADER_BYTES`)."""
HEAD_SECONDS = 30.0
"""How long it may take to arrive; a connection that never asks anything is closed after as long."""
DEAD_PEER_MS = 60_000
"""How long what was sent may stay unacknowledged before the system gives the connection up."""


class Connection(HttpToolsProtocol):
    """A connection whose request heads are bounded in size and time, that notices a dead peer, and that can be cut off."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_bytes = 0
        self._in_head = True
        self._completed = False
        self._too_late: asyncio.TimerHandle | None = None
        self._begin_head()
        made = transport.get_extra_info("socket")
        if made is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            with suppress(OSError):  # a unix socket has no such option
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._completed = False
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes = 0 if self._completed else self._head_bytes + len(data)  # most of it belonged to the request before
            self._begin_head()
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse("headers_too_large", f"The request line and headers are larger than {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._completed = True

    def send_400_response(self, msg: str) -> None:
        self._refuse("invalid_request", msg)

    def _begin_head(self) -> None:
        if self._too_late is None:
            self._too_late = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _end_head(self) -> None:
        self._in_head, self._head_bytes = False, 0
        if self._too_late is not None:
            self._too_late.cancel()
            self._too_late = None

    def _head_is_late(self) -> None:
        self._too_late = None
        self._refuse("request_timeout", f"The request did not arrive within {HEAD_SECONDS:g} s.")

    def _refuse(self, code: str, detail: str) -> None:
        """Says what is wrong with something that never became a request, and closes. In the midst of an answer it can only cut."""
        answering: RequestResponseCycle | None = self.cycle
        if answering is not None and answering.response_started and not answering.response_complete:
            self.transport.abort()
            return
        status, title = STATUSES[code]
        body = to_bytes({"type": f"urn:runward:problem:{code}", "title": title, "status": status, "detail": detail, "code": code})
        head = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in [*self.server_state.default_headers, *head])]
        self.transport.write(b"".join([*lines, b"\r\n", body]))
        self.transport.close()
