"""Callers of an identity provider, with real processes: it is there, it rotates its keys, and it goes away."""

from __future__ import annotations

import time

from tests.e2e.deployment import Deployment
from tests.e2e.test_keys import bearing, made
from tests.support.identity import AUDIENCE, ISSUER, Provider, claims, provider, signed


def bearer(key: str = "rsa", **more: object) -> dict[str, str]:
    return {"Authorization": f"Bearer {signed(claims(int(time.time() * 1000), **more), key)}"}


def settings(at: Provider) -> dict[str, str]:
    return {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_jwks_url": at.url, "jwt_tenant_claim": "tenant"}


def test_a_provider_s_callers_come_in_and_keep_coming_while_it_is_away(deployment: Deployment) -> None:
    http = deployment.http
    with provider() as at:
        deployment.serve("--host", "127.0.0.1", **settings(at))
        assert http.get("/runs").status_code == 401
        run = http.post("/runs", json={"agent": "puppet", "input": '[{"text": "Hello."}]'}, headers=bearer()).json()
        assert run["scope"] == {"tenant": "acme", "user": "ann", "namespace": None}
        assert http.get(f"/runs/{run['run_id']}", headers=bearer()).status_code == 200
        assert http.get(f"/runs/{run['run_id']}", headers=bearer(sub="bob")).status_code == 404
        assert http.get("/runs", headers=bearer(exp=int(time.time()) - 60)).status_code == 401
        assert http.get("/runs", headers=bearer("rsa2")).status_code == 401
        assert http.get("/runs", headers=bearing(made(deployment, "--tenant", "acme", "--permission", "runs:read"))).status_code == 200
    assert http.get("/runs", headers=bearer()).status_code == 200
    assert deployment.bugs() == []
    (serving,) = deployment.programs
    assert serving.stop() == 0
    assert "Bearer" not in serving.text and "eyJ" not in serving.text


def test_a_service_with_a_provider_listens_anywhere_without_a_first_key(on_sqlite: Deployment) -> None:
    with provider() as at:
        on_sqlite.serve("--host", "0.0.0.0", **settings(at))
        assert on_sqlite.http.get("/runs").status_code == 401
        assert on_sqlite.http.get("/runs", headers=bearer()).status_code == 200


def test_a_provider_that_is_set_halfway_is_said_at_the_start(on_sqlite: Deployment) -> None:
    with provider() as at:
        for missing in ("jwt_audience", "jwt_jwks_url", "jwt_tenant_claim", "secret_key"):
            refused = on_sqlite.run_command("serve", **{**settings(at), missing: ""})
            assert refused.returncode == 1
            assert f"RUNWARD_{missing.upper()}" in refused.stderr and "Traceback" not in refused.stderr
