"""The bus between processes, over whatever carries text from each of them to all: what is the same for every such medium.

A payload is `<process> <hint>,<hint>…`, a hint being its topic's letter and the uid. So a process knows its own echo, and by that whether
it is heard at all: when it begins to listen, and whenever it has heard nothing for a while. One echo is heard by everybody, so in a service
that is at rest only one process at a time asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from runward.core.errors import RunwardError
from runward.ports.bus import Hint, Topic
from runward.ports.clock import Chance, Clock
from runward.ports.telemetry import Telemetry
from runward.stores.memory import LocalBus
from runward.stores.outbox import ANYTHING, Outbox

GATHER_SECONDS: Final = 0.005
"""How long hints wait for company after others were sent. A hint after a pause is sent at once."""

ECHO_SECONDS: Final = 2.0
"""How long a process waits for its own echo."""

SEND_AGAIN_SECONDS: Final = (0.2, 1.0)
LISTEN_AGAIN_SECONDS: Final = (0.2, 5.0)
UNHEARD_SECONDS: Final = (1.0, 60.0)
"""The same for a process that could connect and was not heard, which is not likely to change."""

TOPICS: Final = {topic.value: topic for topic in Topic}


class Medium(Protocol):
    """Carries payloads to every process that listens, the sender included; some may be lost. It repeats nothing by itself."""

    @property
    def longest(self) -> int:
        """The longest payload it takes, in bytes."""
        ...

    @property
    def silence(self) -> float:
        """How many seconds without any payload are too many: the connection may be dead without a sign."""
        ...

    async def send(self, payloads: Sequence[str]) -> None:
        """Raises Unavailable within seconds; nobody knows then which of them were sent."""
        ...

    def listening(self, hear: Callable[[str], None]) -> AbstractAsyncContextManager[asyncio.Event]:
        """Inside of it `hear` is called with every payload; the event is set when the connection is lost. Raises Unavailable."""
        ...

    async def close(self) -> None:
        """Lets go of what `send` keeps; the next one connects anew."""
        ...


class Unheard(Exception):
    """The echo did not come."""


class Backoff:
    """Waits that double from the first to the second number of seconds, each of them half to one and a half times as long."""

    def __init__(self, seconds: tuple[float, float], clock: Clock, chance: Chance) -> None:
        self._shortest, self._longest = seconds
        self._clock = clock
        self._chance = chance
        self.reset()

    def reset(self) -> None:
        self._next = self._shortest

    async def wait(self) -> None:
        seconds, self._next = self._next, min(self._next * 2, self._longest)
        await self._clock.sleep(seconds * (0.5 + self._chance.jitter()))


class Relay:
    """`ports.bus.Bus` over a medium. Hints are sent whether anybody listens or not; but when one of the two fails, both begin anew: their
    connections share a fate, and one of them may not know it yet."""

    def __init__(self, medium: Medium, *, clock: Clock, chance: Chance, telemetry: Telemetry) -> None:
        self._medium = medium
        self._clock = clock
        self._chance = chance
        self._telemetry = telemetry
        self._me = chance.uid()
        self._local = LocalBus()
        self._outbox = Outbox()
        self._send_again = Backoff(SEND_AGAIN_SECONDS, clock, chance)
        self._listen_again = Backoff(LISTEN_AGAIN_SECONDS, clock, chance)
        self._unheard = Backoff(UNHEARD_SECONDS, clock, chance)
        self._tasks: list[asyncio.Task[None]] = []
        self._echo = asyncio.Event()
        self._lost = asyncio.Event()
        self._heard_at = 0.0
        self._healthy = False
        self._told: set[str] = set()

    @property
    def healthy(self) -> bool:
        return self._healthy

    def publish(self, hints: Iterable[Hint]) -> None:
        hints = tuple(hints)
        self._local.publish(hints)
        self._outbox.put(hints)

    def subscribe(self, handler: Callable[[Hint], None]) -> Callable[[], None]:
        return self._local.subscribe(handler)

    async def start(self) -> None:
        await self._local.start()
        self._outbox.open()
        self._tasks = [asyncio.create_task(self._send_forever()), asyncio.create_task(self._listen_forever())]

    async def stop(self) -> None:
        self._outbox.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._healthy = False
        await self._send()
        await self._medium.close()
        await self._local.stop()

    # -- sending --------------------------------------------------------------------------------------------------------

    async def _send_forever(self) -> None:
        while True:
            await self._outbox.filled()
            if await self._send():
                self._send_again.reset()
                await self._clock.sleep(GATHER_SECONDS)
            else:
                self._lost.set()
                await self._send_again.wait()

    async def _send(self) -> bool:
        """Sends what waits, each hint once. What was not sent for sure waits again."""
        hints = self._outbox.take()
        sent = False
        try:
            if hints:
                await self._medium.send([*payloads(self._me, hints, longest=self._medium.longest)])
            sent = True
        except RunwardError:  # listening fails as well, and says so
            pass
        except Exception as error:  # noqa: BLE001 - a bug: the hints have to leave all the same
            self._telemetry.problem("bus_broken", error)
        finally:
            if not sent:
                self._outbox.put_back(hints)
        return sent

    # -- listening ------------------------------------------------------------------------------------------------------

    async def _listen_forever(self) -> None:
        while True:
            again = self._listen_again
            try:
                await self._listen()
                self._polls("lost")
            except Unheard:
                again = self._unheard
                self._polls("unheard")
            except RunwardError as error:
                self._polls("away", detail=error.detail)
            except Exception as error:  # noqa: BLE001 - a bug: who stopped listening silently would look alive
                self._healthy = False
                self._telemetry.problem("bus_broken", error)
            await self._medium.close()
            await again.wait()

    def _polls(self, reason: str, **values: str) -> None:
        """Hints may be lost from here on. What keeps them is said once, until they are carried again."""
        self._healthy = False
        if (said := f"{reason} {values}") not in self._told:
            self._told.add(said)
            self._telemetry.event("bus_polls", reason=reason, **values)

    async def _listen(self) -> None:
        """Listens until the connection is lost. Raises Unavailable, and Unheard when not even this process's own hints arrive."""
        async with self._medium.listening(self._hear) as lost:
            self._lost = lost
            await self._ask_for_echo()
            self._local.publish([ANYTHING])
            await self._clock.sleep(0)  # they are told before the bus is healthy, so that nobody hears of a gap it did not see
            self._healthy = True
            self._told.clear()
            for backoff in (self._listen_again, self._unheard):
                backoff.reset()
            self._telemetry.event("bus_listens")
            while await self._hears(lost):
                pass

    async def _hears(self, lost: asyncio.Event) -> bool:
        """Waits for a while; whether the connection still is one. Chance keeps processes from asking for an echo at the same moment."""
        quiet = self._medium.silence * (0.5 + self._chance.jitter() / 2)
        if await self._set_within(lost, self._heard_at + quiet - self._clock.monotonic()):
            return False
        if self._clock.monotonic() - self._heard_at < quiet:  # somebody spoke meanwhile
            return True
        try:
            await self._ask_for_echo()
        except (Unheard, RunwardError):
            return False
        return True

    async def _ask_for_echo(self) -> None:
        self._echo.clear()
        await self._medium.send([f"{self._me} "])
        if not await self._set_within(self._echo, ECHO_SECONDS):
            raise Unheard

    async def _set_within(self, event: asyncio.Event, seconds: float) -> bool:
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._clock.sleep(seconds))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return event.is_set()
        finally:
            for wait in waits:
                wait.cancel()

    def _hear(self, payload: str) -> None:
        process, _, hints = payload.partition(" ")
        self._heard_at = self._clock.monotonic()
        if process == self._me:
            self._echo.set()
        else:
            self._local.publish(Hint(TOPICS[hint[0]], hint[1:]) for hint in hints.split(",") if hint and hint[0] in TOPICS)


def payloads(process: str, hints: Iterable[Hint], *, longest: int) -> Iterator[str]:
    """Hints in as few payloads as they fit into."""
    head = f"{process} "
    parts: list[str] = []
    size = len(head)
    for hint in hints:
        part = f"{hint.topic.value}{hint.uid}"
        length = len(part.encode()) + 1
        if parts and size + length > longest:
            yield head + ",".join(parts)
            parts, size = [], len(head)
        parts.append(part)
        size += length
    if parts:
        yield head + ",".join(parts)
