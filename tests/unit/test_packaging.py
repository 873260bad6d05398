"""The lock fits the project and can be used anywhere, and what is installed from a wheel is complete."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text()


def test_the_lock_pins_everything_that_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"], *project["build-system"]["requires"]]
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
