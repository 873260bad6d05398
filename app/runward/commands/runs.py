"""`runward agents` and `runward runs`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from runward.commands.parts import AsJson, Limit, Url, Why, api, document, given, show

app = typer.Typer(help="Runs, over the API.", no_args_is_help=True)


def agents(as_json: AsJson = False, url: Url = None) -> None:
    """The agents that can be run."""
    show(api(url).get("/agents")["data"], as_json, ("name", "version", "fingerprint", "models", "description"))


@app.command("list")
def list_runs(
    status: Annotated[list[str] | None, typer.Option(help="Only runs of this status; repeatable.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """The newest runs."""
    data = api(url).get("/runs", **given(limit=limit, status=status, agent=agent))["data"]
    show(data, as_json, ("run_id", "agent", "status", "task_outcome", "steps", "created_at", "updated_at"))


@app.command("show")
def show_run(run_id: str, url: Url = None) -> None:
    """One run, as JSON."""
    document(api(url).get(f"/runs/{run_id}"))


@app.command("events")
def follow_run(run_id: str, after: Annotated[int, typer.Option(min=0, help="Only frames behind this one.")] = 0, url: Url = None) -> None:
    """A run's frames, a line of JSON each, until it has ended."""
    for line in api(url).frames(run_id, after):
        typer.echo(line)


@app.command("why")
def why_run(run_id: str, as_json: AsJson = False, url: Url = None) -> None:
    """Why a run is not moving, and what to do next."""
    why = api(url).get(f"/runs/{run_id}/why")
    if as_json:
        document(why)
    else:
        typer.echo(f"{why['status']} since {why['since']}")
        show(why["reasons"], False, ("code", "detail", "next"))


@app.command("accounting")
def account_run(run_id: str, as_json: AsJson = False, url: Url = None) -> None:
    """What a run's model calls cost, by model."""
    accounting = api(url).get(f"/runs/{run_id}/accounting")
    if as_json:
        document(accounting)
        return
    for name in ("spent", "reserved", "unknown", "committed"):
        typer.echo(f"{name}: {accounting[name]['tokens']} tokens, {accounting[name]['usd']} USD")
    data = [{"model": each["model"], "model_calls": each["usage"]["model_calls"], **each["spent"]} for each in accounting["by_model"]]
    show(data, False, ("model", "model_calls", "tokens", "usd"))


@app.command("cancel")
def cancel_run(run_id: str, reason: Why = None, url: Url = None) -> None:
    """Cancel a run."""
    typer.echo(api(url).post(f"/runs/{run_id}/cancel", given(reason=reason))["outcome"])


@app.command("drain")
def drain_run(run_id: str, url: Url = None) -> None:
    """Let the worker that drives a run give it back after the step in hand."""
    typer.echo(api(url).post(f"/runs/{run_id}/drain", {})["outcome"])


@app.command("hold")
def hold_run(run_id: str, reason: Why = None, url: Url = None) -> None:
    """Park a run after the step in hand, until it is released."""
    typer.echo(api(url).post(f"/runs/{run_id}/drain", {"hold": True, **given(reason=reason)})["outcome"])


@app.command("release")
def release_run(run_id: str, url: Url = None) -> None:
    """Let a parked run go on."""
    typer.echo(_taken(api(url).post(f"/runs/{run_id}/resume", {"release_hold": True})))


@app.command("resume")
def resume_run(
    run_id: str,
    body: Annotated[str, typer.Argument(help="The body of POST /runs/{run_id}/resume as JSON; - reads it from standard input.")] = "",
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try a run again that failed for a cause that may pass.")] = False,
    url: Url = None,
) -> None:
    """Give a run what it waits for, or try it again; what became of each item, a line each."""
    try:
        brought = json.loads(sys.stdin.read() if body == "-" else body or "{}")
    except ValueError:
        raise typer.BadParameter("The body is not JSON.") from None
    if not isinstance(brought, dict):
        raise typer.BadParameter("The body is not a JSON object.")
    typer.echo(_taken(api(url).post(f"/runs/{run_id}/resume", {**brought, **given(retry_failed=retry_failed or None)})))


@app.command("delete")
def delete_run(run_id: str, url: Url = None) -> None:
    """Delete a run that has ended."""
    api(url).delete(f"/runs/{run_id}")


def _taken(answer: Mapping[str, Any]) -> str:
    """What became of the items of an input, a line each; how the run stands where there were none."""
    lines = [" ".join(str(value) for value in item.values()) for item in answer["items"]]
    return "\n".join(lines) or str(answer["run"]["status"])
