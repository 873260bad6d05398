"""I-56: secrets are planted wherever one can come in, and looked for wherever text goes out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.agents import SECRET
from tests.e2e.deployment import AGENTS, Deployment
from tests.e2e.programs import clean_environment
from tests.e2e.test_logs import secretive, telltale
from tests.support.servers import free_port

C = "CANARY"
NOWHERE = "127.0.0.1:1"

# -- at the start ------------------------------------------------------------------------------------------------------------

DATABASES = [
    f"postgresql+asyncpg://user:{password}@{NOWHERE}/name"
    for password in (
        C, f"{C}%40x", f"{C}@x", f"{C}/x", f"x:{C}", f"{C}#x", f"{C}?x", f"x@{C}", f"x@{C}:y", f"%ff{C}", f"{C}[", f"{C} x", f"x@y/{C}",
        f"x@y:1/z?{C}=1", f"x:{C}@y:z",
    )
] + [
    C,
    f"postgresql://user:{C}@{NOWHERE}/name",
    f"mysql+aiomysql://user:{C}@{NOWHERE}/name",
    f"sqlite+aiosqlite:///x.db?key={C}",
    *(f"postgresql+asyncpg://user@{NOWHERE}/name?{name}={C}" for name in ("password", "ssl", "timeout", "port", "unheard_of", "dsn")),
]  # fmt: skip
SETTINGS = [
    ("RUNWARD_SECRET_KEY", C),
    ("RUNWARD_PORT", C),
    ("RUNWARD_LOG_FORMAT", C),
    ("RUNWARD_REDIS_URL", C),
    ("RUNWARD_REDIS_URL", f"redis://hints:{C}@{NOWHERE}/x"),
    ("RUNWARD_REDIS_URL", f"http://hints:{C}@{NOWHERE}/0"),
    ("RUNWARD_REDIS_URL", f"redis://hints:x@{C}@{NOWHERE}/0?x={C}"),
    ("RUNWARD_OUTBOUND_HOSTS", f"erp.internal,https://user:{C}@erp.internal"),
    ("RUNWARD_OUTBOUND_ONLY", f"user:{C}@erp.internal"),
]
CALLS = [
    *(("RUNWARD_API_KEY", key) for key in (f"{C}\nx", f"{C} x", f"{C}\u00e9", C)),
    *(("RUNWARD_URL", url) for url in (C, f"http://x:{C}@{NOWHERE}", f"http://{C}:x:y", f"ftp://{C}", f"http://{NOWHERE}/?key={C}")),
]  # fmt: skip
STARTS = [
    *((words, {"RUNWARD_DATABASE_URL": url}) for url in DATABASES for words in (["migrate"], ["keys", "list"], ["worker"])),
    *((["worker"], {name: value}) for name, value in SETTINGS),
    *((["runs", "list"], {"RUNWARD_URL": f"http://{NOWHERE}", name: value}) for name, value in CALLS),
]

STARTER = """
import json, os, sys
from runward.cli import main

clean = dict(os.environ)
for words, given in json.loads(sys.argv[1]):
    os.environ.clear()
    os.environ.update({**clean, **given})
    sys.argv = ["runward", *words]
    print("--", flush=True)
    try:
        main()
        print("it started", flush=True)
    except SystemExit as ended:
        print(f"exit code {ended.code}", flush=True)
