"""README.md keeps its word: its commands run against a real service, and print what it shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import httpx

from tests.e2e import readme
from tests.e2e.programs import Program, clean_environment, command
from tests.support.servers import free_port

ROOT = readme.README.parent


def test_the_first_run_prints_what_the_readme_shows(tmp_path: Path) -> None:
    """As a newcomer has it: no setting but the port, a new database, the demo agents."""
    port = free_port()
    program = Program(["serve"], {**clean_environment(), "RUNWARD_PORT": str(port)}, tmp_path)
    try:
        url = program.hears("serving")["url"]
        assert url == f"http://127.0.0.1:{port}"
        assert (wrong := readme.differences("A first run", url, tmp_path)) == [], "\n\n".join(wrong)
    finally:
        assert program.stop() == 0


def test_a_killed_service_goes_on_as_the_readme_shows(tmp_path: Path) -> None:
    """The page's kill falls into a sentence that takes 0.2 s. A busy machine may be late for it: then it is tried again."""
    killed, followed = readme.shown_by(readme.section("Kill it"))
    create, _, kill = killed.command.partition("; ")
    assert kill == "sleep 0.1; pkill -9 -f 'runward serve'"
    said = ""
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        said = killed_and_followed(create, followed.command, folder)
        if '"type":"reset-step"' in said.splitlines()[1]:
            break
    assert followed.pattern.fullmatch(said), said


def killed_and_followed(create: str, follow: str, folder: Path) -> str:
    """What `follow` prints of a run whose service is killed once its model was asked, and started again."""
    environment = {**clean_environment(), "RUNWARD_PORT": str(free_port()), "RUNWARD_LEASE_TTL_SECONDS": "2"}
    program = Program(["serve"], environment, folder)
    with httpx.Client(base_url=program.hears("serving")["url"], trust_env=False, timeout=60) as client:
        assert client.get("/readyz").status_code == 200
        readme.printed(create, str(client.base_url).rstrip("/"), folder)
        with client.stream("GET", "/runs/third/events") as stream:
            assert any("start-step" in line for line in stream.iter_lines())
            program.kill()
    program = Program(["serve"], environment, folder)
    try:
        return readme.printed(follow, program.hears("serving")["url"], folder)
    finally:
        assert program.stop() == 0


def test_the_readmes_agent_is_served_as_it_says(tmp_path: Path) -> None:
    section = readme.section("An agent of your own")
    (source,) = readme.blocks(section, "python")
    assert len([line for line in source.splitlines() if line.strip()]) <= 10
    (start,) = readme.blocks(section, "sh")
    variable, *words = shlex.split(start)
    assert words == ["make", "run"]
    name, _, file = variable.partition("=")
    (tmp_path / file).write_text(source)
    program = Program(["serve"], {**clean_environment(), name: file, "RUNWARD_PORT": str(free_port())}, tmp_path)
    try:
        assert (wrong := readme.differences("An agent of your own", program.hears("serving")["url"], tmp_path)) == [], "\n\n".join(wrong)
    finally:
        assert program.stop() == 0


def test_make_run_is_the_command_that_was_tried() -> None:
    """Asked without what a `make test` around it hands on."""
    environment = {"PATH": os.environ["PATH"]}
    shown = subprocess.run(["make", "-n", "-o", "moved", "run"], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert shown.stdout.splitlines()[-1].strip() == "exec .venv/bin/runward serve"


def test_scaling_out_works_as_the_readme_says(postgres_url: str, tmp_path: Path) -> None:
    """Its commands in its order: the database, a key, an API, a worker."""
    (script,) = readme.blocks(readme.section("Scaling out"), "sh")
    lines = [re.sub(r"\s{2,}#.*", "", line) for line in script.splitlines()]
    exports = dict(re.findall(r"export (RUNWARD_\w+)=(\S+)", script))
    assert exports.keys() == {"RUNWARD_DATABASE_URL", "RUNWARD_SECRET_KEY"}
    environment = {**clean_environment(), "RUNWARD_DATABASE_URL": postgres_url, "RUNWARD_SECRET_KEY": "a secret for the readme's test"}
    migrate, make_key, serve, worker = [shlex.split(line)[1:] for line in lines if line.startswith("runward ")]
    migrated, made_key = command(migrate, environment, tmp_path), command(make_key, environment, tmp_path)
    assert (migrated.returncode, made_key.returncode) == (0, 0), migrated.stderr + made_key.stderr
    programs = [Program([*serve, "--port", str(free_port())], environment, tmp_path), Program(worker, environment, tmp_path)]
    try:
        port = httpx.URL(programs[0].hears("serving")["url"]).port
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
            assert client.get("/runs").status_code == 401
            client.headers["Authorization"] = f"Bearer {made_key.stdout.strip()}"
            body = {"agent": "support", "input": "Where is order 7?"}
            run = client.post("/runs", json=body, headers={"Prefer": "wait=30"}).json()
        assert run["status"] == "completed"
        assert run["scope"]["tenant"] == make_key[make_key.index("--tenant") + 1]
    finally:
        assert [program.stop() for program in programs] == [0, 0]
