"""What really happened, counted outside the service: every effect of the test agents is reported here, and may be held here.

    ledger.hold("charge 7")                      # whoever comes to this point waits
    deployment.create(...)
    call = ledger.arrived("charge 7")            # the effect has happened, and its process is in the middle of the call
    program.kill()

A point is where an agent's code is: `<tool> <order_id>`, or `model <name>`. So a test knows exactly how far a process has come, and kills
it there, without a hook inside the service.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

SECONDS = 30.0
"""How long a test waits for something that has to happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Somebody came to a point: for a tool's call that is its effect."""

    point: str
    pid: int
    key: str | None
    """The call's idempotency key; None for a model."""
    attempt: int | None


class Ledger:
    """A server on 127.0.0.1 that writes down arrivals and answers each with its number at its point, once the point is not held, and
    `slow_seconds` later."""

    def __init__(self, *, slow_seconds: float = 0) -> None:
        self._slow_seconds = slow_seconds
        self._news = threading.Condition()
        self._arrivals: list[Arrival] = []
        self._held: set[str] = set()
        self._closed = False
        self._listening = socket.create_server(("127.0.0.1", 0))
        host, port = self._listening.getsockname()
        self.address = f"{host}:{port}"
        threading.Thread(target=self._accept, daemon=True).start()

    # -- for tests ------------------------------------------------------------------------------------------------------

    def hold(self, *points: str) -> None:
        """Whoever comes to these points from now on waits there."""
        with self._news:
            self._held.update(points)

    def release(self, *points: str) -> None:
        """Lets those go on who wait at these points, or (without points) at any, and those who come later."""
        with self._news:
            self._held.difference_update(points or set(self._held))
            self._news.notify_all()

    def arrived(self, point: str, count: int = 1) -> Arrival:
        """The `count`-th arrival at a point, waited for."""
        self.wait(lambda: len(self.at(point)) >= count, f"arrival {count} at {point!r}")
        return self.at(point)[count - 1]

    def wait(self, over: Callable[[], bool], what: str) -> None:
        """Returns once something is so that arrivals make so."""
        with self._news:
            assert self._news.wait_for(over, SECONDS), f"no {what}; so far: {dict(self.counts())}"

    def at(self, point: str) -> list[Arrival]:
        """Who has come to a point, in order."""
        return [arrival for arrival in tuple(self._arrivals) if arrival.point == point]

    @property
    def arrivals(self) -> tuple[Arrival, ...]:
        """Everybody who has come so far, in order."""
        return tuple(self._arrivals)

    def counts(self) -> Counter[str]:
        """How often somebody has come to each point."""
        return Counter(arrival.point for arrival in tuple(self._arrivals))

    # -- for agents -----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError), connection.makefile("rb") as lines:  # an error means that its process is dead
            line = lines.readline()
            if not line.endswith(b"\n"):  # it died before it had said anything: there was no effect
                return
            told = json.loads(line)
            if "asks" in told:
                connection.sendall(b"%d\n" % sum(arrival.key == told["asks"] for arrival in tuple(self._arrivals)))
                return
            arrival = Arrival(point=told["point"], pid=told["pid"], key=told.get("key"), attempt=told.get("attempt"))
            with self._news:
                self._arrivals.append(arrival)
                number = len(self.at(arrival.point))
                self._news.notify_all()
                self._news.wait_for(lambda: self._closed or arrival.point not in self._held)
                self._news.wait_for(lambda: self._closed, self._slow_seconds)
                if self._closed:
                    return
            connection.sendall(b"%d\n" % number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._news:
            self._closed = True
            self._news.notify_all()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
