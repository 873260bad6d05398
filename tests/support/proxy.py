"""A TCP proxy that misbehaves on demand, to be put in front of Postgres or Redis.

    async with Proxy("127.0.0.1", server.port) as proxy:
        url = proxy.url(server.url)
        proxy.freeze()                              # everything hangs, nothing is lost
        proxy.swallow_reply(to=b"COMMIT")           # the server did it, and the client never hears of it
        await proxy.swallowed.wait()

Faults concern the connections that are open and those that come, until they are taken back.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Self
from urllib.parse import urlsplit, urlunsplit

from tests.support.servers import free_port

Direction = Literal["to_server", "to_client"]

LINGER_NOTHING = struct.pack("ii", 1, 0)
"""The SO_LINGER value with which closing a socket resets the connection (RST) instead of ending it (FIN)."""


def postgres_reply_ends(reply: bytes) -> bool:
    """Whether a Postgres reply is complete: it ends with ReadyForQuery, so what was asked has been committed or refused."""
    return reply[-6:-1] == b"Z\x00\x00\x00\x05"


def redis_reply_ends(reply: bytes) -> bool:
    """Whether a Redis reply may be complete: it ends with a line's end."""
    return reply.endswith(b"\r\n")


@dataclass(kw_only=True)
class Swallow:
    """A reply that the client is not to get: the `skip + 1`-th one, from now, to a request that contains `to`."""

    to: bytes
    skip: int
    ends: Callable[[bytes], bool]
    then: Literal["reset", "hang"]


@dataclass(eq=False)
class Link:
    """One client's connection and its connection to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    request: bytes = b""
    """What the client has sent since the server last spoke."""
    answered: bool = False
    """Whether the server has spoken since the client last did."""
    swallowing: Swallow | None = None
    reply: bytes = b""
    """What was swallowed of the reply so far."""
    sent: int = 0
    """Bytes passed on to the client."""


@dataclass
class Proxy:
    """Passes bytes between clients of its own port on 127.0.0.1 and one server, with the faults that were asked for."""

    host: str
    server_port: int
    delay: float = 0
    """Seconds that every piece waits, in either direction."""
    port: int = field(default_factory=free_port)
    connections: int = 0
    """How many clients have connected so far."""

    def __post_init__(self) -> None:
        self.swallowed = asyncio.Event()
        """Set when a whole reply has been swallowed."""
        self._links: set[Link] = set()
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = {"to_server": asyncio.Event(), "to_client": asyncio.Event()}
        self._swallow: Swallow | None = None
        self._reset_after: int | None = None
        self.thaw()

    def url(self, url: str) -> str:
        """The same URL with the proxy's address in the server's place."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=(f"{user}@" if user else "") + f"127.0.0.1:{self.port}"))

    # -- faults ---------------------------------------------------------------------------------------------------------

    def freeze(self, *directions: Direction) -> None:
        """Holds back all bytes, in one direction or (without arguments) both. Connections stay open and new ones are accepted."""
        for direction in directions or self._flowing:
            self._flowing[direction].clear()

    def thaw(self) -> None:
        """Ends a freeze: what was held back goes on its way."""
        for event in self._flowing.values():
            event.set()

    def cut(self) -> int:
        """Resets every open connection, on both sides, and returns how many there were. New ones are accepted."""
        links = list(self._links)
        for link in links:
            self._reset(link)
        return len(links)

    async def refuse(self) -> None:
        """Resets every connection and listens no more, as a server that is down, until `accept`."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.cut()
        await self._gather()

    async def accept(self) -> None:
        """Listens (again) on the same port."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    def reset_after(self, count: int | None) -> None:
        """Resets every connection once its client has got `count` bytes from now on, in the middle of a reply if need be; None: no more."""
        self._reset_after = count
        for link in self._links:
            link.sent = 0

    def swallow_reply(
        self,
        *,
        to: bytes = b"",
        skip: int = 0,
        ends: Callable[[bytes], bool] = postgres_reply_ends,
        then: Literal["reset", "hang"] = "reset",
    ) -> None:
        """Keeps one whole reply from its client, on whatever connection it comes, then resets the connection or lets it hang.

        It is the `skip + 1`-th reply, from now, to a request that contains `to`. A reply is what the server sends between two sends of
        the client, complete when `ends` says so. `swallowed` is set when it is: the server has then done what it was asked.
        """
        self.swallowed.clear()
        self._swallow = Swallow(to=to, skip=skip, ends=ends, then=then)

    # -- bytes ----------------------------------------------------------------------------------------------------------

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())  # it may be cancelled before it has a link, or has even begun

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream, server = await asyncio.open_connection(self.host, self.server_port)
        except OSError:  # the server is down: so is the proxy, for this client
            _reset(writer)
            return
        link = Link(client=writer, server=server)
        self._links.add(link)
        try:
            await asyncio.gather(self._pump(link, reader, "to_server"), self._pump(link, upstream, "to_client"))
        finally:
            self._close(link)

    async def _pump(self, link: Link, source: asyncio.StreamReader, direction: Direction) -> None:
        sink = link.server if direction == "to_server" else link.client
        try:
            while data := await source.read(65536):
                if self.delay:
                    await asyncio.sleep(self.delay)
                await self._flowing[direction].wait()
                passed = self._heard(link, data) if direction == "to_server" else self._answer(link, data)
                if passed is None:
                    return
                sink.write(passed)
                await sink.drain()
        except OSError:  # one side was reset: the other one is told below, like after an orderly end
            pass
        await self._flowing[direction].wait()
        self._close(link)

    def _heard(self, link: Link, data: bytes) -> bytes:
        link.request = data if link.answered else link.request + data
        link.answered = False
        return data

    def _answer(self, link: Link, data: bytes) -> bytes | None:
        """What of a server's data goes to the client; None when the connection is to be reset."""
        if not link.answered:
            link.answered = True
            wanted = self._swallow
            if wanted is not None and wanted.to in link.request:
                if wanted.skip == 0:
                    link.swallowing, self._swallow, link.reply = wanted, None, b""
                else:
                    wanted.skip -= 1
        if link.swallowing is not None:
            return self._swallowing(link, link.swallowing, data)
        if self._reset_after is not None and link.sent + len(data) >= self._reset_after:
            link.client.write(data[: self._reset_after - link.sent])
            self._reset(link)
            return None
        link.sent += len(data)
        return data

    def _swallowing(self, link: Link, swallow: Swallow, data: bytes) -> bytes | None:
        link.reply += data
        if not swallow.ends(link.reply):
            return b""
        self.swallowed.set()
        if swallow.then == "reset":
            self._reset(link)
            return None
        return b""

    def _reset(self, link: Link) -> None:
        for writer in (link.client, link.server):
            _reset(writer)
        self._links.discard(link)

    def _close(self, link: Link) -> None:
        for writer in (link.client, link.server):
            writer.close()
        self._links.discard(link)

    # -- life -----------------------------------------------------------------------------------------------------------

    async def _gather(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the transports close in the next turn of the loop

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.refuse()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes a connection with RST, dropping what was not sent."""
    if not writer.is_closing():
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOTHING)
        writer.transport.abort()
