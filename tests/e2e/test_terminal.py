"""The API from a terminal, against a live service, with and without a key."""

from __future__ import annotations

import json

from tests.e2e.deployment import Deployment

AWKWARD = "one\u2028two\u0085three\x0bfour\r\nfive \U0001f600"


def test_runs_from_a_terminal(on_postgres: Deployment) -> None:
    """First without a key; then with one, as another tenant."""
    deployment = on_postgres
    deployment.serve()

    def said(*arguments: str, code: int = 0) -> str:
        done = deployment.run_command(*arguments)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    assert [agent["name"] for agent in json.loads(said("agents", "--json"))] == ["narrow", "puppet"]
    assert "puppet" in said("agents")
    done = deployment.create([{"text": AWKWARD, "calls": [["lookup", {"order_id": 1}]]}, {"text": AWKWARD}])
    deployment.ended(done)
    deployment.ledger.hold("lookup 2")
    held = deployment.create([{"calls": [["lookup", {"order_id": 2}]]}, {"text": "x"}])
    deployment.ledger.arrived("lookup 2")
    assert done in said("runs", "list")
    assert [run["run_id"] for run in json.loads(said("runs", "list", "--status", "running", "--json"))] == [held]
    assert json.loads(said("runs", "show", done)) == deployment.run(done)
    frames = [json.loads(line) for line in said("runs", "events", done).rstrip("\n").split("\n")]
    assert frames == deployment.frames(done).frames
    assert len(said("runs", "events", done, "--after", str(len(frames) - 2)).rstrip("\n").split("\n")) == 2
    assert said("runs", "events", done, "--after", str(len(frames))) == ""
    assert "has not ended" in said("runs", "delete", held, code=1)
    assert said("runs", "cancel", held, "--reason", "user left") == "accepted\n"
    assert deployment.ended(held)["stop"]["reason"] == "cancelled"
    assert said("runs", "cancel", held) == "already_ended\n"
    assert said("runs", "delete", held) == ""
    for command in (["show", held], ["events", held], ["cancel", held], ["delete", held]):
        refused = said("runs", *command, code=1)
        assert refused.startswith("error: ") and "Traceback" not in refused
    permissions = ["--permission", "runs:read", "--permission", "runs:write"]
    deployment.settings["api_key"] = said("keys", "create", "--tenant", "acme", *permissions).strip()
    deployment.http.headers["Authorization"] = f"Bearer {deployment.settings['api_key']}"
    assert json.loads(said("runs", "list", "--json")) == []
    theirs = deployment.create([{"text": "Hello."}])
    deployment.ended(theirs)
    assert [json.loads(line)["type"] for line in said("runs", "events", theirs).splitlines()][-1] == "data-agent"
    assert "Not found" in said("runs", "show", done, code=1)


def test_a_terminal_says_what_is_wrong(on_sqlite: Deployment) -> None:
    """No service, no key, the wrong key, something else at the address."""

    def refused(*arguments: str, **settings: str) -> str:
        done = on_sqlite.run_command(*arguments, **settings)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        return done.stderr

    assert "cannot be reached" in refused("runs", "list") and "runward serve" in refused("runs", "events", "x")
    assert on_sqlite.run_command("keys", "create", "--tenant", "acme", "--permission", "runs:read").returncode == 0
    on_sqlite.serve()
    assert "key" in refused("runs", "list")
    assert "key" in refused("agents", api_key="rw_CANARY") and "CANARY" not in refused("agents", api_key="rw_CANARY")
    assert "Not found" in refused("runs", "list", "--url", f"{on_sqlite.url}/nothing/here")


