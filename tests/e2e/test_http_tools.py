"""HTTP tools in real processes: agents without Python, what keeps a worker from starting, and secrets that come back."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.e2e.deployment import Deployment
from tests.fakes import KEY, Answer, FakeOpenAI
from tests.fakes.replies import Call
from tests.support.background import background
from tests.support.wire import Request
from tests.tools.web import Handler, Web, answer, redirect

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "authoring.md").read_text()


def guide_yaml(url: str) -> str:
    """The guide's agents without Python, with a server of ours in the place of its own."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    assert "https://erp.internal/" in block
    return str(block).replace("https://erp.internal/", f"{url}/")


def test_the_guides_agent_without_python_runs(on_sqlite: Deployment) -> None:
    with background(Web({"/stock/A%2F1": answer(200, {"count": 3})})) as web, background(FakeOpenAI()) as fake:
        (on_sqlite.folder / "desk.yaml").write_text(guide_yaml(web.url))
        on_sqlite.foreign = {**fake.environ, "ERP_TOKEN": "the-token-of-the-erp"}
        on_sqlite.settings |= {"agents": "desk.yaml", "outbound_hosts": web.place}
        fake.reply(Answer(calls=[Call(name="stock", arguments='{"sku": "A/1"}')]), Answer(text="There are 3."))
        fake.default = Answer(text='{"answer": "3"}')
        on_sqlite.serve()
        run_id = on_sqlite.http.post("/runs", json={"agent": "desk", "input": "How many A/1 are there?"}).json()["run_id"]
        [request] = on_sqlite.suspended(run_id)["pending"]["approvals"]
        assert request["tool_name"] == "stock" and web.requests == []
        on_sqlite.resume(run_id, approvals=[{"approval_id": request["approval_id"], "approved": True}])
        run = on_sqlite.ended(run_id)
        assert (run["status"], run["output"]) == ("completed", {"answer": "3"})
        [came] = web.requests
        assert (came.method, came.headers["authorization"]) == ("GET", "Bearer the-token-of-the-erp")
        assert [message["content"] for message in on_sqlite.messages(run["run_id"]) if message["role"] == "tool"]
        assert KEY not in json.dumps(run)


def test_a_worker_says_what_an_http_tool_misses_and_an_api_needs_none_of_it(on_sqlite: Deployment) -> None:
    (on_sqlite.folder / "desk.yaml").write_text(guide_yaml("http://10.1.2.3:8080"))
    on_sqlite.foreign = {"OPENAI_API_KEY": KEY}
    on_sqlite.settings |= {"agents": "desk.yaml"}
    done = on_sqlite.run_command("worker")
    assert done.returncode == 1
    for named in ("'stock'", "'desk'", "ERP_TOKEN", "RUNWARD_OUTBOUND_HOSTS"):
        assert named in done.stdout + done.stderr
    assert on_sqlite.run_command("worker", outbound_hosts="10.0.0.0/8").returncode == 1
    on_sqlite.serve("--no-worker")
    assert "ERP_TOKEN" not in on_sqlite.http.get("/agents").text


# -- secrets -----------------------------------------------------------------------------------------------------------------

CANARY = "CANARY/of+the:header value"
IN_URL = "CANARY&of=the?query"
FORMS = [
    form for secret in (CANARY, IN_URL) for form in (secret, quote(secret, safe=""), quote(secret), json.dumps(secret).replace("/", "\\/"))
]

AGENTS = """
from runward import Agent, HttpTool, Reply, ScriptedModel, ToolCall

NAMES = ["ok", "text", "refused", "broken", "astray", "cut", "write"]

def http(name, effect, method="GET"):
    return HttpTool(
        name=name, description=name, url="{url}/" + name + "?key=${{IN_URL}}", method=method, effect=effect, needs_approval=False,
        headers={{"Authorization": "Bearer ${{IN_HEADER}}", "X-Twice": "${{IN_HEADER}}, ${{IN_HEADER}}"}},
    )

tools = [http(name, "read") for name in NAMES if name != "write"] + [http("write", "non_idempotent_write", "POST")]
calls = Reply(tool_calls=[ToolCall(name, {{}}) for name in NAMES])
leaky = Agent(name="leaky", model=ScriptedModel([calls, Reply(text="Done.")]), tools=tools)
"""


