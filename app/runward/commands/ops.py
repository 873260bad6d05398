"""`runward ops`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from runward.commands.parts import AsJson, Limit, Url, Why, api, document, given, show

app = typer.Typer(help="Workers, leases, and what operators do about them, over the API.", no_args_is_help=True)

LEASES = ("run_id", "agent", "status", "worker", "leg", "expires_at", "updated_at", "recoveries", "draining")


@app.command("workers")
def list_workers(as_json: AsJson = False, url: Url = None) -> None:
    """The workers, latest beat first."""
    show(api(url).get("/ops/workers")["data"], as_json, ("worker_id", "live", "draining", "driving", "slots", "beat_at", "host", "pid"))


@app.command("leases")
def list_leases(limit: Limit = 100, as_json: AsJson = False, url: Url = None) -> None:
    """Who drives what, and until when."""
    show(api(url).get("/ops/leases", limit=limit)["data"], as_json, LEASES)


@app.command("stale")
def list_stale(
    stale_seconds: Annotated[int, typer.Option("--seconds", min=0, help="Since when the lease has run out.")] = 60,
    limit: Limit = 100,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Runs whose worker has gone and that nobody has taken over."""
    show(api(url).get("/ops/stale", limit=limit, stale_seconds=stale_seconds)["data"], as_json, LEASES)


@app.command("unclaimable")
def list_unclaimable(limit: Limit = 100, as_json: AsJson = False, url: Url = None) -> None:
    """Runs that no living worker can take."""
    columns = ("run_id", "code", "agent", "agent_version", "binding", "status", "waiting_seconds")
    show(api(url).get("/ops/unclaimable", limit=limit)["data"], as_json, columns)


@app.command("drain")
def drain_worker(worker_id: str, url: Url = None) -> None:
    """Let a worker give its runs back and take no more."""
    typer.echo(api(url).post(f"/ops/workers/{worker_id}/drain", {})["outcome"])


@app.command("recover")
def recover(
    run_id: Annotated[str | None, typer.Argument(help="One run; all whose lease has run out without it.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Take the run also from a worker that lives.")] = False,
    limit: Limit = 100,
    url: Url = None,
) -> None:
    """Take runs from holders that have gone, or one from a holder that hangs."""
    body = {"limit": limit} if run_id is None else {"run_id": run_id}
    document(api(url).post("/ops/recover", {**body, **given(force=force or None)}))


@app.command("rebind")
def rebind(  # noqa: PLR0917 - typer makes options of them
    source: Annotated[str, typer.Option("--from", help="The fingerprint that the runs are bound to.")],
    target: Annotated[str, typer.Option("--to", help="The fingerprint that they are to go on with.")],
    run_id: Annotated[str | None, typer.Option("--run", help="One run.")] = None,
    agent: Annotated[str | None, typer.Option(help="All runs of this agent that are bound so.")] = None,
    reason: Why = None,
    url: Url = None,
) -> None:
    """Let runs go on with other code of the same agent."""
    body = {"from": source, "to": target, **given(run_id=run_id, agent=agent, reason=reason)}
    service, rebound = api(url), 0
    failed: list[dict[str, Any]] = []
    while True:
        page = service.post("/ops/rebind", body)
        rebound, failed = rebound + page["rebound"], failed + page["failed"]
        if page["next_cursor"] is None:
            break
        body["cursor"] = page["next_cursor"]
    document({"rebound": rebound, "failed": failed})


@app.command("limits")
def raise_limits(  # noqa: PLR0917 - as above
    run_id: str,
    max_steps: Annotated[int | None, typer.Option(min=1)] = None,
    timeout_seconds: Annotated[float | None, typer.Option()] = None,
    expires_seconds: Annotated[float | None, typer.Option()] = None,
    reason: Why = None,
    url: Url = None,
) -> None:
    """Raise limits of a run that has not ended."""
    limits = given(max_steps=max_steps, timeout_seconds=timeout_seconds, expires_seconds=expires_seconds)
    typer.echo(api(url).post(f"/ops/runs/{run_id}/limits", {"limits": limits, **given(reason=reason)})["run"]["status"])


@app.command("prune")
def prune(
    runs_before: Annotated[str | None, typer.Option(help="Ended runs last saved before this time, such as 2027-01-31T00:00:00Z.")] = None,
    keys_before: Annotated[str | None, typer.Option(help="Idempotency keys older than this time.")] = None,
    budgets_before: Annotated[str | None, typer.Option(help="Budgets that nobody has used since this time.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many of each.")] = 1_000,
    url: Url = None,
) -> None:
    """Delete ended runs and unused budgets, and forget idempotency keys, for good."""
    before = given(runs_before=runs_before, keys_before=keys_before, budgets_before=budgets_before)
    document(api(url).post("/ops/prune", {**before, "limit": limit}))
