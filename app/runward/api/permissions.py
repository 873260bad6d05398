"""Who may do what: the one table. A route that is not in it cannot be made."""

from __future__ import annotations

from collections.abc import Mapping

from runward.engine.callers import Permission

PERMISSIONS: Mapping[str, Permission | None] = {
    "POST /runs": Permission.RUNS_WRITE,
    "GET /runs": Permission.RUNS_READ,
    "GET /runs/{run_id}": Permission.RUNS_READ,
    "DELETE /runs/{run_id}": Permission.RUNS_WRITE,
    "GET /runs/{run_id}/events": Permission.RUNS_READ,
    "GET /runs/{run_id}/messages": Permission.RUNS_READ,
    "GET /runs/{run_id}/receipts": Permission.RUNS_READ,
    "POST /runs/{run_id}/cancel": Permission.RUNS_WRITE,
    "GET /agents": Permission.RUNS_READ,
    "GET /agents/{name}": Permission.RUNS_READ,
    "GET /healthz": None,
    "GET /readyz": None,
    "GET /openapi.json": None,
}
"""What a caller's key must allow, by method and path. None: anybody, without a key."""
