"""The bodies of answers: read and unpacked within bounds, however much is packed into how little."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from typing import Final

import httpx

from runward.ports.outbound import Fault, Incoming

FREE_PIECES: Final = 2_000
BYTES_A_PIECE: Final = 16
"""How few bytes the pieces that a body comes in may have on average, after so many of them: a chunk of one byte costs as much as one of a
thousand, and nobody's other runs are to wait for a million of them."""


async def received(response: httpx.Response, max_bytes: int, deadline: float) -> Incoming:
    """An answer with its body, of which no more is read, and unpacked, than it may have. What broke it off is its fault, not an error."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    content_type = response.headers.get("content-type", "").strip().lower()
    fault: Fault | None = None
    body = b""
    try:
        async with asyncio.timeout_at(deadline):
            body = await _body(response, _inflater(encoding), max_bytes)
    except _Broken as error:
        fault = error.fault
    except (TimeoutError, httpx.HTTPError, ssl.SSLError, OSError):
        fault = "cut_off"
    return Incoming(status=response.status_code, content_type=content_type, body=b"" if fault else body, fault=fault)


async def _body(response: httpx.Response, inflater: _Inflater | None, max_bytes: int) -> bytes:
    """The body, decompressed. Reading ends where it is longer than it may be, compressed or not. Raises _Broken."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    body, taken, pieces = bytearray(), 0, 0
    async for piece in response.stream:
        taken += len(piece)
        pieces += 1
        if taken > max_bytes:
            raise _Broken("too_large")
        if pieces > FREE_PIECES + taken // BYTES_A_PIECE:
            raise _Broken("undecodable")
        body += piece if inflater is None else inflater.feed(piece, max_bytes - len(body))
        if len(body) > max_bytes:
            raise _Broken("too_large")
    if inflater is not None and not inflater.is_whole:
        raise _Broken("undecodable")
    return bytes(body)


class _Broken(Exception):
    """The body cannot be used."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault: Fault = fault


def _inflater(encoding: str) -> _Inflater | None:
    """What reads an encoding. Raises _Broken for one that was not asked for."""
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip"):
        return _Inflater()
    raise _Broken("undecodable")


class _Inflater:
    """gzip, in one piece as HTTP has it, and never more of it than is asked for."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._fresh = True

    @property
    def is_whole(self) -> bool:
        """Whether what came so far is all of it."""
        return self._member.eof or self._fresh

    def feed(self, piece: bytes, room: int) -> bytes:
        """What a piece unpacks to, one byte more than there is room for at most. Raises _Broken."""
        self._fresh = False
        try:
            unpacked = self._member.decompress(piece, room + 1)
        except zlib.error:
            raise _Broken("undecodable") from None
        if self._member.unused_data:
            raise _Broken("undecodable")
        return unpacked
