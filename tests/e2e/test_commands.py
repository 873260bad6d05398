"""Starting, migrating and refusing to start: what an operator reads."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import deployed
from tests.e2e.deployment import Deployment
from tests.e2e.outside import in_database
from tests.support.servers import free_port


def refused(deployment: Deployment, *arguments: str, **settings: str) -> str:
    """What a command says that does not start: one sentence, and never a traceback."""
    done = deployment.run_command(*arguments, **settings)
    assert done.returncode == 1, (done.stdout, done.stderr)
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    (sentence,) = [line for line in said.splitlines() if line.startswith("error: ")]
    return sentence


def agents_file(folder: Path, source: str) -> str:
    file = folder / "their_agents.py"
    file.write_text("from runward import Agent, Reply, ScriptedModel\n" + source)
    return str(file)


def test_serve_says_where_it_is_up_and_shows_the_demo_agents(on_sqlite: Deployment) -> None:
    """On a new file, which it makes; without any agent of one's own."""
    (on_sqlite.folder / "runward.db").unlink()
    program = on_sqlite.serve("--host", "127.0.0.1", "--port", str(on_sqlite.port), agents="", port="1", host="203.0.113.1")
    assert program.hears("serving")["url"] == on_sqlite.url
    answer = on_sqlite.http.post("/runs", json={"agent": "support", "input": "Where is order 7?"}, headers={"Prefer": "wait=20"})
    assert answer.status_code == 200 and answer.json()["status"] == "completed" and "shipped" in answer.json()["text"]


def test_serve_speaks_to_people_in_the_console_format(on_sqlite: Deployment) -> None:
    program = on_sqlite.spawn("serve", log_format="console")
    program.wait_for(lambda: f"url={on_sqlite.url}" in program.text, "line that says it is up")
    assert program.stop() == 0
    assert "{" not in program.text


def test_serve_finds_a_free_port_by_itself(on_sqlite: Deployment) -> None:
    url = on_sqlite.serve(port="0").hears("serving")["url"]
    assert httpx.get(f"{url}/healthz", trust_env=False).json() == {"status": "ok"}


def test_a_port_that_is_taken_is_named(on_sqlite: Deployment) -> None:
    on_sqlite.serve()
    said = refused(on_sqlite, "serve", database_url=f"sqlite+aiosqlite:///{on_sqlite.folder}/another.db")
    assert f"127.0.0.1, port {on_sqlite.port}: Address already in use" in said and "RUNWARD_PORT" in said
    assert on_sqlite.http.get("/readyz").status_code == 200


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"port": "many"}, "RUNWARD_PORT"),
        ({"lease_ttl_seconds": "-1"}, "RUNWARD_LEASE_TTL_SECONDS"),
        ({"worker_concurrency": "0"}, "RUNWARD_WORKER_CONCURRENCY"),
        ({"secret_key": "CANARY"}, "RUNWARD_SECRET_KEY"),
        ({"approval_tokens": "sometimes"}, "RUNWARD_APPROVAL_TOKENS"),
        ({"log_format": "xml"}, "RUNWARD_LOG_FORMAT"),
        ({"database_url": "CANARY"}, "RUNWARD_DATABASE_URL"),
        ({"database_url": "mysql://u:CANARY@h/db"}, "RUNWARD_DATABASE_URL"),
        ({"database_url": "postgresql+asyncpg://u:CANARY@h:port/db"}, "RUNWARD_DATABASE_URL"),
        ({"agents": "no_such_module_anywhere"}, "RUNWARD_AGENTS"),
        ({"host": "no.such.host.invalid"}, "RUNWARD_HOST"),
    ],
)
def test_a_wrong_setting_is_named_and_its_value_is_not_shown(on_sqlite: Deployment, settings: dict[str, str], named: str) -> None:
    said = refused(on_sqlite, "serve", **settings)
    assert named in said and "CANARY" not in said


def test_broken_agents_stop_the_start_with_the_reason(on_sqlite: Deployment) -> None:
    cases = {
        "1 / 0": "line 2 of their_agents.py): ZeroDivisionError: division by zero",
        "def": "line 2 of their_agents.py): SyntaxError",
        "import nothing_like_it": "ModuleNotFoundError: No module named 'nothing_like_it'",
        "a = 1": "defines no agent",
        'agent = Agent(name="x y", model="openai:gpt-5-mini")': "x y",
    }
    for source, reason in cases.items():
        said = refused(on_sqlite, "serve", agents=agents_file(on_sqlite.folder, source))
        assert reason in said and "RUNWARD_AGENTS" in said


def test_a_missing_key_of_a_provider_names_agent_and_variable(on_sqlite: Deployment) -> None:
    """An API without a worker needs none, and neither does it enter lifespans."""
    source = """
from contextlib import asynccontextmanager
@asynccontextmanager
async def shop():
    raise RuntimeError("CANARY")
    yield
asker = Agent(name="asker", model="openai:gpt-5-mini", lifespan=shop)
"""
    agents = agents_file(on_sqlite.folder, source)
    for command in ("serve", "worker"):
        said = refused(on_sqlite, command, agents=agents)
        assert "'asker'" in said and "OPENAI_API_KEY" in said
    on_sqlite.serve("--no-worker", agents=agents)
    assert on_sqlite.http.get("/agents/asker").status_code == 200


