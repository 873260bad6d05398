"""API keys: made and revoked from a terminal while the service runs, and honoured at once."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import httpx

from tests.e2e.deployment import Deployment
from tests.e2e.outside import in_database


def made(deployment: Deployment, *arguments: str) -> dict[str, str]:
    done = deployment.run_command("keys", "create", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    key: dict[str, str] = json.loads(done.stdout)
    return key


def bearing(key: dict[str, str]) -> dict[str, str]:
    return {"Authorization": f"Bearer {key['key']}"}


def test_keys_are_honoured_and_revoked_at_once(deployment: Deployment) -> None:
    deployment.serve()
    http = deployment.http
    assert http.get("/runs").status_code == 200
    acme = made(deployment, "--tenant", "acme", "--permission", "runs:read", "--permission", "runs:write")
    refused = http.get("/runs")
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated") and refused.headers["www-authenticate"]
    assert http.get("/healthz").status_code == 200
    run = http.post("/runs", json={"agent": "puppet", "input": '[{"text": "Hello."}]'}, headers=bearing(acme)).json()
    assert run["scope"]["tenant"] == "acme"
    globex = made(deployment, "--tenant", "globex", "--permission", "runs:read")
    for path in (f"/runs/{run['run_id']}", f"/runs/{run['run_id']}/events", f"/runs/{run['run_id']}/messages"):
        assert http.get(path, headers=bearing(acme)).status_code == 200
        assert http.get(path, headers=bearing(globex)).status_code == 404
    assert http.get("/runs", headers=bearing(globex)).json()["data"] == []
    not_permitted = http.post("/runs", json={"agent": "puppet", "input": "[]"}, headers=bearing(globex))
    assert (not_permitted.status_code, not_permitted.json()["code"]) == (403, "not_permitted")
    operator = made(deployment, "--tenant", "ops", "--operator", "--permission", "runs:read")
    assert [each["run_id"] for each in http.get("/runs?tenant=acme", headers=bearing(operator)).json()["data"]] == [run["run_id"]]
    assert deployment.run_command("keys", "revoke", acme["id"]).returncode == 0
    assert http.get("/runs", headers=bearing(acme)).status_code == 401
    assert http.get("/runs", headers=bearing(globex)).status_code == 200
    again = deployment.run_command("keys", "revoke", acme["id"])
    assert again.returncode == 1 and "could be revoked" in again.stderr


def test_a_keys_text_is_shown_once_and_stored_nowhere(deployment: Deployment) -> None:
    key = made(deployment, "--tenant", "acme", "--user", "u1", "--namespace", "n1", "--permission", "runs:read")
    secret = key["key"].removeprefix(f"rw_{key['id']}_")
    listed = [deployment.run_command("keys", "list", "--json"), deployment.run_command("keys", "list")]
    assert json.loads(listed[0].stdout)[0]["id"] == key["id"] and key["id"] in listed[1].stdout
    assert all(secret not in done.stdout + done.stderr for done in listed)
    assert json.loads(deployment.run_command("keys", "list", "--tenant", "nobody", "--json").stdout) == []
    (row,) = in_database(deployment.database, "SELECT * FROM api_keys")
    assert secret not in str(row)


def test_the_list_says_when_a_key_was_last_used(deployment: Deployment) -> None:
    """What a process has noted is stored when it ends, too."""
    used, unused = [made(deployment, "--tenant", "acme", "--permission", "runs:read") for _ in range(2)]
    serving = deployment.serve()
    before = datetime.now(UTC) - timedelta(seconds=5)
    assert deployment.http.get("/runs", headers=bearing(used)).status_code == 200
    assert serving.stop() == 0
    listed = {key["id"]: key["last_used_at"] for key in json.loads(deployment.run_command("keys", "list", "--json").stdout)}
    assert listed[unused["id"]] is None
    assert datetime.fromisoformat(listed[used["id"]]) > before


def test_a_key_expires(on_sqlite: Deployment) -> None:
    on_sqlite.serve()
    soon = datetime.now(UTC) + timedelta(seconds=10)
    key = made(on_sqlite, "--tenant", "acme", "--permission", "runs:read", "--expires", soon.strftime("%Y-%m-%dT%H:%M:%S"))
    statuses = [on_sqlite.http.get("/runs", headers=bearing(key)).status_code]
    while datetime.now(UTC) < soon + timedelta(seconds=1):
        statuses.append(on_sqlite.http.get("/runs", headers=bearing(key)).status_code)
    assert set(statuses) <= {200, 401} and statuses[-1] == 401 and statuses == sorted(statuses)
    past = on_sqlite.run_command("keys", "create", "--tenant", "a", "--permission", "runs:read", "--expires", "2020-01-01T00:00:00")
    assert past.returncode == 1 and "expired" in past.stderr


def test_what_cannot_be_a_key_is_refused(on_sqlite: Deployment) -> None:
    """And changes nothing: the service stays open."""
    unknown = on_sqlite.run_command("keys", "create", "--tenant", "acme", "--permission", "runs:reed")
    assert unknown.returncode == 1 and "runs:reed" in unknown.stderr and "runs:read" in unknown.stderr
    for name in ("", "a\tb", "x" * 129, "\udcff"):
        bad = on_sqlite.run_command("keys", "create", "--tenant", name, "--permission", "runs:read")
        assert bad.returncode == 1 and "named by" in bad.stderr and "Traceback" not in bad.stderr, bad.stderr
    assert on_sqlite.run_command("keys", "create", "--tenant", "acme").returncode == 2
    assert json.loads(on_sqlite.run_command("keys", "list", "--json").stdout) == []
    on_sqlite.serve()
    assert on_sqlite.http.get("/runs").status_code == 200


def test_only_a_loopback_door_can_be_opened_again(on_postgres: Deployment) -> None:
    """`keys open` lets everybody in where only this machine comes in; whoever listens further keeps asking for keys."""
    deployment = on_postgres
    key = made(deployment, "--tenant", "acme", "--permission", "runs:read")
    deployment.serve()
    wide = Deployment(deployment.database, deployment.folder, deployment.ledger)
    deployment.programs.append(wide.serve("--no-worker", "--host", "0.0.0.0"))
    assert [door.http.get("/runs").status_code for door in (deployment, wide)] == [401, 401]
    assert deployment.run_command("keys", "open").returncode == 0
    assert [door.http.get("/runs").status_code for door in (deployment, wide)] == [200, 401]
    assert wide.http.get("/runs", headers=bearing(key)).status_code == 200
    made(deployment, "--tenant", "acme", "--permission", "runs:read")
    assert deployment.http.get("/runs").status_code == 401
    wide.http.close()


def test_a_key_of_no_ascii_or_of_another_kind_is_a_401(on_sqlite: Deployment) -> None:
    made(on_sqlite, "--tenant", "acme", "--permission", "runs:read")
    on_sqlite.serve()
    for value in (b"Bearer \xff\xfe", b"Bearer", b"Basic abc", "Bearer schlüssel".encode(), b"Bearer " + b"x" * 5_000):
        with httpx.Client(base_url=on_sqlite.url, headers=[(b"Authorization", value)], trust_env=False) as http:
            assert http.get("/runs").status_code == 401
