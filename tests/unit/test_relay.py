"""What every bus between processes does alike, on a medium that fails as it is told to, and on a clock that is turned by hand."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import pytest

from runward.core.errors import Unavailable
from runward.engine.clock import SystemChance
from runward.ports.bus import Hint, Topic
from runward.stores.outbox import ANYTHING, MAX_WAITING, Outbox
from runward.stores.relay import ECHO_SECONDS, GATHER_SECONDS, LISTEN_AGAIN_SECONDS, SEND_AGAIN_SECONDS, Relay, payloads
from runward.testing.clock import VirtualClock


class Room:
    """A medium within the process."""

    longest = 1_000
    silence = 100.0

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.closed = 0
        self.error: Exception | None = None
        self.hangs = False
        self.deaf = False
        self._ears: dict[asyncio.Event, Callable[[str], None]] = {}

    async def send(self, payloads: Sequence[str]) -> None:
        if self.error is not None:
            raise self.error
        if self.hangs:
            await asyncio.Event().wait()
        for payload in payloads:
            self.sent.append(payload)
            for hear in () if self.deaf else self._ears.values():
                hear(payload)

    @asynccontextmanager
    async def listening(self, hear: Callable[[str], None]) -> AsyncIterator[asyncio.Event]:
        if self.error is not None:
            raise self.error
        lost = asyncio.Event()
        self._ears[lost] = hear
        try:
            yield lost
        finally:
            del self._ears[lost]

    async def close(self) -> None:
        self.closed += 1

    def cut(self) -> None:
        for lost in self._ears:
            lost.set()

    @property
    def hints(self) -> list[str]:
        """What was sent so far but for questions for an echo."""
        return [hints for _, _, hints in (payload.partition(" ") for payload in self.sent) if hints]


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.problems: list[BaseException | None] = []

    def event(self, name: str, **values: Any) -> None:
        self.events.append((name, values))

    def problem(self, name: str, error: BaseException | None = None, **values: Any) -> None:
        self.problems.append(error)


class House:
    """A relay in a room."""

    def __init__(self) -> None:
        self.room, self.clock, self.told = Room(), VirtualClock(), Told()
        self.relay = Relay(self.room, clock=self.clock, chance=SystemChance(), telemetry=self.told)
        self.heard: list[Hint] = []
        self.relay.subscribe(self.heard.append)

    async def until(self, over: Callable[[], bool], seconds: float = 60) -> None:
        await self.clock.pass_time(over, limit_seconds=seconds)

    async def sends_more_than(self, count: int, seconds: float) -> None:
        """Raises TimeoutError when it does not within so many seconds."""
        await self.until(lambda: len(self.room.sent) > count, seconds)

    async def turns(self) -> None:
        """Everybody gets some turns, and no time passes."""
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    await house.relay.start()
    await house.until(lambda: house.relay.healthy)
    yield house
    house.room.hangs = False
    await house.relay.stop()


def ready(number: int) -> Hint:
    return Hint(Topic.READY, str(number))


async def test_the_first_hint_leaves_at_once_and_those_that_follow_within_5_ms_together(house: House) -> None:
    assert GATHER_SECONDS == 0.005
    house.relay.publish([ready(1)])
    await house.turns()
    assert house.room.hints == ["r1"]
    for number in (2, 3, 2):
        house.relay.publish([ready(number)])
        await house.turns()
    assert house.room.hints == ["r1"]
    house.clock.advance(GATHER_SECONDS)
    await house.turns()
    assert house.room.hints == ["r1", "r2,r3"]
    house.clock.advance(GATHER_SECONDS)
    house.relay.publish([ready(4)])
    await house.turns()
    assert house.room.hints == ["r1", "r2,r3", "r4"]


async def test_what_is_published_while_something_is_on_its_way_waits_for_it(house: House) -> None:
    """So there is one payload under way, and not a heap of them."""
    house.room.hangs = True
    house.relay.publish([ready(1)])
    await house.turns()
    house.relay.publish([ready(2)])
    await house.turns()
    house.room.hangs = False
    await house.relay.stop()
    assert house.room.hints == ["r1,r2"]


async def test_hints_that_could_not_be_sent_are_sent_later_in_their_order(house: House) -> None:
    house.room.error = Unavailable("away")
    house.relay.publish([ready(1)])
    await house.turns()
    house.relay.publish([ready(2)])
    await house.turns()
    house.room.error = None
    await house.until(lambda: house.room.hints == ["r1,r2"], 1.5 * SEND_AGAIN_SECONDS[0])


async def test_a_hint_that_could_not_be_sent_begins_both_connections_anew(house: House) -> None:
    house.heard.clear()
    house.room.error = Unavailable("Nobody answers.")
    house.relay.publish([ready(1)])
    await house.until(lambda: not house.relay.healthy)
    await house.turns()
    assert house.room.closed == 1
    house.room.error = None
    await house.until(lambda: house.relay.healthy)
    assert house.heard.count(ANYTHING) == 1


async def test_an_outage_is_said_once_and_the_next_one_again(house: House) -> None:
    for _ in range(2):
        house.told.events.clear()
        house.room.error = Unavailable("Nobody answers.")
        house.room.cut()
        await house.until(lambda: not house.relay.healthy)
        with pytest.raises(TimeoutError):
            await house.until(lambda: house.relay.healthy, 60)
        house.room.error = None
        await house.until(lambda: house.relay.healthy)
        away = ("bus_polls", {"reason": "away", "detail": "Nobody answers."})
        assert house.told.events == [("bus_polls", {"reason": "lost"}), away, ("bus_listens", {})]


async def test_after_a_long_outage_the_next_one_is_short(house: House) -> None:
    house.room.error = Unavailable("Nobody answers.")
    house.room.cut()
    await house.until(lambda: not house.relay.healthy)
    with pytest.raises(TimeoutError):
        await house.until(lambda: house.relay.healthy, 60)
    house.room.error = None
    await house.until(lambda: house.relay.healthy)
    house.room.cut()
    await house.until(lambda: not house.relay.healthy)
    await house.until(lambda: house.relay.healthy, 1.5 * LISTEN_AGAIN_SECONDS[0])


async def test_waits_between_attempts_grow_and_have_an_end(house: House) -> None:
    attempts: list[float] = []

    def refused(hear: Callable[[str], None]) -> NoReturn:
        attempts.append(house.clock.monotonic())
        raise Unavailable("Nobody answers.")

    house.room.listening = refused  # type: ignore[method-assign]
    house.room.cut()
    await house.until(lambda: len(attempts) == 12, 120)
    waits = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert all(wait < 7.5 for wait in waits) and min(waits[-5:]) >= 2.5 and len(set(waits)) == len(waits)


async def test_no_bug_ends_sending_or_listening(house: House) -> None:
    house.room.error = ZeroDivisionError()
    house.relay.publish([ready(1)])
    house.room.cut()
    await house.until(lambda: len(house.told.problems) >= 3)
    assert not house.relay.healthy
    house.room.error = None
    await house.until(lambda: house.relay.healthy and house.room.hints == ["r1"])


async def test_a_silence_that_an_echo_breaks_is_no_gap(house: House) -> None:
    house.heard.clear()
    for asked in (1, 2, 3):
        since = house.clock.monotonic()
        await house.sends_more_than(asked, Room.silence)
        assert house.clock.monotonic() - since >= Room.silence / 2
    assert house.relay.healthy and house.heard == [] and house.room.hints == []


async def test_who_hears_others_asks_for_no_echo(house: House) -> None:
    for number in range(20):
        await house.room.send([f"somebody r{number}"])
        house.clock.advance(Room.silence * 0.4)
        await house.turns()
    assert [sent for sent in house.room.sent[1:] if sent.endswith(" ")] == []


async def test_a_silence_that_no_echo_breaks_is_a_gap(house: House) -> None:
    house.heard.clear()
    house.room.deaf = True
    await house.until(lambda: not house.relay.healthy, Room.silence + ECHO_SECONDS)
    house.room.deaf = False
    await house.until(lambda: house.relay.healthy)
    assert house.heard == [ANYTHING]


async def test_what_is_not_ours_is_not_heard(house: House) -> None:
    house.heard.clear()
    await house.room.send(["", " ", "somebody", "somebody ?x,,r1,zz", "x" * 5_000])
    await house.turns()
    assert house.heard == [ready(1)]


async def test_stopping_in_the_middle_of_a_payload_sends_it_again(house: House) -> None:
    house.room.hangs = True
    house.relay.publish([ready(1)])
    await house.turns()
    house.room.hangs = False
    await house.relay.stop()
    assert house.room.hints == ["r1"]


async def test_an_outbox_is_bounded() -> None:
    outbox = Outbox()
    outbox.put(ready(number) for number in range(MAX_WAITING))
    taken = outbox.take()
    assert len(taken) == MAX_WAITING
    outbox.put([ready(MAX_WAITING)])
    outbox.put_back(taken)
    assert outbox.take() == (ANYTHING,)


def test_payloads_are_as_few_as_can_be_and_never_too_long() -> None:
    hints = [ready(number) for number in range(100, 400)]
    texts = [*payloads("me", hints, longest=100)]
    assert max(map(len, texts)) <= 100 and len(texts) == -(-300 // ((100 - 3) // 5))
    assert [part for text in texts for part in text.removeprefix("me ").split(",")] == [f"r{hint.uid}" for hint in hints]
    assert [*payloads("me", [], longest=100)] == []
