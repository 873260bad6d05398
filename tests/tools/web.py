"""A web server on 127.0.0.1 for tests: it writes down what comes, and answers with whatever bytes a test likes."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.support import wire
from tests.support.wire import Request


def answer(
    status: int = 200, body: bytes | str | Any = b"", *, headers: dict[str, str] | None = None, kind: str = "application/json"
) -> bytes:
    """An HTTP answer with its length; what is no text is sent as JSON."""
    payload = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    lines = {"Content-Type": kind, "Content-Length": str(len(payload)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} Whatever\r\n{head}\r\n".encode() + payload


def redirect(status: int, location: str) -> bytes:
    return answer(status, headers={"Location": location})


Handler = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Web:
    """`async with Web() as web`: answers each path as `answers` says, by bytes or by a function that writes them."""

    answers: dict[str, bytes | Handler] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a request has come."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a client has closed a connection."""

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://{self.place}"

    async def __aenter__(self) -> Self:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self.tls)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            came = await wire.read_request(reader, Request)
            if came is not None:
                self.requests.append(came)
                self.asked.set()
                known = self.answers.get(came.path.partition("?")[0], answer(404, "nothing here", kind="text/plain"))
                if isinstance(known, bytes):
                    writer.write(known)
                    await writer.drain()
                else:
                    await self._handled(known, came, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has gone, or the test is over
        finally:
            self.gone.set()
            self._tasks.discard(task)
            writer.close()

    async def _handled(self, handler: Handler, came: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the handler is done, or the client has gone."""
        handling = asyncio.ensure_future(handler(came, writer))
        gone = asyncio.ensure_future(reader.read(1))
        await asyncio.wait((handling, gone), return_when=asyncio.FIRST_COMPLETED)
        for task in (handling, gone):
            task.cancel()
        await asyncio.gather(handling, gone, return_exceptions=True)


async def reset(_: Request, writer: asyncio.StreamWriter) -> None:
    """The connection is reset instead of an answer."""
    wire.reset(writer)


async def silence(_: Request, writer: asyncio.StreamWriter) -> None:
    """Nothing is said, for as long as the client stays."""
    await asyncio.Event().wait()


def drips(start: bytes, drop: bytes, *, every: float = 0.01) -> Handler:
    """The start, and then drop after drop, for as long as the client stays."""

    async def handler(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(every)

    return handler


def floods(start: bytes, piece: bytes) -> Handler:
    """The start, and then piece after piece as fast as the client takes them."""
    return drips(start, piece, every=0)
