"""The lock fits the project and can be used anywhere, and what is installed from a wheel is complete."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEPENDENCIES = PROJECT["project"]["dependencies"]
DEVELOPMENT = PROJECT["dependency-groups"]["dev"]


def test_the_lock_pins_everything_that_the_project_asks_for() -> None:
    wanted = [*DEPENDENCIES, *DEVELOPMENT, *PROJECT["build-system"]["requires"]]
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK, re.MULTILINE))
    unmet = [
        text
        for text in wanted
        if not (Requirement(text).specifier.contains(pinned.get(canonicalize_name(Requirement(text).name), "0"), prereleases=True))
    ]
    assert not unmet, "run `make lock`"


def test_the_lock_has_hashes_and_names_no_place() -> None:
    entries = re.split(r"^(?=[a-z0-9-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert entries
    assert [entry.split("\n")[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert re.findall(r"://|index-url|find-links|trusted-host|file:|^/|\s/", LOCK, re.MULTILINE) == []


def imported(*folders: str) -> set[str]:
    """The distributions that the modules of some folders import. A module that is not installed is nobody's."""
    known = packages_distributions()
    names = {
        name.split(".")[0] for folder in folders for file in (ROOT / folder).rglob("*.py") for name in imports(ast.parse(file.read_text()))
    }
    return {canonicalize_name(known[name][0]) for name in names & known.keys() - {"runward"}}


def imports(tree: ast.AST) -> Iterator[str]:
    """What a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def declared(requirements: Iterable[str]) -> Iterator[str]:
    """The distributions that requirements name: themselves, and what their extras stand for."""
    for requirement in map(Requirement, requirements):
        yield canonicalize_name(requirement.name)
        brought = map(Requirement, (requires(requirement.name) or ()) if requirement.extras else ())
        yield from (canonicalize_name(one.name) for one in brought if is_of_extras(one, requirement.extras))


def is_of_extras(requirement: Requirement, extras: set[str]) -> bool:
    """Whether a requirement is one of these extras of its package, and not of the package itself."""
    marker = requirement.marker
    return marker is not None and not marker.evaluate({"extra": ""}) and any(marker.evaluate({"extra": extra}) for extra in extras)


def test_everything_that_is_imported_is_asked_for() -> None:
    """Nothing is used that another package only happens to bring along."""
    assert imported("app", "migrations") - set(declared(DEPENDENCIES)) == set()
    assert imported("tests") - set(declared([*DEPENDENCIES, *DEVELOPMENT])) == set()


def test_everything_that_is_asked_for_is_imported() -> None:
    assert {canonicalize_name(Requirement(text).name) for text in DEPENDENCIES} - imported("app", "migrations") == set()


def test_every_dependency_has_its_reason() -> None:
    explained = set(re.findall(r"`([\w-]+)`", (ROOT / "docs" / "decisions.md").read_text()))
    names = {Requirement(text).name for text in (*DEPENDENCIES, *DEVELOPMENT)}
    assert names - explained == set(), "say in docs/decisions.md what it is for, and what came second"


def test_a_wheel_has_the_package_its_types_and_its_migrations(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    migrations = {path.relative_to(ROOT / "migrations").as_posix() for path in (ROOT / "migrations").rglob("*.py")}
    assert "env.py" in migrations
    assert {"runward/py.typed", "runward/__init__.py", *(f"runward/_migrations/{name}" for name in migrations)} <= names
    assert {name.split("/")[0].removesuffix(".dist-info").split("-")[0] for name in names} == {"runward"}