def test_a_lifespan_that_fails_stops_the_start_and_is_named(on_sqlite: Deployment) -> None:
    source = """
from contextlib import asynccontextmanager
@asynccontextmanager
async def open_shop():
    raise RuntimeError("CANARY")
    yield
keeper = Agent(name="keeper", model=ScriptedModel([Reply(text="x")]), lifespan=open_shop)
"""
    said = refused(on_sqlite, "worker", agents=agents_file(on_sqlite.folder, source))
    assert "open_shop" in said and "'keeper'" in said and "RuntimeError" in said and "CANARY" not in said


def test_a_database_that_cannot_be_reached_is_said_to_be_away(on_sqlite: Deployment) -> None:
    away = f"postgresql+asyncpg://runward:CANARY@127.0.0.1:{free_port()}/runward"
    for command in (["serve"], ["worker"], ["migrate"], ["keys", "list"]):
        said = refused(on_sqlite, *command, database_url=away)
        assert "Connect" in said and "CANARY" not in said


def test_an_empty_database_has_to_be_migrated(postgres_url: str, tmp_path: Path) -> None:
    with deployed(postgres_url, tmp_path) as deployment:
        for command in (["worker"], ["serve"], ["serve", "--no-worker"], ["keys", "list"]):
            assert "runward migrate" in refused(deployment, *command)
        missing = f"sqlite+aiosqlite:///{tmp_path}/missing.db"
        for command in (["worker"], ["keys", "list"]):
            assert "runward migrate" in refused(deployment, *command, database_url=missing)


def test_R41a_a_database_of_a_newer_version_is_left_alone(deployment: Deployment) -> None:
    in_database(deployment.database, "UPDATE alembic_version SET version_num = '9999'")
    for command in ("serve", "worker", "migrate"):
        assert "newer" in refused(deployment, command)
    assert in_database(deployment.database, "SELECT version_num FROM alembic_version") == [("9999",)]


def test_many_processes_migrate_at_once(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """One does, the others wait for it, and the service starts on what they made."""
    databases = [request.getfixturevalue("postgres_url"), f"sqlite+aiosqlite:///{tmp_path}/new.db"]
    for database in databases:
        with deployed(database, tmp_path) as deployment:
            programs = [deployment.spawn("migrate", log_format="json") for _ in range(5)]
            assert [program.ended() for program in programs] == [0] * 5
            assert {program.text for program in programs} == {"The database is up to date."}
            deployment.serve()
            assert deployment.ended(deployment.create([{"text": "Hello."}]))["text"] == "Hello."


def test_several_serve_on_one_new_file_at_once(tmp_path: Path) -> None:
    with deployed(f"sqlite+aiosqlite:///{tmp_path}/new.db", tmp_path) as deployment:
        programs = [deployment.spawn("serve", port=str(free_port())) for _ in range(3)]
        urls = [program.hears("serving")["url"] for program in programs]
        assert [httpx.get(f"{url}/readyz", trust_env=False).status_code for url in urls] == [200, 200, 200]


def test_tokens_are_not_required_where_none_can_be_made(on_sqlite: Deployment) -> None:
    said = refused(on_sqlite, "serve", approval_tokens="required", secret_key="")
    assert "RUNWARD_APPROVAL_TOKENS" in said and "RUNWARD_SECRET_KEY" in said


def test_without_a_key_the_service_binds_loopback_only(on_sqlite: Deployment) -> None:
    deployment = on_sqlite
    for host in ("0.0.0.0", "::"):
        said = refused(deployment, "serve", "--host", host)
        assert "loopback" in said and "runward keys create" in said
    made = deployment.run_command("keys", "create", "--tenant", "acme", "--permission", "runs:read")
    assert made.returncode == 0
    assert "RUNWARD_SECRET_KEY" in refused(deployment, "serve", "--host", "0.0.0.0", secret_key="")
    deployment.serve("--host", "0.0.0.0")
    assert deployment.http.get("/runs").status_code == 401
    key = made.stdout.strip()
    assert deployment.http.get("/runs", headers={"Authorization": f"Bearer {key}"}).status_code == 200


def test_usage_is_exit_code_2_and_help_is_0(on_sqlite: Deployment) -> None:
    assert on_sqlite.run_command("no-such-command").returncode == 2
    assert on_sqlite.run_command("serve", "--port", "many").returncode == 2
    shown = on_sqlite.run_command("--help")
    names = ("serve", "worker", "migrate", "keys", "runs", "agents", "openapi")
    assert shown.returncode == 0 and all(name in shown.stdout for name in names)
    document = json.loads(on_sqlite.run_command("openapi").stdout)
    assert document["openapi"].startswith("3.1") and "/runs" in document["paths"]
