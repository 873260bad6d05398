"""The audit says what it found, and what it could not look at."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Sequence
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from tests.audit.__main__ import FOUND, NOT_ALL, NOTHING, audited
from tests.audit.licences import is_known, licence_in, licences_of
from tests.audit.locked import LOCK, ROOT, Locked, locked
from tests.audit.vulnerabilities import vulnerabilities_of

PACKAGES = [package for package in locked(LOCK.read_text()) if package.here]


def test_the_whole_lock_is_read_and_the_services_part_of_it_is_known() -> None:
    pinned = locked(LOCK.read_text())
    assert len(pinned) == sum("==" in line and not line.startswith((" ", "#")) for line in LOCK.read_text().splitlines())
    serving = {package.name for package in pinned if package.serves}
    assert {"fastapi", "starlette", "greenlet", "openai", "cryptography"} <= serving
    assert serving.isdisjoint({"pytest", "mypy", "ruff", "schemathesis"})
    assert "colorama" not in {package.name for package in PACKAGES}, "it is for another system"


def test_every_package_states_a_licence_that_may_be_used() -> None:
    part = licences_of(PACKAGES)
    assert (part.found, part.unseen) == ([], [])
    assert sum(line.count(", ") + 1 for line in part.listed[1:]) == len(PACKAGES)


@pytest.mark.parametrize(
    ("headers", "said", "known"),
    [
        ([("License-Expression", "MIT OR Apache-2.0")], "MIT OR Apache-2.0", True),
        ([("License-Expression", "MPL-2.0 AND (Apache-2.0 OR MIT)")], "MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ([("License-Expression", "MIT OR GPL-3.0-only")], "MIT OR GPL-3.0-only", False),
        ([("Classifier", "License :: OSI Approved :: MIT License"), ("License", "GPL")], "MIT License", True),
        ([("Classifier", "License :: OSI Approved"), ("License", "BSD-3-Clause")], "BSD-3-Clause", True),
        ([("License", "MIT License\n\nCopyright (c) somebody")], "MIT License", True),
        ([("License", "mine")], "mine", False),
        ([("Classifier", "Programming Language :: Python")], "", False),
    ],
)
def test_a_licence_is_what_a_package_says(headers: Sequence[tuple[str, str]], said: str, known: bool) -> None:
    metadata: Any = Message()
    for name, value in headers:
        metadata[name] = value
    assert (licence_in(metadata), is_known(said)) == (said, known)


def test_what_is_not_installed_in_that_version_was_not_looked_at() -> None:
    part = licences_of([Locked(name="fastapi", version="0.0.1", serves=True, here=True)])
    assert part.found == [] and "fastapi 0.0.1" in part.unseen[0]


Tool = Callable[..., None]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Puts a pip-audit that prints this, and ends so, where programs are looked for first."""

    def put(answer: Any, code: int = 0, error: str = "") -> None:
        (tmp_path / "answer").write_text(answer if isinstance(answer, str) else json.dumps({"dependencies": answer}))
        (tmp_path / "error").write_text(error)
        program = tmp_path / "pip-audit"
        program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {tmp_path}/answer\ncat {tmp_path}/error >&2\nexit {code}\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return put


def answers(**vulnerable: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": each.name, "version": each.version, "vulns": vulnerable.get(each.name, [])} for each in PACKAGES]


def test_all_is_well(tool: Tool, tmp_path: Path) -> None:
    tool(answers())
    code, said = audited()
    assert code == NOTHING and not [line for line in said if line.startswith(("FOUND", "NOT LOOKED AT"))]
    assert f"{len(PACKAGES)} of {len(PACKAGES)} packages were looked up" in "\n".join(said)
    assert str(LOCK) in (tmp_path / "asked").read_text() and "--disable-pip" in (tmp_path / "asked").read_text()


def test_what_is_known_against_a_package_is_found(tool: Tool) -> None:
    tool(answers(starlette=[{"id": "CVE-1", "fix_versions": ["99.1"]}], pytest=[{"id": "CVE-2", "fix_versions": []}]), code=1)
    code, said = audited()
    found = [line for line in said if line.startswith("FOUND")]
    assert code == FOUND and len(found) == 2
    assert "(development): CVE-2, mended by nothing yet" in found[0] and "(service): CVE-1, mended by 99.1" in found[1]


def test_a_package_that_was_left_out_was_not_looked_at(tool: Tool) -> None:
    left = [each for each in answers() if each["name"] not in {"starlette", "h11"}]
    tool([*left, {"name": "starlette", "skip_reason": "not on the index"}, {"name": "h11", "version": "0.0.1", "vulns": []}])
    code, said = audited()
    unseen = [line for line in said if line.startswith("NOT LOOKED AT")]
    assert code == NOT_ALL and len(unseen) == 2 and "not on the index" in unseen[1] and "another version" in unseen[0]


@pytest.mark.parametrize(("answer", "error"), [("", "Traceback\nConnectionError: nobody there"), ("[]", ""), ("{}", ""), ("no", "")])
def test_a_service_that_was_not_reached_is_said_and_nothing_is_claimed(tool: Tool, answer: str, error: str) -> None:
    tool(answer, code=1, error=error)
    part = vulnerabilities_of(PACKAGES, LOCK)
    assert part.found == [] and len(part.unseen) == 1 and "none of the packages" in part.listed[0]
    assert "nobody there" in part.unseen[0] or not error


def test_without_the_tool_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    code, said = audited()
    assert code == NOT_ALL and "pip-audit is not installed" in said[-1] and "pipx install" in said[-1]


def test_the_audit_is_no_part_of_the_check() -> None:
    """It asks the network, and what it finds changes while nothing here does."""
    makefile = (ROOT / "Makefile").read_text()
    check = makefile.partition("\ncheck:")[2].partition("\n\n")[0]
    assert "tests.audit" in makefile and "audit" not in check and "audit" not in (ROOT / ".ci" / "run").read_text()
