"""Event streams as a browser reads them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Events:
    """One open stream: `seen` grows with `more`. Only LF, CR and CRLF end a line."""

    response: httpx.Response
    raw: bytes = b""
    seen: list[tuple[str | None, str]] = field(default_factory=list)
    retries: list[int] = field(default_factory=list)
    comments: int = 0
    over: bool = False

    def __post_init__(self) -> None:
        self._chunks = self.response.aiter_raw()
        self._parsed = 0
        self._reading: asyncio.Task[bytes | None] | None = None

    async def more(self) -> bool:
        """Reads what comes next; False when the stream has ended."""
        reading = self._begun()
        self._reading = None
        chunk = await reading
        if chunk is None:
            self.over = True
            return False
        self.raw += chunk
        while (end := self.raw.find(b"\n\n", self._parsed)) >= 0:
            self._block(self.raw[self._parsed : end].decode())
            self._parsed = end + 2
        return True

    async def is_quiet(self) -> bool:
        """Whether nothing comes for a while, not even the end."""
        done, _ = await asyncio.wait({self._begun()}, timeout=0.1)
        return not done

    def _begun(self) -> asyncio.Task[bytes | None]:
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._next())
        return self._reading

    async def _next(self) -> bytes | None:
        return await anext(self._chunks, None)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def to(self, count: int) -> Sequence[tuple[str | None, str]]:
        """Reads until so many events were seen."""
        while len(self.seen) < count:
            assert await self.more(), f"the stream ended after {len(self.seen)} events"
        return self.seen

    async def to_end(self) -> Sequence[tuple[str | None, str]]:
        while await self.more():
            pass
        return self.seen

    @property
    def frames(self) -> list[bytes]:
        return [data.encode() for _, data in self.seen if data != "[DONE]"]

    @property
    def ids(self) -> list[int]:
        return [int(id) for id, _ in self.seen if id is not None]

    @property
    def done(self) -> bool:
        return bool(self.seen) and self.seen[-1] == (None, "[DONE]")

    def _block(self, text: str) -> None:
        id, data = None, []
        for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "":
                self.comments += 1
            elif name == "id":
                id = value
            elif name == "data":
                data.append(value)
            elif name == "retry":
                self.retries.append(int(value))
            else:
                raise AssertionError(f"a field nobody knows: {line!r}")
        if data:
            self.seen.append((id, "\n".join(data)))


@contextlib.asynccontextmanager
async def followed(port: int, run_id: str, *, last: str | None = None, **params: Any) -> AsyncIterator[Events]:
    """Opens a run's stream over a real socket."""
    headers = {"Accept": "text/event-stream", **({} if last is None else {"Last-Event-ID": last})}
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20, verify=False) as http,
        http.stream("GET", f"/runs/{run_id}/events", params=params, headers=headers) as response,
    ):
        assert response.status_code == 200, (response.status_code, await response.aread())
        events = Events(response)
        yield events
        events.close()


def parsed(frames: Sequence[bytes]) -> list[dict[str, Any]]:
    return [json.loads(frame) for frame in frames]
