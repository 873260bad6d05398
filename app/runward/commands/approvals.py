"""`runward approvals`."""

from __future__ import annotations

from typing import Annotated

import typer

from runward.commands.parts import AsJson, Limit, Url, Why, api, document, given, show

app = typer.Typer(help="What waits for a person to approve it, over the API.", no_args_is_help=True)


@app.command("list")
def list_approvals(  # noqa: PLR0917 - typer makes options of them
    status: Annotated[list[str] | None, typer.Option(help="Only requests of this status; repeatable. Pending ones without it.")] = None,
    run_id: Annotated[str | None, typer.Option("--run", help="Only those of this run.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only those for this tool.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """The newest requests for approval."""
    query = given(status=status or ["pending"], run_id=run_id, agent=agent, tool=tool, limit=limit)
    columns = ("approval_id", "status", "run_id", "agent", "tool_name", "arguments", "created_at", "expires_at")
    show(api(url).get("/approvals", **query)["data"], as_json, columns)


@app.command("show")
def show_approval(approval_id: str, url: Url = None) -> None:
    """One request, with its decision once there is one, as JSON."""
    document(api(url).get(f"/approvals/{approval_id}"))


@app.command("approve")
def approve(approval_id: str, reason: Why = None, url: Url = None) -> None:
    """Approve a call: it runs at once."""
    _decide(url, approval_id, approved=True, reason=reason)


@app.command("deny")
def deny(approval_id: str, reason: Why = None, url: Url = None) -> None:
    """Deny a call: the model reads that it was denied, and the reason."""
    _decide(url, approval_id, approved=False, reason=reason)


def _decide(url: str | None, approval_id: str, *, approved: bool, reason: str | None) -> None:
    typer.echo(api(url).post(f"/approvals/{approval_id}", {"approved": approved, **given(reason=reason)})["status"])
