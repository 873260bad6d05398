"""`import runward` is cheap: authors' modules are imported by every process, the API included."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "aiosqlite",
    "alembic",
    "anthropic",
    "asyncpg",
    "fastapi",
    "griffe",
    "httpx",
    "httpx2",
    "openai",
    "pydantic_ai",
    "redis",
    "sqlalchemy",
}
HEAVY |= {"starlette", "structlog", "typer", "uvicorn", "yaml"}


@pytest.mark.parametrize("statement", ["import runward", "import runward.agents.registry", "import runward.tools.bodies"])
def test_nothing_heavy_is_imported(statement: str) -> None:
    script = f"import sys; {statement}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(set(done.stdout.split()) & HEAVY) == []


def test_a_module_of_plain_tools_needs_no_docstring_parser() -> None:
    script = """
import sys
from runward import tool
@tool(effect="read")
def look(order_id: int) -> str:
    "Look up."
    return ""
print("griffe" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
