"""The `runward` command as processes: started, listened to, signalled and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.servers import Reaper

RUNWARD = Path(sys.executable).with_name("runward")
SECONDS = 45.0
"""How long a test waits for a process. They start together, on few cores."""

Log = dict[str, Any]


class Program:
    """A process that runs until it is ended. Its log lines are read as they come."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self.arguments = tuple(arguments)
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._silent = False
        self.process = subprocess.Popen(
            [RUNWARD, *arguments],
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        Reaper.tell(f"+{self.process.pid}")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    # -- what it says ---------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._news:
                    self.lines.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._silent = True
            self._news.notify_all()

    @property
    def logs(self) -> list[Log]:
        """Its log lines so far. A line that is no JSON fails: nothing else may be there."""
        return [json.loads(line) for line in tuple(self.lines)]

    def said(self, event: str) -> list[Log]:
        """Its log lines of one event so far."""
        return [log for log in self.logs if log["event"] == event]

    def hears(self, event: str, count: int = 1) -> Log:
        """The `count`-th log line of an event, waited for."""
        self.wait_for(lambda: len(self.said(event)) >= count, f"{event!r} in its log")
        return self.said(event)[count - 1]

    def wait_for(self, over: Callable[[], bool], what: str) -> None:
        """Returns once its log makes something so. Fails when it ends before that."""
        with self._news:
            assert self._news.wait_for(lambda: over() or self._silent, SECONDS) and over(), f"no {what}:\n{self.text}"

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    # -- its life -------------------------------------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and returns when it is dead."""
        self.process.kill()
        self.ended()

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        code = self.process.wait(SECONDS)
        Reaper.tell(f"-{self.pid}")
        self._reader.join(SECONDS)
        return code


def command(arguments: Sequence[str], env: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    words = [str(RUNWARD), *arguments]
    return subprocess.run(words, env=env, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)


def clean_environment() -> dict[str, str]:
    """This process's environment without any setting of the service or key of a provider."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RUNWARD_") and not name.endswith("_API_KEY")}
