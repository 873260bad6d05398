"""HTTP/1.1 as the servers of these tests read it."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from dataclasses import dataclass
from typing import Any, TypeVar


@dataclass(slots=True, kw_only=True)
class Request:
    """A request as it came; the names of headers in small letters."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


R = TypeVar("R", bound=Request)


async def read_request(reader: asyncio.StreamReader, kind: type[R], early: bytes = b"") -> R | None:
    """The next request, of which `early` has been read; None when the client has gone."""
    line = early + await reader.readline()
    if not line:
        return None
    method, path, _ = line.decode().split(" ")
    headers: dict[str, str] = {}
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return kind(method=method, path=path, headers=headers, body=body)


def reset(writer: asyncio.StreamWriter) -> None:
    """Resets the connection: what was not sent yet is lost."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
