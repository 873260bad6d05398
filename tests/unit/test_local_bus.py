"""What the bus of a single process does beyond the contract of all buses (tests/contract/test_bus.py)."""

from __future__ import annotations

import asyncio
from typing import Any

from runward.ports.bus import Hint, Topic
from runward.stores.memory import LocalBus

ONE, TWO = Hint(Topic.READY, "1"), Hint(Topic.READY, "2")


async def round_of_the_loop() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_hints_of_one_round_are_handed_over_once_each_in_order() -> None:
    bus, heard = LocalBus(), list[Hint]()
    bus.subscribe(heard.append)
    await bus.start()
    bus.publish([TWO, ONE])
    bus.publish([ONE, TWO])
    await round_of_the_loop()
    assert heard == [TWO, ONE]
    bus.publish([ONE])
    await round_of_the_loop()
    assert heard == [TWO, ONE, ONE]


async def test_hints_wait_while_the_bus_is_not_started() -> None:
    bus, heard = LocalBus(), list[Hint]()
    bus.subscribe(heard.append)
    bus.publish([ONE])
    health = [bus.healthy]
    await bus.start()
    await round_of_the_loop()
    assert heard == [ONE]
    health.append(bus.healthy)
    await bus.stop()
    bus.publish([TWO])
    await round_of_the_loop()
    assert heard == [ONE]
    health.append(bus.healthy)
    await bus.start()
    await round_of_the_loop()
    assert heard == [ONE, TWO]
    assert health == [False, True, False]


def test_a_bus_whose_loop_is_gone_may_still_be_told_and_started_anew() -> None:
    bus, heard = LocalBus(), list[Hint]()
    bus.subscribe(heard.append)
    asyncio.run(bus.start())
    bus.publish([ONE])
    assert heard == []

    async def again() -> None:
        await bus.start()
        await round_of_the_loop()

    asyncio.run(again())
    assert heard == [ONE]


async def test_a_subscriber_that_raises_makes_nobody_deaf_and_is_reported() -> None:
    bus, heard, reports = LocalBus(), list[Hint](), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))

    def broken(hint: Hint) -> None:
        raise RuntimeError(hint.uid)

    bus.subscribe(broken)
    bus.subscribe(heard.append)
    await bus.start()
    bus.publish([ONE, TWO])
    await round_of_the_loop()
    assert heard == [ONE, TWO]
    assert [str(report["exception"]) for report in reports] == ["1", "2"]


async def test_one_who_leaves_while_a_hint_goes_round_does_not_hear_it() -> None:
    bus, heard = LocalBus(), list[Hint]()
    bus.subscribe(lambda hint: leave())
    leave = bus.subscribe(heard.append)
    await bus.start()
    bus.publish([ONE])
    await round_of_the_loop()
    assert heard == []
