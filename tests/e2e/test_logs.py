"""What logs say, and what neither they nor any answer ever say."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.e2e.agents import SECRET
from tests.e2e.conftest import deployed, migrated
from tests.e2e.deployment import Deployment, Script
from tests.support.servers import Postgres

SECRET_KEY = "CANARY-OF-THE-SECRET-KEY"
PASSWORD = "CANARY-OF-THE-PASSWORD"
CONTEXT = "CANARY-OF-THE-CONTEXT"
PROVIDER_KEY = "sk-CANARY-OF-THE-PROVIDER-0123456789abcdef"
CANARIES = (SECRET, SECRET_KEY, PASSWORD, CONTEXT)


def secretive(database: str) -> str:
    """The same database by a URL with a password in it, where there is a place for one: these servers trust everybody."""
    return database.replace("postgres@", f"postgres:{PASSWORD}@")


def test_no_secret_is_logged_answered_or_stored_in_the_open(deployment: Deployment) -> None:
    deployment.database = secretive(deployment.database)
    deployment.settings["secret_key"] = SECRET_KEY
    permissions = ["--permission", "runs:read", "--permission", "runs:write"]
    made = json.loads(deployment.run_command("keys", "create", "--tenant", "acme", *permissions, "--json").stdout)
    deployment.http.headers["Authorization"] = f"Bearer {made['key']}"
    program = deployment.serve()
    script: Script = [{"calls": [["leak", {"order_id": 1}], ["whoami", {}]]}, {"echo": True}]
    contexts = {"whoami": {"token": CONTEXT}, "leak": {"token": CONTEXT}}
    run_id = deployment.create(script, tool_context=contexts)
    run = deployment.ended(run_id)
    assert (run["status"], run["task_outcome"]) == ("completed", "resolved") and "token" in run["text"]
    failed = deployment.ended(deployment.create([], tool_context=contexts))
    assert (failed["status"], failed["error"]["code"]) == ("failed", "model_error")
    answers = [deployment.http.get(path).text for path in ("/runs", "/agents", "/agents/puppet", "/healthz", "/readyz", "/openapi.json")]
    answers += [deployment.http.get(f"/runs/{run_id}{part}").text for part in ("", "/events", "/messages", "/receipts")]
    answers += [deployment.http.post("/runs", json={"agent": "puppet", "input": "x", "context": {"token": CONTEXT}, "x": CONTEXT}).text]
    answers += [deployment.http.get("/runs", headers={"Authorization": "Bearer " + made["key"] + "x"}).text]
    assert deployment.run_command("keys", "list").returncode == 0
    program.hears("tool_failed")
    assert program.stop() == 0
    key_text = made["key"].split("_", 2)[2]
    for canary in (*CANARIES, key_text):
        assert canary not in program.text
        assert all(canary not in answer for answer in answers), canary
    (told,) = program.said("tool_failed")
    assert told["error"] == ["RuntimeError", "KeyError"] and told["tool"] == "leak" and any("agents.py" in place for place in told["trace"])
    assert {log["level"] for log in program.logs} <= {"info", "warning"}


def test_every_line_is_json_and_names_the_request_it_belongs_to(own_postgres: Postgres, tmp_path: Path) -> None:
    """A database that is away is what an operator looks for: why, since when, and whose request met it."""
    database = secretive(own_postgres.url.format(db="postgres"))
    migrated(database, tmp_path)
    with deployed(database, tmp_path) as deployment:
        api, worker = deployment.serve("--no-worker"), deployment.worker()
        own_postgres.stop()
        id = uuid.uuid4().hex
        answer = deployment.http.get("/runs", headers={"X-Request-Id": id})
        assert (answer.status_code, answer.headers["x-request-id"]) == (503, id) and answer.json()["instance"].endswith(id)
        log = api.hears("request_unavailable")
        assert log["request_id"] == id and log["level"] == "warning" and "Postgres" in log["reason"] and log["timestamp"]
        worker.hears("claim_failed")
        worker.hears("bus_polls")
        own_postgres.start()
        assert deployment.ended(deployment.create([{"text": "Hello."}]))["text"] == "Hello."
        assert [program.stop() for program in (api, worker)] == [0, 0]
        for program in (api, worker):
            assert all({"event", "level", "timestamp"} <= log.keys() for log in program.logs)
            assert PASSWORD not in program.text


def test_what_authors_and_libraries_log_is_a_line_of_the_same_form(on_sqlite: Deployment) -> None:
    """Without the texts of exceptions, also of those that nobody caught, in tasks and in threads."""
    file = on_sqlite.folder / "loud.py"
    file.write_text(LOUD)
    program = on_sqlite.serve(agents=str(file))
    on_sqlite.ended(on_sqlite.create([], agent="loud"))
    program.hears("uncaught", 2)
    program.hears("order 7 is late")
    (late,) = program.said("order 7 is late")
    assert (late["logger"], late["level"]) == ("shop", "warning")
    (failed,) = program.said("it failed")
    assert failed["error"] == ["ValueError"] and failed["level"] == "error"
    assert {tuple(log["error"]) for log in program.said("uncaught")} == {("OSError",), ("LookupError",)}
    assert program.stop() == 0
    assert "CANARY" not in program.text
    program.lines.clear()


def test_a_providers_key_stays_inside_even_when_the_provider_says_it(on_sqlite: Deployment) -> None:
    file = on_sqlite.folder / "asking.py"
    file.write_text('from runward import Agent\nasker = Agent(name="asker", model="openai:gpt-5-mini")\n')
    with telltale() as url:
        on_sqlite.foreign = {"OPENAI_API_KEY": PROVIDER_KEY, "OPENAI_BASE_URL": url}
        program = on_sqlite.serve(agents=str(file))
        run = on_sqlite.ended(on_sqlite.create([], agent="asker"))
    assert (run["status"], run["error"]["code"]) == ("failed", "model_error")
    answers = [on_sqlite.http.get(f"/runs/{run['run_id']}{part}").text for part in ("", "/events", "/messages", "/receipts")]
    assert program.stop() == 0
    assert PROVIDER_KEY not in program.text + "".join(answers)


@contextmanager
def telltale() -> Iterator[str]:
    """A provider that refuses every key, and repeats it in its answer."""

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.dumps(
                {"error": {"message": f"Incorrect API key: {self.headers['authorization']}", "code": "invalid_api_key"}}
            ).encode()
            self.send_response(401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


LOUD = """
import asyncio
import gc
import logging
import threading
import warnings

from runward import Agent, Reply, ScriptedModel

log = logging.getLogger("shop")


def dies():
    raise LookupError("CANARY")


async def fails():
    raise OSError("CANARY")


async def says(request):
    log.warning("order %d is late", 7)
    log.info("CANARY of something that is not logged by default")
    try:
        raise ValueError("CANARY")
    except ValueError:
        log.exception("it failed")
    thread = threading.Thread(target=dies)
    thread.start()
    thread.join()
    task = asyncio.ensure_future(fails())
    await asyncio.sleep(0.05)
    del task
    gc.collect()
    return Reply(text="Said.")


loud = Agent(name="loud", model=ScriptedModel(says))
"""