def echo(came: Request) -> str:
    """All that came, as a careless service repeats it."""
    return f"You sent {came.path} with {came.headers['authorization']} and {came.headers['x-twice']}"


def repeats(status: int, kind: str) -> Handler:
    async def handler(came: Request, writer: asyncio.StreamWriter) -> None:
        text = echo(came)
        body = {"said": text, text: [text]} if kind == "application/json" else text
        writer.write(answer(status, body, kind=kind, headers={"X-Echo": came.headers["authorization"]}))

    return handler


async def astray(came: Request, writer: asyncio.StreamWriter) -> None:
    key = came.path.partition("key=")[2]
    writer.write(redirect(302, f"http://127.0.0.1:1/{key}?{came.headers['authorization'].replace(' ', '%20')}"))


async def cut(came: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 " + came.headers["authorization"].encode() + b"\r\nContent-Length: 1000\r\n\r\n" + echo(came).encode())


@pytest.fixture
def leaky(on_sqlite: Deployment) -> Iterator[Deployment]:
    web = Web(
        {
            "/ok": repeats(200, "application/json"),
            "/text": repeats(200, "text/plain"),
            "/refused": repeats(404, "application/json"),
            "/broken": repeats(500, "text/plain"),
            "/astray": astray,
            "/cut": cut,
            "/write": repeats(500, "application/json"),
        }
    )
    with background(web):
        (on_sqlite.folder / "leaky.py").write_text(AGENTS.format(url=web.url))
        on_sqlite.foreign = {"IN_HEADER": CANARY, "IN_URL": IN_URL}
        on_sqlite.settings |= {"agents": "leaky.py", "outbound_hosts": web.place, "log_format": "json"}
        yield on_sqlite
    came = [request for request in web.requests if request.path.startswith("/ok")]
    assert came and CANARY in came[0].headers["authorization"] and quote(IN_URL, safe="") in came[0].path, "the canaries did fly"


def test_R9_no_secret_of_an_http_tool_comes_back_by_any_way(leaky: Deployment) -> None:
    """Whatever the other side does with it: results, errors, redirects, cut answers. Every answer of the API, every stream, every log line,
    and the database itself are looked through."""
    program = leaky.serve()
    run_id = leaky.http.post("/runs", json={"agent": "leaky", "input": "Leak."}).json()["run_id"]
    waiting = leaky.suspended(run_id)
    assert [effect["tool_name"] for effect in waiting["pending"]["unknown_effects"]] == ["write"]
    seen = read_everything(leaky, run_id)
    leaky.resume(run_id, reconcile=[{"tool_call_id": "1.7", "decision": "error", "output": "It did not."}])
    assert leaky.ended(run_id)["text"] == "Done."
    seen += read_everything(leaky, run_id)
    with leaky.http.stream("GET", f"/runs/{run_id}/events") as stream:
        seen.append(stream.read().decode())
    assert sum("[redacted]" in text for text in seen) >= 2, "what came back was there"
    assert program.hears("outbound_refused")["reason"]
    assert program.stop() == 0
    stored = b"".join(file.read_bytes() for file in leaky.folder.glob("runward.db*"))
    assert len(stored) > 10_000
    for form in FORMS:
        assert form not in program.text
        assert all(form not in text for text in seen)
        assert form.encode() not in stored
    assert all("CANARY" not in text for text in (*seen, program.text)) and b"CANARY" not in stored


def read_everything(deployment: Deployment, run_id: str) -> list[str]:
    """The answer of every GET of the API's own document, and of one that does not exist."""
    paths = [path for path, operations in deployment.http.get("/openapi.json").json()["paths"].items() if "get" in operations]
    assert len(paths) > 15
    named = {"{run_id}": run_id, "{name}": "leaky", "{approval_id}": "none"}
    read = []
    for path in [*paths, "/nowhere"]:
        for name, value in named.items():
            path = path.replace(name, value)  # noqa: PLW2901
        if not path.endswith("/events"):
            read.append(deployment.http.get(path, params={"wait": 0} if path == f"/runs/{run_id}" else {}).text)
    return read