"""


def test_what_is_wrong_at_the_start_is_said_without_what_was_given(tmp_path: Path) -> None:
    """Passwords with characters that a URL cannot have in one are parsed as something else: as half a host, as an option."""
    done = subprocess.run(
        [sys.executable, "-c", STARTER, json.dumps(STARTS)],
        env={**clean_environment(), "RUNWARD_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/none.db"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    told = done.stdout.split("--\n")[1:]
    assert len(told) == len(STARTS), done.stdout
    for start, said in zip(STARTS, told, strict=True):
        assert said.startswith("error: ") and said.endswith("exit code 1\n"), (start, said)
        assert C.lower() not in said.lower() and "Traceback" not in said and "bug" not in said, (start, said)


# -- at work -----------------------------------------------------------------------------------------------------------------

SECRET_KEY, REDIS, CONTEXT, TOOL_CONTEXT = (f"{C}-OF-THE-{what}" for what in ("SECRET-KEY", "REDIS-PASSWORD", "CONTEXT", "TOOL-CONTEXT"))
PASSWORD = f"{C}-OF-THE-PASSWORD"
PROVIDER = f"sk-{C}-OF-THE-PROVIDER-0123456789abcdef"
ASKER = 'from runward import Agent\nasker = Agent(name="asker", model="openai:gpt-5-mini")\n'
PERMISSIONS = [part for name in ("runs:read", "runs:write", "approvals:decide") for part in ("--permission", name)]
COMMANDS = [
    ["agents"], ["keys", "list"], ["runs", "list"], ["runs", "show", "{run}"], ["runs", "why", "{run}"], ["runs", "accounting", "{run}"],
    ["runs", "cancel", "nobody"], ["approvals", "list"], ["approvals", "show", "{approval}"], ["ops", "workers"], ["ops", "leases"],
    ["ops", "stale"], ["ops", "unclaimable"],
]  # fmt: skip


def keyed(deployment: Deployment, *options: str) -> str:
    made = deployment.run_command("keys", "create", "--tenant", "acme", *PERMISSIONS, *options, "--json")
    return str(json.loads(made.stdout)["key"])


def test_I56_no_secret_leaves_a_service_at_work(deployment: Deployment) -> None:
    """Neither of its own, nor of its callers: not in an answer, a stream, a log line, or what a command prints; nor are keys stored."""
    with telltale() as provider:
        file = deployment.folder / "asking.py"
        file.write_text(ASKER)
        deployment.foreign = {"OPENAI_API_KEY": PROVIDER, "OPENAI_BASE_URL": provider}
        deployment.database = secretive(deployment.database)
        redis = f"redis://hints:{REDIS}@127.0.0.1:{free_port()}/0"
        deployment.settings |= {"secret_key": SECRET_KEY, "redis_url": redis, "agents": f"{AGENTS},{file}", "log_format": "json"}
        key, operator = keyed(deployment), keyed(deployment, "--operator", "--permission", "ops")
        deployment.http.headers["Authorization"] = f"Bearer {key}"
        deployment.start()
        contexts = {"whoami": {"token": TOOL_CONTEXT}}
        calls = [["leak", {"order_id": 1}], ["whoami", {}], ["refund", {"order_id": 2}]]
        run_id = deployment.create([{"calls": calls}, {"echo": True}], tool_context=contexts)
        [request] = deployment.suspended(run_id)["pending"]["approvals"]
        approval = request["approval_id"]
        failed = deployment.ended(deployment.create([], agent="asker"))
        assert (failed["status"], failed["error"]["code"]) == ("failed", "model_error")
        tokens = [
            deployment.http.post(path, json=body).json()["token"]
            for path, body in ((f"/runs/{run_id}/access-tokens", {"allow": ["events"]}), (f"/approvals/{approval}/access-tokens", {}))
        ]
        seen = [str(failed), str(request), *questions(deployment, run_id, approval, key, tokens)]
        seen += everything(deployment, run_id, approval) + everything(deployment, failed["run_id"], approval)
        seen += commands(deployment, run_id, approval, operator)
        deployment.http.post(f"/approvals/{approval}", json={"approved": False, "reason": "No."})
        assert deployment.ended(run_id)["task_outcome"] in ("denied", "resolved")
        deployment.http.headers["Authorization"] = f"Bearer {operator}"
        seen += everything(deployment, run_id, approval)
        assert len(seen) > 80
        assert [program.stop() for program in deployment.programs] == [0] * len(deployment.programs)
    logged = "".join(program.text for program in deployment.programs)
    assert "tool_failed" in logged and "bus_polls" in logged
    hidden = [
        SECRET,
        SECRET_KEY,
        PASSWORD,
        REDIS,
        PROVIDER,
        TOOL_CONTEXT,
        CONTEXT,
        *tokens,
        *(text.split("_", 2)[2] for text in (key, operator)),
    ]
    for secret in hidden:
        assert secret not in logged, secret
        assert not any(secret in text for text in seen), secret
    stored = b"".join(each.read_bytes() for each in deployment.folder.glob("runward.db*"))
    assert [secret for secret in hidden if secret.encode() in stored] == []


def questions(deployment: Deployment, run_id: str, approval: str, key: str, tokens: list[str]) -> list[str]:
    """Answers to what is wrong with a request, each with a secret somewhere in it."""
    ask, other = deployment.http.request, {"Authorization": f"Bearer {key}x"}
    context = {"token": CONTEXT}
    answers = [
        ask("GET", "/runs", headers=other),
        ask("GET", "/runs", headers={"Authorization": f"Basic {key}"}),
        ask("GET", f"/runs/{run_id}", params={"token": tokens[0]}),
        ask("GET", f"/runs/{run_id}/events", params={"token": tokens[0] + "x"}),
        ask("GET", f"/runs/{run_id}/events", params={"token": tokens[0], "until": "suspended"}, headers={"Authorization": ""}),
        ask("GET", f"/approvals/{approval}", headers={"Authorization": f"Bearer {tokens[1]}"}),
        ask("POST", f"/approvals/{approval}", headers={"Authorization": f"Bearer {tokens[0]}"}, json={"approved": True}),
        ask("GET", f"/approvals/{tokens[1]}"),
        ask("GET", f"/runs/{tokens[0][:100]}"),
        ask("GET", "/runs", params={"cursor": tokens[0]}),
        ask("GET", "/runs", params={"status": CONTEXT}),
        ask("GET", "/runs", params={"nothing": CONTEXT}),
        ask(
            "POST",
            "/runs",
            json={"agent": "puppet", "input": "x", "context": context, "tool_context": {"whoami": context, "nobody": context}},
        ),
        ask("POST", "/runs", json={"agent": "nobody", "input": CONTEXT}),
        ask("POST", "/runs", json={"agent": "puppet", "input": "x", "nothing": CONTEXT}),
        ask(
            "POST", "/runs", json={"agent": "puppet", "input": {"x": CONTEXT}, "priority": CONTEXT, "limits": CONTEXT, "start_at": CONTEXT}
        ),
        ask("POST", "/runs", content=b'{"agent": "' + CONTEXT.encode() + b'", '),
        ask("POST", "/runs", content=b"\xff" + CONTEXT.encode(), headers={b"Idempotency-Key": f"{CONTEXT}\u00e9".encode()}),
        ask("POST", f"/runs/{run_id}/answers", json={"answers": [{"question_id": CONTEXT, "answer": CONTEXT}]}),
        ask("POST", f"/runs/{run_id}/tool-results", json={"results": [{"tool_call_id": CONTEXT, "output": CONTEXT}]}),
        ask("POST", f"/runs/{run_id}/reconcile", json={"calls": [{"tool_call_id": CONTEXT, "decision": CONTEXT}]}),
        ask("DELETE", f"/runs/{CONTEXT}\u00e9"),
        ask("PATCH", f"/{CONTEXT}"),
    ]
    assert sum(answer.status_code >= 400 for answer in answers) >= 20
    return [answer.text for answer in answers]


def everything(deployment: Deployment, run_id: str, approval: str) -> list[str]:
    """The answer of every GET of the API's own document, streams included."""
    named = {"{run_id}": run_id, "{name}": "puppet", "{approval_id}": approval, "{worker_id}": "nobody"}
    read = []
    for path, calls in deployment.http.get("/openapi.json").json()["paths"].items():
        for name, value in named.items():
            path = path.replace(name, value)  # noqa: PLW2901
        if "get" in calls:
            options: dict[str, Any] = {"until": "suspended"} if path.endswith("/events") else {}
            read.append(deployment.http.get(path, params=options).text)
    assert len(read) > 15
    return read


def commands(deployment: Deployment, run_id: str, approval: str, key: str) -> list[str]:
    """What the commands print."""
    printed = []
    deployment.foreign |= {"RUNWARD_API_KEY": key, "RUNWARD_URL": deployment.url}
    for words in COMMANDS:
        done = deployment.run_command(*(word.format(run=run_id, approval=approval) for word in words))
        printed.append(done.stdout + done.stderr)
    return printed
