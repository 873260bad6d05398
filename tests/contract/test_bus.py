"""The bus: hints reach every process, and one that missed some is told to read again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable

import pytest

from runward.ports.bus import Bus, Hint, Topic
from tests.contract.backends import BusPair
from tests.contract.builders import uid_of

ANYTHING = Hint(Topic.ANYTHING)


class Ear:
    """A subscriber that remembers. A vague one is content to hear that there is something."""

    def __init__(self, bus: Bus, vague: bool = False) -> None:
        self._vague = vague
        self.heard: list[Hint] = []
        self.threads: set[int] = set()
        self._news = asyncio.Event()
        self.unsubscribe = bus.subscribe(self._hear)

    def _hear(self, hint: Hint) -> None:
        self.heard.append(hint)
        self.threads.add(threading.get_ident())
        self._news.set()

    async def until(self, done: Callable[[set[Hint]], bool]) -> None:
        """Returns once what was heard is enough."""
        async with asyncio.timeout(10):
            while not done(set(self.heard)):
                self._news.clear()
                await self._news.wait()

    async def hears(self, hints: Iterable[Hint]) -> None:
        wanted = {ANYTHING} if self._vague else set(hints)
        await self.until(lambda heard: wanted <= heard)


async def healthy(bus: Bus) -> None:
    """Returns once the bus carries hints."""
    async with asyncio.timeout(10):
        while not bus.healthy:  # noqa: ASYNC110  the port has no signal for it: whoever waits polls
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("topic", [Topic.READY, Topic.MAIL, Topic.FRAMES, Topic.KEYS])
async def test_a_hint_reaches_every_process_and_the_publishers_own(buses: BusPair, topic: Topic) -> None:
    await healthy(buses.there)
    here, there = Ear(buses.here), Ear(buses.there, buses.vague)
    hint = Hint(topic, uid_of(1))
    buses.here.publish([hint])
    await here.hears([hint])
    await there.hears([hint])


async def test_a_hint_about_nobody_in_particular(buses: BusPair) -> None:
    await healthy(buses.there)
    ears = [Ear(buses.here), Ear(buses.there, buses.vague)]
    buses.here.publish([ANYTHING, Hint(Topic.READY)])
    for ear in ears:
        await ear.hears([ANYTHING, Hint(Topic.READY)])


async def test_hints_go_both_ways(buses: BusPair) -> None:
    await healthy(buses.here)
    await healthy(buses.there)
    here, there = Ear(buses.here, buses.vague), Ear(buses.there, buses.vague)
    buses.here.publish([Hint(Topic.MAIL, uid_of(1))])
    buses.there.publish([Hint(Topic.MAIL, uid_of(2))])
    for ear in (here, there):
        await ear.hears([Hint(Topic.MAIL, uid_of(1)), Hint(Topic.MAIL, uid_of(2))])


async def test_every_subscriber_hears(buses: BusPair) -> None:
    await healthy(buses.there)
    ears = [Ear(buses.there, buses.vague) for _ in range(5)]
    buses.here.publish([Hint(Topic.FRAMES, uid_of(1))])
    for ear in ears:
        await ear.hears([Hint(Topic.FRAMES, uid_of(1))])


async def test_publishing_returns_before_anybody_hears(buses: BusPair) -> None:
    """So no publisher is ever inside a subscriber."""
    ear = Ear(buses.here)
    hint = Hint(Topic.READY, uid_of(1))
    buses.here.publish([hint])
    assert ear.heard == []
    await ear.hears([hint])


async def test_publishing_nothing(buses: BusPair) -> None:
    ear = Ear(buses.here)
    buses.here.publish([])
    buses.here.publish([Hint(Topic.READY, uid_of(1))])
    await ear.hears([Hint(Topic.READY, uid_of(1))])


async def test_hints_of_one_call_are_carried_once_each(buses: BusPair) -> None:
    await healthy(buses.there)
    there = Ear(buses.there, buses.vague)
    buses.here.publish([Hint(Topic.READY, uid_of(1))] * 50)
    buses.here.publish([Hint(Topic.READY, uid_of(2))])
    await there.hears([Hint(Topic.READY, uid_of(1)), Hint(Topic.READY, uid_of(2))])
    assert there.heard.count(Hint(Topic.READY, uid_of(1))) == (0 if buses.vague else 1)


async def test_thousands_of_hints_arrive(buses: BusPair) -> None:
    """More than fits into one message of any medium."""
    await healthy(buses.there)
    there = Ear(buses.there, buses.vague)
    hints = [Hint(topic, uid_of(number)) for number in range(1, 1_001) for topic in (Topic.MAIL, Topic.READY, Topic.FRAMES)]
    buses.here.publish(hints)
    await there.hears(hints)


async def test_handlers_are_called_on_the_loop_that_started_the_bus(buses: BusPair) -> None:
    await healthy(buses.there)
    here, there = Ear(buses.here), Ear(buses.there, buses.vague)
    hint = Hint(Topic.READY, uid_of(1))
    await asyncio.to_thread(buses.here.publish, [hint])
    await here.hears([hint])
    await there.hears([hint])
    assert here.threads == there.threads == {threading.get_ident()}


async def test_who_has_unsubscribed_hears_nothing(buses: BusPair) -> None:
    await healthy(buses.there)
    gone, there = Ear(buses.there, buses.vague), Ear(buses.there, buses.vague)
    gone.unsubscribe()
    gone.unsubscribe()
    buses.here.publish([Hint(Topic.READY, uid_of(1))])
    await there.hears([Hint(Topic.READY, uid_of(1))])
    assert gone.heard == []


async def test_a_subscriber_may_unsubscribe_and_subscribe_while_it_hears(buses: BusPair) -> None:
    await healthy(buses.there)
    later: list[Ear] = []

    def once(hint: Hint) -> None:
        unsubscribe()
        later.append(Ear(buses.there, buses.vague))

    unsubscribe = buses.there.subscribe(once)
    there = Ear(buses.there, buses.vague)
    buses.here.publish([Hint(Topic.READY, uid_of(1))])
    await there.hears([Hint(Topic.READY, uid_of(1))])
    buses.here.publish([Hint(Topic.READY, uid_of(2))])
    await there.hears([Hint(Topic.READY, uid_of(2))])
    assert len(later) == 1
    await later[0].hears([Hint(Topic.READY, uid_of(2))])


async def test_publishing_never_raises(buses: BusPair) -> None:
    await buses.here.stop()
    buses.here.publish([Hint(Topic.READY, uid_of(1))])
    assert not buses.here.healthy


async def test_stopping_sends_what_is_gathered(buses: BusPair) -> None:
    await healthy(buses.there)
    here, there = Ear(buses.here), Ear(buses.there, buses.vague)
    hint = Hint(Topic.MAIL, uid_of(1))
    buses.here.publish([hint])
    await buses.here.stop()
    await here.hears([hint])
    await there.hears([hint])


async def test_stopping_twice_is_fine(buses: BusPair) -> None:
    await buses.here.stop()
    await buses.here.stop()


# -- what can break ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buses", ["postgres", "redis"], indirect=True)
async def test_I_48_after_a_gap_everything_is_read_again(buses: BusPair) -> None:
    assert buses.cut is not None
    await healthy(buses.there)
    for _ in range(2):
        ears = [Ear(buses.there, buses.vague), Ear(buses.there, buses.vague)]
        await buses.cut()
        for ear in ears:
            await ear.hears([ANYTHING])
        await healthy(buses.there)
        hint = Hint(Topic.MAIL, uid_of(1))
        buses.here.publish([hint])
        for ear in ears:
            await ear.hears([hint])
            assert ear.heard.count(ANYTHING) == 1
            ear.unsubscribe()


@pytest.mark.parametrize("buses", ["postgres", "redis"], indirect=True)
async def test_a_bus_knows_that_it_may_miss_hints(buses: BusPair) -> None:
    assert buses.cut is not None
    await healthy(buses.there)
    ear = Ear(buses.there, buses.vague)
    health: list[bool] = []

    async def watch() -> None:
        while ANYTHING not in ear.heard:
            health.append(buses.there.healthy)
            await asyncio.sleep(0)

    await asyncio.gather(watch(), buses.cut())
    assert health[0] and not all(health)
    await healthy(buses.there)


@pytest.mark.parametrize("medium", ["postgres", "redis"])
async def test_a_bus_starts_without_its_medium(medium: str) -> None:
    from tests.contract.backends_sql import postgres_buses, redis_buses

    nowhere = {"postgres": "postgresql+asyncpg://postgres@127.0.0.1:9/nothing", "redis": "redis://127.0.0.1:9/0"}
    pair = await {"postgres": postgres_buses, "redis": redis_buses}[medium](nowhere[medium])
    here = Ear(pair.here)
    await pair.here.start()
    assert not pair.here.healthy
    pair.here.publish([Hint(Topic.READY, uid_of(1))])
    await here.hears([Hint(Topic.READY, uid_of(1))])
    await pair.here.stop()
    await pair.close()
