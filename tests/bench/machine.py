"""What the machine is, and how it feels: on a shared one both the CPU and the disk change within minutes."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.servers import postgres_binaries

LOOP = 1_000_000
SYNCS = 100
PACKAGES = ("fastapi", "starlette", "uvicorn", "uvloop", "httptools", "asyncpg", "SQLAlchemy", "pydantic", "orjson", "aiohttp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """`loop_ms`: a fixed Python loop. `fdatasync_us`: an 8 KB overwrite and its sync. `load`: the load average of the last minute."""

    loop_ms: float
    fdatasync_us: float
    load: float

    def __str__(self) -> str:
        return f"loop {self.loop_ms:.0f} ms, fdatasync {self.fdatasync_us:.0f} µs, load {self.load:.1f}"


def weather() -> Weather:
    """Takes half a second."""
    return Weather(
        loop_ms=statistics.median(_loop() for _ in range(5)) * 1e3,
        fdatasync_us=statistics.median(_syncs()) * 1e6,
        load=os.getloadavg()[0],
    )


def _loop() -> float:
    begun, total = time.perf_counter(), 0
    for number in range(LOOP):
        total += number & 7
    return time.perf_counter() - begun


def _syncs() -> list[float]:
    took = []
    with tempfile.TemporaryFile(prefix="runward-weather-") as file:
        file.write(b"\0" * 2**20)
        file.flush()
        os.fsync(file.fileno())
        for number in range(SYNCS):
            begun = time.perf_counter()
            os.pwrite(file.fileno(), b"x" * 8192, number % 128 * 8192)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - begun)
    return took


def description() -> dict[str, str]:
    """What was measured on: the machine and the versions."""
    version = subprocess.run([postgres_binaries() / "postgres", "--version"], capture_output=True, text=True, check=True)
    return {
        "cpu": f"{psutil.cpu_count()} x {_cpu_model()}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "disk": _file_system(Path(tempfile.gettempdir())),
        "system": f"Linux {platform.release()}",
        "python": platform.python_version(),
        "postgres": version.stdout.split()[-1],
        "sqlite": sqlite3.sqlite_version,
        **{name.lower(): importlib.metadata.version(name) for name in PACKAGES},
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """The kind of file system that temporary files, and so both databases, lie on: on tmpfs no commit is durable."""
    holders = [part for part in psutil.disk_partitions(all=True) if folder.resolve().is_relative_to(part.mountpoint)]
    return max(holders, key=lambda part: len(part.mountpoint)).fstype
