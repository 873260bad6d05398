"""Who may do what: the one table. A route that is not in it cannot be made."""

from __future__ import annotations

from collections.abc import Mapping

from runward.engine.callers import Allow, Permission

Needs = Permission | tuple[Permission, ...] | None
"""What a call needs: a permission; one of several, where it depends on the body which; or None: anybody may, without a key."""

PERMISSIONS: Mapping[str, Needs] = {
    "POST /runs": Permission.RUNS_WRITE,
    "GET /runs": Permission.RUNS_READ,
    "GET /runs/{run_id}": Permission.RUNS_READ,
    "GET /runs/{run_id}/accounting": Permission.RUNS_READ,
    "DELETE /runs/{run_id}": Permission.RUNS_WRITE,
    "GET /runs/{run_id}/events": Permission.RUNS_READ,
    "GET /runs/{run_id}/messages": Permission.RUNS_READ,
    "GET /runs/{run_id}/receipts": Permission.RUNS_READ,
    "GET /runs/{run_id}/inbox": Permission.RUNS_READ,
    "POST /runs/{run_id}/approvals": Permission.APPROVALS_DECIDE,
    "POST /runs/{run_id}/tool-results": Permission.RUNS_WRITE,
    "POST /runs/{run_id}/answers": Permission.RUNS_WRITE,
    "POST /runs/{run_id}/reconcile": Permission.APPROVALS_DECIDE,
    "POST /runs/{run_id}/resume": (Permission.RUNS_WRITE, Permission.APPROVALS_DECIDE),
    "POST /runs/{run_id}/cancel": Permission.RUNS_WRITE,
    "POST /runs/{run_id}/access-tokens": Permission.RUNS_WRITE,
    "GET /approvals": Permission.APPROVALS_DECIDE,
    "GET /approvals/{approval_id}": Permission.APPROVALS_DECIDE,
    "POST /approvals/{approval_id}": Permission.APPROVALS_DECIDE,
    "POST /runs/cancel": Permission.RUNS_WRITE,
    "GET /runs/{run_id}/why": Permission.RUNS_READ,
    "POST /runs/{run_id}/drain": Permission.RUNS_WRITE,
    "POST /approvals/{approval_id}/access-tokens": Permission.APPROVALS_DECIDE,
    "GET /agents": Permission.RUNS_READ,
    "GET /agents/{name}": Permission.RUNS_READ,
    "GET /ops/workers": Permission.OPS,
    "POST /ops/workers/{worker_id}/drain": Permission.OPS,
    "GET /ops/leases": Permission.OPS,
    "GET /ops/stale": Permission.OPS,
    "GET /ops/unclaimable": Permission.OPS,
    "POST /ops/recover": Permission.OPS,
    "POST /ops/rebind": Permission.OPS,
    "POST /ops/runs/{run_id}/limits": Permission.OPS,
    "POST /ops/prune": Permission.OPS,
    "GET /budgets/{key}": Permission.OPS,
    "PUT /budgets/{key}": Permission.OPS,
    "PATCH /budgets/{key}": Permission.OPS,
    "GET /healthz": None,
    "GET /readyz": None,
    "GET /openapi.json": None,
}
"""What a caller's key must allow, by method and path."""

OPENED_BY_TOKENS: Mapping[str, Allow] = {
    "GET /runs/{run_id}/events": Allow.EVENTS,
    "POST /runs/{run_id}/tool-results": Allow.TOOL_RESULTS,
    "POST /runs/{run_id}/answers": Allow.ANSWERS,
    "POST /runs/{run_id}/cancel": Allow.CANCEL,
    "GET /approvals/{approval_id}": Allow.DECIDE,
    "POST /approvals/{approval_id}": Allow.DECIDE,
}
"""What an access token must allow, for the calls that one opens at all."""


def spelled(needs: Needs) -> str | None:
    """What a call needs, as the documents say it."""
    return " or ".join(needs) if isinstance(needs, tuple) else needs and needs.value
