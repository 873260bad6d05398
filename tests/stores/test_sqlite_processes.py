"""Several processes on one SQLite file: none waits for seconds, none loses anything, and one that dies harms nobody."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

from runward.ports.bus import Hint, Topic
from runward.stores.sql.sqlite.bus import FileBus
from runward.stores.sql.sqlite.writer import GROUP
from tests.contract.builders import created, running, stored, uid_of
from tests.stores.conftest import opened, until, url_of

WRITES = """
import asyncio, sys, time
from runward.core.kernel.commit import Created, Written
from tests.contract.builders import changes, claim_request, new_actor
from tests.stores.conftest import stores_of

async def main(url, first, count):
    stores = stores_of(url)
    await stores.store.open()
    print("ready", flush=True)
    sys.stdin.readline()
    longest = 0.0
    for number in range(first, first + count):
        began = time.monotonic()
        assert isinstance(await stores.store.create(new_actor(number), None), Created)
        claims = await stores.store.claim(claim_request(f"b{number}"))
        assert isinstance(await stores.store.commit(changes(claims.taken[0].envelope)), Written)
        longest = max(longest, time.monotonic() - began)
        if count > 1000 and number == first + 50:
            print("busy", flush=True)
    await stores.store.close()
    print(longest)

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


def start(file: Path, first: int, count: int) -> subprocess.Popen[str]:
    """A process that will write so many actors, once it is told to; it is ready."""
    command = [sys.executable, "-c", WRITES, url_of(file), str(first), str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


async def test_A_04_processes_that_write_at_once_all_get_their_turn(file: Path) -> None:
    processes = [await asyncio.to_thread(start, file, first, 150) for first in (1000, 2000, 3000)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    longest = [float((await asyncio.to_thread(process.communicate, timeout=60))[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert max(longest) < 3  # three transactions beside two others; the driver's own waiting took up to five seconds for one
    stores = await opened(url_of(file))
    uids = [uid_of(first + number) for first in (1000, 2000, 3000) for number in range(150)]
    heads = await stores.store.heads(uids)
    assert {head.position.revision for head in heads.values()} == {3} and len(heads) == 450
    await stores.store.close()


async def test_F41_a_process_that_is_killed_while_it_writes_harms_nobody(file: Path) -> None:
    process = await asyncio.to_thread(start, file, 1000, 100_000)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert await asyncio.to_thread(process.stdout.readline) == "busy\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    stores = await opened(url_of(file))
    await running(stores.store, 1)
    found = await stores.reads.get(uid_of(1050))
    assert found is not None and found.revision >= 3
    await stores.store.close()
    connection = sqlite3.connect(file)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


# -- the bus -------------------------------------------------------------------------------------------------------------


async def test_a_commit_of_another_process_is_news_of_anything(file: Path) -> None:
    here, there = await opened(url_of(file)), await opened(url_of(file))
    await here.bus.start()
    heard: list[Hint] = []
    unsubscribe = here.bus.subscribe(heard.append)
    await until(lambda: heard == [Hint(Topic.ANYTHING)])  # nobody knows of what was before
    await created(there.store, 1)
    await until(lambda: len(heard) == 2)
    assert heard == [Hint(Topic.ANYTHING)] * 2
    unsubscribe()
    await here.bus.stop()
    for stores in (here, there):
        await stores.store.close()


async def test_a_process_hears_nothing_of_its_own_commits_but_what_it_publishes(file: Path) -> None:
    stores = await opened(url_of(file))
    await stores.bus.start()
    heard: list[Hint] = []
    stores.bus.subscribe(heard.append)
    await until(lambda: len(heard) == 1)
    for number in range(1, 20):
        await created(stores.store, number)
    assert (await stored(stores.reads, uid_of(19))).uid == uid_of(19)
    stores.bus.publish([Hint(Topic.READY, "x")])
    await until(lambda: len(heard) == 2)
    assert heard == [Hint(Topic.ANYTHING), Hint(Topic.READY, "x")]
    assert stores.bus.healthy
    await stores.bus.stop()
    await stores.store.close()


async def test_news_come_while_the_writer_is_busy(file: Path) -> None:
    here, there = await opened(url_of(file)), await opened(url_of(file))
    await here.bus.start()
    heard: list[Hint] = []
    here.bus.subscribe(heard.append)
    busy = True

    async def keep_busy(first: int) -> None:
        number = first
        while busy:
            number += 1
            await created(here.store, number)

    working = [asyncio.create_task(keep_busy(100_000 * n)) for n in range(1, 4 * GROUP)]  # more than a group always waits
    await until(lambda: len(heard) >= 1)
    before = len(heard)
    await created(there.store, 1)
    await until(lambda: len(heard) > before)
    busy = False
    await asyncio.gather(*working)
    await here.bus.stop()
    for stores in (here, there):
        await stores.store.close()


async def test_nothing_is_looked_at_while_nobody_subscribes(file: Path) -> None:
    stores = await opened(url_of(file))
    bus = stores.bus
    assert isinstance(bus, FileBus)

    def watching() -> bool:
        return bus._writer._watch is not None

    await bus.start()
    assert not watching()
    first, second = bus.subscribe(lambda _: None), bus.subscribe(lambda _: None)
    assert watching()
    first()
    first()
    assert watching()
    second()
    assert not watching()
    bus.subscribe(lambda _: None)
    await bus.stop()
    assert not watching()
    await stores.store.close()
