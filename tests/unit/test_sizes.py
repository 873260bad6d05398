"""Code stays readable in one sitting: small files, small functions, and names that say what is inside.

`ALLOWED` names what is too big today, with its size. It only shrinks: an entry fails when its file or function has grown beyond it,
and when it is not needed any more.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

APP = Path(__file__).resolve().parents[2] / "app"

FILE_LINES = 400
FUNCTION_LINES = 60
"""Lines from `def` to the end, the docstring not counted."""

ALLOWED: dict[str, int] = {}
"""`runward/engine/worker.py` or `runward/engine/worker.py::Worker.run` → lines."""

EMPTY_NAMES = re.compile(r"(^|_)(utils?|helpers?|managers?|service_layer)(_|$)")


def functions(tree: ast.AST, path: str = "") -> Iterator[tuple[str, int]]:
    """Every function of a module with its dotted name and its lines."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{path}.{node.name}" if path else node.name
            if not isinstance(node, ast.ClassDef):
                yield name, lines(node)
            yield from functions(node, name)
        else:
            yield from functions(node, path)


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many lines a function has, its docstring not counted."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - docstring


def too_big(root: Path) -> dict[str, int]:
    """What under a source root is bigger than it may be, with its lines."""
    sizes = {}
    for file in sorted(root.rglob("*.py")):
        name, source = file.relative_to(root).as_posix(), file.read_text()
        sizes[name] = (len(source.splitlines()), FILE_LINES)
        sizes |= {f"{name}::{function}": (count, FUNCTION_LINES) for function, count in functions(ast.parse(source))}
    return {name: count for name, (count, limit) in sizes.items() if count > limit}


def test_files_and_functions_are_small() -> None:
    big = too_big(APP)
    grown = {name: count for name, count in big.items() if count > ALLOWED.get(name, 0)}
    assert not grown, f"too big ({FILE_LINES} lines a file, {FUNCTION_LINES} a function): {grown}"


def test_the_allowed_ones_are_still_needed() -> None:
    big = too_big(APP)
    assert big.keys() >= ALLOWED.keys(), f"small enough now, take it off the list: {sorted(ALLOWED.keys() - big.keys())}"


def vague(root: Path) -> list[str]:
    """The files under a source root whose path says nothing of what they are for."""
    names = [path.relative_to(root).with_suffix("") for path in root.rglob("*.py")]
    return sorted(name.as_posix() for name in names if any(map(EMPTY_NAMES.search, name.parts)))


def test_modules_are_named_after_what_is_in_them() -> None:
    assert not vague(APP)


def test_a_big_file_and_a_big_function_are_found(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("x = 1\n" * (FILE_LINES + 1))
    (tmp_path / "just.py").write_text("x = 1\n" * FILE_LINES)
    method = 'class A:\n    async def f(self):\n        """One\n        two."""\n'
    (tmp_path / "deep.py").write_text(method + "        x = 1\n" * FUNCTION_LINES)
    (tmp_path / "fits.py").write_text('def f():\n    """One\n    two."""\n' + "    x = 1\n" * (FUNCTION_LINES - 1))
    assert too_big(tmp_path) == {"long.py": FILE_LINES + 1, "deep.py::A.f": FUNCTION_LINES + 1}


def test_vague_names_are_found(tmp_path: Path) -> None:
    names = ["utils.py", "http_utils.py", "helpers/rows.py", "run_manager.py", "service_layer.py", "service.py", "futile.py", "managed.py"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert vague(tmp_path) == ["helpers/rows", "http_utils", "run_manager", "service_layer", "utils"]
