"""Whoever breaks things: one fault after the other, at random, on a seed; `heal` mends everything."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from random import Random

from tests.e2e.deployment import Deployment
from tests.e2e.programs import Program
from tests.e2e.proxied import Wire
from tests.e2e.test_takeovers import pause
from tests.support.servers import Postgres, Redis

WORKERS = 2
PAUSES = (0.5, 3.0)
"""Between two faults, and how long something stays frozen: from, to, in seconds."""


class Nemesis:
    """Faults for one deployment. `wire` leads its workers to Postgres; without it, as on SQLite, nothing is cut or restarted."""

    def __init__(self, deployment: Deployment, seed: int, *, wire: Wire | None, postgres: Postgres | None, redis: Redis | None) -> None:
        self._deployment = deployment
        self._chance = Random(f"{seed} nemesis")
        self._wire = wire
        self._postgres = postgres
        self._redis = redis
        self._over = threading.Event()
        self._api = deployment.serve("--no-worker")
        self._workers = [self._worker() for _ in range(WORKERS)]
        self.done: Counter[str] = Counter()
        faults: dict[str, Callable[[], None]] = {
            "kill a worker": self._kill_worker,
            "stop a worker": self._stop_worker,
            "drain a worker": self._drain_worker,
            "kill the API": self._kill_api,
        }
        if wire is not None:
            faults |= {"cut every connection": wire.cut, "freeze the network": self._freeze}
        if postgres is not None:
            faults["restart the database"] = self._restart_database
        if redis is not None:
            faults |= {"flush Redis": self._restart_redis, "freeze Redis": self._freeze_redis}
        self._faults = faults

    def rage(self, seconds: float) -> None:
        """Breaks one thing after the other for so long."""
        timer = threading.Timer(seconds, self._over.set)
        timer.start()
        while not self._over.wait(self._chance.uniform(*PAUSES)):
            self._tend()
            name = self._chance.choice(sorted(self._faults))
            self._faults[name]()
            self.done[name] += 1

    def heal(self) -> None:
        """Everything that should be up is up."""
        if self._wire is not None:
            self._wire.thaw()
        while not all('"working"' in worker.text for worker in self._workers):
            self._tend()
            time.sleep(0.1)

    def _worker(self) -> Program:
        settings = {} if self._wire is None else {"database_url": self._wire.url}
        return self._deployment.spawn("worker", **settings)

    def _tend(self) -> None:
        """Starts a worker again that could not start because its database was away, as whatever runs it would."""
        for worker in [worker for worker in self._workers if not worker.alive]:
            self._replace(worker)

    def _one(self) -> Program:
        return self._chance.choice(self._workers)

    def _replace(self, worker: Program) -> None:
        self._workers[self._workers.index(worker)] = self._worker()

    def _kill_worker(self) -> None:
        worker = self._one()
        worker.kill()
        self._replace(worker)

    def _stop_worker(self) -> None:
        worker = self._one()
        pause(worker, self._deployment)
        self._moment()
        worker.signal(signal.SIGCONT)

    def _drain_worker(self) -> None:
        worker = self._one()
        worker.signal(signal.SIGTERM)
        self._replace(worker)

    def _kill_api(self) -> None:
        self._api.kill()
        self._api = self._deployment.serve("--no-worker")

    def _freeze(self) -> None:
        assert self._wire is not None
        self._wire.freeze()
        self._moment()
        self._wire.thaw()

    def _restart_database(self) -> None:
        assert self._postgres is not None
        self._postgres.kill()
        self._moment()
        self._postgres.start()

    def _restart_redis(self) -> None:
        assert self._redis is not None
        self._redis.kill()
        self._redis.start()

    def _freeze_redis(self) -> None:
        assert self._redis is not None
        self._redis.pause()
        self._moment()
        self._redis.resume()

    def _moment(self) -> None:
        self._over.wait(self._chance.uniform(*PAUSES))
