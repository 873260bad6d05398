"""`docs/operating.md` names every setting, command, log event and exit code as they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from runward.cli import app
from runward.main import STALLED_EXIT_CODE
from runward.settings import SECRET_KEY_LENGTH, Settings
from runward.stores.sql import Pool

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "operating.md").read_text()


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def default(field: FieldInfo) -> str:
    """A setting's default as the page shows it."""
    if field.default in (None, ()):
        return "none"
    if isinstance(field.default, tuple):
        return f"`{','.join(field.default)}`"
    return f"`{field.default}`"


def allowed(name: str, field: FieldInfo) -> str:
    """What a setting may be, as the page shows it."""
    if name == "secret_key":
        return f"{SECRET_KEY_LENGTH} characters or more"
    words = [word for kind in (field.annotation, *get_args(field.annotation)) for word in literals(kind)]
    if words:
        return ", ".join(words)
    least, above, most = (next((getattr(bound, name) for bound in field.metadata if hasattr(bound, name)), None) for name in BOUNDS)
    if most is not None:
        return f"above {above}, to {most}" if above is not None else f"{least} to {most}"
    return f"from {least}" if least is not None else "" if above is None else f"above {above}"


BOUNDS = ("ge", "gt", "le")


def literals(kind: Any) -> tuple[str, ...]:
    return get_args(kind) if get_origin(kind) is Literal else ()


def test_every_setting_is_documented_with_its_default_and_bounds() -> None:
    rows = re.findall(r"^\| `RUNWARD_(\w+)` \| (.*?) \| (.*?) ?\| .+ \|$", section("Settings"), re.MULTILINE)
    documented = {name.lower(): (shown, bounds) for name, shown, bounds in rows}
    fields = Settings.model_fields
    assert documented == {name: (default(field), allowed(name, field)) for name, field in fields.items()}


def events(tree: ast.AST) -> Iterator[str]:
    """What a module logs: the names in `telemetry.event("…")` and `telemetry.problem("…")`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("event", "problem"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def test_every_log_event_is_documented() -> None:
    said = {event for file in (ROOT / "app").rglob("*.py") for event in events(ast.parse(file.read_text()))}
    rows = re.findall(r"^\| (`.+?) \|", section("Logs"), re.MULTILINE)
    assert {event for row in rows for event in re.findall(r"`(\w+)`", row)} == said


def test_every_command_is_documented() -> None:
    rows = re.findall(r"^\| (`runward .+?) \|", section("Processes"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`runward ([a-z]+)", row)]
    assert set(named) == set(typer.main.get_group(app).commands)


def test_numbers_are_those_of_the_code() -> None:
    assert f"up to {Pool().connections + 3} connections: {Pool().connections} for statements" in TEXT
    assert f"Statements take {Pool().command_seconds:g} s at most" in TEXT
    assert f"{STALLED_EXIT_CODE}: the event loop of a worker stood still" in TEXT
