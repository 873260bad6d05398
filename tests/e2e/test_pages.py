"""The commands that the pages of docs/ and the container files show, run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.programs import RUNWARD, Program, clean_environment, command
from tests.e2e.readme import README, blocks
from tests.support.servers import free_port

ROOT = README.parent


def run(script: str, environment: dict[str, str], folder: Path) -> str:
    """What a script prints. `runward` is the one of this environment."""
    path = f"{RUNWARD.parent}{os.pathsep}{environment['PATH']}"
    shell = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(shell, env={**environment, "PATH": path}, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{script}\n{done.stderr}"
    return done.stdout


def block(page: str, heading: str) -> str:
    """The first block of shell commands under a heading of a page."""
    return blocks((ROOT / "docs" / page).read_text().split(heading)[1], "sh")[0]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a service with a migrated database in the test's folder."""
    environment = {**clean_environment(), "RUNWARD_PORT": str(free_port()), "no_proxy": "127.0.0.1"}
    assert command(["migrate"], environment, tmp_path).returncode == 0
    return environment


def test_the_api_pages_first_calls(environment: dict[str, str], tmp_path: Path) -> None:
    create, follow = re.split(r"\n(?=curl)", block("api.md", "# The HTTP API"))
    program = Program(["serve"], environment, tmp_path)
    try:
        url = program.hears("serving")["url"]
        made = json.loads(run(create.replace("http://127.0.0.1:8000", url), environment, tmp_path))
        assert made["status"] == "completed"
        stream = run(follow.replace("http://127.0.0.1:8000", url).replace("<run_id>", made["run_id"]), environment, tmp_path)
        assert stream.endswith("data: [DONE]\n\n")
    finally:
        assert program.stop() == 0


def test_the_operators_keys(environment: dict[str, str], tmp_path: Path) -> None:
    """Made, listed, revoked, and the door opened again."""
    create, show, revoke, reopen = block("operating.md", "## Keys and who gets in").splitlines()
    key = run(create, environment, tmp_path).strip()
    id = key.split("_")[1]
    assert id in run(show, environment, tmp_path)
    run(revoke.replace("<id>", id), environment, tmp_path)
    (listed,) = json.loads(run("runward keys list --json", environment, tmp_path))
    assert listed["id"] == id and listed["revoked_at"] is not None
    run(reopen, environment, tmp_path)
    program = Program(["serve"], environment, tmp_path)
    program.hears("serving")
    assert program.stop() == 0


def test_the_first_key_of_the_image(environment: dict[str, str], tmp_path: Path) -> None:
    """What the Dockerfile says to do before its image is started."""
    comment = "".join(
        line[1:].rstrip().removesuffix("\\") for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("#")
    )
    (script,) = re.findall(r"runward sh -c '([^']+)'", comment)
    assert run(script, environment, tmp_path).splitlines()[-1].startswith("rw_")
