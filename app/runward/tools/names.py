"""Which addresses a name has: looked up in threads of their own, and bounded."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from runward.core.errors import ToolError
from runward.tools.containment import Raised, caught
from runward.tools.threads import Threads

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a name. Raises OSError."""

MAX_LOOKUPS: Final = 32
"""How many names are looked up at once; further ones wait, for as long as their requests do."""
MAX_ABANDONED: Final = 200
"""How many look-ups that nobody waits for any more may still be under way; beyond it none is begun."""


def looked_up(host: str, port: int) -> Sequence[str]:
    """The addresses of a name as this machine knows them. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))


class Resolver:
    """Looks names up, whoever has named them. A name server that says nothing holds a thread for half a minute, and the few threads that
    the event loop has for this look up the database's name, too: so these are others. Belongs to one event loop."""

    def __init__(self, look_up: Callable[[str, int], Sequence[str]] = looked_up) -> None:
        self._look_up = look_up
        self._threads = Threads(limit=MAX_LOOKUPS, most_abandoned=MAX_ABANDONED)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Raises OSError, and UnicodeError for what can be no name."""
        try:
            found = await self._threads.run(lambda: caught(lambda: self._look_up(host, port)))
        except ToolError as error:
            raise OSError("Too many names are still being looked up.") from error
        if isinstance(found, Raised):
            raise found.error
        return found.value
