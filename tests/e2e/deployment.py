"""A service of real processes over one database, and what a caller does with it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.journal import Frames, frames_of
from tests.e2e.ledger import Ledger
from tests.e2e.programs import Program, clean_environment, command
from tests.support.servers import free_port

HERE = Path(__file__).parent
AGENTS = HERE / "agents.py"
OTHERS = HERE / "others.py"
LEASE_SECONDS = 2.0
SECONDS = 40.0

BUGS = ("leg_failed", "activity_failed", "request_failed", "uncaught", "crashed", "renewal_broken")
"""Log lines that nobody provoked: something in the service is wrong."""

View = dict[str, Any]
Script = Sequence[dict[str, Any]]


@dataclass
class Deployment:
    """Processes of one service. `start` is one process that does everything on SQLite, and an API and a worker on Postgres; `crash` kills
    whoever drives runs, and `recover` starts the next one."""

    database: str
    folder: Path
    ledger: Ledger
    port: int = field(default_factory=free_port)
    programs: list[Program] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    foreign: dict[str, str] = field(default_factory=dict)
    """Variables that are no settings of ours."""

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=SECONDS, trust_env=False)
        self.on_postgres = self.database.startswith("postgresql")
        self._crashed_at = 0.0

    # -- processes ------------------------------------------------------------------------------------------------------

    def env(self, **settings: str) -> dict[str, str]:
        """The environment of a process: `lease_ttl_seconds="5"` is RUNWARD_LEASE_TTL_SECONDS."""
        given = {
            "database_url": self.database,
            "agents": str(AGENTS),
            "port": str(self.port),
            "lease_ttl_seconds": str(LEASE_SECONDS),
            "poll_seconds": "0.2",
            "drain_grace_seconds": "10",
            "cancel_grace_seconds": "1",
            "secret_key": "a secret key for end-to-end tests",
            "test_ledger": self.ledger.address,
            **self.settings,
            **settings,
        }
        return {**clean_environment(), **self.foreign, **{f"RUNWARD_{name.upper()}": value for name, value in given.items()}}

    def spawn(self, *arguments: str, **settings: str) -> Program:
        """A process that is starting."""
        program = Program(arguments, self.env(**settings), self.folder)
        self.programs.append(program)
        return program

    def serve(self, *arguments: str, **settings: str) -> Program:
        """An API that is up, with a worker unless told not to."""
        program = self.spawn("serve", *arguments, **settings)
        program.hears("serving")
        return program

    def worker(self, **settings: str) -> Program:
        """A worker that claims."""
        program = self.spawn("worker", **settings)
        program.hears("working")
        return program

    def run_command(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """A command that ends by itself."""
        return command(arguments, self.env(**settings), self.folder)

    def start(self, **settings: str) -> None:
        if self.on_postgres:
            starting = [self.spawn("serve", "--no-worker", **settings), self.spawn("worker", **settings)]
            starting[0].hears("serving")
            starting[1].hears("working")
        else:
            self.serve(**settings)

    @property
    def driving(self) -> list[Program]:
        """The processes that drive runs."""
        return [program for program in self.programs if program.alive and "--no-worker" not in program.arguments]

    def crash(self) -> None:
        """SIGKILL to whoever drives runs."""
        for program in self.driving:
            program.kill()
        self._crashed_at = time.monotonic()

    def recover(self, **settings: str) -> Program:
        """The next process that drives runs, up. It starts when the leases of the dead are about to run out, and finds them so."""
        lease = float(self.env(**settings)["RUNWARD_LEASE_TTL_SECONDS"])
        time.sleep(max(0.0, self._crashed_at + lease - time.monotonic()))
        return self.worker(**settings) if self.on_postgres else self.serve(**settings)

    def kill(self) -> None:
        """Kills what is left."""
        self.http.close()
        for program in self.programs:
            program.kill()

    def end(self) -> None:
        """The same, and prints what every process has logged."""
        self.kill()
        for program in self.programs:
            print(f"-- runward {' '.join(program.arguments)} ({program.pid}), exit code {program.process.returncode}\n{program.text}")

    def bugs(self) -> list[str]:
        """Log lines that say that something in the service is wrong."""
        lines = [line for program in self.programs for line in program.lines]
        signs = [*(f'"event":"{bug}"' for bug in BUGS), '"level":"error"', "Traceback"]
        return [line for line in lines if any(sign in line for sign in signs)]

    # -- what a caller does ---------------------------------------------------------------------------------------------

    def create(self, script: Script, agent: str = "puppet", **body: Any) -> str:
        """A new run's id."""
        answer = self.http.post("/runs", json={"agent": agent, "input": json.dumps(script), **body})
        assert answer.status_code == 202, answer.text
        run_id: str = answer.json()["run_id"]
        return run_id

    def run(self, run_id: str) -> View:
        answer = self.http.get(f"/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        view: View = answer.json()
        return view

    def ended(self, run_id: str, seconds: float = SECONDS) -> View:
        """The run once it has ended. It must not suspend on the way."""
        return self._waited(run_id, seconds, "completed", "stopped", "failed")

    def over(self, run_id: str, seconds: float = SECONDS) -> View:
        """The run once it has ended, whatever it waits for on the way."""
        return self._waited(run_id, seconds, "completed", "stopped", "failed", until="ended")

    def suspended(self, run_id: str, seconds: float = SECONDS) -> View:
        return self._waited(run_id, seconds, "suspended")

    def settled(self, run_id: str) -> View:
        """The run once it has ended or waits for somebody."""
        return self._waited(run_id, SECONDS, "suspended", "completed", "stopped", "failed")

    def _waited(self, run_id: str, seconds: float, *statuses: str, until: str = "suspended") -> View:
        answer = self.http.get(f"/runs/{run_id}", params={"wait": round(seconds), "until": until}, timeout=seconds + 10)
        assert answer.status_code == 200, answer.text
        view: View = answer.json()
        assert view["status"] in statuses, view
        return view

    def cancel(self, run_id: str) -> httpx.Response:
        return self.http.post(f"/runs/{run_id}/cancel", json={})

    def resume(self, run_id: str, **given: Any) -> httpx.Response:
        """Verdicts, results, answers and settlements, as the API takes them."""
        answer = self.http.post(f"/runs/{run_id}/resume", json=given)
        assert answer.status_code == 202, answer.text
        return answer

    def frames(self, run_id: str, after: int = 0) -> Frames:
        """The whole journal of a run that has ended, after a cursor."""
        with self.http.stream("GET", f"/runs/{run_id}/events", params={"after": after}) as response:
            assert response.status_code == 200
            return frames_of(response.iter_bytes())

    @contextmanager
    def following(self, run_id: str) -> Iterator[Iterator[View]]:
        """The frames of a run as they come."""
        with self.http.stream("GET", f"/runs/{run_id}/events") as response:
            assert response.status_code == 200
            yield (json.loads(line[6:]) for line in lines(response.iter_text()) if line.startswith("data: {"))

    def receipts(self, run_id: str) -> list[View]:
        data: list[View] = self.http.get(f"/runs/{run_id}/receipts").json()["data"]
        return data

    def messages(self, run_id: str) -> list[View]:
        data: list[View] = self.http.get(f"/runs/{run_id}/messages").json()["data"]
        return data


def lines(texts: Iterator[str]) -> Iterator[str]:
    """Lines that end with LF alone, as they come."""
    rest = ""
    for text in texts:
        *whole, rest = (rest + text).split("\n")
        yield from whole
