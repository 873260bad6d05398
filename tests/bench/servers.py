"""The processes that are measured: Runward's own, the floor's, and a durable Postgres that counts its work."""

from __future__ import annotations

import http.client
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.support.servers import Postgres, Server, free_port

ROOT = Path(__file__).resolve().parents[2]
AGENTS = Path(__file__).with_name("agents.py")
PYTHON = Path(sys.executable)


class Process(Server):
    """A process under measurement. `seconds_to_ready` is from its start to the first good answer of `/readyz`."""

    name = "bench"

    def __init__(self, arguments: list[str], settings: Mapping[str, str], *, listens: bool = True) -> None:
        super().__init__(port=free_port())
        self._arguments = arguments
        self._settings = settings
        self._listens = listens
        self.seconds_to_ready = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self, folder: Path) -> list[str | Path]:
        return [*self._arguments]

    def identity(self) -> dict[str, Any]:
        """The environment, as a user has it: Python may keep what it has compiled."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RUNWARD_"))}
        return {"env": {**kept, "PYTHONPATH": str(ROOT), **self._settings, "RUNWARD_PORT": str(self.port)}}

    def start(self) -> Process:
        begun = time.perf_counter()
        super().start()
        self.seconds_to_ready = time.perf_counter() - begun
        return self

    def ready(self, folder: Path, pid: int) -> bool:
        if not self._listens:
            return '"working"' in self.log()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def cpu(self) -> float:
        """Seconds of CPU it has used."""
        return sum(_used(member) for member in self._family())

    def rss(self) -> float:
        """MB of memory it has."""
        return float(sum(member.memory_info().rss for member in self._family())) / 2**20


def runward(command: str, database_url: str, *options: str, **settings: str) -> Process:
    """`runward serve` or `runward worker` with the agents of the benchmark."""
    environment = {"RUNWARD_DATABASE_URL": database_url, "RUNWARD_AGENTS": str(AGENTS), "RUNWARD_LOG_FORMAT": "json", **settings}
    return Process([str(PYTHON.with_name("runward")), command, *options], environment, listens=command == "serve")


def floor(database_url: str) -> Process:
    """The floor's one process."""
    return Process([str(PYTHON), "-m", "tests.bench.floor"], {"FLOOR_DATABASE_URL": database_url})


class CountingPostgres(Postgres):
    """A Postgres that syncs every commit, and counts statements. Neither a checkpoint nor a vacuum falls into a measurement; statistics of
    tables are what a new database has."""

    def __init__(self) -> None:
        super().__init__(durable=True)

    def command(self, folder: Path) -> list[str | Path]:
        options = {
            "fsync": "on",
            "synchronous_commit": "on",
            "shared_buffers": "256MB",
            "checkpoint_timeout": "1h",
            "max_wal_size": "8GB",
            "autovacuum": "off",
            "shared_preload_libraries": "pg_stat_statements",
        }
        return [*super().command(folder), *(part for name, value in options.items() for part in ("-c", f"{name}={value}"))]

    def cpu(self) -> float:
        """Seconds of CPU that it and all of its processes have used, those that have ended included."""
        server, *children = self._family()
        times = server.cpu_times()
        return float(times.children_user + times.children_system) + sum(_used(member) for member in (server, *children))


def _used(member: psutil.Process) -> float:
    try:
        times = member.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
