"""One Postgres and one Redis for a whole test session, shared by its xdist processes, started when first asked for.

The session's first process (xdist's controller, or the only one) owns a folder and holds a lock on it for as long as it lives.
Whichever process needs a server first starts a *keeper* (this module as a program), which starts the server, leaves its URL in the
folder, and waits for that lock: it gets it when the owner is done or dead, whatever it died of, and then ends the server. So nothing
is left running, and nothing is started that no test asked for.

`RUNWARD_TEST_POSTGRES_URL` (with `{db}` in the database's place) and `RUNWARD_TEST_REDIS_URL` name given servers instead.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tests.support.databases import Databases
from tests.support.servers import KINDS, Reaper, ServerFailed, terminate

ROOT = Path(__file__).resolve().parents[2]


class SharedServers:
    """The servers of one session as one of its processes sees them. Without a folder it begins a session and owns it."""

    def __init__(self, folder: Path | None = None) -> None:
        self._alive: BinaryIO | None = None
        self.started: list[subprocess.Popen[bytes]] = []
        """The keepers that this process has started."""
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="runward-session-"))
            self._alive = open(folder / "alive", "wb")  # noqa: SIM115  it is held until `close`
            fcntl.flock(self._alive, fcntl.LOCK_EX)
            Reaper.tell(f"+{folder}")
        self.folder = folder

    def postgres(self) -> Databases:
        """The session's Postgres."""
        url = os.environ.get("RUNWARD_TEST_POSTGRES_URL") or self._url("postgres")
        return Databases(url, prefix="rt_" + self.folder.name.rsplit("-", 1)[1].lower())

    def redis(self) -> str:
        """The URL of the session's Redis."""
        return os.environ.get("RUNWARD_TEST_REDIS_URL") or self._url("redis")

    def _url(self, kind: str) -> str:
        answer = self.folder / f"{kind}.url"
        with locked(self.folder / f"{kind}.start"):
            if not answer.exists():
                self._start_keeper(kind, answer)
        return answer.read_text()

    def _start_keeper(self, kind: str, answer: Path) -> None:
        log = self.folder / f"{kind}.log"
        with open(log, "wb") as output:
            command = [sys.executable, "-m", "tests.support.shared", kind, str(self.folder)]
            keeper = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        self.started.append(keeper)
        while not answer.exists():
            if keeper.poll() is not None:
                raise ServerFailed(f"the session's {kind} did not start:\n{log.read_text()}")
            time.sleep(0.01)

    def close(self) -> None:
        """Ends the session, by its owner: drops what was made on given servers, ends its own, and returns when they are gone."""
        assert self._alive is not None, "only the process that began the session ends it"
        if "RUNWARD_TEST_POSTGRES_URL" in os.environ:
            self.postgres().drop_all()
        self._alive.close()
        for pid_file in self.folder.glob("*.pid"):
            self._await_keeper(pid_file)
        for keeper in self.started:
            keeper.wait(5)
        shutil.rmtree(self.folder)
        Reaper.tell(f"-{self.folder}")

    def _await_keeper(self, pid_file: Path) -> None:
        """Waits until a keeper has given back the lock on its own file, which it holds while it lives."""
        deadline = time.monotonic() + 30
        with open(pid_file, "rb") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        os.kill(int(file.read()), signal.SIGKILL)  # its reaper ends the server
                        raise ServerFailed(f"{pid_file.stem} did not end within 30 s") from None
                    time.sleep(0.01)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on a file, made if needed, against other processes."""
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def keep(kind: str, folder: Path) -> None:
    """Runs one server until the session's owner is gone."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, terminate)
    with open(folder / f"{kind}.pid", "w") as mine, open(folder / "alive", "rb") as alive:
        fcntl.flock(mine, fcntl.LOCK_EX)
        mine.write(str(os.getpid()))
        mine.flush()
        with KINDS[kind]() as server:
            (folder / f"{kind}.new").write_text(server.url)
            (folder / f"{kind}.new").rename(folder / f"{kind}.url")
            fcntl.flock(alive, fcntl.LOCK_EX)


if __name__ == "__main__":
    keep(sys.argv[1], Path(sys.argv[2]))
