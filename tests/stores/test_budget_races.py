"""Several processes that spend from the same budgets never get one past its bound (R34)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from runward.core.budgets import NOTHING, Account, Terms
from tests.stores.conftest import opened, url_of

SPENDS = """
import asyncio, sys
from runward.core.budgets import Close
from runward.core.runs.ledger import Amount
from runward.ports.budgets import Admitted, Reserving
from tests.stores.conftest import Pool, stores_of

KEYS = (("a", "b"), ("b", "a"), ("b",), ("a",))

async def spender(budgets, name):
    admitted = refused = 0
    while refused < 3:
        id, keys = f"{name}.{admitted}.{refused}", KEYS[admitted % 4]
        asked = Reserving(id=id, tenant="acme", keys=keys, amount=Amount(tokens=7), holder="h")
        answer = await budgets.reserve(asked)
        if not isinstance(answer, Admitted):
            refused += 1
            continue
        admitted += 1
        for key in ("a", "b"):
            budget = await budgets.get("acme", key)
            assert budget.account.committed(budget.now).tokens <= budget.account.terms.max_total_tokens
        for _ in range(2):
            await budgets.close("acme", id, Close.SETTLED if admitted % 3 else Close.UNKNOWN, Amount(tokens=7))
    return admitted

async def main(url, name):
    stores = stores_of(url, Pool(connections=4, wait_seconds=20, command_seconds=20))
    await stores.store.open()
    print("ready", flush=True)
    sys.stdin.readline()
    admitted = await asyncio.gather(*(spender(stores.budgets, f"{name}.{n}") for n in range(4)))
    await stores.store.close()
    print(sum(admitted))

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    name = "file" if request.param == "sqlite" else "migrated_url"
    given = request.getfixturevalue(name)
    return url_of(given) if isinstance(given, Path) else given


def start(url: str, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SPENDS, url, name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


async def test_R34_processes_that_race_admit_exactly_what_fits(url: str) -> None:
    stores = await opened(url)
    for key, bound in (("a", 400), ("b", 330)):
        await stores.budgets.put("acme", key, Terms(max_total_tokens=bound), None)
    processes = [await asyncio.to_thread(start, url, name) for name in ("one", "two", "three")]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    admitted = [int((await asyncio.to_thread(process.communicate, timeout=90))[0]) for process in processes]
    accounts: list[Account] = []
    for key in ("a", "b"):
        budget = await stores.budgets.get("acme", key)
        assert budget is not None
        accounts.append(budget.account)
        assert budget.account.reserved == NOTHING
        committed = budget.account.committed(budget.now).tokens
        bound = budget.account.terms.max_total_tokens or 0
        assert committed <= bound and committed % 7 == 0
    assert accounts[1].committed(0).tokens == 329, "the last token that fits was spent"
    assert sum(admitted) <= (400 + 330) // 7
    await stores.store.close()
