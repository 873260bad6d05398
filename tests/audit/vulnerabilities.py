"""Known vulnerabilities, by pip-audit where that is installed. It asks a service on the network; nothing here knows any by itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.audit.locked import Locked, Part

TITLE: Final = "Known vulnerabilities:"
HOW: Final = "`pipx install pip-audit` or `uv tool install pip-audit`, then again"
OPTIONS: Final = ("--disable-pip", "--progress-spinner", "off", "--desc", "off", "--format", "json")
SECONDS: Final = 300


def vulnerabilities_of(packages: Sequence[Locked], lock: Path) -> Part:
    """What pip-audit says of each package of a lock. It is told which service to ask by its own variables (`PIP_AUDIT_…`)."""
    tool = shutil.which("pip-audit") or shutil.which("pip-audit", path=str(Path(sys.executable).parent))
    if tool is None:
        return _unseen(f"vulnerabilities: pip-audit is not installed ({HOW})")
    try:
        done = subprocess.run([tool, "--requirement", str(lock), *OPTIONS], capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return _unseen(f"vulnerabilities: pip-audit did not finish ({type(error).__name__})")
    try:
        answers = {answer["name"]: answer for answer in json.loads(done.stdout)["dependencies"]}
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return _unseen(f"vulnerabilities: pip-audit could not look them up, and ended with {done.returncode}: {last[:200]}")
    return _told(packages, answers)


def _told(packages: Sequence[Locked], answers: dict[str, Any]) -> Part:
    """What its answers say of the packages."""
    found, unseen, looked = [], [], 0
    for package in packages:
        answer = answers.get(package.name, {"skip_reason": "no answer"})
        if "skip_reason" in answer or answer.get("version") != package.version:
            unseen.append(f"vulnerabilities of {package.name} {package.version}: {answer.get('skip_reason', 'of another version')}")
            continue
        looked += 1
        for each in answer["vulns"]:
            fixed = ", ".join(each.get("fix_versions") or ()) or "nothing yet"
            found.append(f"{package.name} {package.version} ({package.whose}): {each['id']}, mended by {fixed}")
    return Part(listed=[f"{TITLE} {looked} of {len(packages)} packages were looked up."], found=found, unseen=unseen)


def _unseen(why: str) -> Part:
    return Part(listed=[f"{TITLE} none of the packages was looked up."], found=[], unseen=[why])
