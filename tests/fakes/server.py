"""A small HTTP/1.1 server for fake providers: real sockets, one scripted reply per request, every request kept as it came."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import ClassVar, Self

from tests.fakes.replies import Answer, Ending, NoAnswer, Plain, Reply
from tests.support.wire import Request, read_request, reset

KEY = "sk-fake-KEY-that-must-never-show-up"
"""The API key that `environ` sets: tests look for it where it must not be."""


@dataclass(slots=True, kw_only=True)
class Received(Request):
    """A request as it came. `disconnected` is set once the client has closed the connection before the reply was over."""

    disconnected: asyncio.Event = field(default_factory=asyncio.Event)


class FakeProvider:
    """Base of the fakes. Use it as `async with FakeOpenAI() as fake`; replies are given in order, then `default` for ever."""

    key_variable: ClassVar[str]
    url_variable: ClassVar[str]
    prefix: ClassVar[str] = ""

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._replies: deque[Reply] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._news = asyncio.Condition()
        self.requests: list[Received] = []
        self.connections = 0
        self.default: Reply | Callable[[Received], Reply] = Answer(text="ok")

    def events(self, answer: Answer, request: Received) -> Iterator[bytes]:
        """The SSE events of an answer's content, then, for an ending that has them, its last ones."""
        raise NotImplementedError

    def reply(self, *replies: Reply) -> Self:
        """Adds replies for the next requests."""
        self._replies.extend(replies)
        return self

    @property
    def url(self) -> str:
        """The base URL, as the provider's `*_BASE_URL` variable takes it."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}{self.prefix}"

    @property
    def environ(self) -> dict[str, str]:
        """The variables that lead a model client here."""
        return {self.url_variable: self.url, self.key_variable: KEY}

    async def received(self, count: int = 1) -> Received:
        """Returns the request of this number, counted from 1, once it has come."""
        async with self._news:
            await asyncio.wait_for(self._news.wait_for(lambda: len(self.requests) >= count), 5)
        return self.requests[count - 1]

    async def idle(self) -> None:
        """Returns once no client is connected any more. `connections` counts all that ever were."""
        await asyncio.wait_for(self._idle.wait(), 5)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self._idle.clear()
        try:
            early = b""
            while (request := await read_request(reader, Received, early)) is not None:
                early = await self._serve(request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            if not self._closing():
                raise
        finally:
            self._tasks.discard(task)
            if not self._tasks:
                self._idle.set()
            writer.close()

    def _closing(self) -> bool:
        return self._server is not None and not self._server.is_serving()

    async def _serve(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Replies, and returns what came of the next request in the meantime."""
        if request.method == "GET":
            seen = [{"path": item.path, "body": item.body.decode()} for item in self.requests]
            await _refuse(Plain(status=200, body=json.dumps(seen)), writer)
            return b""
        async with self._news:
            self.requests.append(request)
            self._news.notify_all()
        default = self.default(request) if callable(self.default) else self.default
        reply = self._replies.popleft() if self._replies else default
        watch = asyncio.ensure_future(_watch(request, reader))
        try:
            match reply:
                case Plain():
                    await _refuse(reply, writer)
                case NoAnswer(hang=True):
                    await watch
                case NoAnswer():
                    _reset(writer)
                case Answer():
                    await self._stream(reply, request, writer, watch)
        finally:
            watch.cancel()
            await asyncio.wait([watch])
        return b"" if watch.cancelled() else watch.result()

    async def _stream(self, answer: Answer, request: Received, writer: asyncio.StreamWriter, watch: asyncio.Future[bytes]) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in self.events(answer, request):
            if answer.delay:
                await asyncio.sleep(answer.delay)
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
        match answer.ending:
            case Ending.CUT:
                writer.write(b"40\r\ndata: {")
                await writer.drain()
                raise ConnectionAbortedError
            case Ending.RESET:
                await asyncio.sleep(0.05)  # a reset that overtakes the content would take it along
                _reset(writer)
            case Ending.HANG:
                await watch
            case _:
                writer.write(b"0\r\n\r\n")
                await writer.drain()


async def _watch(request: Received, reader: asyncio.StreamReader) -> bytes:
    """Nothing comes while the client waits for a reply, but the end of its connection; behind the reply, its next request."""
    try:
        early = await reader.read(1)
    except ConnectionError:
        early = b""
    if not early:
        request.disconnected.set()
    return early


async def _refuse(reply: Plain, writer: asyncio.StreamWriter) -> None:
    payload = reply.payload()
    headers = {"content-type": reply.content_type, "content-length": str(len(payload)), **reply.headers}
    head = f"HTTP/1.1 {reply.status} Whatever\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(head.encode() + b"\r\n" + payload)
    await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    reset(writer)
    raise ConnectionAbortedError
