"""What the commands share: their options, the way to the service, and what they print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runward.settings import Settings

if TYPE_CHECKING:
    from runward.terminal import Api

AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
Url = Annotated[str | None, typer.Option("--url", envvar="RUNWARD_URL", help="Where the API is; RUNWARD_HOST and RUNWARD_PORT else.")]
Why = Annotated[str | None, typer.Option("--reason", help="Why; it is recorded.")]
Limit = Annotated[int, typer.Option(min=1, max=1_000)]


def api(url: str | None) -> Api:
    """The service at a URL, or where the settings say that it is."""
    from runward.terminal import Api

    settings = Settings()
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return Api(url or f"http://{host}:{settings.port}")


def show(data: Sequence[dict[str, Any]], as_json: bool, columns: Sequence[str]) -> None:
    """Rows as a table, or as JSON."""
    if as_json:
        document(data)
    else:
        from runward.terminal import table

        table(data, columns)


def document(value: Any) -> None:
    """A JSON document, to be read."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def given(**values: Any) -> dict[str, Any]:
    """The options that were given, by name."""
    return {name: value for name, value in values.items() if value is not None}
