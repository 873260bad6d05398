"""A faulty network between a process and its Postgres: `tests.support.proxy` in a thread, for tests that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tests.support.proxy import Proxy

T = TypeVar("T")
SECONDS = 30


class Wire:
    """The proxy in front of the database of a URL; its `url` leads through it. Methods are the proxy's, and return when they are done."""

    def __init__(self, proxy: Proxy, loop: asyncio.AbstractEventLoop, url: str) -> None:
        self._proxy = proxy
        self._loop = loop
        self.url = proxy.url(url)

    def freeze(self) -> None:
        self._call(self._proxy.freeze)

    def thaw(self) -> None:
        self._call(self._proxy.thaw)

    def cut(self) -> None:
        """Resets every open connection."""
        self._call(self._proxy.cut)

    def swallow(self, *, to: bytes, skip: int = 0, hang: bool = False) -> None:
        """The client does not get the `skip + 1`-th reply to what contains `to`; the database has done it."""
        self._call(lambda: self._proxy.swallow_reply(to=to, skip=skip, then="hang" if hang else "reset"))

    def await_swallowed(self) -> None:
        self._run(asyncio.wait_for(self._proxy.swallowed.wait(), SECONDS))

    @property
    def has_swallowed(self) -> bool:
        return self._proxy.swallowed.is_set()

    def _call(self, work: Callable[[], object]) -> None:
        async def called() -> None:
            work()

        self._run(called())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)


@contextmanager
def proxied(url: str) -> Iterator[Wire]:
    """A wire to the database of a URL."""
    where = urlsplit(url)
    assert where.hostname and where.port
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    proxy = Proxy(where.hostname, where.port)
    try:
        asyncio.run_coroutine_threadsafe(proxy.accept(), loop).result(SECONDS)
        yield Wire(proxy, loop, url)
    finally:
        asyncio.run_coroutine_threadsafe(proxy.refuse(), loop).result(SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
