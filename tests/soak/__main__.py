"""One soak: rages, heals, waits until every run is over, audits, prints what happened, and exits 1 when something is wrong."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

from tests.e2e.conftest import migrated
from tests.e2e.deployment import Deployment
from tests.e2e.ledger import Ledger
from tests.e2e.outside import in_database
from tests.e2e.proxied import proxied
from tests.soak import audit
from tests.soak.callers import Callers
from tests.soak.nemesis import Nemesis
from tests.support.servers import Postgres, Redis

STORES = ("sqlite", "postgres", "postgres+redis")
SLOW_SECONDS = 1.0
"""How long an effect takes, so that faults meet calls in the middle."""
BOUND_SECONDS = 180.0
"""Within this time of the last fault every run has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """Who takes part in one."""

    deployment: Deployment
    nemesis: Nemesis
    callers: Callers


def main() -> None:
    parser = argparse.ArgumentParser(prog="make soak ARGS=…", description="Breaks everything for a while, and looks at what is left.")
    parser.add_argument("store", nargs="?", choices=STORES, default="postgres+redis")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument(
        "--seed", type=int, default=SystemRandom().randrange(10**6), help="the same faults and callers, as far as time lets them"
    )
    arguments = parser.parse_args()
    seconds = arguments.minutes * 60
    print(f"{arguments.store}, {arguments.minutes:g} minutes, {arguments.runs} runs, seed {arguments.seed}", flush=True)
    with soak(arguments.store, arguments.seed) as taking_part, ThreadPoolExecutor(2) as threads:
        answering = threads.submit(taking_part.callers.answer_all)
        making = threads.submit(taking_part.callers.make, arguments.runs, seconds * 0.9)
        try:
            taking_part.nemesis.rage(seconds)
            taking_part.nemesis.heal()
            healed = time.monotonic()
            making.result()
            left = settle(taking_part.callers)
            took = time.monotonic() - healed
        finally:
            taking_part.callers.close()
        answering.result()
        found = [f"not over after {BOUND_SECONDS:g} s: {view['run_id']} {view['status']} {view['pending']}" for view in left]
        found += [*audit.findings(taking_part.deployment, arguments.runs), *journals(taking_part), *taking_part.deployment.bugs()]
        report(taking_part, took)
    print("\n".join(found) or "Nothing was lost, and nothing was done twice.")
    raise SystemExit(bool(found))


@contextmanager
def soak(store: str, seed: int) -> Iterator[Soak]:
    """A service on a store of its own, with everybody who is to take part."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        postgres = stack.enter_context(Postgres(durable=True)) if store != "sqlite" else None
        redis = stack.enter_context(Redis()) if store.endswith("redis") else None
        url = f"sqlite+aiosqlite:///{folder}/runward.db" if postgres is None else postgres.url.format(db="postgres")
        migrated(url, folder)
        wire = None if postgres is None else stack.enter_context(proxied(url))
        ledger = stack.enter_context(Ledger(slow_seconds=SLOW_SECONDS))
        deployment = Deployment(url, folder, ledger)
        stack.callback(deployment.kill)
        deployment.settings = {"lease_ttl_seconds": "2", "max_recoveries": "100", "drain_grace_seconds": "2"}
        if redis is not None:
            deployment.settings["redis_url"] = redis.url
        nemesis = Nemesis(deployment, seed, wire=wire, postgres=postgres, redis=redis)
        yield Soak(deployment=deployment, nemesis=nemesis, callers=Callers(deployment, seed))


def settle(callers: Callers) -> list[dict[str, object]]:
    """Waits until every run has ended, for as long as that may take; returns those that have not."""
    until = time.monotonic() + BOUND_SECONDS
    while (left := callers.unfinished()) and time.monotonic() < until:
        time.sleep(1)
    return left


def journals(taking_part: Soak) -> list[str]:
    """The journals that are not whole."""
    found = []
    for run_id in taking_part.callers.ids.values():
        try:
            taking_part.deployment.frames(run_id).check()
        except AssertionError as error:
            found.append(f"the journal of {run_id} is not whole: {error}")
    return found


def report(taking_part: Soak, took: float) -> None:
    """What happened, as docs/reliability.md keeps it."""
    deployment, callers = taking_part.deployment, taking_part.callers
    statuses = Counter[str](status for (status,) in in_database(deployment.database, "SELECT status FROM actors"))
    recovered = sum(program.text.count('"lease_lost"') for program in deployment.programs)
    keyed = Counter(arrival.key for arrival in deployment.ledger.arrivals if arrival.key)
    print(f"faults: {shown(taking_part.nemesis.done)}")
    print(f"runs: {shown(statuses)}; over {took:.0f} s after the last fault; {callers.asked} requests sent again")
    repetitions = sum(audit.retries(deployment.database).values())
    print(f"calls that had an effect: {len(keyed)}; repetitions asked for: {repetitions}; leases lost: {recovered}")


def shown(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    main()
