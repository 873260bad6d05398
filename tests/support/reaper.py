"""Ends what a dead process has left: run as a program whose standard input is held open by the process it watches.

Lines are `+PID` and `-PID` (a server that runs, and that has ended), `+/path` and `-/path` (a temporary folder). When the input ends,
however the watched process ended, SIGKILL included, the servers are ended and the folders removed. Standard library only, so that
it starts at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time


def alive(pid: int) -> bool:
    """Whether a process of this id does anything; one that has ended and only waits to be collected by its parent does not."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(") ")[2][0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not os.path.isdir("/proc/self")


def end(pids: set[int], seconds: float = 5) -> None:
    """Asks processes to end (a stopped one is continued, so that it hears it), and kills those that have not after `seconds`."""
    for number in (signal.SIGINT, signal.SIGCONT):
        for pid in filter(alive, pids):
            os.kill(pid, number)
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in filter(alive, pids):
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Keeps the two lists until the input ends, then cleans up."""
    kept: set[str] = set()
    for line in sys.stdin:
        sign, name = line[0], line[1:].rstrip("\n")
        kept.add(name) if sign == "+" else kept.discard(name)
    end({int(name) for name in kept if name.isdigit()})
    for name in kept:
        if not name.isdigit() and os.path.isdir(name):
            shutil.rmtree(name)


if __name__ == "__main__":
    main()