def test_runs_are_followed_over_a_restart(
    on_sqlite: Deployment,
) -> None:
    """Every frame is printed once, as it comes."""
    first = on_sqlite.serve(drain_grace_seconds="0.2")
    run_id = on_sqlite.create([{"text": "Word after word. " * 20, "delay": 0.05}])
    following = on_sqlite.spawn("runs", "events", run_id)
    following.wait_for(lambda: len(following.lines) >= 5, "frames")
    assert first.stop() == 0
    on_sqlite.serve()
    on_sqlite.ended(run_id)
    assert following.ended() == 0
    assert [json.loads(line) for line in following.lines] == on_sqlite.frames(run_id).frames


def test_operators_from_a_terminal(on_postgres: Deployment) -> None:
    """Holds, drains, takeovers and verdicts, and what is refused says why."""
    deployment = on_postgres
    deployment.serve()

    def said(*arguments: str, code: int = 0) -> str:
        done = deployment.run_command(*arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    ledger = deployment.ledger
    ledger.hold("lookup 1")
    run_id = deployment.create([{"calls": [["lookup", {"order_id": 1}]]}, {"text": "Read."}])
    ledger.arrived("lookup 1")
    (worker,) = json.loads(said("ops", "workers", "--json"))
    (lease,) = json.loads(said("ops", "leases", "--json"))
    assert (lease["run_id"], lease["worker"]) == (run_id, worker["worker_id"])
    assert worker["worker_id"] in said("ops", "workers") and run_id in said("ops", "leases")
    assert "lease_held" in said("runs", "why", run_id)
    assert [reason["code"] for reason in json.loads(said("runs", "why", run_id, "--json"))["reasons"]] == ["lease_held", "tool_running"]
    assert json.loads(said("ops", "stale", "--json")) == json.loads(said("ops", "unclaimable", "--json")) == []
    assert json.loads(said("ops", "recover")) == {"recovered": 0, "failed": []}
    assert said("runs", "drain", run_id) == said("runs", "hold", run_id, "--reason", "closed") == "accepted\n"
    ledger.release()
    assert deployment.suspended(run_id)["pending"]["hold"]["reason"] == "closed"
    assert said("ops", "limits", run_id, "--max-steps", "50") in ("suspended\n", "queued\n", "running\n")
    assert "can only be raised" in said("ops", "limits", run_id, "--max-steps", "1", code=1)
    assert "no worker" in said("ops", "rebind", "--from", "x", "--to", "y", "--run", run_id, code=1).lower()
    assert json.loads(said("ops", "recover", run_id, "--force"))["failed"] == [{"run_id": run_id, "code": "not_running"}]
    assert said("runs", "release", run_id) == "release_hold accepted\n"
    assert deployment.ended(run_id)["text"] == "Read."

    asking = deployment.create([{"calls": [["refund", {"order_id": 2}], ["refund", {"order_id": 3}]]}, {"text": "x"}])
    deployment.suspended(asking)
    requests = json.loads(said("approvals", "list", "--run", asking, "--json"))
    first, second = sorted(requests, key=lambda request: str(request["tool_call_id"]))
    assert first["approval_id"] in said("approvals", "list")
    assert said("approvals", "approve", first["approval_id"], "--reason", "fine") == "approved\n"
    assert "stands" in said("approvals", "deny", first["approval_id"], code=1)
    body = json.dumps({"approvals": [{"approval_id": second["approval_id"], "approved": False}]})
    assert said("runs", "resume", asking, body) == f"{second['approval_id']} accepted\n"
    deployment.ended(asking)
    assert json.loads(said("approvals", "show", first["approval_id"]))["reason"] == "fine"
    assert "not JSON" in said("runs", "resume", asking, "{", code=2)

    assert json.loads(said("ops", "prune", "--runs-before", "2100-01-31T00:00:00Z")) == {
        "runs": 2,
        "keys": 0,
        "budgets": 0,
        "reservations": 0,
    }
    assert "Say what is to go" in said("ops", "prune", code=1)
    assert said("ops", "drain", worker["worker_id"]) == "accepted\n"
    assert "no such worker" in said("ops", "drain", "nobody", code=1)
