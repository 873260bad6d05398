"""Servers of asyncio for tests that are not: they live in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def background(server: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """`with background(Web()) as web`: entered and left on the thread's loop, and serving meanwhile."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        entered = asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
        try:
            yield entered
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
