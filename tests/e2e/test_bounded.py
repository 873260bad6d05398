"""docs/bounded.md keeps its word: its agent is served as it says, its commands print what it shows, and its code is strictly typed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import readme
from tests.e2e.programs import Program, clean_environment
from tests.support.servers import free_port

PAGE = readme.README.parent / "docs" / "bounded.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a newcomer has after copying the page's files."""
    section = readme.section("The agent", PAGE)
    (code,), (prices,) = readme.blocks(section, "python"), readme.blocks(section, "yaml")
    (tmp_path / "quotes.py").write_text(code)
    (tmp_path / "prices.yaml").write_text(prices)
    return tmp_path


def test_the_page_prints_what_it_shows(folder: Path) -> None:
    """Its commands in its order, against a service that is started as it says."""
    (start,) = readme.blocks(readme.section("The agent", PAGE), "sh")
    *variables, make, run = shlex.split(start)
    assert (make, run) == ("make", "run")
    settings = dict(variable.split("=", 1) for variable in variables)
    assert {(folder / name).exists() for name in settings.values()} == {True}
    program = Program(["serve"], {**clean_environment(), **settings, "RUNWARD_PORT": str(free_port())}, folder)
    try:
        url = program.hears("serving")["url"]
        wrong = [each for title in ("Typed and verified", "Bounded") for each in readme.differences(title, url, folder, PAGE)]
        assert wrong == [], "\n\n".join(wrong)
    finally:
        assert program.stop() == 0


@pytest.mark.timeout(300)
def test_its_code_is_strictly_typed(folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        f"--cache-dir={readme.README.parent / '.cache' / 'mypy-examples'}",
    ]
    done = subprocess.run([*command, "quotes.py"], cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
